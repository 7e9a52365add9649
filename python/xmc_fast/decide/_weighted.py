"""Weighted top-k and the usual weightings."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast import _core
from xmc_fast._threads import resolve_threads
from xmc_fast._validate import numbers
from xmc_fast.decide._candidates import check_k, choices, from_torch, probabilities
from xmc_fast.propensity import checked

Floats = npt.NDArray[np.float64]


def weighted_topk(proba: Any, gains: Any, k: int = 5, *, n_jobs: int | None = None) -> sp.csr_matrix:
    """The k candidates with the largest a·η + b of every instance.

    Parameters
    ----------
    proba : matrix of shape (n, labels)
        Probabilities; labels with probability 0 are not candidates. Rows with fewer than k candidates are
        filled with the lowest labels that they lack, at probability 0.
    gains : array of shape (labels,), or a pair of them
        The weights a, or (a, b).
    k : int
    n_jobs : int, optional

    Returns
    -------
    CSR matrix of shape (n, labels)
        k entries per row, best first (then lower label), valued a·η + b.

    Examples
    --------
    >>> import numpy as np
    >>> from xmc_fast import decide
    >>> proba = np.array([[0.5, 0.25, 0.125]])
    >>> decide.weighted_topk(proba, [1, 1, 1], 1).indices
    array([0], dtype=int32)
    >>> decide.weighted_topk(proba, ([1, 4, 1], [0, 0, 2]), 2).toarray()
    array([[0.   , 1.   , 2.125]], dtype=float32)
    """
    k = check_k(k)
    threads = resolve_threads(n_jobs)
    csr = probabilities(proba, k, threads)
    a, b = gains if isinstance(gains, tuple) else (gains, np.zeros(csr.shape[1]))
    a, b = _vector("gains a", a, csr.shape[1]), _vector("gains b", b, csr.shape[1])
    labels, values = _core.decide_weighted_topk(csr, a, b, k, threads)
    return choices(labels, values, k, csr.shape)


def _vector(name: str, values: Any, n_labels: int) -> Floats:
    vector = numbers(from_torch(values), name, ndim=1)
    if len(vector) != n_labels:
        raise ValueError(f"{name} has {len(vector)} entries, expected {n_labels} (one per label)")
    return vector


def power_law_gains(label_counts: npt.ArrayLike, exponent: float = 0.5) -> Floats:
    """Weights count^−exponent (labels never seen count once).

    >>> power_law_gains([100, 4, 0])
    array([0.1, 0.5, 1. ])
    """
    return np.asarray(np.maximum(_counts(label_counts), 1.0) ** -float(exponent), np.float64)


def log_gains(label_counts: npt.ArrayLike, n: int) -> Floats:
    """Weights log((n + 1) / count) for label counts among n instances (labels never seen count once).

    >>> log_gains([100, 1, 0], 100).round(3)
    array([0.01 , 4.615, 4.615])
    """
    return np.asarray(np.log((n + 1) / np.maximum(_counts(label_counts), 1.0)), np.float64)


def propensity_gains(propensity: npt.ArrayLike) -> Floats:
    """Weights 1 / propensity: the best choice for propensity-scored precision.

    >>> propensity_gains([0.5, 1.0])
    array([2., 1.])
    """
    return 1.0 / checked(numbers(propensity, "propensity", ndim=1), np.shape(propensity))


def _counts(label_counts: npt.ArrayLike) -> Floats:
    counts = numbers(label_counts, "label_counts", ndim=1)
    if (counts < 0).any():
        raise ValueError(f"label_counts must be at least 0, got {counts.min()}")
    return counts
