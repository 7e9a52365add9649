"""Probabilities at the public edge: anything matrix-like in, checked CSR candidates out."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast import _core
from xmc_fast._validate import Csr, aligned, to_scipy, valid_csr
from xmc_fast._validate import labels as label_matrix


def from_torch(M: Any) -> Any:
    """A torch tensor as numpy or scipy (found out without importing torch); other things unchanged."""
    if type(M).__module__.split(".")[0] != "torch":
        return M
    M = M.detach().cpu()
    if str(M.layout) == "torch.strided":
        return M.numpy()
    if str(M.layout) == "torch.sparse_csr":
        arrays = (M.values().numpy(), M.col_indices().numpy(), M.crow_indices().numpy())
        return sp.csr_matrix(arrays, shape=tuple(M.shape))
    M = M.coalesce()
    return sp.coo_matrix((M.values().numpy(), M.indices().numpy()), shape=tuple(M.shape))


def probabilities(proba: Any, k: int, threads: int) -> Csr:
    """Probabilities as CSR float32: rows sorted, no stored zeros, filled up to k candidates.

    Rows with fewer than k non-zero probabilities get the lowest labels that they lack, with probability 0.
    """
    proba = from_torch(proba)
    matrix, _ = valid_csr(proba, "proba")
    rows, labels = (int(s) for s in matrix.shape)
    if k > labels:
        raise ValueError(f"k must be at most the number of labels ({labels}), got {k}")
    csr = _as_core(matrix)
    bad, duplicates, ready = _core.decide_scan(csr, k, threads)
    if bad >= 0:
        row = int(np.searchsorted(csr.indptr, bad, side="right")) - 1
        raise ValueError(
            f"proba must be in [0, 1], got {csr.data[bad]} at row {row}, column {csr.indices[bad]}"
        )
    if duplicates:
        matrix = matrix.copy()
        matrix.sum_duplicates()
        return probabilities(matrix, k, threads)
    if ready:
        return csr
    indptr, indices, data = _core.decide_candidates(csr, k, threads)
    return Csr(indptr, indices, data, (rows, labels))


def _as_core(matrix: Any) -> Csr:
    return Csr(
        aligned(matrix.indptr, np.int64),
        aligned(matrix.indices, np.int32),
        aligned(matrix.data, np.float32),
        (int(matrix.shape[0]), int(matrix.shape[1])),
    )


def column_sums(proba: Csr) -> npt.NDArray[np.float64]:
    sums: npt.NDArray[np.float64] = _core.decide_column_sums(proba)
    return sums


class Evidence(NamedTuple):
    """What is known about the labels of a sample: the positives of each, and true labels if given.

    An entry counts trust · y + (1 − trust) · η; without labels (no rows in ``y``) η.
    """

    positives: npt.NDArray[np.float64]
    y: Csr
    trust: npt.NDArray[np.float32]


def evidence(proba: Csr, Y: Any, shrinkage: float) -> Evidence:
    """Rare labels are shrunk to the probabilities: m positives have a trust of m / (m + shrinkage)."""
    if not shrinkage >= 0:
        raise ValueError(f"shrinkage must be ≥ 0, got {shrinkage}")
    expected = column_sums(proba)
    n, labels = proba.shape
    if Y is None:
        none = Csr(np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32), (0, labels))
        return Evidence(expected, none, np.empty(0, np.float32))
    y = label_matrix(from_torch(Y), n_rows=n, n_labels=labels)
    counts = np.bincount(y.indices, minlength=labels).astype(np.float64)
    trust = counts / (counts + shrinkage) if shrinkage > 0 else np.ones(labels)
    return Evidence(trust * counts + (1 - trust) * expected, y, trust.astype(np.float32))


def truth_at_entries(proba: Csr, known: Evidence, threads: int) -> npt.NDArray[np.float32]:
    """What each entry of ``proba`` counts."""
    truth: npt.NDArray[np.float32] = proba.data
    if len(known.trust):
        truth = _core.decide_truth(proba, known.y, known.trust, threads)
    return truth


def choices(
    labels: npt.NDArray[np.int32], scores: npt.NDArray[Any], k: int, shape: tuple[int, int]
) -> sp.csr_matrix:
    """n × k labels and scores, best first, as a CSR matrix."""
    indptr = np.arange(shape[0] + 1, dtype=np.int64) * k
    return to_scipy(indptr, labels, scores.astype(np.float32, copy=False), shape)


def check_k(k: Any) -> int:
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
        raise ValueError(f"k must be a positive integer, got {k!r}")
    return int(k)


def check_seed(random_state: Any) -> int:
    """A 64-bit seed; None draws a fresh one."""
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1, np.uint64)[0])
    if isinstance(random_state, bool) or not isinstance(random_state, (int, np.integer)) or random_state < 0:
        raise ValueError(f"random_state must be a non-negative integer or None, got {random_state!r}")
    return int(random_state) % 2**64
