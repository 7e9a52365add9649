"""A network in a folder: ``weights.safetensors`` and ``manifest.json``, no pickle, the same bytes every time."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from xmc_fast._folder import ModelFormatError, file_in, read_manifest, replace_folder, write_manifest
from xmc_fast.model._tensors import read_tensors, write_tensors
from xmc_fast.nn._fanin_args import feature_ids
from xmc_fast.nn.fanin import DenseHeadSparseTail, FixedFanInLinear

WEIGHTS = "weights.safetensors"


def save_folder(
    directory: str | os.PathLike[str],
    kind: str,
    manifest: dict[str, Any],
    tensors: dict[str, Tensor],
    more: Callable[[Path], None] | None = None,
) -> None:
    """Write tensors (CPU or not), a JSON manifest, and what ``more`` puts there.

    An existing model folder is replaced as a whole.
    """
    arrays, dtypes = {}, {}
    for name, tensor in tensors.items():
        t = tensor.detach().cpu().contiguous()
        dtypes[name] = str(t.dtype).removeprefix("torch.")
        if t.dtype in (torch.bfloat16, torch.bool):  # numpy or the format has none
            t = t.view(torch.uint16) if t.dtype == torch.bfloat16 else t.to(torch.uint8)
        arrays[name] = t.numpy()
    with replace_folder(directory) as folder:
        write_tensors(folder / WEIGHTS, arrays, {"format": kind})
        if more is not None:
            more(folder)
        write_manifest(folder, kind, {**manifest, "dtypes": dtypes})


def load_folder(directory: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Manifest and tensors of a folder that `save_folder` wrote, every byte checked."""
    manifest = read_manifest(directory, kind, required=("dtypes",))
    arrays, _ = read_tensors(file_in(Path(directory), WEIGHTS), map_file=False, verify=True)
    tensors = {}
    for name, array in arrays.items():
        t = torch.from_numpy(np.array(array))
        dtype = getattr(torch, manifest["dtypes"][name], None)
        if not isinstance(dtype, torch.dtype) or (dtype == torch.bfloat16 and array.dtype.itemsize != 2):
            raise ModelFormatError(f"damaged, {name} cannot be {manifest['dtypes'][name]!r}")
        tensors[name] = t.view(dtype) if dtype == torch.bfloat16 else t.to(dtype)
    return manifest, tensors


def check_room(tensors: dict[str, Tensor], *sizes: int | None) -> None:
    """Layers of these sizes (of their weights) have to come out of a file: it must hold so many numbers."""
    most = sum(tensor.numel() for tensor in tensors.values())
    for size in sizes:
        if size is not None and not 0 <= size <= most:
            raise ModelFormatError(f"damaged, a layer of {size} weights in a file of {most} numbers")


def check_ids(ids: Any, n: int, name: str, *, size: int | None = None) -> None:
    """Ids that a prediction will look up, all in 0..n - 1, ``size`` of them if given."""
    ids = np.asarray(ids)
    if ids.ndim != 1 or ids.dtype.kind != "i" or (size is not None and len(ids) != size):
        raise ModelFormatError(f"damaged, {name} is {ids.dtype} of shape {ids.shape}, expected ({size},)")
    if len(ids) and not 0 <= ids.min() <= ids.max() < n:
        raise ModelFormatError(f"damaged, {name} must be in 0..{n - 1}, got {ids.min()}..{ids.max()}")


def check_network(network: nn.Module) -> None:
    """What the layers of a loaded network will take for places: connections, the labels of a head and a tail."""
    for name, layer in network.named_modules():
        if isinstance(layer, FixedFanInLinear):
            check_ids(feature_ids(layer.indices).flatten(), layer.in_features, f"{name}.indices")
        elif isinstance(layer, DenseHeadSparseTail):
            n = layer.out_features
            both = torch.cat([layer.head_labels, layer.tail_labels])
            check_ids(both, n, f"{name}'s labels", size=n)
            check_ids(layer.position, n, f"{name}.position", size=n)
