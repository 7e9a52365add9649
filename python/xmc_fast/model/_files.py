"""A model as a folder: which files it has, and opening them (docs/howto/file_format.md)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from xmc_fast import _folder
from xmc_fast._folder import ModelFormatError
from xmc_fast.model import _storage
from xmc_fast.model._calibrate import read_calibration, write_calibration
from xmc_fast.model._names import ROLES, write_names
from xmc_fast.model._packed import Packed, read_packed, write_packed

PACKED_FILE = "packed.safetensors"


def write_model(
    model: Any, folder: Path, *, feature_names: Any = None, files: dict[str, str] | None = None, kind: str
) -> None:
    """Write a `SparseModel`'s files into an existing folder, the manifest last."""
    weights = model.weights
    small = isinstance(weights, Packed)
    if small:
        write_packed(folder / PACKED_FILE, weights)
    else:
        for index, block in enumerate(weights):
            _storage.write_block(folder, index, block.first_label, block)
    files = dict(files or {})
    given = {"feature_names": feature_names}
    for role in ROLES:
        names = getattr(model, role) if given.get(role) is None else given[role]
        if names is not None:
            files[role] = write_names(folder, role, names, small=small)
    if model.calibration is not None:
        files["calibration"] = "calibration.safetensors"
        write_calibration(folder / files["calibration"], model.calibration)
    common = {"bias": model.bias, "normalize": model.normalize, "params": model.params}
    if small:
        _storage.write_packed_manifest(folder, weights, PACKED_FILE, **common, files=files, kind=kind)
    else:
        shape = {"n_columns": model.n_columns, "n_labels": model.n_labels}
        _storage.write_manifest(folder, **common, **shape, files=files, kind=kind)


def load_model(cls: Any, directory: str | os.PathLike[str], *, mmap: bool, verify: bool) -> Any:
    """Open what `write_model` wrote, or a folder of an earlier version."""
    folder = Path(directory)
    manifest = _storage.read_manifest(folder)
    weights: Any
    if "packed" in manifest:
        path = folder / manifest["packed"]["file"]
        weights, metadata = read_packed(path, mmap=mmap, verify=verify)
        if verify and metadata.get("crc32") != manifest["packed"].get("crc32"):
            raise ModelFormatError(f"{path}: damaged, checksum differs from the manifest")
    else:
        weights = _storage.read_blocks(folder, manifest, mmap=mmap, verify=verify)
    files = manifest["files"]
    try:
        model = cls(
            weights, bias=manifest["bias"], normalize=manifest["normalize"], params=manifest["params"]
        )
        if "calibration" in files:
            model.calibration = read_calibration(folder / files["calibration"])
    except ModelFormatError:
        raise
    except (TypeError, ValueError) as error:
        raise ModelFormatError(f"{folder / _folder.MANIFEST}: damaged, {error}") from None
    model.folder = folder.absolute()
    for name in ("n_labels", "n_features"):
        if getattr(model, name) != manifest[name]:
            raise ModelFormatError(
                f"{folder / _folder.MANIFEST}: damaged, {name} is {manifest[name]},"
                f" the weights have {getattr(model, name)}"
            )
    for role in ROLES:
        if role in files:
            model.set_names_file(role, folder / files[role])
    return model
