"""Pictures: functions that take and return a matplotlib Axes (install the extra ``[plots]``)."""

from xmc_fast.plots.data import label_distribution
from xmc_fast.plots.decide import plot_tradeoff
from xmc_fast.plots.declare import convergence
from xmc_fast.plots.mach import accuracy_against_memory
from xmc_fast.plots.metrics import plot_estimates, plot_propensity, plot_report
from xmc_fast.plots.model import pruning_curve, reliability, weight_histogram
from xmc_fast.plots.train import accuracy_against_sparsity, plot_run

__all__ = [
    "accuracy_against_memory",
    "accuracy_against_sparsity",
    "convergence",
    "label_distribution",
    "plot_estimates",
    "plot_propensity",
    "plot_report",
    "plot_run",
    "plot_tradeoff",
    "pruning_curve",
    "reliability",
    "weight_histogram",
]
