"""The report: every metric at every k, by bin, with intervals, as a table."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from xmc_fast._threads import resolve_threads
from xmc_fast._validate import at_least
from xmc_fast.metrics._compute import (
    INSTANCE,
    MACRO,
    PROPENSITY_SCORED,
    LabelSet,
    Options,
    check_labels,
    evaluate,
    warn_if_misspecified,
)
from xmc_fast.metrics._inputs import Floats, cutoffs, inverse_propensity, label_bins, ranked
from xmc_fast.metrics._intervals import intervals

LOSSES = ("hamming_loss", "subset_zero_one_loss", "abandonment")


@dataclass(frozen=True)
class Report:
    """Metric values of one set of predictions. ``print`` shows percentages; the fields hold fractions.

    ``report["macro_f1"]`` gives the values at all ``ks``, ``report["macro_f1@5"]`` one number.
    """

    ks: tuple[int, ...]
    values: dict[str, Floats]  # name -> one value per k
    bins: dict[str, dict[str, Floats]]  # bin -> name -> one value per k
    intervals: dict[str, Floats]  # name -> (2, K) lower and upper end; empty without bootstrap
    bin_intervals: dict[str, dict[str, Floats]]
    notes: tuple[str, ...]
    titles: dict[str, str] = field(repr=False, default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        metric, _, k = name.partition("@")
        if metric not in self.values or (k and k not in map(str, self.ks)):
            raise KeyError(f"{name!r}; metrics are {', '.join(self.values)}, k is one of {self.ks}")
        values = self.values[metric]
        return float(values[self.ks.index(int(k))]) if k else values

    def to_dict(self) -> dict[str, Any]:
        """Plain Python numbers, None for the undefined: {"metrics": {name: {k: value}}, "bins": {bin: ...}, ...}."""

        def by_k(values: dict[str, Floats]) -> dict[str, Any]:
            plain = {name: np.where(np.isnan(v), None, v).T.tolist() for name, v in values.items()}  # type: ignore[call-overload]
            return {name: dict(zip(self.ks, v, strict=True)) for name, v in plain.items()}

        return {
            "metrics": by_k(self.values),
            "intervals": by_k(self.intervals),
            "bins": {name: by_k(values) for name, values in self.bins.items()},
            "bin_intervals": {name: by_k(values) for name, values in self.bin_intervals.items()},
            "notes": list(self.notes),
        }

    def _tables(self) -> list[list[list[str]]]:
        """Tables as rows of cells: all metrics over k, then the bins at the largest k."""

        def cell(name: str, values: Floats, interval: Floats | None, c: int) -> str:
            digits = 4 if name == "hamming_loss" else 2
            if np.isnan(values[c]):
                return "–"
            text = f"{100 * values[c]:.{digits}f}"
            if interval is None:
                return text
            return f"{text} [{100 * interval[0, c]:.{digits}f}, {100 * interval[1, c]:.{digits}f}]"

        main = [["metric (%)", *(f"@{k}" for k in self.ks)]]
        for name, values in self.values.items():
            cells = [cell(name, values, self.intervals.get(name), c) for c in range(len(self.ks))]
            main.append([self.titles[name], *cells])
        if not self.bins:
            return [main]
        by_bin = [[f"metric@{self.ks[-1]} (%)", *self.bins]]
        for name in self.values:
            cells = [
                cell(name, values[name], self.bin_intervals.get(b, {}).get(name), -1)
                for b, values in self.bins.items()
            ]
            by_bin.append([self.titles[name], *cells])
        return [main, by_bin]

    def __str__(self) -> str:
        return "\n\n".join([*(_plain(t) for t in self._tables()), "\n".join(self.notes)])

    __repr__ = __str__

    def to_markdown(self) -> str:
        """The tables in Markdown, the notes below."""
        notes = "\n".join(f"- {note}" for note in self.notes)
        return "\n\n".join([*(_markdown(t) for t in self._tables()), notes]) + "\n"

    def plot(self, metrics: Sequence[str] | None = None, *, ax: Any = None) -> Any:
        """Bars per metric and k (per bin, if there are bins), with intervals; returns the Axes."""
        return importlib.import_module("xmc_fast.plots.metrics").plot_report(self, metrics, ax=ax)


def _plain(table: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in table
    )


def _markdown(table: list[list[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in table]
    lines.insert(1, "|---|" + "---:|" * (len(table[0]) - 1))
    return "\n".join(lines)


def report(
    Y_true: Any,
    pred: Any,
    k: int | Sequence[int] = (1, 3, 5),
    *,
    propensity: Any = None,
    bins: Any = None,
    bootstrap: int = 0,
    level: float = 0.95,
    labels: LabelSet = "all",
    beta: float = 1.0,
    label_filter: Any = None,
    metrics: Sequence[str] | None = None,
    n_labels: int | None = None,
    random_state: int = 0,
    n_jobs: int | None = None,
) -> Report:
    """Every metric at every k in one pass over the predictions.

    P@k alone does not show whether rare labels are ever predicted right, so macro metrics stand beside it.

    Parameters
    ----------
    Y_true : binary matrix of shape (n, L), sparse or dense
    pred : integers of shape (n, m), CSR of shape (n, L), or floats of shape (n, L)
        Label ids in rank order; or scores, ranked by score, then by lower id (stored zeros count). A list
        shorter than k has no hit at its missing ranks.
    k : int or sequence of int
    propensity : array of shape (L,) or float, optional
        Propensities in (0, 1] (see ``xmc_fast.propensity``); adds PSP and PSnDCG.
    bins : LabelBins, training label counts of shape (L,), or training labels (n', L), optional
        Adds every metric by bin of label frequency (see ``frequency_bins``). In a bin, truth is restricted
        to its labels and predictions keep their ranks: P and un-normalised PSP of the bins add up to those
        of the whole; recall, nDCG, PSnDCG, sample-F1 and abandonment are averaged over the rows with a label of
        the bin. What is undefined in a bin (no labels, no positives) is NaN, printed as "–".
    bootstrap : int
        Number of resamples of the rows for intervals of coverage ``level``; 0 for none. Intervals are percentiles
        of the resamples, shifted by the difference of the estimate and their mean (a resample lacks a third of
        the rows, which lowers coverage and macro metrics; the estimate itself lies inside), and stretched to the
        width that the jackknife over as many groups of rows finds, where that is larger (rare labels).
    labels : {"all", "positive"}
        Macro metrics average over all L labels (the habit of the XMC literature), or only over those with a
        positive in Y_true. A ratio 0/0 counts as 0 in both cases.
    beta : float
        Of macro F_beta.
    label_filter : sparse matrix of shape (n, L) or integer pairs (row, label) of shape (m, 2), optional
        Pairs to ignore, in the truth and in the predictions.
    metrics : sequence of str, optional
        The metrics to report; by default all.
    n_labels : int, optional
        L, where Y_true or ``pred`` lacks the last columns (labels that do not occur in it).
    random_state : int
        Seed of the bootstrap.
    n_jobs : int, optional

    Returns
    -------
    Report

    Examples
    --------
    >>> import numpy as np
    >>> Y = np.array([[1, 0, 1], [0, 1, 0]])
    >>> r = report(Y, np.array([[0, 1], [2, 1]]), k=(1, 2), metrics=["precision", "macro_f1"])
    >>> print(r)
    metric (%)     @1     @2
    P           50.00  50.00
    macro-F1    33.33  55.56
    <BLANKLINE>
    2 rows, 3 labels; macro metrics average over all labels; 0/0 = 0
    >>> r["precision@1"]
    0.5
    """
    ks, _ = cutoffs(k)
    if bootstrap < 0 or not 0 < level < 1:
        raise ValueError(f"bootstrap must be >= 0 and level in (0, 1), got {bootstrap} and {level}")
    r = ranked(Y_true, pred, ks[-1], label_filter, resolve_threads(n_jobs), n_labels)
    n, width = r.truth.shape
    q = inverse_propensity(propensity, width)
    groups = None if bins is None else label_bins(bins, width)
    options = Options(ks, q, check_labels(labels), float(beta))
    at_least(0, beta=beta)
    titles = _titles(metrics, bool(q.size), beta)
    parts = evaluate(r, options, groups)
    if q.size:
        warn_if_misspecified(parts[0], ks)
    named = [_pick(part, titles) for part in parts]
    names = () if groups is None else groups.names

    ends: list[dict[str, Floats]] = [{} for _ in named]
    if bootstrap and n:

        def resampled(weights: npt.NDArray[np.int32]) -> list[dict[str, Floats]]:
            return [_pick(part, titles) for part in evaluate(r, options, groups, weights)]

        ends = intervals(named, resampled, n, bootstrap, level, random_state)
    averaged = "all labels" if labels == "all" else "the labels with a positive in Y_true"
    notes = [f"{n} rows, {width} labels; macro metrics average over {averaged}; 0/0 = 0"]
    if bootstrap and n:
        notes.append(
            f"[ ]: {100 * level:g} % bias-corrected bootstrap intervals, {bootstrap} resamples of the rows"
        )
    return Report(
        ks=tuple(ks),
        values=named[0],
        bins=dict(zip(names, named[1:], strict=True)),
        intervals=ends[0],
        bin_intervals=dict(zip(names, ends[1:], strict=True)) if bootstrap and n else {},
        notes=tuple(notes),
        titles=titles,
    )


def _titles(metrics: Sequence[str] | None, with_propensity: bool, beta: float) -> dict[str, str]:
    fbeta = "macro_f1" if beta == 1 else "macro_fbeta"
    titles = {fbeta if name == "macro_fbeta" else name: t for name, t in (INSTANCE | MACRO).items()}
    titles[fbeta] = "macro-F1" if beta == 1 else f"macro-F{beta:g}"
    if not with_propensity:
        for name in PROPENSITY_SCORED:
            del titles[name]
    if metrics is None:
        first = [*INSTANCE, *titles]
        order = [n for n in first if n in titles and n not in LOSSES]
        return {n: titles[n] for n in [*order, *LOSSES]}
    unknown = [name for name in metrics if name not in titles]
    if unknown:
        hint = "" if with_propensity else " (PSP and PSnDCG need propensity)"
        raise ValueError(f"metrics must be among {', '.join(titles)}{hint}, got {unknown}")
    return {name: titles[name] for name in metrics}


def _pick(values: dict[str, Floats], titles: dict[str, str]) -> dict[str, Floats]:
    return {name: values["macro_fbeta" if name == "macro_f1" else name] for name in titles}
