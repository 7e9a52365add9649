"""LightXML on the command line: its options for ``train``, and opening its folders."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from xmc_fast.cli._common import Output, thousands
from xmc_fast.cli._load import Loaded


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``--model lightxml``."""
    group = parser.add_argument_group("LightXML (--model lightxml)")
    group.add_argument(
        "--encoder", metavar="DIR", help="folder (or hub name) of a pretrained transformer and its tokenizer"
    )
    group.add_argument("--mode", choices=("auto", "flat", "clusters"), default="auto")
    group.add_argument(
        "--max-leaf", type=int, default=80, help="most labels of a cluster (default 80; the paper: 60 to 80)"
    )
    group.add_argument("--beam", type=int, default=10, help="clusters whose labels are ranked (default 10)")
    group.add_argument("--bottleneck", type=int, default=400, help="dims of label embeddings (default 400)")
    group.add_argument(
        "--max-length", type=int, default=128, help="tokens per text, longer ones are cut (default 128)"
    )
    group.add_argument("--epochs", type=int, default=10, help="(default 10)")
    group.add_argument(
        "--warmup-epochs",
        type=int,
        default=0,
        help="epochs of the heads alone before, on the frozen encoder (default 0)",
    )
    group.add_argument(
        "--cooldown-epochs",
        type=int,
        default=0,
        help="epochs of the heads alone at the end, on the trained encoder (default 0)",
    )
    group.add_argument("--batch-size", type=int, default=16, help="(default 16)")
    group.add_argument("--lr", type=float, default=1e-4, help="learning rate of the encoder (default 1e-4)")
    group.add_argument("--head-lr", type=float, help="learning rate of everything else (default: --lr)")
    group.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default="fp32")
    group.add_argument(
        "--swa-start", type=int, metavar="EPOCH", help="average the weights from this epoch on"
    )
    group.add_argument("--token-cache", metavar="DIR", help="keep the tokens of the texts there")
    group.add_argument("--device", default="auto", help='"cpu", "cuda", ... (default: CUDA if there is one)')


def train(args: argparse.Namespace, loaded: Loaded, folder: str) -> Output:
    """Fit and save."""
    from xmc_fast.nn import LightXML

    if loaded.texts is None:
        raise ValueError(
            "--model lightxml takes raw text: xmc-fast train --model lightxml TEXTS LABELS MODEL"
        )
    if args.encoder is None:
        raise ValueError("--model lightxml needs --encoder, a pretrained transformer")
    model = LightXML(
        args.encoder,
        mode=args.mode,
        max_leaf=args.max_leaf,
        beam=args.beam,
        bottleneck=args.bottleneck,
        max_length=args.max_length,
        epochs=args.epochs,
        warmup_epochs=args.warmup_epochs,
        cooldown_epochs=args.cooldown_epochs,
        batch_size=args.batch_size,
        lr=args.lr,
        head_lr=args.head_lr,
        precision=args.precision,
        swa_start=args.swa_start,
        token_cache=args.token_cache,
        device=args.device,
        random_state=args.seed,
        n_jobs=args.threads,
    )
    start = time.perf_counter()
    model.fit(loaded.texts, loaded.Y, checkpoint=args.checkpoint)
    model.save(folder)
    seconds = time.perf_counter() - start
    facts = {
        "labels": model.n_labels_,
        "clusters": len(model.net_.offsets) - 1,
        "loss": model.history_[-1]["loss"],
        "seconds": seconds,
        "model": folder,
    }
    text = (
        f"{thousands(model.n_labels_)} labels in {thousands(facts['clusters'])} clusters,"
        f" loss {facts['loss']:.4g} after {args.epochs} epochs, {seconds:.1f} s -> {folder}"
    )
    return Output(text, facts)


def is_folder(folder: str) -> bool:
    """Whether a model folder holds a LightXML or an ensemble of them."""
    try:
        manifest = json.loads((Path(folder) / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False  # the general reader says what is wrong with it
    return isinstance(manifest, dict) and str(manifest.get("format", "")).startswith("xmc_fast.lightxml")


def info(folder: str) -> Output:
    """What a folder says of itself, without opening the encoder."""
    facts = json.loads((Path(folder) / "manifest.json").read_text(encoding="utf-8"))
    facts.pop("history", None)
    params = facts.pop("params", {})
    lines = [f"{key:<20} {value}" for key, value in facts.items()]
    lines += ["trained with:", *(f"{key:<20} {value}" for key, value in params.items())] if params else []
    return Output("\n".join(lines), {**facts, "params": params})


def load(folder: str) -> Any:
    """Open a folder of either kind."""
    from xmc_fast.nn import LightXML, LightXMLEnsemble

    manifest = json.loads((Path(folder) / "manifest.json").read_text(encoding="utf-8"))
    kind = LightXMLEnsemble if manifest["format"].endswith("_ensemble") else LightXML
    return kind.load(folder)
