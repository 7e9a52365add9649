"""Pictures: functions that take and return a matplotlib Axes (install the extra ``[plots]``)."""

from xmc_fast.plots.data import label_distribution

__all__ = ["label_distribution"]
