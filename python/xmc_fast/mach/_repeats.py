"""One repetition: the base estimator made, its scores, stored and loaded."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import clone

from xmc_fast import _core
from xmc_fast._folder import replace_folder
from xmc_fast._validate import features, to_scipy
from xmc_fast.model import ModelFormatError, SparseModel

# Named bases: module and class, imported on first use.
_BASES = {
    "linear": ("xmc_fast.linear", "OneVsAll"),
    "network": ("xmc_fast.nn._bucket_network", "BucketNetwork"),
}
_DENSE_BYTES = 256 << 20


def new_base(base: Any, repeat: int) -> Any:
    """An unfitted base for a repetition; one whose ``seeded`` is true gets a seed of its own."""
    if isinstance(base, str):
        if base not in _BASES:
            raise ValueError(f"base must be an estimator or one of {', '.join(_BASES)}, got {base!r}")
        module, name = _BASES[base]
        model = getattr(importlib.import_module(module), name)()
    else:
        model = clone(base)
    if getattr(model, "seeded", False):
        model.set_params(random_state=model.get_params()["random_state"] + repeat)
    return model


def fitted(model: Any) -> Any:
    """What is kept of a fitted base: its SparseModel if it has one."""
    own = getattr(model, "model_", None)
    return own if isinstance(own, SparseModel) else model


def storable(model: Any) -> Any:
    """The model, if it can be saved and loaded."""
    if isinstance(model, SparseModel) or (hasattr(model, "save") and hasattr(type(model), "load")):
        return model
    raise TypeError(
        f"a Mach of {type(model).__name__} cannot be stored: its base has no SparseModel in model_"
    )


def save(model: Any, path: Path) -> None:
    """Write a repetition's folder. Buckets are scored by products with the weights by label, so these are stored."""
    if not isinstance(model, SparseModel):
        storable(model).save(path)
        return
    with replace_folder(path) as folder:
        model.write(folder, by_label=True)


def load(path: Path, shape: tuple[int, int], *, mmap: bool = True, verify: bool = False) -> Any:
    """The repetition stored in a folder, of ``shape`` (buckets, features)."""
    if (path / "network.safetensors").is_file():
        module, name = _BASES["network"]
        model = getattr(importlib.import_module(module), name).load(path)
        found = model.n_outputs_, model.n_features_in_
    else:
        model = SparseModel.load(path, mmap=mmap, verify=verify)
        found = model.n_labels, model.n_features
    if found != shape:
        raise ModelFormatError(f"{path}: has (buckets, features) {found}, expected {shape}")
    return model


def scores(model: Any, X: Any, n_buckets: int) -> npt.NDArray[np.float32]:
    """The scores of the buckets, (n, B)."""
    if not isinstance(model, SparseModel):
        given = np.asarray(model.decision_function(X), np.float32)
        if given.shape != (X.shape[0], n_buckets):
            raise ValueError(
                f"the base gives scores of shape {given.shape}, expected {(X.shape[0], n_buckets)}"
            )
        return given
    x = features(X, n_features=model.n_features)
    if model.compressed:  # as it is stored, sorted, and put back in order
        top = model.predict(to_scipy(*x), n_buckets, n_jobs=1)
        out = np.empty((x.shape[0], n_buckets), np.float32)
        out[np.repeat(np.arange(x.shape[0]), n_buckets), top.indices] = top.data
        return out
    if model.normalize:
        x = x._replace(data=x.data * np.repeat(_core.row_scales(x), np.diff(x.indptr)))
    rows = to_scipy(*x)
    out = np.empty((x.shape[0], n_buckets), np.float32)
    for block in model.blocks:
        W = block.to_csr()
        part = out[:, block.first_label : block.first_label + block.n_labels]
        part[:] = _product(rows, W if model.bias is None else W[:, :-1])
        if model.bias is not None:
            part += np.float32(model.bias) * W[:, -1].toarray().ravel().astype(np.float32)
    return out


def _product(rows: Any, W: Any) -> npt.NDArray[np.float32]:
    """rows Wᵀ, dense. Bucket models are dense enough for a dense product, if the memory allows."""
    if 4 * W.shape[0] * W.shape[1] <= _DENSE_BYTES and W.nnz * 16 > W.shape[0] * W.shape[1]:
        return np.asarray(rows @ np.ascontiguousarray(W.T.toarray()), np.float32)
    return np.asarray((rows @ W.T).toarray(), np.float32)
