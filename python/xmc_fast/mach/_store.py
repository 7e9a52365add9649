"""Folders of a Mach model: a manifest (parameters) and one model folder per repetition.

A checkpoint has ``mach.json`` instead of the manifest, with the fingerprint of its data.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from xmc_fast import _folder, _validate
from xmc_fast._files import remove_leftovers, write_text

KIND = "mach"
_CHECKPOINT = "mach.json"
_FORMAT = 1
_PARAMETERS = ("n_buckets", "n_repeats", "aggregate", "outputs", "random_state")


def repeat_path(folder: Path, repeat: int) -> Path:
    """Where a repetition's model is."""
    return _folder.part_of(folder, f"repeat_{repeat:04d}")


def fingerprint(X: Any, y: sp.csr_matrix) -> str:
    """A hash of the bytes of the training data: a checkpoint is of these data only."""
    x: Any = X.tocsr() if sp.issparse(X) else np.asarray(X)
    parts = {"indptr": x.indptr, "indices": x.indices, "data": x.data} if sp.issparse(X) else {"x": x}
    sizes = np.array([*X.shape, *y.shape])
    return _validate.fingerprint({**parts, "y_indptr": y.indptr, "y_indices": y.indices, "sizes": sizes})


def open_folder(folder: Path, settings: dict[str, Any], data: str) -> None:
    """Make the folder of a checkpoint, or see that it is of the same model and data."""
    fit = {"format": _FORMAT, **settings, "data": data}
    if _folder.check_same_fit(folder / _CHECKPOINT, fit):
        return
    if folder.is_dir():
        remove_leftovers(folder, _CHECKPOINT)  # of a fit that was killed as it wrote its first file
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} exists and is not a Mach checkpoint: it is not overwritten")
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / _CHECKPOINT, json.dumps(fit, indent=1) + "\n")


@contextlib.contextmanager
def new_folder(target: Path, settings: dict[str, Any]) -> Iterator[Path]:
    """A folder that takes the place of ``target``, with the manifest, on success."""
    with _folder.replace_folder(target) as folder:
        yield folder
        _folder.write_manifest(folder, KIND, settings)


def read_settings(folder: Path) -> tuple[dict[str, Any], int, int]:
    """The estimator's parameters (without the base), n_labels and n_features."""
    sizes = ("n_labels", "n_features", "n_buckets", "n_repeats")
    settings = _folder.read_manifest(folder, KIND, required=sizes)
    _folder.count(settings["n_labels"], "n_labels", 0, _folder.MOST_LABELS)
    _folder.count(settings["n_features"], "n_features")
    _folder.count(settings["n_buckets"], "n_buckets", 1, 65536)
    _folder.count(settings["n_repeats"], "n_repeats", 1, 256)
    seed = settings.get("random_state", 0)
    if type(seed) is not int:
        raise _folder.ModelFormatError(f"damaged, random_state must be an integer, got {seed!r}")
    parameters = {name: settings[name] for name in _PARAMETERS if name in settings}
    return parameters, settings["n_labels"], settings["n_features"]
