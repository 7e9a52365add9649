"""Pictures: functions that take and return a matplotlib Axes (install the extra ``[plots]``).

Without ``ax`` they draw into a new figure.
"""

from xmc_fast.plots.choices import plot_explanation, plot_tuning
from xmc_fast.plots.decide import plot_tradeoff
from xmc_fast.plots.labels import label_distribution, plot_propensity
from xmc_fast.plots.metrics import plot_estimates, plot_report
from xmc_fast.plots.model import pruning_curve, reliability, weight_histogram
from xmc_fast.plots.train import accuracy_against_memory, accuracy_against_sparsity, convergence, plot_run

__all__ = [
    "accuracy_against_memory",
    "accuracy_against_sparsity",
    "convergence",
    "label_distribution",
    "plot_estimates",
    "plot_explanation",
    "plot_propensity",
    "plot_report",
    "plot_run",
    "plot_tradeoff",
    "plot_tuning",
    "pruning_curve",
    "reliability",
    "weight_histogram",
]
