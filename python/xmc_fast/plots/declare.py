"""Pictures of DECLARE beside its baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xmc_fast.plots._axes import axes


def convergence(
    histories: Mapping[str, Sequence[Mapping[str, float]]],
    ax: Any = None,
    *,
    figure: str = "p@1",
    over: str = "epoch",
) -> Any:
    """A validation figure over the training, one line per run.

    Parameters
    ----------
    histories : name -> history of a run (what `Trainer.fit` returns); runs without the figure are left out.
    ax : matplotlib Axes, optional
        By default new axes in a new figure.
    figure : the column of the history to show.
    over : "epoch", "step", or "seconds" (summed up).

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("agg")
    >>> runs = {"a": [{"epoch": 1, "p@1": 0.5}, {"epoch": 2, "p@1": 0.6}]}
    >>> convergence(runs).get_lines()[0].get_ydata().tolist()
    [0.5, 0.6]
    """
    if over not in ("epoch", "step", "seconds"):
        raise ValueError(f'over must be "epoch", "step" or "seconds", got {over!r}')
    ax = axes(ax)
    for name, history in histories.items():
        rows = [row for row in history if figure in row]
        if not rows:
            continue
        x = [row[over] for row in rows]
        if over == "seconds":
            x = [sum(x[: i + 1]) for i in range(len(x))]
        ax.plot(x, [row[figure] for row in rows], ".-", label=name)
    ax.set_xlabel(over)
    ax.set_ylabel(figure)
    if ax.get_lines():
        ax.legend()
    return ax
