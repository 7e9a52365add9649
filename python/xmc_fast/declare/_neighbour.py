"""Compression that keeps the similarities of near rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast import _core
from xmc_fast._progress import progress
from xmc_fast._threads import resolve_threads
from xmc_fast._validate import at_least, dense_features, features, labels, to_scipy, transpose
from xmc_fast.declare._products import Operator
from xmc_fast.declare._scaling import row_scales, scaled_labels

Float = npt.NDArray[np.float32]


def neighbour_pairs(
    Y: Any,
    neighbours: int,
    *,
    label_scaling: str = "none",
    n_jobs: int | None = None,
    block_rows: int = 8192,
) -> sp.csr_matrix:
    """The pairs Ω: for each row the rows that share most labels with it, made symmetric, and the diagonal.

    With ``label_scaling`` (see `compress`) the rows whose scaled labels have the largest inner product with its own.

    Returns
    -------
    (n, n) symmetric CSR with the number of shared labels (or that inner product) at each pair; at most
    n (2 · neighbours + 1) entries.

    Examples
    --------
    >>> neighbour_pairs(np.array([[1, 1, 0], [1, 0, 0], [0, 0, 1]]), 2).toarray().tolist()
    [[2.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    if neighbours < 1:
        raise ValueError(f"neighbours must be at least 1, got {neighbours}")
    at_least(1, block_rows=block_rows)
    y = labels(Y)
    n = y.shape[0]
    scales = row_scales(y, label_scaling)
    back = transpose(scaled_labels(y, label_scaling))
    counts = np.diff(y.indptr)
    own = scales**2 * counts.astype(np.float32)
    threads = resolve_threads(n_jobs)
    rows: list[Any] = [np.arange(n)]
    columns: list[Any] = [np.arange(n)]
    shared: list[Any] = [own]
    for start in range(0, n, block_rows):
        # y_i · y_j summed over the labels of row i: recovery with the labels instead of neighbours.
        part = counts[start : start + block_rows]
        ids = np.full((len(part), int(part.max(initial=1))), -1, np.int32)
        ids[np.arange(ids.shape[1]) < part[:, None]] = y.indices[
            y.indptr[start] : y.indptr[start] + int(part.sum())
        ]
        weights = np.ascontiguousarray(np.broadcast_to(scales[start : start + len(part), None], ids.shape))
        found, scores, count = _core.recover_labels(ids, weights, back, min(neighbours, n), threads)
        keep = np.arange(found.shape[1]) < count[:, None]
        rows.append(start + np.repeat(np.arange(len(part)), count))
        columns.append(found[keep])
        shared.append(scores[keep])
    i, j, value = (np.concatenate(parts) for parts in (rows, columns, shared))
    both = sp.csr_matrix((value, (i, j)), shape=(n, n))
    both.sum_duplicates()
    both.setdiag(own)
    both = both.maximum(both.T).tocsr()
    both.eliminate_zeros()
    both.sort_indices()
    return both


def neighbour_embedding(
    Y: Any,
    start: Float,
    *,
    neighbours: int = 25,
    label_scaling: str = "none",
    penalty: float = 0.1,
    steps: int = 20,
    tol: float = 1e-4,
    n_jobs: int | None = None,
) -> tuple[Float, list[float]]:
    """Z whose inner products are the numbers of shared labels on near rows Ω, and stay as they were elsewhere.

    Minimises ‖P_Ω(YYᵀ - ZZᵀ)‖² + penalty · ‖P_Ω̄(Z₀Z₀ᵀ - ZZᵀ)‖² by projected gradient steps on M = ZZᵀ of rank c,
    from M₀ = Z₀Z₀ᵀ. The gradient is low rank plus sparse on Ω, so no (n, n) matrix is ever made: memory is
    O(n · c + |Ω|). The step (1 at most) is halved when the loss would grow.

    Parameters
    ----------
    Y : (n, L) binary labels.
    start : (n, c) Z₀, from `truncated_svd`.
    neighbours : per row in Ω.
    label_scaling : of the rows of Y, as in ``start``; see `compress`.
    penalty : weight of the pairs outside Ω; 0 leaves them free.
    steps, tol : at most so many steps; stop when the loss falls by less than this fraction.

    Returns
    -------
    Z : (n, c), and the loss before and after each step (exact, over all pairs).

    Examples
    --------
    >>> Y = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 1], [0, 1, 1]])
    >>> from xmc_fast.declare import truncated_svd
    >>> Z, losses = neighbour_embedding(Y, truncated_svd(Y, 2).Z, neighbours=2)
    >>> Z.shape, losses[-1] < losses[0]
    ((4, 2), True)
    """
    at_least(0, penalty=penalty)
    omega = neighbour_pairs(Y, neighbours, label_scaling=label_scaling, n_jobs=n_jobs)
    problem = _Problem(omega, dense_features(start, "start"), penalty, resolve_threads(n_jobs))
    Z = problem.Z0
    loss, gradient = problem.evaluate(Z)
    losses = [loss]
    step = 1.0
    with progress(steps, unit="step", desc="neighbours") as bar:
        for _ in range(steps):
            while True:
                candidate = problem.project(Z, gradient, step)
                new_loss, new_gradient = problem.evaluate(candidate)
                if new_loss <= loss or step < 1e-3:
                    break
                step /= 2
            if new_loss > loss:
                break
            small = loss - new_loss <= tol * max(losses[0], 1e-30)
            Z, loss, gradient = candidate, new_loss, new_gradient
            losses.append(loss)
            bar.update(1)
            bar.set_postfix({"loss": f"{loss:.4g}"}, refresh=False)
            if small:
                break
    return Z, losses


class _Problem:
    def __init__(self, omega: sp.csr_matrix, Z0: Float, penalty: float, threads: int) -> None:
        if omega.shape[0] != len(Z0):
            raise ValueError(f"start has {len(Z0)} rows, Y has {omega.shape[0]}")
        if not Z0.shape[1]:
            raise ValueError("start must have at least one column, got none")
        self.omega, self.Z0, self.penalty, self.threads = omega, Z0, penalty, threads
        self.rows = np.repeat(np.arange(omega.shape[0]), np.diff(omega.indptr))
        self.outside = self._pairs(Z0)  # (Z₀Z₀ᵀ) on Ω

    def _pairs(self, Z: Float, block: int = 1 << 18) -> Float:
        """ZZᵀ at the pairs of Ω."""
        out = np.empty(self.omega.nnz, np.float32)
        for s in range(0, len(out), block):
            e = slice(s, s + block)
            out[e] = np.einsum("ij,ij->i", Z[self.rows[e]], Z[self.omega.indices[e]])
        return out

    def evaluate(self, Z: Float) -> tuple[float, Float]:
        """The loss, and the sparse part of -gradient / 2 on Ω: (YYᵀ - ZZᵀ) - penalty · (Z₀Z₀ᵀ - ZZᵀ)."""
        near = self._pairs(Z)
        inside = (self.omega.data - near).astype(np.float64)
        moved = (self.outside - near).astype(np.float64)
        everywhere = _square(self.Z0, self.Z0) + _square(Z, Z) - 2 * _square(self.Z0, Z)
        loss = float(inside @ inside) + self.penalty * (everywhere - float(moved @ moved))
        return loss, (inside - self.penalty * moved).astype(np.float32)

    def project(self, Z: Float, gradient: Float, step: float) -> Float:
        """The best rank-c positive part of ZZᵀ + step · (S + penalty · (Z₀Z₀ᵀ - ZZᵀ)), S sparse on Ω."""
        S = Operator(
            features(to_scipy(self.omega.indptr, self.omega.indices, gradient, self.omega.shape)),
            1 << 16,
            self.threads,
        )
        keep, back = np.float32(1 - step * self.penalty), np.float32(step * self.penalty)

        def times(Q: Float) -> Float:
            out = S.times(Q)
            out *= np.float32(step)
            out += keep * (Z @ (Z.T @ Q))
            if back:
                out += back * (self.Z0 @ (self.Z0.T @ Q))
            return out

        Q = _orthonormal(times(_orthonormal(Z)))  # the subspace moves little from step to step
        H = Q.T @ times(Q)
        values, W = np.linalg.eigh(((H + H.T) / 2).astype(np.float64))
        scale = np.sqrt(np.maximum(values, 0))[::-1]
        out: Float = Q @ (W[:, ::-1] * scale).astype(np.float32)
        return out


def _orthonormal(A: Float) -> Float:
    """A basis of the columns of A, by the eigenvectors of AᵀA: much cheaper than QR for tall A."""
    values, W = np.linalg.eigh((A.T @ A).astype(np.float64))
    scale = np.where(values > 1e-10 * values[-1], 1 / np.sqrt(np.maximum(values, 1e-30)), 0)
    Q: Float = A @ (W * scale).astype(np.float32)
    return Q


def _square(A: Float, B: Float) -> float:
    """‖AᵀB‖², which is the inner product of AAᵀ and BBᵀ."""
    return float(((A.T @ B).astype(np.float64) ** 2).sum())
