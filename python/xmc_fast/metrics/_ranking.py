"""Metrics of a whole ranking of the labels (csrc/metrics/ranking.h)."""

from __future__ import annotations

from typing import Any

import numpy as np

from xmc_fast import _core
from xmc_fast._threads import resolve_threads
from xmc_fast._validate import Csr, aligned
from xmc_fast.metrics._inputs import truth_and_scores


def coverage_error(
    Y_true: Any, pred: Any, *, n_labels: int | None = None, n_jobs: int | None = None
) -> float:
    """How far down the ranking one must go to find all true labels of a row, averaged over rows.

    For scores of all labels this is scikit-learn's ``coverage_error``: equal scores count as ranked above, a row
    without true labels counts 0. Where only the best labels are known (CSR or label ids), all others share the
    last place: a true label that is not in its list costs L.

    Examples
    --------
    >>> coverage_error([[1, 0, 0], [0, 0, 1]], np.array([[0.75, 0.5, 1.0], [1.0, 0.2, 0.1]]))
    2.5
    """
    return _sums(Y_true, pred, n_labels, n_jobs)[0]


def label_ranking_loss(
    Y_true: Any, pred: Any, *, n_labels: int | None = None, n_jobs: int | None = None
) -> float:
    """The share of the pairs (true label, false label) of a row in the wrong order, averaged over rows.

    For scores of all labels this is scikit-learn's ``label_ranking_loss``: equal scores count as wrong, a row of
    true or of false labels only counts 0. Labels that are not in a list share the last place, below it.

    Examples
    --------
    >>> label_ranking_loss([[1, 0, 0], [0, 0, 1]], np.array([[0.75, 0.5, 1.0], [1.0, 0.2, 0.1]]))
    0.75
    """
    return _sums(Y_true, pred, n_labels, n_jobs)[1]


def _sums(Y_true: Any, pred: Any, n_labels: int | None, n_jobs: int | None) -> tuple[float, float]:
    truth, scores = truth_and_scores(Y_true, pred, n_labels)
    if not isinstance(scores, Csr):
        n, m = scores.shape
        ids, values = np.broadcast_to(np.arange(m, dtype=np.int32), (n, m)), scores
        if scores.dtype.kind in "iu":  # label ids, best first
            if scores.size and (scores.min() < 0 or scores.max() >= truth.shape[1]):
                raise ValueError(
                    f"label ids must be in [0, {truth.shape[1]}), got {scores.min()}..{scores.max()}"
                )
            ids, values = scores, np.broadcast_to(-np.arange(m, dtype=np.float64), (n, m))
        dtype = np.float32 if values.dtype == np.float32 else np.float64
        scores = Csr(
            np.arange(n + 1, dtype=np.int64) * m,
            aligned(ids, np.int32).ravel(),
            aligned(values, dtype).ravel(),
            truth.shape,
        )
    sums: Any = _core.ranking_sums_f32 if scores.data.dtype == np.float32 else _core.ranking_sums_f64
    coverage, loss = sums(truth, scores, resolve_threads(n_jobs))
    rows = max(truth.shape[0], 1)
    return coverage / rows, loss / rows
