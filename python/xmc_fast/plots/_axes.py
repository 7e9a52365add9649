"""What every picture starts and ends with."""

from __future__ import annotations

from typing import Any


def axes(ax: Any = None) -> Any:
    """The given matplotlib Axes, or new ones in a new figure."""
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError:
        raise ImportError("plots need matplotlib: pip install 'xmc-fast[plots]'") from None
    return pyplot.subplots(figsize=(5, 4), layout="constrained")[1]


def finish(ax: Any, xlabel: str, ylabel: str, **properties: Any) -> Any:
    """The Axes with names, other properties (scales, limits), and a legend if something has a label."""
    ax.set(xlabel=xlabel, ylabel=ylabel, **properties)
    if ax.get_legend_handles_labels()[0]:
        ax.legend()
    return ax
