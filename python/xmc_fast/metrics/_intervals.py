"""Intervals of metrics from resampled rows.

The shape comes from the bootstrap. Its width is too small where labels are rare: a label that is hit in one row
only, or in none, hardly varies in the resamples, so that coverage and macro metrics get half of their standard
deviation. The jackknife errs to the other side (its variance is never too small in expectation, Efron and Stein,
1981). So intervals are stretched to the jackknife's width where that is larger. A metric that is 0 or 1 in all
resamples says only that the rows that would change it are rare: at most 1 - ((1 - level) / 2)^(1/n) of all (Clopper
and Pearson, 1934), which is then the interval.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from xmc_fast.metrics._inputs import Floats

Values = list[dict[str, Floats]]  # of the whole set, then of each bin: name -> (K,)


def intervals(
    own: Values,
    evaluate: Callable[[npt.NDArray[np.int32]], Values],
    n: int,
    count: int,
    level: float,
    seed: int,
) -> Values:
    """Lower and upper ends, (2, K) for each name; ``evaluate(row weights)`` gives the values of a resample."""
    rng = np.random.default_rng(seed)
    draws = [evaluate(np.bincount(rng.integers(0, n, n), minlength=n).astype(np.int32)) for _ in range(count)]
    groups = rng.permutation(n) % min(n, count)
    without = [evaluate((groups != g).astype(np.int32)) for g in range(groups.max() + 1)] if n > 1 else []
    share = np.bincount(groups) / n
    return [
        {
            name: interval(
                estimate,
                np.stack([draw[part][name] for draw in draws]),
                np.stack([rest[part][name] for rest in without]) if without else None,
                share,
                level,
                n,
            )
            for name, estimate in values.items()
        }
        for part, values in enumerate(own)
    ]


def interval(
    estimate: Floats, draws: Floats, without: Floats | None, share: Floats, level: float, n: int
) -> Floats:
    """Ends (2, K) of estimates (K,), from bootstrap draws (B, K) and values without each group of rows (G, K).

    Percentiles of the draws, shifted by the bias of the draws (their mean minus the estimate), stretched as said
    above, within [0, 1] where the draws are. The estimate is always inside.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # all NaN: a bin without labels
        probabilities = (0.5 - level / 2, 0.5 + level / 2)
        ends = np.nanquantile(draws, probabilities, axis=0, method="weibull") - np.nanmean(draws, axis=0)
        spread = np.nanstd(draws, axis=0)
        bounded = np.nanmax(draws, axis=0, initial=0) <= 1
        if without is not None:
            wanted = jackknife_deviation(estimate, without, share)
            ends = ends * np.where(spread > 0, np.fmax(wanted / spread, 1), 1)
    ends = ends + estimate
    ends = np.where(bounded, np.clip(ends, 0, 1), ends)
    rare = 1 - ((1 - level) / 2) ** (1 / n)
    ends[1][(spread == 0) & (estimate == 0)] = rare
    ends[0][(spread == 0) & (estimate == 1)] = 1 - rare
    return np.stack([np.minimum(ends[0], estimate), np.maximum(ends[1], estimate)])


def jackknife_deviation(estimate: Floats, without: Floats, share: Floats) -> Floats:
    """Standard deviation (K,) by the jackknife over groups that may differ in size (Busing et al., 1999)."""
    h = 1 / share[:, None]  # rows per row of the group
    pseudo = h * estimate - (h - 1) * without
    center = np.nansum(pseudo * share[:, None], axis=0)
    variance: Floats = np.nanmean((pseudo - center) ** 2 / (h - 1), axis=0)
    return np.sqrt(variance)
