"""From probabilities to label sets: maximise the metric that counts, not only precision.

Given marginal probabilities η (instances × labels, sparse, missing = 0), choose labels so that a metric of
the whole prediction is as high as possible; the model is not retrained.

- `bca`: for a given test set, block coordinate ascent (or the closed form, where there is one);
- `FrankWolfe`: a rule learnt on a sample, for instances that come later;
- `Thresholds`: without a budget k, one threshold per label;
- `weighted_topk` with `power_law_gains`, `log_gains`, `propensity_gains`: heuristics;
- `metric`, `mix`: metrics by name, own ones, and mixtures with precision@k.
"""

from __future__ import annotations

from xmc_fast.decide._ascent import AscentInfo, bca, optimize
from xmc_fast.decide._frank_wolfe import FrankWolfe, FrankWolfeInfo
from xmc_fast.decide._metric import METRICS, Metric, expected_utility, metric, mix
from xmc_fast.decide._thresholds import Thresholds
from xmc_fast.decide._weighted import log_gains, power_law_gains, propensity_gains, weighted_topk

__all__ = [
    "METRICS",
    "AscentInfo",
    "FrankWolfe",
    "FrankWolfeInfo",
    "Metric",
    "Thresholds",
    "bca",
    "expected_utility",
    "log_gains",
    "metric",
    "mix",
    "optimize",
    "power_law_gains",
    "propensity_gains",
    "weighted_topk",
]
