"""The folder a LightXML lives in.

``manifest.json`` (format, parameters), ``network.safetensors`` (all weights, the clusters and the label order),
``encoder/`` (the encoder's config and the tokenizer, as transformers write them). An ensemble is a manifest and a
folder per member.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from xmc_fast._folder import ModelFormatError, read_manifest, replace_folder, write_manifest
from xmc_fast.model._tensors import read_tensors, write_tensors
from xmc_fast.nn.tokens import Encoder

if TYPE_CHECKING:
    from xmc_fast.nn._lightxml import LightXML
    from xmc_fast.nn._lightxml_ensemble import LightXMLEnsemble

KIND = "lightxml"
KIND_ENSEMBLE = "lightxml_ensemble"
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
        "n_labels": model.n_labels_,
        "params": {name: getattr(model, name) for name in PARAMETERS},
        "rank_encoder": net.rank_encoder is not None,
        "history": model.history_,
    }
    with replace_folder(directory) as folder:
        net.encoder.config.save_pretrained(folder / "encoder")
        model.tokenizer_.save_pretrained(folder / "encoder")
        write_tensors(folder / NETWORK, arrays, {"format": KIND})
        write_manifest(folder, KIND, manifest)


def load(cls: type[LightXML], directory: str | os.PathLike[str], device: str | torch.device) -> LightXML:
    """Open what `save` wrote; every byte of the weights is checked."""
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    folder = Path(directory)
    manifest = read_manifest(folder, KIND)
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


def save_ensemble(ensemble: LightXMLEnsemble, directory: str | os.PathLike[str]) -> None:
    """Write the members as folders ``0``, ``1``, ..."""
    with replace_folder(directory) as folder:
        for i, member in enumerate(ensemble.members):
            member.save(folder / str(i))
        facts = {"members": len(ensemble.members), "depth": ensemble.depth}
        write_manifest(folder, KIND_ENSEMBLE, facts)


def read_ensemble(folder: Path) -> tuple[list[Path], int]:
    """The members' folders and the depth."""
    manifest = read_manifest(folder, KIND_ENSEMBLE)
    return [folder / str(i) for i in range(manifest["members"])], int(manifest["depth"])
