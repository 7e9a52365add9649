"""`Neighbours`: the labels of the most similar training rows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.preprocessing import normalize
from sklearn.utils.validation import check_is_fitted

from xmc_fast._folder import (
    MOST_LABELS,
    ModelFormatError,
    count,
    file_in,
    opening,
    part_of,
    read_manifest,
    replace_folder,
    write_manifest,
)
from xmc_fast._refit import at_once, of_one_model
from xmc_fast._validate import features, labels, to_scipy
from xmc_fast.knn import recover_labels
from xmc_fast.model import OneRow, SparseModel
from xmc_fast.model._tensors import read_tensors, write_tensors

_KIND = "neighbours"
_ROWS, _LABELS = "rows", "labels.safetensors"


class Neighbours(OneRow, BaseEstimator):  # type: ignore[misc]
    """Score labels by the most similar training rows: exact cosines of sparse rows, no training to speak of.

    A label's score is its share among the ``n_neighbours`` nearest rows, each counted with cosine^power: a number
    from 0 to 1. Alone it is less accurate than `OneVsAll`; as a member of an `Ensemble` it adds what a linear
    model cannot see. The search is that of `SparseModel.predict`, with a training row for each label.

    Parameters
    ----------
    n_neighbours : int
        Rows whose labels are counted.
    power : float
        Of the cosine; more lets the nearest rows count more.
    n_jobs : int, optional
        Threads; results do not depend on their number.

    Attributes
    ----------
    rows_ : SparseModel
        The training rows, of length 1.
    labels_ : scipy CSR, rows x labels
    n_labels_, n_features_in_ : int

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
    >>> Y = np.array([[1, 0], [1, 0], [0, 1]])
    >>> Neighbours(2).fit(X, Y).predict([[0.8, 0.1]], k=1).toarray()
    array([[1., 0.]], dtype=float32)
    """

    gives_probabilities = True  # without calibration

    def __init__(self, n_neighbours: int = 30, *, power: float = 2.0, n_jobs: int | None = None) -> None:
        self.n_neighbours = n_neighbours
        self.power = power
        self.n_jobs = n_jobs

    @at_once
    def fit(self, X: Any, Y: Any) -> Neighbours:
        """Keep the rows X (n, D), sparse or dense, and their labels Y (n, L), binary."""
        if self.n_neighbours < 1:
            raise ValueError(f"n_neighbours must be at least 1, got {self.n_neighbours!r}")
        if not (np.isfinite(self.power) and self.power >= 0):
            raise ValueError(f"power must be a number of at least 0, got {self.power!r}")
        x = features(X)
        y = labels(Y, n_rows=x.shape[0])
        if y.shape[1] > MOST_LABELS:
            raise ValueError(f"Y has {y.shape[1]} columns, at most {MOST_LABELS} expected")
        if not x.shape[0]:
            raise ValueError("X must have at least one row, got none")
        self.rows_ = SparseModel(normalize(to_scipy(*x)), normalize=True)
        self.labels_ = to_scipy(y.indptr, y.indices, np.ones(len(y.indices), bool), y.shape)
        self.n_features_in_, self.n_labels_ = x.shape[1], y.shape[1]
        return self

    @of_one_model
    def predict(self, X: Any, k: int = 5, *, proba: bool = False, n_jobs: int | None = None) -> sp.csr_matrix:
        """The ``k`` labels with the largest shares among each row's neighbours.

        Parameters
        ----------
        X : (n, D) sparse or dense
        k : int
            Labels per row; fewer where the neighbours have fewer.
        proba : bool
            Of no effect: shares are estimates of probabilities.
        n_jobs : int, optional
            Instead of the estimator's.

        Returns
        -------
        scipy CSR (n, L) of shares, best first. A row without any feature in common with a training row has none.
        """
        check_is_fitted(self, "rows_")
        threads = self.n_jobs if n_jobs is None else n_jobs
        nearest = self.rows_.predict(X, self.n_neighbours, n_jobs=threads)
        shape = nearest.shape[0], min(self.n_neighbours, self.rows_.n_labels)
        weights = np.maximum(nearest.data, 0).reshape(shape)
        weights **= np.float32(self.power)
        weights[nearest.data.reshape(shape) <= 0] = 0
        weights /= np.maximum(weights.sum(1, keepdims=True), np.float32(1e-30))
        top = recover_labels(nearest.indices.reshape(shape), weights, self.labels_, k, n_jobs=threads)
        np.minimum(top.data, 1, out=top.data)
        top.eliminate_zeros()
        return top

    @property
    def nbytes(self) -> int:
        """Bytes of the rows and their labels in memory."""
        check_is_fitted(self, "rows_")
        return self.rows_.nbytes + int(self.labels_.indptr.nbytes + self.labels_.indices.nbytes)

    @of_one_model
    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write the model as a folder; an older model there is replaced."""
        check_is_fitted(self, "rows_")
        params = {"n_neighbours": int(self.n_neighbours), "power": float(self.power)}
        y = labels(self.labels_)
        with replace_folder(directory) as folder:
            self.rows_.save(folder / _ROWS)
            write_tensors(folder / _LABELS, {"indptr": y.indptr, "indices": y.indices}, {"kind": _KIND})
            write_manifest(folder, _KIND, {"params": params, "n_labels": self.n_labels_})

    @classmethod
    def load(
        cls, directory: str | os.PathLike[str], *, mmap: bool = True, verify: bool = False
    ) -> Neighbours:
        """Open what `save` wrote. ``mmap`` maps the rows; ``verify`` reads and checks every byte."""
        return _load(cls, directory, mmap=mmap, verify=verify)


@opening
def _load(cls: Any, directory: str | os.PathLike[str], *, mmap: bool, verify: bool) -> Neighbours:
    manifest = read_manifest(directory, _KIND, required=("params", "n_labels"))
    folder = Path(directory)
    params = manifest["params"]
    power = params.get("power")
    if not isinstance(power, float) or not 0 <= power < np.inf:
        raise ModelFormatError(f"{folder}: damaged, power must be a number of at least 0, got {power!r}")
    model: Neighbours = cls(count(params.get("n_neighbours"), "n_neighbours", 1), power=power)
    model.rows_ = SparseModel.load(part_of(folder, _ROWS), mmap=mmap, verify=verify)
    found, _ = read_tensors(file_in(folder, _LABELS), map_file=mmap, verify=verify)
    shape = model.rows_.n_labels, count(manifest["n_labels"], "n_labels", 0, MOST_LABELS)
    ones = np.ones(len(found["indices"]), bool)
    y = labels(to_scipy(found["indptr"], found["indices"], ones, shape), _LABELS)
    model.labels_ = to_scipy(y.indptr, y.indices, ones, shape)
    model.n_features_in_, model.n_labels_ = model.rows_.n_features, shape[1]
    return model
