"""Pictures of MACH."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xmc_fast.plots._axes import axes


def accuracy_against_memory(
    results: Sequence[tuple[int, int, float, float]],
    ax: Any = None,
    *,
    baseline: tuple[float, float] | None = None,
) -> Any:
    """Accuracy over the bytes of the weights, one line per number of buckets, its points the repetitions.

    Parameters
    ----------
    results : (n_buckets, n_repeats, bytes, accuracy) of each model
    ax : matplotlib Axes, optional
        By default new axes in a new figure.
    baseline : (bytes, accuracy) of the one-vs-all model, optional

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("agg")
    >>> ax = accuracy_against_memory([(250, 4, 1e7, 0.6), (250, 8, 2e7, 0.7)], baseline=(5e7, 0.8))
    >>> [line.get_label() for line in ax.get_lines()]
    ['B = 250', 'one-vs-all']
    """
    ax = axes(ax)
    for buckets in sorted({result[0] for result in results}):
        points = sorted((r, size, accuracy) for b, r, size, accuracy in results if b == buckets)
        ax.plot([p[1] / 1e6 for p in points], [p[2] for p in points], "o-", label=f"B = {buckets}")
        for repeats, size, accuracy in points:
            ax.annotate(f"R = {repeats}", (size / 1e6, accuracy), fontsize="small")
    if baseline is not None:
        ax.plot([baseline[0] / 1e6], [baseline[1]], "k*", label="one-vs-all")
    ax.set_xscale("log")
    ax.set_xlabel("weights, MB")
    ax.set_ylabel("accuracy")
    ax.legend()
    return ax
