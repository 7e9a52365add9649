"""A model as a folder: which files it has, and opening them (docs/howto/file_format.md)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from xmc_fast import _folder
from xmc_fast._folder import ModelFormatError
from xmc_fast.model import _storage
from xmc_fast.model._calibrate import read_calibration, write_calibration
from xmc_fast.model._layout import StoredLayout, read_layout, store_layout, write_layout
from xmc_fast.model._names import ROLES, write_names
from xmc_fast.model._near import read_near, write_near
from xmc_fast.model._packed import Packed, read_packed, write_packed


def write_model(
    model: Any,
    folder: Path,
    *,
    feature_names: Any = None,
    files: dict[str, str] | None = None,
    kind: str,
    by_label: bool = False,
) -> None:
    """Write a `SparseModel`'s files into an existing folder, the manifest last."""
    weights = model.weights
    small = isinstance(weights, Packed)
    if by_label and not small:
        weights = model.blocks
    elif isinstance(weights, list) and model.dtype == np.float32:
        weights = store_layout(model.blocks, model.n_labels, model.n_columns, model._layout)
    if isinstance(weights, Packed):
        write_packed(folder / "packed.safetensors", weights)
    elif isinstance(weights, StoredLayout):
        write_layout(folder / "layout.safetensors", weights)
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
    if model.near_index is not None and isinstance(weights, StoredLayout):
        files["near"] = "near.safetensors"
        write_near(folder / files["near"], model.near_index)
    common = {"bias": model.bias, "normalize": model.normalize, "params": model.params}
    if not isinstance(weights, list):
        form = "packed" if small else "layout"
        _storage.write_one_file_manifest(folder, weights, form, **common, files=files, kind=kind)
    else:
        shape = {"n_columns": model.n_columns, "n_labels": model.n_labels}
        _storage.write_manifest(folder, **common, **shape, files=files, kind=kind)


def load_model(cls: Any, directory: str | os.PathLike[str], *, mmap: bool, verify: bool) -> Any:
    """Open what `write_model` wrote, or a folder of an earlier version."""
    folder = Path(directory)
    manifest = _storage.read_manifest(folder)
    weights: Any
    form = next((form for form in _storage.ONE_FILE if form in manifest), None)
    if form is None:
        weights = _storage.read_blocks(folder, manifest, mmap=mmap, verify=verify)
    else:
        path, options = folder / manifest[form]["file"], {"mmap": mmap, "verify": verify}
        if form == "packed":
            weights, metadata = read_packed(path, **options)
        else:
            weights, metadata = read_layout(path, manifest[form].get("ends"), **options)
        if verify and metadata.get("crc32") != manifest[form].get("crc32"):
            raise ModelFormatError(f"{path}: damaged, checksum differs from the manifest")
    files = manifest["files"]
    try:
        model = cls(
            weights, bias=manifest["bias"], normalize=manifest["normalize"], params=manifest["params"]
        )
        if "calibration" in files:
            model.calibration = read_calibration(folder / files["calibration"])
        if "near" in files and form == "layout":
            model.near_index = read_near(folder / files["near"], model, mmap=mmap, verify=verify)
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
