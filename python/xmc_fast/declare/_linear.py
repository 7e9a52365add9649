"""DECLARE with ridge regression instead of the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.utils.validation import check_is_fitted

from xmc_fast import _core
from xmc_fast._folder import ModelFormatError
from xmc_fast._progress import progress
from xmc_fast._refit import at_once, of_one_model
from xmc_fast._threads import resolve_threads
from xmc_fast._validate import Csr, at_least, dense_features, features, labels
from xmc_fast.declare._estimator import CompressedLabels
from xmc_fast.declare._products import Operator
from xmc_fast.model import OneRow
from xmc_fast.model._tensors import Tensors

Float = npt.NDArray[np.float32]


def ridge(
    X: Any,
    Z: Any,
    *,
    alpha: float = 1.0,
    tol: float = 1e-3,
    max_iter: int = 100,
    block_columns: int = 64,
    n_jobs: int | None = None,
) -> Float:
    """Ridge regression with many targets: argmin ‖X W + 1 bᵀ - Z‖² + alpha ‖W‖², b free of penalty.

    Conjugate gradients with a diagonal preconditioner on blocks of targets, each target with its own step.

    Parameters
    ----------
    X : (n, D) features; Z : (n, c) targets.
    tol : a target is done when its residual is below this fraction of the first.
    max_iter, block_columns : at most so many iterations; targets solved side by side.

    Returns
    -------
    (D + 1, c) weights, the last row the intercept b.

    Examples
    --------
    >>> W = ridge(np.array([[0.0], [1.0], [2.0]]), np.array([[1.0], [3.0], [5.0]]), alpha=1e-6, tol=1e-6)
    >>> W.round(2).tolist()
    [[2.0], [1.0]]
    """
    if alpha < 0:
        raise ValueError(f"alpha must not be negative, got {alpha}")
    at_least(1, block_columns=block_columns)
    x = _with_ones(features(X))
    targets = dense_features(Z, "Z")
    if len(targets) != x.shape[0]:
        raise ValueError(f"Z must have shape ({x.shape[0]}, c), got {targets.shape}")
    operator = Operator(x, 1 << 16, resolve_threads(n_jobs))
    penalty = np.full((x.shape[1], 1), alpha, np.float32)
    penalty[-1] = 0
    squares = np.bincount(x.indices, x.data.astype(np.float64) ** 2, minlength=x.shape[1])
    scale = (1 / np.maximum(squares + penalty[:, 0], 1e-12)).astype(np.float32)[:, None]
    W = np.empty((x.shape[1], targets.shape[1]), np.float32)
    with progress(targets.shape[1], unit="target", desc="ridge") as bar:
        for start in range(0, targets.shape[1], block_columns):
            block = slice(start, start + block_columns)
            W[:, block] = _solve(operator, targets[:, block], penalty, scale, tol, max_iter)
            bar.update(min(block_columns, targets.shape[1] - start))
    return W


def _solve(operator: Operator, Z: Float, penalty: Float, scale: Float, tol: float, max_iter: int) -> Float:
    """(XᵀX + penalty) W = XᵀZ for a block of columns."""
    r = operator.transposed_times(Z)
    w = np.zeros_like(r)
    d = scale * r
    rho = np.einsum("ij,ij->j", r, d)
    limit = tol**2 * rho
    for _ in range(max_iter):
        active = rho > np.maximum(limit, np.finfo(np.float32).tiny)
        if not active.any():
            break
        Ad = operator.gram_times(d) + penalty * d
        curvature = np.einsum("ij,ij->j", d, Ad)
        step = np.where(active & (curvature > 0), rho / np.where(curvature > 0, curvature, 1), 0).astype(
            np.float32
        )
        w += step * d
        r -= step * Ad
        s = scale * r
        new = np.einsum("ij,ij->j", r, s)
        d = s + np.where(active, new / np.where(rho > 0, rho, 1), 0).astype(np.float32) * d
        rho = np.where(active, new, 0)
    return w


@dataclass(eq=False, repr=False, kw_only=True)
class LinearDeclare(OneRow, CompressedLabels):
    """DECLARE without a network: ridge regression onto the compressed labels, recovery by neighbours.

    Parameters
    ----------
    n_components : c, the size of the output.
    alpha : strength of the ridge penalty.
    neighbours, similarity, search : of the recovery, see `LabelRecovery`.
    compression, label_scaling : "svd" or "neighbour"; "none", "length" or "sum": see `compress`.
    n_jobs, random_state : threads; seed of the SVD.

    Attributes
    ----------
    coef_ : (D + 1, c) float32, the last row the intercept
    recovery_ : LabelRecovery
    n_labels_, n_features_in_ : int

    Examples
    --------
    >>> X = Y = np.eye(6)
    >>> LinearDeclare(6, alpha=0.01, neighbours=1).fit(X, Y).predict(X, k=1).indices.tolist()
    [0, 1, 2, 3, 4, 5]
    """

    alpha: float = 1.0

    _kind = "linear_declare"

    @at_once
    def fit(self, X: Any, Y: Any) -> LinearDeclare:
        """X : (n, D) features, Y : (n, L) binary labels."""
        x = features(X)
        y = labels(Y, n_rows=x.shape[0])
        self.coef_ = ridge(X, self._compress(Y), alpha=self.alpha, n_jobs=self.n_jobs)
        self.n_features_in_, self.n_labels_ = x.shape[1], y.shape[1]
        return self

    def transform(self, X: Any) -> Float:
        """The compressed predictions (n, c)."""
        check_is_fitted(self, "coef_")
        x = features(X, n_features=self.n_features_in_)
        weights, intercept = np.ascontiguousarray(self.coef_[:-1]), self.coef_[-1]
        z = _core.spmm(x, weights, resolve_threads(self.n_jobs))
        z += intercept
        return z

    @of_one_model
    def predict(self, X: Any, k: int = 5) -> sp.csr_matrix:
        """(n, L) CSR of the k best labels per row, best first."""
        return self.recovery_.predict(self.transform(X), k, n_jobs=self.n_jobs)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights and of what the recovery needs."""
        check_is_fitted(self, "coef_")
        return int(self.coef_.nbytes) + self.recovery_.nbytes

    def _weights(self) -> Tensors:
        return {"coef": self.coef_}

    def _restore(self, tensors: Tensors) -> None:
        coef, Z = tensors["coef"], tensors["Z"]
        if coef.dtype != np.float32 or coef.ndim != 2 or coef.shape[1:] != Z.shape[1:]:
            raise ModelFormatError(f"damaged, coef has shape {coef.shape}, Z {Z.shape}")
        self.coef_ = coef
        self.n_features_in_ = len(self.coef_) - 1


def _with_ones(x: Csr) -> Csr:
    """One more column of ones."""
    n, d = x.shape
    at = x.indptr[1:]
    indices = np.insert(x.indices, at, np.int32(d))
    return Csr(x.indptr + np.arange(n + 1), indices, np.insert(x.data, at, np.float32(1)), (n, d + 1))
