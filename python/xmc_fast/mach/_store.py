"""Folders of a Mach model: mach.json (parameters, fingerprint of the data) and one folder per repetition."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from xmc_fast._files import write_text

_MANIFEST = "mach.json"
_FORMAT = 1
_NOT_PARAMETERS = ("format", "n_labels", "n_features", "base", "data")


def repeat_path(folder: Path, repeat: int) -> Path:
    """Where a repetition's model is."""
    return folder / f"repeat_{repeat:04d}"


def fingerprint(X: Any, y: sp.csr_matrix) -> str:
    """A hash of the bytes of the training data: a checkpoint is of these data only."""
    digest = hashlib.blake2b(digest_size=16)
    if sp.issparse(X):
        x = X.tocsr()
        arrays = [x.indptr, x.indices, x.data]
    else:
        arrays = [np.asarray(X)]
    for array in (*arrays, y.indptr, y.indices):
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    digest.update(repr((tuple(X.shape), tuple(y.shape))).encode())
    return digest.hexdigest()


def open_folder(folder: Path, settings: dict[str, Any], data: str) -> None:
    """Make the folder of a checkpoint, or see that it is of the same model and data."""
    wanted = {"format": _FORMAT, **settings, "data": data}
    path = folder / _MANIFEST
    if path.is_file():
        old = json.loads(path.read_text(encoding="utf-8"))
        for name, value in wanted.items():
            if old.get(name) != value:
                raise ValueError(
                    f"{folder} is of another fit: {name} is {old.get(name)!r} there, {value!r} here"
                )
        return
    _refuse_foreign(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(wanted, indent=1) + "\n")


@contextlib.contextmanager
def new_folder(target: Path, settings: dict[str, Any]) -> Iterator[Path]:
    """A folder beside ``target`` with the manifest, put in its place when the block ends well."""
    _refuse_foreign(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
        folder = Path(scratch) / "new"
        open_folder(folder, settings, "")
        yield folder
        if target.is_dir():
            os.rename(target, Path(scratch) / "old")
        os.rename(folder, target)


def read_settings(folder: Path) -> tuple[dict[str, Any], int, int]:
    """The estimator's parameters (without the base), n_labels and n_features."""
    path = folder / _MANIFEST
    if not path.is_file():
        raise ValueError(f"{folder} is not a Mach model: {_MANIFEST} is missing")
    settings = json.loads(path.read_text(encoding="utf-8"))
    if settings["format"] != _FORMAT:
        raise ValueError(f"{path} has a format this version does not know")
    parameters = {name: value for name, value in settings.items() if name not in _NOT_PARAMETERS}
    return parameters, settings["n_labels"], settings["n_features"]


def _refuse_foreign(folder: Path) -> None:
    if (
        folder.exists()
        and not (folder / _MANIFEST).is_file()
        and (not folder.is_dir() or any(folder.iterdir()))
    ):
        raise ValueError(f"{folder} exists and is not a Mach model: it is not overwritten")
