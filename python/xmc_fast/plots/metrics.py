"""Reports, and estimates of a metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xmc_fast.metrics import Report
from xmc_fast.plots._axes import axes, finish


def plot_report(report: Report, metrics: Sequence[str] | None = None, ax: Any = None) -> Any:
    """Bars per metric: one for each k; or, if the report has bins, one for each bin at the largest k.

    Parameters
    ----------
    report : xmc_fast.metrics.Report
    metrics : sequence of str, optional
        By default P, nDCG, PSP (if there), macro-F1 and coverage.
    ax : matplotlib Axes, optional

    Examples
    --------
    >>> from xmc_fast.metrics import report
    >>> ax = plot_report(report(np.eye(4), np.eye(4), k=(1, 2)))
    >>> ax.get_ylabel()
    '%'
    """
    ax = axes(ax)
    if metrics is None:
        metrics = [m for m in ("precision", "ndcg", "psp", "macro_f1", "coverage") if m in report.values]
    unknown = [m for m in metrics if m not in report.values]
    if unknown or not metrics:
        raise ValueError(f"metrics must be among {', '.join(report.values)}, got {list(metrics)}")
    if report.bins:
        series = {b: [v[m][-1] for m in metrics] for b, v in report.bins.items()}
        ends = {b: [v[m][:, -1] for m in metrics] for b, v in report.bin_intervals.items()}
        ax.set_title(f"by label frequency, at {report.ks[-1]}")
    else:
        series = {f"@{k}": [report.values[m][c] for m in metrics] for c, k in enumerate(report.ks)}
        ends = (
            {f"@{k}": [report.intervals[m][:, c] for m in metrics] for c, k in enumerate(report.ks)}
            if report.intervals
            else {}
        )
    width = 0.8 / len(series)
    for i, (name, values) in enumerate(series.items()):
        x = np.arange(len(metrics)) + (i - (len(series) - 1) / 2) * width
        heights = 100 * np.asarray(values)
        error = None
        if name in ends:  # distances to the lower and to the upper end
            low, high = 100 * np.asarray(ends[name]).T
            error = np.stack([heights - low, high - heights])
        ax.bar(x, heights, width, yerr=error, label=name)
    ax.set_xticks(np.arange(len(metrics)), [report.titles[m] for m in metrics])
    return finish(ax, "", "%")


def plot_estimates(
    x: Sequence[float], estimates: Mapping[str, Any], truth: float, *, what: str = "recall", ax: Any = None
) -> Any:
    """Bias and variance of estimators against propensity: mean and one standard deviation of each.

    Parameters
    ----------
    x : propensities, length m
    estimates : name -> array of shape (m, repetitions)
    truth : the value on complete labels
    what : str
        What is estimated.
    ax : matplotlib Axes, optional

    Examples
    --------
    >>> plot_estimates([0.5, 1.0], {"plain": [[0.3, 0.4], [0.5, 0.5]]}, 0.5).get_xlabel()
    'propensity'
    """
    ax = axes(ax)
    ax.axhline(truth, color="black", lw=1, label=f"{what} on complete labels")
    for name, values in estimates.items():
        draws = np.asarray(values, np.float64)
        mean, deviation = draws.mean(axis=1), draws.std(axis=1)
        (line,) = ax.plot(x, mean, label=name)
        ax.fill_between(x, mean - deviation, mean + deviation, alpha=0.2, color=line.get_color())
    return finish(ax, "propensity", f"estimated {what}")
