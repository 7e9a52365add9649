"""From the core's sums (csrc/metrics/at_k.h) to metric values."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from xmc_fast import _core
from xmc_fast.metrics._inputs import Floats, LabelBins, Ranked, restrict
from xmc_fast.propensity import PropensityWarning

LabelSet = Literal["all", "positive"]

# name -> title in tables. The order is the tables'.
INSTANCE = {
    "precision": "P",
    "recall": "R",
    "ndcg": "nDCG",
    "psp": "PSP",
    "psp_unnormalized": "PSP un-normalised",
    "psndcg": "PSnDCG",
    "psndcg_unnormalized": "PSnDCG un-normalised",
    "hamming_loss": "Hamming loss",
    "subset_zero_one_loss": "subset 0/1 loss",
    "abandonment": "abandonment",
}
MACRO = {
    "macro_precision": "macro-P",
    "macro_recall": "macro-R",
    "macro_fbeta": "macro-F1",
    "coverage": "coverage",
    "macro_balanced_accuracy": "macro balanced acc.",
    "macro_gmean": "macro G-mean",
    "macro_jaccard": "macro Jaccard",
}
PROPENSITY_SCORED = ("psp", "psp_unnormalized", "psndcg", "psndcg_unnormalized")
_SUMS = (
    *("hits", "recall", "ndcg", "psp", "psp_square", "psp_best", "psndcg", "psndcg_best"),
    *("success", "errors", "exact"),
)


class Options(NamedTuple):
    """What decides the numbers, beside the data."""

    ks: Sequence[int]  # ascending
    q: Floats  # inverse propensities, or empty
    labels: LabelSet
    beta: float


def divide(a: Any, b: Any) -> Floats:
    """a / b with 0/0 = 0."""
    a, b = np.broadcast_arrays(np.asarray(a, np.float64), np.asarray(b, np.float64))
    quotient = np.zeros(a.shape)
    np.divide(a, b, out=quotient, where=b != 0)
    return quotient


def instance_values(
    r: Ranked, o: Options, weights: npt.NDArray[np.int32], *, n_labels: int, in_bin: bool = False
) -> dict[str, Floats]:
    """Metrics averaged over rows. In a bin, what is relative to a row's labels skips rows without any."""
    t = r.truth
    flat = _core.instance_sums(
        t.shape[1], t.indptr, t.indices, r.indptr, r.ids, r.hits, weights, o.ks, o.q, r.threads
    )
    sums = dict(zip(_SUMS, flat[:-2].reshape(len(_SUMS), -1), strict=True))
    rows, labelled = flat[-2], flat[-1]
    relative = labelled if in_bin else rows
    values = {
        "precision": divide(sums["hits"], rows * np.asarray(o.ks)),
        "recall": divide(sums["recall"], relative),
        "ndcg": divide(sums["ndcg"], relative),
        "psp": divide(sums["psp"], sums["psp_best"]),
        "psp_unnormalized": divide(sums["psp"], rows),
        "psndcg": divide(sums["psndcg"], sums["psndcg_best"]),
        "psndcg_unnormalized": divide(sums["psndcg"], relative),
        "hamming_loss": divide(sums["errors"], rows * n_labels),
        "subset_zero_one_loss": divide(rows - sums["exact"], rows),
        "abandonment": divide(relative - sums["success"], relative),
        "psp_variance": divide(divide(sums["psp_square"], rows) - divide(sums["psp"], rows) ** 2, rows),
    }
    return values


def macro_values(
    counts: npt.NDArray[np.int32], r: Ranked, o: Options, rows: float, bins: LabelBins | None
) -> list[dict[str, Floats]]:
    """Metrics averaged over labels: one dict for all labels, or one per bin."""
    n_labels, n_ks = r.truth.shape[1], len(o.ks)
    group = np.empty(0, np.int32) if bins is None else bins.group
    groups = 1 if bins is None else len(bins.names)
    only = o.labels == "positive"
    flat = _core.macro_sums(counts, n_labels, n_ks, rows, o.beta, group, groups, only, r.threads)
    result = []
    for sums in flat.reshape(groups, -1):
        size = sums[-1] if only else sums[-2]
        result.append(dict(zip(MACRO, divide(sums[:-2].reshape(len(MACRO), n_ks), size), strict=True)))
    return result


def counts_at_k(r: Ranked, ks: Sequence[int], weights: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    t = r.truth
    return _core.label_counts(
        t.shape[1], t.indptr, t.indices, r.indptr, r.ids, r.hits, weights, ks, r.threads
    )


def evaluate(
    r: Ranked, o: Options, bins: LabelBins | None = None, weights: npt.NDArray[np.int32] | None = None
) -> list[dict[str, Floats]]:
    """All metrics: a dict for the whole set, then one per bin."""
    n, n_labels = r.truth.shape
    w = np.empty(0, np.int32) if weights is None else weights
    counts = counts_at_k(r, o.ks, w)
    values = [instance_values(r, o, w, n_labels=n_labels) | macro_values(counts, r, o, n, None)[0]]
    if bins is not None:
        macro = macro_values(counts, r, o, n, bins)
        for number, labelwise in enumerate(macro):
            size = int(np.count_nonzero(bins.group == number))
            part = restrict(r, bins, number)
            values.append(instance_values(part, o, w, n_labels=size, in_bin=True) | labelwise)
    return values


def warn_if_misspecified(values: dict[str, Floats], ks: Sequence[int]) -> None:
    """The diagnostic of un-normalised PSP: a precision above 1 is impossible, whatever the predictions."""
    psp, error = values["psp_unnormalized"], np.sqrt(values["psp_variance"])
    bad = [c for c in range(len(ks)) if psp[c] - 3 * error[c] > 1]
    if bad:
        found = ", ".join(f"@{ks[b]}: {100 * psp[b]:.1f} % (± {100 * error[b]:.1f})" for b in bad)
        warnings.warn(
            f"un-normalised PSP is above 100 % ({found}). It estimates P@k on complete labels, which cannot "
            "be above 100 %: the propensity model does not fit these data. Normalised PSP hides this: read "
            "it as a weighting of rare labels only, and prefer macro metrics",
            PropensityWarning,
            stacklevel=3,
        )
