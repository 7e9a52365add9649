"""Metrics for extreme multi-label classification: instance-wise, micro, macro, propensity-scored, of rankings.

Every function takes the truth ``Y_true`` (binary, n x L) and the predictions ``pred`` (label ids in rank order as
integers (n, m), CSR scores or dense scores of shape (n, L)); those at k take ``k`` (one number, or several for an
array of values). `report` gives them all in one pass. Common keywords: ``label_filter`` (pairs to ignore),
``n_labels`` (number of labels, needed where Y_true or pred lacks the last columns), ``n_jobs`` (threads), and of
the macro metrics ``labels`` ("all", or "positive" for an average over the labels with a positive in Y_true).

Conventions: 0/0 = 0; a row without true labels counts with the value 0 (abandonment: 1); lists shorter than k
have no hit at their missing ranks; macro metrics average over all L labels unless ``labels="positive"``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, NamedTuple, ParamSpec

import numpy as np
import numpy.typing as npt

from xmc_fast._threads import resolve_threads
from xmc_fast.metrics._compute import (
    LabelSet,
    Options,
    check_labels,
    counts_at_k,
    instance_values,
    macro_values,
    warn_if_misspecified,
)
from xmc_fast.metrics._inputs import LabelBins, cutoffs, frequency_bins, inverse_propensity, ranked
from xmc_fast.metrics._ranking import coverage_error, label_ranking_loss
from xmc_fast.metrics._report import Report, report
from xmc_fast.metrics._sets import PrecisionRecallF1, Suggestion, precision_recall_f1, suggest

__all__ = [
    "LabelBins",
    "LabelCounts",
    "PrecisionRecallF1",
    "Report",
    "Suggestion",
    "abandonment_at_k",
    "coverage_at_k",
    "coverage_error",
    "frequency_bins",
    "hamming_loss_at_k",
    "label_counts_at_k",
    "label_ranking_loss",
    "macro_balanced_accuracy_at_k",
    "macro_f1_at_k",
    "macro_fbeta_at_k",
    "macro_gmean_at_k",
    "macro_jaccard_at_k",
    "macro_precision_at_k",
    "macro_recall_at_k",
    "micro_f1_at_k",
    "ndcg_at_k",
    "precision_at_k",
    "precision_recall_f1",
    "psndcg_at_k",
    "psp_at_k",
    "recall_at_k",
    "report",
    "subset_zero_one_loss_at_k",
    "suggest",
]

K = int | Sequence[int]
P = ParamSpec("P")


def _named(
    compute: Callable[Concatenate[str, P], Any], name: str
) -> Callable[[Callable[[], None]], Callable[P, Any]]:
    """``compute(name, ...)`` under the name and docstring of the decorated function, which has no body."""

    def decorate(entry: Callable[[], None]) -> Callable[P, Any]:
        def metric(*args: P.args, **kwargs: P.kwargs) -> Any:
            return compute(name, *args, **kwargs)

        signature = inspect.signature(compute)
        parameters = list(signature.parameters.values())[1:]
        metric.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        metric.__name__ = metric.__qualname__ = entry.__name__
        metric.__doc__ = entry.__doc__
        return metric

    return decorate


def _instance(
    name: str,
    Y_true: Any,
    pred: Any,
    k: K = 5,
    *,
    label_filter: Any = None,
    n_labels: int | None = None,
    n_jobs: int | None = None,
) -> Any:
    return _scored(name, Y_true, pred, None, k, label_filter=label_filter, n_labels=n_labels, n_jobs=n_jobs)


def _scored(
    name: str,
    Y_true: Any,
    pred: Any,
    propensity: Any,
    k: K = 5,
    *,
    normalize: bool = True,
    label_filter: Any = None,
    n_labels: int | None = None,
    n_jobs: int | None = None,
) -> Any:
    ks, where = cutoffs(k)
    r = ranked(Y_true, pred, ks[-1], label_filter, resolve_threads(n_jobs), n_labels)
    q = inverse_propensity(propensity, r.truth.shape[1])
    values = instance_values(r, Options(ks, q, "all", 1.0), n_labels=r.truth.shape[1])
    if name == "psp" and not normalize:
        warn_if_misspecified(values, ks)
    return _picked(values[name if normalize else f"{name}_unnormalized"], where)


def _macro(
    name: str,
    Y_true: Any,
    pred: Any,
    k: K = 5,
    *,
    beta: float = 1.0,
    labels: LabelSet = "all",
    label_filter: Any = None,
    n_labels: int | None = None,
    n_jobs: int | None = None,
) -> Any:
    ks, where = cutoffs(k)
    options = Options(ks, np.empty(0), check_labels(labels), beta)
    r = ranked(Y_true, pred, ks[-1], label_filter, resolve_threads(n_jobs), n_labels)
    return _picked(macro_values(counts_at_k(r, ks), r, options, r.truth.shape[0], None)[0][name], where)


def _picked(values: Any, where: Any) -> Any:
    """The values at the given cut-offs: a number for a single k, else an array."""
    return float(values[0]) if where is None else values[where]


@_named(_instance, "precision")
def precision_at_k() -> None:
    """P@k: the share of true labels among the first k, averaged over rows.

    >>> precision_at_k([[1, 0, 1], [0, 1, 0]], np.array([[0, 1], [2, 1]]), k=2)
    0.5
    """


@_named(_instance, "recall")
def recall_at_k() -> None:
    """R@k: the share of a row's true labels found among the first k, averaged over rows.

    >>> recall_at_k([[1, 0, 1], [0, 1, 0]], np.array([[0, 1], [2, 1]]), k=(1, 2))
    array([0.25, 0.75])
    """


@_named(_instance, "ndcg")
def ndcg_at_k() -> None:
    """nDCG@k: hits discounted by 1/log2(rank + 1), relative to the best reachable for the row.

    >>> ndcg_at_k([[1, 0, 1], [0, 1, 0]], np.array([[0, 2], [1, 0]]), k=2)
    1.0
    """


@_named(_instance, "micro_f1")
def micro_f1_at_k() -> None:
    """Micro-F1: 2 tp / (positives + predicted), counts summed over all rows and labels; the first k are predicted.

    >>> round(micro_f1_at_k([[1, 0, 1], [0, 1, 0]], np.array([[0, 1], [2, 1]]), k=2), 4)
    0.5714
    """


@_named(_instance, "hamming_loss")
def hamming_loss_at_k() -> None:
    """The share of the n x L entries that are wrong when the first k labels are the prediction.

    >>> round(hamming_loss_at_k([[1, 0, 1], [0, 1, 0]], np.array([[0], [2]]), k=1), 4)
    0.5
    """


@_named(_instance, "subset_zero_one_loss")
def subset_zero_one_loss_at_k() -> None:
    """The share of rows whose first k labels are not exactly the true ones.

    >>> subset_zero_one_loss_at_k([[1, 0, 1], [0, 1, 0]], np.array([[0, 1], [1, 2]]), k=1)
    0.5
    """


@_named(_instance, "abandonment")
def abandonment_at_k() -> None:
    """The share of rows without any true label among the first k (napkinXC's abandonment is 1 minus this).

    >>> abandonment_at_k([[1, 0, 1], [0, 1, 0]], np.array([[0, 1], [0, 1]]), k=(1, 2))
    array([0.5, 0. ])
    """


@_named(_scored, "psp")
def psp_at_k() -> None:
    """Propensity-scored precision: P@k with hits weighted by 1/propensity (Jain, Prabhu and Varma 2016).

    With ``normalize``, divided by the largest value any prediction reaches (a ratio of two sums over the
    whole set, as in the Extreme Classification Repository). Without, it estimates P@k on complete labels; a
    value above 1 by more than three standard errors shows that the propensities do not fit, and a
    PropensityWarning says so.

    >>> psp_at_k([[1, 0, 1], [0, 1, 0]], np.array([[0], [2]]), [1.0, 1.0, 0.25], k=1)
    0.2
    """


@_named(_scored, "psndcg")
def psndcg_at_k() -> None:
    """Propensity-scored nDCG: nDCG@k with hits weighted by 1/propensity; ``normalize`` as in psp_at_k.

    >>> psndcg_at_k([[1, 0, 1], [0, 1, 0]], np.array([[2, 0], [1, 0]]), [1.0, 1.0, 0.25], k=2)
    1.0
    """


@_named(_macro, "macro_precision")
def macro_precision_at_k() -> None:
    """Mean over labels of true positives / predictions.

    >>> macro_precision_at_k([[1, 0], [0, 1]], np.array([[0], [0]]), k=1)
    0.25
    """


@_named(_macro, "macro_recall")
def macro_recall_at_k() -> None:
    """Mean over labels of true positives / positives.

    >>> macro_recall_at_k([[1, 0], [0, 1]], np.array([[0], [0]]), k=1)
    0.5
    """


@_named(_macro, "macro_fbeta")
def macro_fbeta_at_k() -> None:
    """Mean over labels of F_beta = (1 + beta²) tp / (beta² positives + predicted).

    >>> macro_fbeta_at_k([[1, 0], [0, 1]], np.array([[0], [0]]), k=1, beta=2.0)
    0.4166666666666667
    """


@_named(_macro, "macro_fbeta")
def macro_f1_at_k() -> None:
    """Mean over labels of F1 = 2 tp / (positives + predicted).

    >>> round(macro_f1_at_k([[1, 0], [0, 1]], np.array([[0], [0]]), k=1), 4)
    0.3333
    """


@_named(_macro, "coverage")
def coverage_at_k() -> None:
    """The share of labels that are predicted right at least once.

    >>> coverage_at_k([[1, 0], [0, 1]], np.array([[0], [0]]), k=1)
    0.5
    """


@_named(_macro, "macro_balanced_accuracy")
def macro_balanced_accuracy_at_k() -> None:
    """Mean over labels of (true positive rate + true negative rate) / 2.

    >>> macro_balanced_accuracy_at_k([[1, 0], [0, 1]], np.array([[0], [0]]), k=1)
    0.5
    """


@_named(_macro, "macro_gmean")
def macro_gmean_at_k() -> None:
    """Mean over labels of sqrt(true positive rate · true negative rate).

    >>> macro_gmean_at_k([[1, 0], [0, 1]], np.array([[0], [1]]), k=1)
    1.0
    """


@_named(_macro, "macro_jaccard")
def macro_jaccard_at_k() -> None:
    """Mean over labels of tp / (positives + predicted − tp).

    >>> macro_jaccard_at_k([[1, 0], [0, 1]], np.array([[0], [0]]), k=1)
    0.25
    """


class LabelCounts(NamedTuple):
    """Counts per label behind the macro metrics (L, or (L, K) for several k)."""

    true_positives: npt.NDArray[np.int64]
    predicted: npt.NDArray[np.int64]
    positives: npt.NDArray[np.int64]  # always (L,)


def label_counts_at_k(
    Y_true: Any,
    pred: Any,
    k: K = 5,
    *,
    label_filter: Any = None,
    n_labels: int | None = None,
    n_jobs: int | None = None,
) -> LabelCounts:
    """True positives, predictions and positives of each label when the first k labels are the prediction.

    >>> c = label_counts_at_k([[1, 0, 1], [0, 1, 0]], np.array([[0, 1], [0, 1]]), k=1)
    >>> c.true_positives.tolist(), c.predicted.tolist(), c.positives.tolist()
    ([1, 0, 0], [2, 0, 0], [1, 1, 1])
    """
    ks, where = cutoffs(k)
    r = ranked(Y_true, pred, ks[-1], label_filter, resolve_threads(n_jobs), n_labels)
    counts = counts_at_k(r, ks).reshape(r.truth.shape[1], -1).astype(np.int64)
    tp, predicted = (np.cumsum(c, axis=1) for c in np.split(counts[:, 1:], 2, axis=1))
    chosen: Any = 0 if where is None else where
    return LabelCounts(tp[:, chosen], predicted[:, chosen], counts[:, 0])
