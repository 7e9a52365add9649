"""Truncated SVD of sparse label matrices."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from xmc_fast._progress import progress
from xmc_fast._threads import resolve_threads
from xmc_fast._validate import Csr, at_least, labels, to_scipy, transpose
from xmc_fast.declare._products import Operator
from xmc_fast.declare._scaling import scaled_labels

Float = npt.NDArray[np.float32]

_GROWTH = 1e5  # float32 has seven digits


class TruncatedSvd(NamedTuple):
    """Y ≈ U Σ Vᵀ: ``Z`` = U Σ (n, c), ``V`` (L, c), ``singular_values`` (c), largest first."""

    Z: Float
    V: Float
    singular_values: npt.NDArray[np.float64]


def truncated_svd(
    Y: Any,
    n_components: int,
    *,
    label_scaling: str = "none",
    tol: float = 1e-5,
    max_iter: int = 20,
    oversample: int = 16,
    degree: int = 8,
    block_rows: int = 1 << 16,
    n_jobs: int | None = None,
    random_state: int = 0,
) -> TruncatedSvd:
    """The largest singular values and vectors of a label matrix, Z = U Σ being DECLARE's targets.

    Subspace iteration on YᵀY (or YYᵀ, whichever is smaller) from a random block of c + oversample vectors, with
    a Chebyshev polynomial that damps the spectrum below the block: label matrices have slowly falling spectra,
    on which the plain power iterations of randomised SVD stay far from the true subspace. Small matrices are
    decomposed exactly.

    Parameters
    ----------
    Y : (n, L) binary labels.
    n_components : c; fewer are returned when the rank of Y is lower (at least one).
    label_scaling : rows of Y are scaled to length one ("length") or sum one ("sum") first; "none" takes them as
        they are. See `compress`.
    tol : stop when the sum of the c largest squared singular values grows by less than this fraction.
    max_iter, oversample, degree : at most so many rounds, extra vectors in the block, products per round.
    block_rows : rows of Y per product; an (n, c) array is made only at the end.

    Examples
    --------
    >>> svd = truncated_svd(np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1]]), 2)
    >>> svd.singular_values.round(3).tolist(), svd.Z.shape
    ([2.0, 1.0], (3, 2))
    """
    if n_components < 1:
        raise ValueError(f"n_components must be at least 1, got {n_components}")
    at_least(1, block_rows=block_rows)
    y = scaled_labels(labels(Y), label_scaling)
    n, n_labels = y.shape
    wide = n_labels > n
    A = transpose(y) if wide else y  # fewer columns than rows
    operator = Operator(A, block_rows, resolve_threads(n_jobs))
    small = A.shape[1]
    block = min(-(-(n_components + oversample) // 16) * 16, small)
    if small <= max(512, 2 * block):
        Q: Float | None = None
        dense = _gram(A)
    else:
        rng = np.random.default_rng(random_state)
        Q = _subspace(operator, block, n_components, tol, max_iter, degree, rng)
        B = operator.times(Q)
        dense = _cross(B)
    values, W = np.linalg.eigh(dense)  # ascending
    squared = values[::-1][: min(n_components, small)]
    rank = max(1, int((squared > 1e-7 * max(squared[0], 1e-30)).sum())) if len(squared) else 1
    sigma = np.sqrt(np.maximum(squared[:rank], 0))
    W = W[:, ::-1][:, :rank].astype(np.float32)
    right = W if Q is None else Q @ W
    right *= _signs(right)
    left = operator.times(right)  # = U Σ of A
    if wide:
        with np.errstate(divide="ignore"):
            inverse = np.where(sigma > 0, 1 / sigma, 0).astype(np.float32)
        return TruncatedSvd(right * sigma.astype(np.float32), left * inverse, sigma)
    return TruncatedSvd(left, right, sigma)


def _subspace(
    operator: Operator,
    block: int,
    wanted: int,
    tol: float,
    max_iter: int,
    degree: int,
    rng: np.random.Generator,
) -> Float:
    """An orthonormal basis (m, block) that holds the leading eigenvectors of AᵀA."""
    start = rng.standard_normal((operator.shape[1], block), np.float32)
    Q = np.linalg.qr(operator.gram_times(start))[0]
    energy = 0.0
    with progress(max_iter, unit="round", desc="SVD") as bar:
        for _ in range(max_iter):
            AQ = operator.gram_times(Q)
            ritz, W = np.linalg.eigh((Q.T @ AQ).astype(np.float64))
            best = float(ritz[-wanted:].sum())
            bound = float(ritz[0])  # the spectrum outside the block lies in [0, bound]
            if best - energy <= tol * best or bound <= 1e-6 * ritz[-1]:
                return Q
            energy = best
            W = W[:, ::-1].astype(np.float32)
            Q = np.linalg.qr(_filtered(operator, Q @ W, AQ @ W, ritz[::-1], bound / 2, degree))[0]
            bar.update(1)
            bar.set_postfix({"energy": f"{best:.6g}"}, refresh=False)
    return Q


def _filtered(
    operator: Operator, V: Float, AV: Float, ritz: npt.NDArray[np.float64], half: float, degree: int
) -> Float:
    """T_d((AᵀA - half) / half) V, T_d the Chebyshev polynomial, for Ritz vectors V in descending order.

    T_d grows fast outside [-1, 1]: in float32 the leading directions would drown the others. So a column is
    finished at the degree where it has grown enough, and its direction is removed from those that go on.
    """
    x = ritz / half - 1
    growth_before, growth = np.ones_like(x), x
    scale = np.float32(1 / half)
    out = np.empty_like(V)
    before, now = V, AV * scale - V
    done = 0
    for _ in range(degree - 1):
        growth_before, growth = growth, 2 * x * growth - growth_before
        finished = int((growth > _GROWTH).sum())
        if finished > done:
            out[:, done:finished] = now[:, : finished - done]
            before, now = before[:, finished - done :], now[:, finished - done :]
            done = finished
        if done == V.shape[1]:
            return out
        after = (operator.gram_times(now) * scale - now) * np.float32(2) - before
        after -= V[:, :done] @ (V[:, :done].T @ after)
        before, now = now, after
    out[:, done:] = now
    return out


def _gram(A: Csr) -> npt.NDArray[np.float64]:
    values = A.data.astype(np.float64) if len(A.data) else np.ones(len(A.indices))
    matrix = to_scipy(A.indptr, A.indices, values, A.shape)
    product: npt.NDArray[np.float64] = (matrix.T @ matrix).toarray()
    return product


def _cross(B: Float, rows: int = 1 << 14) -> npt.NDArray[np.float64]:
    total = np.zeros((B.shape[1], B.shape[1]))
    for start in range(0, len(B), rows):
        part = B[start : start + rows].astype(np.float64)
        total += part.T @ part
    return total


def _signs(V: Float) -> Float:
    """Makes the entry of largest magnitude in each column positive."""
    if not V.size:
        return np.ones(V.shape[1], np.float32)
    return np.where(V[np.abs(V).argmax(0), np.arange(V.shape[1])] < 0, -1, 1).astype(np.float32)
