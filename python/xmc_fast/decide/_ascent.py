"""The best prediction for a given test set: closed form, per-label thresholds or block coordinate ascent."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp

from xmc_fast import _core
from xmc_fast._arrays import Csr
from xmc_fast._threads import resolve_threads
from xmc_fast.decide._candidates import check_k, check_seed, choices, column_sums, probabilities
from xmc_fast.decide._metric import Metric, custom_values, metric, mix
from xmc_fast.decide._thresholds import Thresholds

STARTS = ("relaxed", "topk", "random", "greedy")
_ROUNDS = (
    8  # of the relaxed start: on EURLex-4K four end lower, 16 a little higher for half as much time again
)
_COARSE = 1e-4  # tolerance of what is maximised on the way to the metric


@dataclass(frozen=True)
class AscentInfo:
    """How :func:`bca` went.

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
        False if ``max_passes`` ended it.
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
    metric_: str | Metric | Callable[..., Any],
    k: int | None,
    *,
    init: Any = "relaxed",
    tolerance: float = 1e-6,
    max_passes: int = 100,
    random_state: int | None = 0,
    n_jobs: int | None = None,
) -> tuple[sp.csr_matrix, AscentInfo]:
    """Choose k labels per instance of a test set so that the expected metric is as high as possible.

    Block coordinate ascent: instance after instance takes the best response to all others, until a pass
    gains less than ``tolerance`` (relative). The utility never decreases and ends at least as high as
    that of the k most probable labels. Linear metrics (precision, psp, macro-recall, macro-balanced-accuracy
    and their mixtures) are solved exactly in one step; so is everything when ``k`` is None.

    Parameters
    ----------
    proba : sparse or dense matrix or torch tensor of shape (n, labels)
        Probabilities in [0, 1], best calibrated; a short list per instance is enough. Only labels with
        probability > 0 are candidates; rows with fewer than k candidates are filled with the lowest labels
        that they lack, which then count like any other.
    metric_ : str, Metric or callable
        See :func:`metric` and :func:`mix`.
    k : int or None
        Labels per instance. None: any number, a threshold per label (the exact optimum).
    init : {"relaxed", "topk", "random", "greedy"} or sparse matrix
        Start: near the optimum of the relaxed problem (eight rounds of Frank–Wolfe; mostly ends highest; own metrics
        start from the top-k instead), the most probable labels (fastest), random candidates, one by one from
        nothing, or a given prediction of k candidates per row.
    tolerance : float
    max_passes : int
    random_state : int or None
        Seeds the order of the instances.
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
    m = metric(metric_)
    if k is None:
        rule = Thresholds(m, n_jobs=n_jobs).fit(proba)
        prediction = rule.predict(proba)
        seconds = time.perf_counter() - started
        return prediction, AscentInfo(rule.utility_, rule.empty_utility_, seconds=seconds)
    k = check_k(k)
    if not tolerance >= 0:
        raise ValueError(f"tolerance must be ≥ 0, got {tolerance}")
    csr = probabilities(proba, k, threads)
    positives = column_sums(csr)
    labels = csr.shape[1]
    if m.linear and isinstance(init, str) and init in STARTS:
        weights = m.weights_for(labels)
        solved = _core.decide_linear(*csr[:3], list(m.terms), weights, positives, k, threads)
        chosen, gains, utility, topk = solved
        info = AscentInfo(utility, topk, topk, seconds=time.perf_counter() - started)
        return choices(chosen, gains, k, csr.shape), info
    if isinstance(init, str):
        if init not in STARTS:
            raise ValueError(f"init must be one of {', '.join(STARTS)} or a matrix, got {init!r}")
        start_name = "topk" if init == "relaxed" and m.custom is not None else init
        start_labels = None
    else:
        start_name, start_labels = "labels", _start_labels(init, k, csr.shape)
    seed = check_seed(random_state)
    if start_name == "relaxed":
        coarse = max(tolerance, _COARSE)
        for other in m.on_the_way():
            first = _run(
                csr, other, k, positives, start_name, start_labels, coarse, max_passes, seed, threads
            )
            start_name, start_labels = "labels", first[0]
    run = _run(csr, m, k, positives, start_name, start_labels, tolerance, max_passes, seed, threads)
    if start_name != "topk" and (not run[3] or run[3][-1] < run[6]):
        run = _run(csr, m, k, positives, "topk", None, tolerance, max_passes, seed, threads)
    chosen, scores, start_utility, utilities, changed, converged, topk = run
    seconds = time.perf_counter() - started
    utility = utilities[-1] if utilities else start_utility
    info = AscentInfo(utility, start_utility, topk, utilities, changed, converged, seconds)
    return choices(chosen, scores, k, csr.shape), info


def optimize(
    proba: Any,
    *,
    metric_: str | Metric | Callable[..., Any],
    k: int | None,
    mix_: float | None = None,
    random_state: int | None = 0,
    n_jobs: int | None = None,
) -> tuple[sp.csr_matrix, AscentInfo]:
    """What ``xmc-fast predict --optimize METRIC --mix LAMBDA`` does: :func:`bca`, mixed with P@k if asked.

    Examples
    --------
    >>> import numpy as np
    >>> from xmc_fast import decide
    >>> prediction, info = decide.optimize(np.eye(3), metric_="macro-f1", k=1, mix_=0.2)
    >>> info.utility
    1.0
    """
    m = metric(metric_) if mix_ is None else mix(mix_, metric_)
    return bca(proba, m, k, random_state=random_state, n_jobs=n_jobs)


def _run(
    csr: Csr,
    m: Metric,
    k: int,
    positives: Any,
    start: str,
    start_labels: Any,
    tolerance: float,
    max_passes: int,
    seed: int,
    threads: int,
) -> Any:
    n, labels = csr.shape
    return _core.decide_bca(
        *csr[:3],
        list(m.terms),
        m.weights_for(labels),
        positives,
        custom_values(m, n),
        m.custom_weight,
        k,
        start,
        np.empty(0, np.int32) if start_labels is None else start_labels,
        _ROUNDS,
        float(tolerance),
        int(max_passes),
        seed,
        1 if m.custom is not None else threads,
    )


def _start_labels(init: Any, k: int, shape: tuple[int, int]) -> Any:
    matrix = sp.csr_matrix(init)
    if matrix.shape != shape:
        raise ValueError(f"init has shape {matrix.shape}, proba has {shape}")
    sizes = np.diff(matrix.indptr)
    if (sizes != k).any():
        row = int(np.flatnonzero(sizes != k)[0])
        raise ValueError(f"init must have k = {k} labels in each row, got {sizes[row]} in row {row}")
    return np.ascontiguousarray(matrix.indices, np.int32)
