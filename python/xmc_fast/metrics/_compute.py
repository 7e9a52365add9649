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
    "micro_precision": "micro-P",
    "micro_recall": "micro-R",
    "micro_f1": "micro-F1",
    "sample_precision": "sample-P",
    "sample_f1": "sample-F1",
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
    *("success", "errors", "exact", "predicted", "set_precision", "set_f1"),
)


class Options(NamedTuple):
    """What decides the numbers, beside the data."""

    ks: Sequence[int]  # ascending
    q: Floats  # inverse propensities, or empty
    labels: LabelSet
    beta: float


EVERY_ROW = np.empty(0, np.int32)  # weights: 1 for each row


def check_labels(labels: LabelSet) -> LabelSet:
    if labels not in ("all", "positive"):
        raise ValueError(f'labels must be "all" or "positive", got {labels!r}')
    return labels


def divide(a: Any, b: Any, empty: float = 0.0) -> Floats:
    """a / b with 0/0 = ``empty``."""
    a, b = np.broadcast_arrays(np.asarray(a, np.float64), np.asarray(b, np.float64))
    quotient = np.full(a.shape, empty)
    np.divide(a, b, out=quotient, where=b != 0)
    return quotient


def instance_values(
    r: Ranked,
    o: Options,
    weights: npt.NDArray[np.int32] = EVERY_ROW,
    *,
    n_labels: int,
    in_bin: bool = False,
) -> dict[str, Floats]:
    """Metrics averaged over rows, and micro averages.

    In a bin, what is relative to a row's labels skips rows without any, and 0/0 is NaN.
    """
    flat = _core.instance_sums(r, weights, list(o.ks), o.q)
    sums = dict(zip(_SUMS, flat[:-3].reshape(len(_SUMS), -1), strict=True))
    rows, labelled, positives = flat[-3:]
    relative, empty = (labelled, np.nan) if in_bin else (rows, 0.0)
    values = {
        "precision": divide(sums["hits"], rows * np.asarray(o.ks)),
        "recall": divide(sums["recall"], relative, empty),
        "ndcg": divide(sums["ndcg"], relative, empty),
        "micro_precision": divide(sums["hits"], sums["predicted"], empty),
        "micro_recall": divide(sums["hits"], positives, empty),
        "micro_f1": divide(2 * sums["hits"], sums["predicted"] + positives, empty),
        "sample_precision": divide(sums["set_precision"], rows),
        "sample_f1": divide(sums["set_f1"], relative, empty),
        "psp": divide(sums["psp"], sums["psp_best"], empty),
        "psp_unnormalized": divide(sums["psp"], rows),
        "psndcg": divide(sums["psndcg"], sums["psndcg_best"], empty),
        "psndcg_unnormalized": divide(sums["psndcg"], relative, empty),
        "hamming_loss": divide(sums["errors"], rows * n_labels, empty),
        "subset_zero_one_loss": divide(rows - sums["exact"], rows),
        "abandonment": divide(relative - sums["success"], relative, empty),
        "psp_variance": divide(divide(sums["psp_square"], rows) - divide(sums["psp"], rows) ** 2, rows),
    }
    return values if n_labels else {name: np.full_like(v, empty) for name, v in values.items()}


def macro_values(
    counts: npt.NDArray[np.int32], r: Ranked, o: Options, rows: float, bins: LabelBins | None
) -> list[dict[str, Floats]]:
    """Metrics averaged over labels: one dict for all labels, or one per bin."""
    n_ks, empty = len(o.ks), 0.0 if bins is None else np.nan
    group = np.empty(0, np.int32) if bins is None else bins.group
    groups = 1 if bins is None else len(bins.names)
    only = o.labels == "positive"
    flat = _core.macro_sums(counts, n_ks, rows, o.beta, group, groups, only, r.threads)
    result = []
    for sums in flat.reshape(groups, -1):
        size = sums[-1] if only else sums[-2]
        result.append(dict(zip(MACRO, divide(sums[:-2].reshape(len(MACRO), n_ks), size, empty), strict=True)))
    return result


def counts_at_k(
    r: Ranked, ks: Sequence[int], weights: npt.NDArray[np.int32] = EVERY_ROW
) -> npt.NDArray[np.int32]:
    return _core.label_counts(r, weights, list(ks))


def evaluate(
    r: Ranked, o: Options, bins: LabelBins | None = None, weights: npt.NDArray[np.int32] = EVERY_ROW
) -> list[dict[str, Floats]]:
    """All metrics: a dict for the whole set, then one per bin."""
    n_labels = r.truth.shape[1]
    n = int(weights.sum()) if weights.size else r.truth.shape[0]
    counts = counts_at_k(r, o.ks, weights)
    values = [instance_values(r, o, weights, n_labels=n_labels) | macro_values(counts, r, o, n, None)[0]]
    if bins is not None:
        macro = macro_values(counts, r, o, n, bins)
        for number, labelwise in enumerate(macro):
            size = int(np.count_nonzero(bins.group == number))
            part = restrict(r, bins, number)
            values.append(instance_values(part, o, weights, n_labels=size, in_bin=True) | labelwise)
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
