"""The folder a LightXML lives in.

``manifest.json`` (format, parameters), ``network.safetensors`` (all weights, the clusters and the label order),
``encoder/`` (the encoder's config and the tokenizer, as transformers write them). An ensemble is a manifest and a
folder per member.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from xmc_fast._files import write_text
from xmc_fast.model import ModelFormatError
from xmc_fast.model._tensors import read_tensors, write_tensors
from xmc_fast.model.storage import MANIFEST, replace_folder
from xmc_fast.nn.tokens import Encoder

if TYPE_CHECKING:
    from xmc_fast.nn.lightxml import LightXML
    from xmc_fast.nn.lightxml_ensemble import LightXMLEnsemble

FORMAT = "xmc_fast.lightxml"
FORMAT_ENSEMBLE = "xmc_fast.lightxml_ensemble"
VERSION = 1
NETWORK = "network.safetensors"
PARAMETERS = (
    "mode",
    "max_leaf",
    "beam",
    "bottleneck",
    "layers",
    "dropout",
    "activation",
    "label_bias",
    "fan_in",
    "group_size",
    "negatives",
    "max_length",
    "epochs",
    "warmup_epochs",
    "cooldown_epochs",
    "batch_size",
    "lr",
    "head_lr",
    "weight_decay",
    "precision",
    "swa_start",
    "random_state",
)


def save(model: LightXML, directory: str | os.PathLike[str]) -> None:
    """Write a fitted model."""
    net = model.net_
    arrays = {name: t.detach().cpu().numpy() for name, t in net.state_dict().items()}
    arrays["order"] = model.order_
    manifest = {
        "format": FORMAT,
        "format_version": VERSION,
        "n_labels": model.n_labels_,
        "params": {name: getattr(model, name) for name in PARAMETERS},
        "rank_encoder": net.rank_encoder is not None,
        "history": model.history_,
    }
    with replace_folder(directory) as folder:
        net.encoder.config.save_pretrained(folder / "encoder")
        model.tokenizer_.save_pretrained(folder / "encoder")
        write_tensors(folder / NETWORK, arrays, {"format": FORMAT})
        write_text(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")


def load(cls: type[LightXML], directory: str | os.PathLike[str], device: str | torch.device) -> LightXML:
    """Open what `save` wrote; every byte of the weights is checked."""
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    folder = Path(directory)
    manifest = read_manifest(folder, FORMAT)
    arrays, _ = read_tensors(folder / NETWORK, map_file=False, verify=True)
    place = os.fspath(folder / "encoder")
    if not (folder / "encoder" / "config.json").is_file():
        raise ModelFormatError(f"{place}: the encoder's config.json is missing")
    config = AutoConfig.from_pretrained(place, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(place, local_files_only=True)
    encoder = Encoder(AutoModel.from_config(config).float(), tokenizer)  # type: ignore[no-untyped-call]
    model = cls(place, device=device, **manifest["params"])
    model.order_ = arrays.pop("order").astype(np.int32, copy=False)
    model.n_labels_ = int(manifest["n_labels"])
    model.tokenizer_ = tokenizer
    model.history_ = manifest["history"]
    state = {name: torch.from_numpy(array) for name, array in arrays.items()}
    net = model._build(encoder, state["offsets"])
    if manifest["rank_encoder"]:
        net.add_rank_encoder()
    try:
        net.load_state_dict(state)
    except RuntimeError as error:
        raise ModelFormatError(f"{folder / NETWORK}: does not fit its manifest: {error}") from None
    model.net_ = net.eval()
    return model


def read_manifest(folder: Path, expected: str) -> dict[str, Any]:
    """The manifest of a folder of that format."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelFormatError(f"{path}: file is missing (not a model folder?)") from None
    except ValueError as error:
        raise ModelFormatError(f"{path}: truncated or damaged, not JSON ({error})") from None
    if not isinstance(manifest, dict) or manifest.get("format") != expected:
        found = manifest.get("format") if isinstance(manifest, dict) else None
        raise ModelFormatError(f"{path}: format {expected!r} expected, got {found!r}")
    if manifest.get("format_version") != VERSION:
        version = manifest.get("format_version")
        raise ModelFormatError(f"{path}: format version {version}, this package reads {VERSION}")
    return manifest


def save_ensemble(ensemble: LightXMLEnsemble, directory: str | os.PathLike[str]) -> None:
    """Write the members as folders ``0``, ``1``, ..."""
    manifest = {"format": FORMAT_ENSEMBLE, "format_version": VERSION, "members": len(ensemble.members)}
    manifest["depth"] = ensemble.depth
    with replace_folder(directory) as folder:
        for i, member in enumerate(ensemble.members):
            member.save(folder / str(i))
        write_text(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")


def read_ensemble(folder: Path) -> tuple[list[Path], int]:
    """The members' folders and the depth."""
    manifest = read_manifest(folder, FORMAT_ENSEMBLE)
    return [folder / str(i) for i in range(manifest["members"])], int(manifest["depth"])
