"""Pictures of a training run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xmc_fast.plots._axes import axes


def plot_run(history: Sequence[Mapping[str, float]], ax: Any = None, *, figure: str = "p@1") -> Any:
    """Loss (left axis) and a precision (right axis) over the steps of a run.

    Parameters
    ----------
    history : the list that ``Trainer.fit`` returns, or the ``history_`` of a model
    ax : matplotlib Axes, optional
        By default new axes in a new figure.
    figure : name of the right axis' figure; ``train_<figure>`` is drawn beside it, where the run has them

    Returns
    -------
    matplotlib Axes (of the loss; ``ax.figure.axes[-1]`` is that of the precision)

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("agg")
    >>> rows = [{"step": 10, "loss": 3.0, "p@1": 0.5}, {"step": 20, "loss": 2.0, "p@1": 0.6}]
    >>> ax = plot_run(rows)
    >>> ax.get_lines()[0].get_ydata().tolist()
    [3.0, 2.0]
    """
    if not history:
        raise ValueError("history must have at least one epoch, got none")
    ax = axes(ax)
    lines = ax.plot([r["step"] for r in history], [r["loss"] for r in history], "o-", ms=3, label="loss")
    ax.set_xlabel("steps")
    ax.set_ylabel("loss")
    right = ax.twinx()
    for name, style, colour in ((figure, "s-", "tab:orange"), (f"train_{figure}", "s--", "tab:green")):
        rows = [r for r in history if name in r]
        if rows:
            lines += right.plot(
                [r["step"] for r in rows],
                [r[name] for r in rows],
                style,
                ms=3,
                color=colour,
                label=name.replace("_", " "),
            )
    right.set_ylabel(figure)
    ax.legend(handles=lines, loc="center right")
    return ax


def accuracy_against_sparsity(
    results: Mapping[str, Sequence[tuple[float, float, float]]],
    ax: Any = None,
    *,
    baseline: float | None = None,
    label: str = "P@1",
) -> Any:
    """Accuracy over the sparsity of the output layer, one line per method, with bars of +-1 deviation.

    Parameters
    ----------
    results : method -> (sparsity in [0, 1), mean accuracy, standard deviation) of its runs
    ax : matplotlib Axes, optional
    baseline : accuracy of the dense layer, drawn as a level line
    label : of the accuracy axis

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("agg")
    >>> ax = accuracy_against_sparsity({"static": [(0.5, 70, 1), (0.9, 40, 2)]}, baseline=75)
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['dense', 'static']
    """
    ax = axes(ax)
    for name, points in results.items():
        ordered = sorted(points)
        ax.errorbar(
            [1 - p[0] for p in ordered],
            [p[1] for p in ordered],
            [p[2] for p in ordered],
            fmt="o-",
            ms=4,
            capsize=3,
            label=name,
        )
    if baseline is not None:
        ax.axhline(baseline, color="black", ls=":", label="dense")
    ax.set_xscale("log")
    ax.invert_xaxis()
    ticks = sorted({1 - p[0] for points in results.values() for p in points})
    ax.set_xticks(ticks, [f"{100 * (1 - t):.4g} %" for t in ticks], rotation=45)
    ax.minorticks_off()
    ax.set_xlabel("sparsity of the output layer")
    ax.set_ylabel(label)
    ax.legend()
    return ax
