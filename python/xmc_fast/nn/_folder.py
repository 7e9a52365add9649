"""A network in a folder: ``weights.safetensors`` and ``manifest.json``, no pickle, the same bytes every time."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xmc_fast._folder import read_manifest, replace_folder, write_manifest
from xmc_fast.model._tensors import read_tensors, write_tensors

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
    arrays, _ = read_tensors(Path(directory) / WEIGHTS, map_file=False, verify=True)
    tensors = {}
    for name, array in arrays.items():
        t = torch.from_numpy(np.array(array))
        dtype = getattr(torch, manifest["dtypes"][name])
        tensors[name] = t.view(dtype) if dtype == torch.bfloat16 else t.to(dtype)
    return manifest, tensors
