"""What the pictures of the documentation share: size, colours, axes, bars."""

from __future__ import annotations

from typing import Any

OURS, PEER, OTHER = "tab:orange", "tab:blue", "tab:gray"
STYLE = {
    "font.size": 9, "axes.titlesize": 9, "axes.labelsize": 9, "xtick.labelsize": 9, "ytick.labelsize": 9,
    "legend.fontsize": 9, "axes.spines.top": False, "axes.spines.right": False, "lines.markersize": 4,
}  # fmt: skip


def grid(rows: int, columns: int, height: float) -> tuple[Any, Any]:
    """A figure 7 inches wide and its axes, always two-dimensional."""
    from matplotlib import pyplot as plt

    return plt.subplots(rows, columns, figsize=(7, height), layout="constrained", squeeze=False)


def colour(name: str) -> str:
    return OURS if name.startswith(("xmc_fast", "ours")) else PEER


def plain(axis: Any, ticks: list[float]) -> None:
    """A logarithmic axis with these ticks only, written as plain numbers."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}" if v >= 1 else f"{v:g}"))


def bars(ax: Any, names: list[str], values: list[float], label: str) -> None:
    """Horizontal bars on a logarithmic axis without ticks, the first on top, the value beside each."""
    places = range(len(names))[::-1]
    drawn = ax.barh(places, values, color=[colour(n) for n in names], height=0.7)
    ax.bar_label(drawn, labels=[f"{v:,.0f}" if v >= 100 else f"{v:.3g}" for v in values], padding=2)
    ax.set(yticks=places, yticklabels=names, xlabel=label, xscale="log")
    ax.set_xlim(min(values) / 2, max(values) * 4)
    ax.set_xticks([], minor=False)
    ax.set_xticks([], minor=True)
