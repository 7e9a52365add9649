"""A network in a folder: ``weights.safetensors`` and ``manifest.json``, no pickle, the same bytes every time."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xmc_fast._files import write_text
from xmc_fast.model._tensors import ModelFormatError, read_tensors, write_tensors
from xmc_fast.model.storage import MANIFEST, replace_folder

WEIGHTS = "weights.safetensors"
VERSION = 1


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
    text = {"format": kind, "format_version": VERSION, **manifest, "dtypes": dtypes}
    with replace_folder(directory) as folder:
        write_tensors(folder / WEIGHTS, arrays, {"format": kind})
        if more is not None:
            more(folder)
        write_text(folder / MANIFEST, json.dumps(text, indent=1, allow_nan=False) + "\n")


def load_folder(directory: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Manifest and tensors of a folder that `save_folder` wrote, every byte checked."""
    path = Path(directory) / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelFormatError(f"{path}: file is missing (not a model folder?)") from None
    except ValueError as error:
        raise ModelFormatError(f"{path}: truncated or damaged, not JSON ({error})") from None
    if not isinstance(manifest, dict) or manifest.get("format") != kind:
        raise ModelFormatError(f"{path}: not a model of format {kind!r}")
    if manifest.get("format_version") != VERSION:
        raise ModelFormatError(
            f"{path}: format version {manifest.get('format_version')}, this package reads {VERSION}"
        )
    arrays, _ = read_tensors(Path(directory) / WEIGHTS, map_file=False, verify=True)
    tensors = {}
    for name, array in arrays.items():
        t = torch.from_numpy(np.array(array))
        dtype = getattr(torch, manifest["dtypes"][name])
        tensors[name] = t.view(dtype) if dtype == torch.bfloat16 else t.to(dtype)
    return manifest, tensors
