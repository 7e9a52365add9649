"""Metrics at k for extreme multi-label classification: instance-wise, propensity-scored and macro.

Every function takes the truth (binary, n x L), the predictions (label ids in rank order, CSR scores or dense
scores) and k (one number, or several for an array of values). :func:`report` gives them all in one pass.

Conventions: 0/0 = 0; a row without true labels counts with the value 0 (abandonment: 1); lists shorter than k
have no hit at their missing ranks; macro metrics average over all L labels unless ``labels="positive"``.
A metric of plain label sets of any size is one at a k no smaller than the longest list.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from xmc_fast._threads import resolve_threads
from xmc_fast.metrics._compute import (
    LabelSet,
    Options,
    counts_at_k,
    instance_values,
    macro_values,
    warn_if_misspecified,
)
from xmc_fast.metrics._inputs import (
    Floats,
    LabelBins,
    cutoffs,
    frequency_bins,
    inverse_propensity,
    ranked,
)
from xmc_fast.metrics._report import Report, report

__all__ = [
    "LabelBins",
    "LabelCounts",
    "Report",
    "abandonment_at_k",
    "coverage_at_k",
    "frequency_bins",
    "hamming_loss_at_k",
    "label_counts_at_k",
    "macro_balanced_accuracy_at_k",
    "macro_f1_at_k",
    "macro_fbeta_at_k",
    "macro_gmean_at_k",
    "macro_jaccard_at_k",
    "macro_precision_at_k",
    "macro_recall_at_k",
    "ndcg_at_k",
    "precision_at_k",
    "psndcg_at_k",
    "psp_at_k",
    "recall_at_k",
    "report",
    "subset_zero_one_loss_at_k",
]

K = int | Sequence[int]
_ALL = np.empty(0, np.int32)  # weight 1 for each row


def _shape(values: Floats, where: npt.NDArray[np.int64] | None) -> Any:
    return float(values[0]) if where is None else values[where]


def _instance(
    name: str, Y_true: Any, pred: Any, k: K, label_filter: Any, n_jobs: int | None, propensity: Any = None
) -> Any:
    ks, where = cutoffs(k)
    r = ranked(Y_true, pred, ks[-1], label_filter, resolve_threads(n_jobs))
    q = inverse_propensity(propensity, r.truth.shape[1])
    values = instance_values(r, Options(ks, q, "all", 1.0), _ALL, n_labels=r.truth.shape[1])
    if name == "psp_unnormalized":
        warn_if_misspecified(values, ks)
    return _shape(values[name], where)


def _macro(
    name: str,
    Y_true: Any,
    pred: Any,
    k: K,
    labels: LabelSet,
    label_filter: Any,
    n_jobs: int | None,
    beta: float = 1.0,
) -> Any:
    if labels not in ("all", "positive"):
        raise ValueError(f'labels must be "all" or "positive", got {labels!r}')
    ks, where = cutoffs(k)
    r = ranked(Y_true, pred, ks[-1], label_filter, resolve_threads(n_jobs))
    options = Options(ks, np.empty(0), labels, beta)
    values = macro_values(counts_at_k(r, ks, _ALL), r, options, r.truth.shape[0], None)
    return _shape(values[0][name], where)


def precision_at_k(
    Y_true: Any, pred: Any, k: K = 5, *, label_filter: Any = None, n_jobs: int | None = None
) -> Any:
    """P@k: the share of true labels among the first k, averaged over rows.

    >>> precision_at_k([[1, 0, 1], [0, 1, 0]], np.array([[0, 1], [2, 1]]), k=2)
    0.5
    """
    return _instance("precision", Y_true, pred, k, label_filter, n_jobs)


def recall_at_k(
    Y_true: Any, pred: Any, k: K = 5, *, label_filter: Any = None, n_jobs: int | None = None
) -> Any:
    """R@k: the share of a row's true labels found among the first k, averaged over rows.

    >>> recall_at_k([[1, 0, 1], [0, 1, 0]], np.array([[0, 1], [2, 1]]), k=(1, 2))
    array([0.25, 0.75])
    """
    return _instance("recall", Y_true, pred, k, label_filter, n_jobs)


def ndcg_at_k(
    Y_true: Any, pred: Any, k: K = 5, *, label_filter: Any = None, n_jobs: int | None = None
) -> Any:
    """nDCG@k: hits discounted by 1/log2(rank + 1), relative to the best reachable for the row.

    >>> ndcg_at_k([[1, 0, 1], [0, 1, 0]], np.array([[0, 2], [1, 0]]), k=2)
    1.0
    """
    return _instance("ndcg", Y_true, pred, k, label_filter, n_jobs)


def psp_at_k(
    Y_true: Any,
    pred: Any,
    propensity: Any,
    k: K = 5,
    *,
    normalize: bool = True,
    label_filter: Any = None,
    n_jobs: int | None = None,
) -> Any:
    """Propensity-scored precision: P@k with hits weighted by 1/propensity (Jain, Prabhu and Varma 2016).

    With ``normalize``, divided by the largest value any prediction reaches (a ratio of two sums over the
    whole set, as in the Extreme Classification Repository). Without, it estimates P@k on complete labels; a
    value above 1 by more than three standard errors shows that the propensities do not fit, and a
    PropensityWarning says so.

    >>> psp_at_k([[1, 0, 1], [0, 1, 0]], np.array([[0], [2]]), [1.0, 1.0, 0.25], k=1)
    0.2
    """
    name = "psp" if normalize else "psp_unnormalized"
    return _instance(name, Y_true, pred, k, label_filter, n_jobs, propensity)


def psndcg_at_k(
    Y_true: Any,
    pred: Any,
    propensity: Any,
    k: K = 5,
    *,
    normalize: bool = True,
    label_filter: Any = None,
    n_jobs: int | None = None,
) -> Any:
    """Propensity-scored nDCG: nDCG@k with hits weighted by 1/propensity; ``normalize`` as in psp_at_k.

    >>> psndcg_at_k([[1, 0, 1], [0, 1, 0]], np.array([[2, 0], [1, 0]]), [1.0, 1.0, 0.25], k=2)
    1.0
    """
    name = "psndcg" if normalize else "psndcg_unnormalized"
    return _instance(name, Y_true, pred, k, label_filter, n_jobs, propensity)


def hamming_loss_at_k(
    Y_true: Any, pred: Any, k: K = 5, *, label_filter: Any = None, n_jobs: int | None = None
) -> Any:
    """The share of the n x L entries that are wrong when the first k labels are the prediction.

    >>> round(hamming_loss_at_k([[1, 0, 1], [0, 1, 0]], np.array([[0], [2]]), k=1), 4)
    0.5
    """
    return _instance("hamming_loss", Y_true, pred, k, label_filter, n_jobs)


def subset_zero_one_loss_at_k(
    Y_true: Any, pred: Any, k: K = 5, *, label_filter: Any = None, n_jobs: int | None = None
) -> Any:
    """The share of rows whose first k labels are not exactly the true ones.

    >>> subset_zero_one_loss_at_k([[1, 0, 1], [0, 1, 0]], np.array([[0, 1], [1, 2]]), k=1)
    0.5
    """
    return _instance("subset_zero_one_loss", Y_true, pred, k, label_filter, n_jobs)


def abandonment_at_k(
    Y_true: Any, pred: Any, k: K = 5, *, label_filter: Any = None, n_jobs: int | None = None
) -> Any:
    """The share of rows without any true label among the first k (napkinXC's abandonment is 1 minus this).

    >>> abandonment_at_k([[1, 0, 1], [0, 1, 0]], np.array([[0, 1], [0, 1]]), k=(1, 2))
    array([0.5, 0. ])
    """
    return _instance("abandonment", Y_true, pred, k, label_filter, n_jobs)


class LabelCounts(NamedTuple):
    """Counts per label behind the macro metrics (L, or (L, K) for several k)."""

    true_positives: npt.NDArray[np.int64]
    predicted: npt.NDArray[np.int64]
    positives: npt.NDArray[np.int64]  # always (L,)


def label_counts_at_k(
    Y_true: Any, pred: Any, k: K = 5, *, label_filter: Any = None, n_jobs: int | None = None
) -> LabelCounts:
    """True positives, predictions and positives of each label when the first k labels are the prediction.

    >>> c = label_counts_at_k([[1, 0, 1], [0, 1, 0]], np.array([[0, 1], [0, 1]]), k=1)
    >>> c.true_positives.tolist(), c.predicted.tolist(), c.positives.tolist()
    ([1, 0, 0], [2, 0, 0], [1, 1, 1])
    """
    ks, where = cutoffs(k)
    r = ranked(Y_true, pred, ks[-1], label_filter, resolve_threads(n_jobs))
    counts = counts_at_k(r, ks, _ALL).reshape(r.truth.shape[1], -1).astype(np.int64)
    tp, predicted = (np.cumsum(c, axis=1) for c in np.split(counts[:, 1:], 2, axis=1))
    if where is None:
        return LabelCounts(tp[:, 0], predicted[:, 0], counts[:, 0])
    return LabelCounts(tp[:, where], predicted[:, where], counts[:, 0])


def macro_precision_at_k(
    Y_true: Any,
    pred: Any,
    k: K = 5,
    *,
    labels: LabelSet = "all",
    label_filter: Any = None,
    n_jobs: int | None = None,
) -> Any:
    """Mean over labels of true positives / predictions.

    >>> macro_precision_at_k([[1, 0], [0, 1]], np.array([[0], [0]]), k=1)
    0.25
    """
    return _macro("macro_precision", Y_true, pred, k, labels, label_filter, n_jobs)


def macro_recall_at_k(
    Y_true: Any,
    pred: Any,
    k: K = 5,
    *,
    labels: LabelSet = "all",
    label_filter: Any = None,
    n_jobs: int | None = None,
) -> Any:
    """Mean over labels of true positives / positives.

    >>> macro_recall_at_k([[1, 0], [0, 1]], np.array([[0], [0]]), k=1)
    0.5
    """
    return _macro("macro_recall", Y_true, pred, k, labels, label_filter, n_jobs)


def macro_fbeta_at_k(
    Y_true: Any,
    pred: Any,
    k: K = 5,
    *,
    beta: float,
    labels: LabelSet = "all",
    label_filter: Any = None,
    n_jobs: int | None = None,
) -> Any:
    """Mean over labels of F_beta = (1 + beta²) tp / (beta² positives + predicted).

    >>> macro_fbeta_at_k([[1, 0], [0, 1]], np.array([[0], [0]]), k=1, beta=2.0)
    0.4166666666666667
    """
    return _macro("macro_fbeta", Y_true, pred, k, labels, label_filter, n_jobs, beta)


def macro_f1_at_k(
    Y_true: Any,
    pred: Any,
    k: K = 5,
    *,
    labels: LabelSet = "all",
    label_filter: Any = None,
    n_jobs: int | None = None,
) -> Any:
    """Mean over labels of F1 = 2 tp / (positives + predicted).

    >>> round(macro_f1_at_k([[1, 0], [0, 1]], np.array([[0], [0]]), k=1), 4)
    0.3333
    """
    return _macro("macro_fbeta", Y_true, pred, k, labels, label_filter, n_jobs)


def coverage_at_k(
    Y_true: Any,
    pred: Any,
    k: K = 5,
    *,
    labels: LabelSet = "all",
    label_filter: Any = None,
    n_jobs: int | None = None,
) -> Any:
    """The share of labels that are predicted right at least once.

    >>> coverage_at_k([[1, 0], [0, 1]], np.array([[0], [0]]), k=1)
    0.5
    """
    return _macro("coverage", Y_true, pred, k, labels, label_filter, n_jobs)


def macro_balanced_accuracy_at_k(
    Y_true: Any,
    pred: Any,
    k: K = 5,
    *,
    labels: LabelSet = "all",
    label_filter: Any = None,
    n_jobs: int | None = None,
) -> Any:
    """Mean over labels of (true positive rate + true negative rate) / 2.

    >>> macro_balanced_accuracy_at_k([[1, 0], [0, 1]], np.array([[0], [0]]), k=1)
    0.5
    """
    return _macro("macro_balanced_accuracy", Y_true, pred, k, labels, label_filter, n_jobs)


def macro_gmean_at_k(
    Y_true: Any,
    pred: Any,
    k: K = 5,
    *,
    labels: LabelSet = "all",
    label_filter: Any = None,
    n_jobs: int | None = None,
) -> Any:
    """Mean over labels of sqrt(true positive rate · true negative rate).

    >>> macro_gmean_at_k([[1, 0], [0, 1]], np.array([[0], [1]]), k=1)
    1.0
    """
    return _macro("macro_gmean", Y_true, pred, k, labels, label_filter, n_jobs)


def macro_jaccard_at_k(
    Y_true: Any,
    pred: Any,
    k: K = 5,
    *,
    labels: LabelSet = "all",
    label_filter: Any = None,
    n_jobs: int | None = None,
) -> Any:
    """Mean over labels of tp / (positives + predicted − tp).

    >>> macro_jaccard_at_k([[1, 0], [0, 1]], np.array([[0], [0]]), k=1)
    0.25
    """
    return _macro("macro_jaccard", Y_true, pred, k, labels, label_filter, n_jobs)
