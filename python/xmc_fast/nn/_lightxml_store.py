"""The folder a LightXML lives in.

``manifest.json`` (format, parameters), ``network.safetensors`` (all weights, the clusters and the label order),
``label_names.json`` (if there are names), ``encoder/`` (the encoder's config and the tokenizer, as transformers write
them). An ensemble is a manifest and a folder per member.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from xmc_fast._folder import (
    ModelFormatError,
    count,
    file_in,
    opening,
    part_of,
    read_manifest,
    replace_folder,
    write_manifest,
)
from xmc_fast.model._names import read_names, write_names
from xmc_fast.model._tensors import read_tensors, write_tensors
from xmc_fast.nn._folder import check_ids, check_network, check_room
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
    "pooling",
    "head_start",
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
    "rank_weight",
    "frozen_layers",
    "lora",
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
        if model.label_names_ is not None:
            manifest["label_names"] = write_names(folder, "label_names", model.label_names_, small=False)
        net.encoder.config.save_pretrained(folder / "encoder")
        model.tokenizer_.save_pretrained(folder / "encoder")
        write_tensors(folder / NETWORK, arrays, {"format": KIND})
        write_manifest(folder, KIND, manifest)


@opening
def load(cls: type[LightXML], directory: str | os.PathLike[str], device: str | torch.device) -> LightXML:
    """Open what `save` wrote; every byte of the weights is checked."""
    from transformers import AutoConfig, AutoTokenizer

    folder = Path(directory)
    needed = ("params", "n_labels", "rank_encoder", "history")
    manifest = read_manifest(folder, KIND, required=needed)
    arrays, _ = read_tensors(file_in(folder, NETWORK), map_file=False, verify=True)
    place = os.fspath(part_of(folder, "encoder"))
    if not file_in(folder, "encoder/config.json").is_file():
        raise ModelFormatError(f"{place}: the encoder's config.json is missing")
    model = cls(place, device=device, **manifest["params"])
    model.n_labels_ = int(manifest["n_labels"])
    for name in ("beam", "bottleneck", "layers", "group_size", "batch_size", "max_length"):
        if name != "beam" or model.beam is not None:
            count(getattr(model, name), name, 1)
    if model.pooling not in ("cls", "mean"):
        raise ModelFormatError(f"damaged, pooling must be cls or mean, got {model.pooling!r}")
    order = arrays.pop("order")
    state = {name: torch.from_numpy(array) for name, array in arrays.items()}
    check_ids(order, model.n_labels_, "order", size=model.n_labels_)
    check_offsets(state["offsets"], model.n_labels_)
    check_room(state, model.n_labels_, model.bottleneck if model.n_labels_ else 0)
    local: dict[str, bool] = {"local_files_only": True, "trust_remote_code": False}
    config = AutoConfig.from_pretrained(place, **local)
    tokenizer = AutoTokenizer.from_pretrained(place, **local)
    encoder = Encoder(_encoder(config, state), tokenizer)
    if (limit := encoder.max_length) is not None:
        count(limit, "model_max_length", 3)
    model.order_ = order.astype(np.int32, copy=False)
    model.tokenizer_ = tokenizer
    model.history_ = manifest["history"]
    if "label_names" in manifest:
        path = file_in(folder, str(manifest["label_names"]))
        model.label_names_ = read_names(path, "label_names", model.n_labels_)
    net = model._build(encoder, state["offsets"])
    if manifest["rank_encoder"]:
        net.add_rank_encoder()
    try:
        net.load_state_dict(state)
    except RuntimeError as error:
        raise ModelFormatError(f"{folder / NETWORK}: does not fit its manifest: {error}") from None
    check_network(net)
    model.net_ = net.eval()
    return model


def check_offsets(offsets: torch.Tensor, n_labels: int) -> None:
    """Clusters that hold each of the labels once."""
    right = offsets.dtype == torch.int64 and offsets.dim() == 1 and len(offsets) > 1
    if not right or offsets[0] != 0 or offsets[-1] != n_labels or bool((offsets.diff() < 0).any()):
        raise ModelFormatError(f"damaged, offsets must rise from 0 to {n_labels}")


def _encoder(config: Any, state: dict[str, torch.Tensor]) -> Any:
    """The encoder of a configuration, if its weights are those of the file: found out without making it."""
    from transformers import AutoModel

    count(config.num_hidden_layers, "num_hidden_layers", 0, len(state))
    with torch.device("meta"):
        planned = AutoModel.from_config(config, trust_remote_code=False)  # type: ignore[no-untyped-call]
    for name, weight in planned.state_dict().items():
        found = state.get(f"encoder.{name}")
        if found is None or found.shape != weight.shape:
            shape = None if found is None else tuple(found.shape)
            raise ModelFormatError(
                f"damaged, encoder.{name} has shape {shape}, expected {tuple(weight.shape)}"
            )
    return AutoModel.from_config(config, trust_remote_code=False).float()  # type: ignore[no-untyped-call]


def save_ensemble(ensemble: LightXMLEnsemble, directory: str | os.PathLike[str]) -> None:
    """Write the members as folders ``0``, ``1``, ..."""
    with replace_folder(directory) as folder:
        for i, member in enumerate(ensemble.members):
            member.save(folder / str(i))
        facts = {"members": len(ensemble.members), "depth": ensemble.depth}
        write_manifest(folder, KIND_ENSEMBLE, facts)


def read_ensemble(folder: Path) -> tuple[list[Path], int]:
    """The members' folders and the depth."""
    manifest = read_manifest(folder, KIND_ENSEMBLE, required=("members", "depth"))
    count(manifest["members"], "members", 1, 10_000)
    count(manifest["depth"], "depth", 1)
    return [part_of(folder, str(i)) for i in range(manifest["members"])], int(manifest["depth"])
