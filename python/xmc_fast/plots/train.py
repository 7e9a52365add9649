"""Training runs, and what accuracy costs in memory or sparsity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xmc_fast.plots._axes import axes, finish


def plot_run(history: Sequence[Mapping[str, float]], ax: Any = None, *, figure: str = "p@1") -> Any:
    """Loss (left axis) and a precision (right axis) over the steps of a run.

    Parameters
    ----------
    history : the list that ``Trainer.fit`` returns, or the ``history_`` of a model
    ax : matplotlib Axes, optional
    figure : name of the right axis' figure; ``train_<figure>`` is drawn beside it, where the run has them

    Returns
    -------
    matplotlib Axes (of the loss; ``ax.figure.axes[-1]`` is that of the precision)

    Examples
    --------
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

    Examples
    --------
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
    return finish(ax, "sparsity of the output layer", label)


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
    figure : the column of the history to show.
    over : "epoch", "step", or "seconds" (summed up).

    Examples
    --------
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
    return finish(ax, over, figure)


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
    baseline : (bytes, accuracy) of the one-vs-all model, optional

    Examples
    --------
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
    return finish(ax, "weights, MB", "accuracy", xscale="log")
