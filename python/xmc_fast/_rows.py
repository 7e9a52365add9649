"""The rows a linear model is trained on and applied to: checked, scaled, with the bias column."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast._arrays import Csr, features

_NO_FLOATS = np.empty(0, np.float32)


class Rows:
    """Training rows as the core takes them: CSR, or dense."""

    def __init__(self, csr: Csr | None, dense: npt.NDArray[np.float32] | None) -> None:
        shape = csr.shape if csr is not None else dense.shape if dense is not None else (0, 0)
        self.rows, self.features = int(shape[0]), int(shape[1])
        self.dense = dense
        self.csr = csr or Csr(np.zeros(1, np.int64), np.empty(0, np.int32), _NO_FLOATS, (0, self.features))


def prepare_rows(X: Any, normalize: bool, bias: float | None, *, n_features: int | None = None) -> Rows:
    """Checked, scaled to length 1 if asked, with the bias column."""
    if not sp.issparse(X):
        return Rows(None, _prepare_dense(X, normalize, bias, n_features))
    x = features(X, n_features=n_features)
    data = x.data
    counts = np.diff(x.indptr)
    if normalize:
        squares = np.zeros(len(data) + 1)
        np.cumsum(np.square(data, dtype=np.float64), out=squares[1:])
        norms = np.sqrt(squares[x.indptr[1:]] - squares[x.indptr[:-1]])
        norms[counts == 0] = 1
        lengths = np.repeat(np.where(norms > 0, norms, 1), counts)
        data = np.divide(data, lengths, out=np.empty(len(data), np.float32), casting="same_kind")
    if bias is None:
        return Rows(Csr(x.indptr, x.indices, data, x.shape), None)
    n, D = x.shape
    ends = x.indptr[1:] + np.arange(n)  # where each row's bias goes
    keep = np.ones(len(data) + n, bool)
    keep[ends] = False
    values = np.full(len(keep), bias, np.float32)
    columns = np.full(len(keep), D, np.int32)
    values[keep] = data
    columns[keep] = x.indices
    return Rows(Csr(x.indptr + np.arange(n + 1), columns, values, (n, D + 1)), None)


def _prepare_dense(
    X: Any, normalize: bool, bias: float | None, n_features: int | None
) -> npt.NDArray[np.float32]:
    array = np.asarray(X)
    if array.ndim != 2:
        raise ValueError(f"X must be two-dimensional, got shape {array.shape}")
    if array.dtype.kind not in "biuf":
        raise ValueError(f"X must hold real numbers, got dtype {array.dtype}")
    if n_features is not None and array.shape[1] != n_features:
        raise ValueError(f"X has {array.shape[1]} columns, expected {n_features}")
    x = np.empty((array.shape[0], array.shape[1] + (bias is not None)), np.float32)
    x[:, : array.shape[1]] = array
    bad = np.argwhere(~np.isfinite(x[:, : array.shape[1]]))
    if len(bad):
        row, col = bad[0]
        raise ValueError(
            f"X must be finite, got {x[row, col]} at row {row}, column {col} ({len(bad)} such values)"
        )
    if normalize:
        norms = np.linalg.norm(x[:, : array.shape[1]].astype(np.float64), axis=1)
        x[:, : array.shape[1]] /= np.where(norms > 0, norms, 1)[:, None]
    if bias is not None:
        x[:, -1] = bias
    return x
