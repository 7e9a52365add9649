"""What every picture starts with."""

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
