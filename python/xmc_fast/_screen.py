"""Which labels need no training after rows were added or removed.

Let w be a label's old solution, gap a bound of f(w) - min f. New rows add what their slacks cost, and raise the
minimum if anything: f_new(w) = f(w) + C sum_new max(0, 1 - s_u z_u)^2, min f_new >= f(w) - gap. Removed rows outside
the margin change neither. So (f(w) + added) / (f(w) - gap) bounds how far w is from the new minimum.

The scores of the changed rows come from the multipliers, w = sum_i alpha_i s_i x_i (pruned weights are not enough),
without building w: z_u = sum_i alpha_i s_i (x_i . x_u) + bias b, the products x_i . x_u once for all labels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast import _core
from xmc_fast._state import FitState
from xmc_fast._threads import resolve_threads
from xmc_fast._validate import Csr, features

_TOGETHER = 64  # changed rows


def added_loss(
    estimator: Any,
    state: FitState,
    old: npt.NDArray[np.int64],
    X_new: Any,
    Y_new: Any,
    removed: npt.NDArray[np.int32],
) -> npt.NDArray[np.float64]:
    """What new rows add to the objectives of labels at their old weights, positives at cost 1.

    ``old`` are the labels' old numbers, Y_new (rows x labels) has a column for each. Infinity where a removed row,
    a negative without a multiplier, is inside the margin.
    """
    threads = resolve_threads(estimator.n_jobs)
    scale = _scale(state.X) if estimator.normalize else None
    alpha = state.alpha[old]
    of_positives = alpha.multiply(state.Y[:, old].T.tocsr()).tocsr()
    signed = _csr((2 * of_positives - alpha).astype(np.float32))
    bias = 0.0 if estimator.bias is None else float(estimator.bias)
    offset = bias * state.bias_weight[old].astype(np.float64)
    rows = _csr(state.X) if sp.issparse(state.X) else state.X
    out = np.zeros(len(old))

    def slacks(X: Any, Y: Any) -> npt.NDArray[np.float64]:
        """max(0, 1 - s z), labels x rows of X."""
        changed = _dense(X)
        if scale is not None:
            changed *= _scale(X)[:, None]
        across = np.ascontiguousarray(changed.T)
        if isinstance(rows, Csr):
            products = _core.spmm(rows, across[: rows.shape[1]], threads)
        else:
            products = rows @ across[: rows.shape[1]]
        if scale is not None:
            products *= scale[:, None]
        z = _core.spmm(signed, np.ascontiguousarray(products, dtype=np.float32), threads) + offset[:, None]
        found: npt.NDArray[np.float64] = np.maximum(0.0, 1 + np.where(_dense(Y).T > 0, -z, z))
        return found

    for start in range(0, X_new.shape[0], _TOGETHER):
        part = slice(start, start + _TOGETHER)
        out += float(estimator.C) * np.square(slacks(X_new[part], Y_new[part])).sum(axis=1)
    for start in range(0, len(removed), _TOGETHER):
        some = removed[start : start + _TOGETHER]
        inside = slacks(state.X[some], sp.csr_matrix((len(some), len(old)))).any(axis=1)
        out[inside] = np.inf
    return out


def _dense(matrix: Any) -> npt.NDArray[np.float32]:
    return np.array(matrix.toarray() if sp.issparse(matrix) else matrix, dtype=np.float32)


def _scale(X: Any) -> npt.NDArray[np.float32]:
    """1 / |x| of each row, 1 for empty rows."""
    if sp.issparse(X):
        filled = np.flatnonzero(np.diff(X.indptr))
        squares = np.zeros(X.shape[0])
        squares[filled] = np.add.reduceat(np.square(X.data), X.indptr[filled], dtype=np.float64)
    else:
        squares = np.square(X, dtype=np.float64).sum(axis=1)
    return (1 / np.sqrt(np.where(squares > 0, squares, 1))).astype(np.float32)


def _csr(matrix: Any) -> Csr:
    return features(matrix)
