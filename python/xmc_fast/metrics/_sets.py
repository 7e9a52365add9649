"""Predictions as sets of labels: the first k, or those with a score of at least a threshold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.sparse as sp

from xmc_fast import _core
from xmc_fast._threads import resolve_threads
from xmc_fast._validate import Csr, to_scipy
from xmc_fast.metrics._compute import (
    LabelSet,
    Options,
    check_labels,
    counts_at_k,
    instance_values,
    macro_values,
)
from xmc_fast.metrics._inputs import Floats, Ranked, cutoffs, ranked, truth_and_scores

Average = Literal["micro", "macro", "sample"]


class PrecisionRecallF1(NamedTuple):
    """Numbers, or arrays with one value per k or threshold."""

    precision: Any
    recall: Any
    f1: Any


def precision_recall_f1(
    Y_true: Any,
    pred: Any,
    *,
    k: int | Sequence[int] | None = None,
    threshold: float | Sequence[float] | None = None,
    average: Average = "micro",
    labels: LabelSet = "all",
    label_filter: Any = None,
    n_labels: int | None = None,
    n_jobs: int | None = None,
) -> PrecisionRecallF1:
    """Precision, recall and F1 of label sets, as scikit-learn's ``precision_recall_fscore_support`` has them.

    Parameters
    ----------
    Y_true : binary matrix of shape (n, L)
    pred : integers of shape (n, m), CSR or floats of shape (n, L)
    k : int or sequence of int
        Predicted are the first k labels of a row (or all of a shorter list).
    threshold : float or sequence of float
        Predicted are the labels with a score of at least this. One of ``k`` and ``threshold`` is given.
    average : {"micro", "macro", "sample"}
        Of counts summed over all entries, per label, or per row. 0/0 = 0.
    labels : {"all", "positive"}
        The labels of the macro average.
    label_filter, n_labels, n_jobs
        As everywhere in this module.

    Examples
    --------
    >>> Y, proba = np.array([[1, 0, 1], [0, 1, 0]]), np.array([[0.9, 0.6, 0.4], [0.3, 0.8, 0.1]])
    >>> precision_recall_f1(Y, proba, threshold=0.5)
    PrecisionRecallF1(precision=0.666..., recall=0.666..., f1=0.666...)
    >>> precision_recall_f1(Y, proba, k=(1, 2), average="sample").recall
    array([0.75, 0.75])
    """
    if (k is None) == (threshold is None):
        raise ValueError("give k or threshold, one of them")
    if average not in ("micro", "macro", "sample"):
        raise ValueError(f'average must be "micro", "macro" or "sample", got {average!r}')
    threads, kind = resolve_threads(n_jobs), check_labels(labels)
    if k is not None:
        ks, where = cutoffs(k)
        values = _averages(ranked(Y_true, pred, ks[-1], label_filter, threads, n_labels), ks, average, kind)
        chosen: Any = 0 if where is None else where
        return PrecisionRecallF1(*(v[chosen].item() if where is None else v[chosen] for v in values))
    thresholds = np.asarray(threshold, np.float64)
    found = []
    for t in np.atleast_1d(thresholds):
        kept = _at_least(Y_true, pred, float(t), n_labels)
        longest = max(int(np.diff(kept.indptr).max(initial=0)), 1)
        r = ranked(Y_true, kept, longest, label_filter, threads, kept.shape[1])
        found.append([v[0] for v in _averages(r, [longest], average, kind)])
    columns = np.array(found).reshape(-1, 3).T
    return PrecisionRecallF1(*(c if thresholds.ndim else float(c[0]) for c in columns))


def _averages(r: Ranked, ks: list[int], average: Average, labels: LabelSet) -> list[Floats]:
    options = Options(ks, np.empty(0), labels, 1.0)
    if average == "macro":
        values = macro_values(counts_at_k(r, ks), r, options, r.truth.shape[0], None)[0]
        return [values[f"macro_{name}"] for name in ("precision", "recall", "fbeta")]
    values = instance_values(r, options, n_labels=r.truth.shape[1])
    recall = "recall" if average == "sample" else "micro_recall"
    return [values[name] for name in (f"{average}_precision", recall, f"{average}_f1")]


def _at_least(Y_true: Any, pred: Any, threshold: float, n_labels: int | None) -> sp.csr_matrix:
    """The entries of ``pred`` with a score of at least the threshold."""
    truth, scores = truth_and_scores(Y_true, pred, n_labels)
    if isinstance(scores, Csr):
        keep = scores.data >= threshold
        indptr = np.concatenate(([0], np.cumsum(keep)))[scores.indptr]
        return to_scipy(indptr, scores.indices[keep], scores.data[keep], scores.shape)
    if scores.dtype.kind in "iu":
        raise ValueError("a threshold needs scores, pred holds label ids")
    rows, columns = np.nonzero(scores >= threshold)
    return sp.csr_matrix((scores[rows, columns].astype(np.float64), (rows, columns)), truth.shape)


class Suggestion(NamedTuple):
    """What `suggest` found: two rules, each with its micro-F1 and sample-F1 on the given rows."""

    k: int
    threshold: float
    micro_f1_at_k: float
    sample_f1_at_k: float
    micro_f1_at_threshold: float
    sample_f1_at_threshold: float


def suggest(Y_true: Any, proba: Any, *, n_labels: int | None = None, n_jobs: int | None = None) -> Suggestion:
    """The number of labels per row, and the threshold, with the highest micro-F1 on validation rows.

    Two rules for the use of a model: predict the k best labels of each row, or all with a probability of at least
    ``threshold``. Both are the exact optima among the labels in ``proba``: one sort of its entries, no grid.

    Parameters
    ----------
    Y_true : binary matrix of shape (n, L)
        True labels of rows that the model was not trained on.
    proba : CSR or floats of shape (n, L)
        Probabilities (or scores) of those rows; a list of the best labels per row is enough.
    n_labels, n_jobs
        As everywhere in this module.

    Returns
    -------
    Suggestion

    Examples
    --------
    >>> Y, proba = np.array([[1, 0, 1], [0, 1, 0]]), np.array([[0.9, 0.3, 0.8], [0.3, 0.7, 0.1]])
    >>> found = suggest(Y, proba)
    >>> found.k, found.threshold, found.micro_f1_at_threshold
    (2, 0.5, 1.0)
    """
    truth, scores = truth_and_scores(Y_true, proba, n_labels, "proba")
    if not isinstance(scores, Csr):
        scores = _all_entries(scores)
    longest = max(int(np.diff(scores.indptr).max(initial=0)), 1)
    matrix = to_scipy(scores.indptr, scores.indices, scores.data, truth.shape)
    threads = resolve_threads(n_jobs)
    r = ranked(Y_true, matrix, longest, None, threads, truth.shape[1])
    positives = len(truth.indices)
    rank = np.arange(len(r.ids)) - np.repeat(r.indptr[:-1], np.diff(r.indptr))
    predicted = np.cumsum(np.bincount(rank, minlength=longest))
    hits = np.cumsum(np.bincount(rank, r.hits, minlength=longest))
    k = int(np.argmax(2 * hits / np.maximum(predicted + positives, 1))) + 1

    order = np.argsort(-scores.data, kind="stable")
    relevant = _core.match_hits(truth, scores.indptr, scores.indices, threads)[order]
    f1 = 2 * np.cumsum(relevant, dtype=np.int64) / np.maximum(np.arange(1, len(order) + 1) + positives, 1)
    sorted_values = scores.data[order].astype(np.float64)
    ends = np.flatnonzero(np.diff(sorted_values, append=-np.inf))  # the last of equal values
    threshold = 0.5
    if len(ends):
        best = int(np.argmax(f1[ends]))
        above, at = sorted_values[ends[best]], best + 1
        threshold = float((above + sorted_values[ends[at]]) / 2) if at < len(ends) else float(above)

    def rule(**option: Any) -> tuple[float, float]:
        averages: tuple[Average, Average] = ("micro", "sample")
        micro, sample = (
            precision_recall_f1(
                Y_true, matrix, average=a, n_labels=truth.shape[1], n_jobs=n_jobs, **option
            ).f1
            for a in averages
        )
        return micro, sample

    return Suggestion(k, threshold, *rule(k=k), *rule(threshold=threshold))


def _all_entries(scores: Any) -> Csr:
    if scores.dtype.kind in "iu":
        raise ValueError("suggest needs probabilities, proba holds label ids")
    n, m = scores.shape
    indices = np.tile(np.arange(m, dtype=np.int32), n)
    return Csr(np.arange(n + 1, dtype=np.int64) * m, indices, scores.astype(np.float64).ravel(), (n, m))
