"""The best prediction for a given test set: closed form, per-label thresholds or block coordinate ascent."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp

from xmc_fast import _core
from xmc_fast._threads import resolve_threads
from xmc_fast.decide._candidates import check_k, check_seed, choices, column_sums, probabilities
from xmc_fast.decide._metric import AnyMetric, to_metric
from xmc_fast.decide._metric import mix as mixed
from xmc_fast.decide._thresholds import Thresholds

STARTS = ("relaxed", "topk", "random", "greedy")


@dataclass(frozen=True)
class AscentInfo:
    """How `bca` went.

    Attributes
    ----------
    utility : float
        The metric's expected value for the prediction.
    start_utility : float
        That of the start (of the empty prediction for a greedy start).
    topk_utility : float or None
        That of the k most probable labels; None without a budget.
    utilities : list of float
        After each pass over the instances; empty when no pass was needed (closed form, thresholds).
    changed : list of int
        Instances that each pass changed.
    converged : bool
        False if ``max_iter`` ended it.
    seconds : float
    """

    utility: float
    start_utility: float
    topk_utility: float | None = None
    utilities: list[float] = field(default_factory=list)
    changed: list[int] = field(default_factory=list)
    converged: bool = True
    seconds: float = 0.0

    @property
    def passes(self) -> int:
        return len(self.utilities)


def bca(
    proba: Any,
    metric: AnyMetric,
    k: int | None = 5,
    *,
    init: Any = "relaxed",
    tol: float = 1e-6,
    max_iter: int = 100,
    random_state: int | None = 0,
    n_jobs: int | None = None,
) -> tuple[sp.csr_matrix, AscentInfo]:
    """Choose k labels per instance of a test set so that the expected metric is as high as possible.

    Block coordinate ascent: instance after instance takes the best response to all others, until a pass
    gains less than ``tol`` (relative). The utility never decreases and ends at least as high as
    that of the k most probable labels. Linear metrics (precision, psp, macro-recall, macro-balanced-accuracy
    and their mixtures) are solved exactly in one step; so is everything when ``k`` is None.

    Parameters
    ----------
    proba : sparse or dense matrix or torch tensor of shape (n, labels)
        Probabilities in [0, 1], preferably calibrated; a short list per instance is enough. Only labels with
        probability > 0 are candidates; rows with fewer than k candidates are filled with the lowest labels
        that they lack, which then count like any other.
    metric : str, Metric or callable
        See `metric` and `mix`.
    k : int or None
        Labels per instance. None: any number, a threshold per label (the exact optimum).
    init : {"relaxed", "topk", "random", "greedy"} or sparse matrix
        Start: near the optimum of the relaxed problem (a few rounds of Frank–Wolfe; mostly ends highest; own
        metrics start from the top-k instead), the most probable labels (fastest), random candidates, one by
        one from nothing, or a given prediction of k candidates per row.
    tol : float
    max_iter : int
        Passes over the instances, at most.
    random_state : int or None
        Seed of the order of the instances.
    n_jobs : int, optional
        Threads. The result has the same bits for any number.

    Returns
    -------
    prediction : CSR matrix of shape (n, labels)
        Labels of each row best first; the value of an entry is what the utility would lose without it.
    info : AscentInfo

    Examples
    --------
    >>> import numpy as np
    >>> from xmc_fast import decide
    >>> proba = np.array([[0.9, 0.5], [0.8, 0.1]])
    >>> prediction, info = decide.bca(proba, "macro-f1", 1)
    >>> prediction.indices
    array([1, 0], dtype=int32)
    >>> round(info.topk_utility, 3), round(info.utility, 3)
    (0.459, 0.609)
    """
    started = time.perf_counter()
    threads = resolve_threads(n_jobs)
    m = to_metric(metric)
    if k is None:
        rule = Thresholds(m, n_jobs=n_jobs).fit(proba)
        prediction = rule.predict(proba)
        seconds = time.perf_counter() - started
        return prediction, AscentInfo(rule.utility_, rule.empty_utility_, seconds=seconds)
    k = check_k(k)
    if not tol >= 0:
        raise ValueError(f"tol must be ≥ 0, got {tol}")
    if isinstance(init, str) and init not in STARTS:
        raise ValueError(f"init must be one of {', '.join(STARTS)} or a matrix, got {init!r}")
    csr = probabilities(proba, k, threads)
    start = init if isinstance(init, str) else "labels"
    start_labels = np.empty(0, np.int32) if isinstance(init, str) else _start_labels(init, k, csr.shape)
    chosen, scores, utility, before, topk, utilities, changed, converged = _core.decide_bca(
        csr,
        m.goal(column_sums(csr), csr.shape[0]),
        k,
        start,
        start_labels,
        float(tol),
        int(max_iter),
        check_seed(random_state),
        threads,
    )
    seconds = time.perf_counter() - started
    info = AscentInfo(utility, before, topk, utilities, changed, converged, seconds)
    return choices(chosen, scores, k, csr.shape), info


def optimize(
    proba: Any,
    *,
    metric: AnyMetric,
    k: int | None = 5,
    mix: float | None = None,
    random_state: int | None = 0,
    n_jobs: int | None = None,
) -> tuple[sp.csr_matrix, AscentInfo]:
    """What ``xmc-fast predict --optimize METRIC --mix LAMBDA`` does: `bca`, with ``mix`` mixed with P@k.

    Examples
    --------
    >>> import numpy as np
    >>> from xmc_fast import decide
    >>> prediction, info = decide.optimize(np.eye(3), metric="macro-f1", k=1, mix=0.2)
    >>> info.utility
    1.0
    """
    if mix is not None and not 0 <= mix <= 1:
        raise ValueError(f"mix must be in [0, 1], got {mix}")
    m = to_metric(metric) if mix is None else mixed(mix, metric)
    return bca(proba, m, k, random_state=random_state, n_jobs=n_jobs)


def _start_labels(init: Any, k: int, shape: tuple[int, int]) -> Any:
    matrix = sp.csr_matrix(init)
    if matrix.shape != shape:
        raise ValueError(f"init has shape {matrix.shape}, proba has {shape}")
    sizes = np.diff(matrix.indptr)
    if (sizes != k).any():
        row = int(np.flatnonzero(sizes != k)[0])
        raise ValueError(f"init must have k = {k} labels in each row, got {sizes[row]} in row {row}")
    return np.ascontiguousarray(matrix.indices, np.int32)
