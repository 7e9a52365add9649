"""LightXML on the command line: its options for ``train``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from xmc_fast.cli._common import UsageError
from xmc_fast.cli._inputs import joined, labels_of
from xmc_fast.cli._parameters import add_parameters, given

if TYPE_CHECKING:
    from xmc_fast.data import Dataset

ESTIMATOR = "nn.LightXML"
TRAINER = {
    "max_leaf": "most labels of a cluster (the paper: 60 to 80)",
    "beam": "clusters whose labels are ranked",
    "epochs": "passes over the texts",
    "batch_size": "texts per step",
    "lr": "learning rate of the encoder",
    "precision": "fp32, bf16 or fp16",
    "swa_start": "average the weights from this epoch on; auto: in the second half of long runs",
    "frozen_layers": "lower layers of the encoder that stay as they are and are computed once",
    "lora": "train additions of this rank to the encoder instead of its weights",
    "layer_cache": "keep what the frozen layers give in this folder",
    "token_cache": "keep the tokens of the texts in this folder",
    "device": '"cpu", "cuda", ...; auto is CUDA if there is one',
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``--model lightxml``."""
    group = parser.add_argument_group("LightXML (--model lightxml)")
    names = ("encoder", "mode", "bottleneck", "max_length", "warmup_epochs", "cooldown_epochs", "head_lr")
    add_parameters(group, ESTIMATOR, *names, *TRAINER, text=TRAINER)


def train(args: argparse.Namespace, data: Dataset, folder: str) -> tuple[Any, dict[str, Any]]:
    """Fit and save."""
    from xmc_fast.nn._lightxml import LightXML
    from xmc_fast.texts._labels import encode

    if data.texts is None:
        raise UsageError(
            "--model lightxml takes raw text: xmc-fast train --model lightxml TEXTS LABELS MODEL"
        )
    if not hasattr(args, "encoder"):
        raise UsageError("--model lightxml needs --encoder, a pretrained transformer")
    model = LightXML(**given(args, ESTIMATOR), n_jobs=args.threads)
    found = encode(labels_of(data))
    names = found.names if found.by_name else None
    model.fit(joined(data), found.Y, label_names=names, checkpoint=args.checkpoint)
    model.save(folder)
    facts = {
        "labels": model.n_labels_,
        "clusters": len(model.net_.offsets) - 1,
        "loss": model.history_[-1]["loss"],
    }
    return model, facts
