"""Pictures: functions that take and return a matplotlib Axes (install the extra ``[plots]``)."""

from xmc_fast.plots.data import label_distribution
from xmc_fast.plots.decide import plot_tradeoff
from xmc_fast.plots.mach import accuracy_against_memory
from xmc_fast.plots.metrics import plot_estimates, plot_propensity, plot_report
from xmc_fast.plots.model import pruning_curve, reliability, weight_histogram

__all__ = [
    "accuracy_against_memory",
    "label_distribution",
    "plot_estimates",
    "plot_propensity",
    "plot_report",
    "plot_tradeoff",
    "pruning_curve",
    "reliability",
    "weight_histogram",
]
