"""The statistics table of the papers."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from xmc_fast._validate import features, labels, numbers

TAIL = 5  # a tail label has at most this many points


class PowerLaw(NamedTuple):
    """N_r = n1 * r ** -beta, the number of points of the r-th most frequent label."""

    n1: float
    beta: float

    def __call__(self, rank: npt.ArrayLike) -> Any:
        """The fitted number of points at a rank (from 1)."""
        return self.n1 * np.asarray(rank, float) ** -self.beta


def fit_power_law(counts: npt.ArrayLike) -> PowerLaw:
    """Fit label frequencies (in any order; zeros are left out) by N_r = n1 r^-beta.

    Least squares of log N_r on log r, ranks weighted by 1/r so that every decade of ranks counts alike, as it
    does for the eye on the log-log plot (unweighted, the last decade has 90 % of the say).

    Examples
    --------
    >>> n1, beta = fit_power_law([1000 / r**0.7 for r in range(1, 200)])
    >>> round(n1), round(beta, 6)
    (1000, 0.7)
    """
    found = np.sort(numbers(counts, "counts", ndim=1))[::-1]
    found = found[found > 0]
    if len(found) < 2:
        return PowerLaw(float(found.sum()), 0.0)
    rank = np.arange(1, len(found) + 1)
    x, y, weight = np.log(rank), np.log(found), 1 / rank
    x_mean, y_mean = np.average(x, weights=weight), np.average(y, weights=weight)
    slope = np.sum(weight * (x - x_mean) * (y - y_mean)) / np.sum(weight * (x - x_mean) ** 2)
    return PowerLaw(float(np.exp(y_mean - slope * x_mean)), float(-slope))


@dataclasses.dataclass(frozen=True)
class Statistics:
    """What `describe` returns; ``print`` it for a table, ``to_dict`` for JSON."""

    points: int
    features: int
    labels: int
    labels_used: int  # with at least one point
    features_per_point: float
    labels_per_point: float
    labels_per_point_median: float
    labels_per_point_max: int
    points_per_label: float  # over all labels
    points_per_label_median: float
    points_per_label_max: int
    tail_share: float  # labels with 1 to 5 points, as a share of the used ones
    head_share: float  # share of all positives that belong to the most frequent 1 % of the labels
    points_without_labels: int
    points_without_features: int
    power_law_n1: float  # N_r = n1 r^-beta
    power_law_beta: float

    def to_dict(self) -> dict[str, float]:
        """The fields as a plain dict."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        shown = {key: f"{v:,}" if isinstance(v, int) else f"{v:,.4g}" for key, v in self.to_dict().items()}
        width = max(map(len, shown))
        values = max(map(len, shown.values()))
        return "\n".join(f"{key.replace('_', ' '):{width}}  {v:>{values}}" for key, v in shown.items())


def describe(X: Any, Y: Any) -> Statistics:
    """Statistics of a data set as in the papers' tables, with the power-law fit of its label frequencies.

    Parameters
    ----------
    X : array or sparse matrix of shape (points, features)
    Y : binary array or sparse matrix of shape (points, labels)

    Examples
    --------
    >>> s = describe([[1.0, 0.0], [0.5, 2.0]], [[1, 0, 1], [1, 0, 0]])
    >>> s.points, s.labels, s.labels_used, s.labels_per_point
    (2, 3, 2, 1.5)
    """
    x = features(X)
    y = labels(Y, n_rows=x.shape[0])
    rows, n_labels = y.shape
    per_point = np.diff(y.indptr)
    per_label = np.bincount(y.indices, minlength=n_labels)
    used = per_label[per_label > 0]
    head = np.sort(per_label)[::-1][: max(1, n_labels // 100)]
    n1, beta = fit_power_law(per_label)
    return Statistics(
        points=rows,
        features=x.shape[1],
        labels=n_labels,
        labels_used=len(used),
        features_per_point=len(x.indices) / max(1, rows),
        labels_per_point=len(y.indices) / max(1, rows),
        labels_per_point_median=float(np.median(per_point)) if rows else 0.0,
        labels_per_point_max=int(per_point.max(initial=0)),
        points_per_label=len(y.indices) / max(1, n_labels),
        points_per_label_median=float(np.median(per_label)) if n_labels else 0.0,
        points_per_label_max=int(per_label.max(initial=0)),
        tail_share=float(np.mean(used <= TAIL)) if len(used) else 0.0,
        head_share=float(head.sum() / max(1, len(y.indices))),
        points_without_labels=int(np.sum(per_point == 0)),
        points_without_features=int(np.sum(np.diff(x.indptr) == 0)),
        power_law_n1=n1,
        power_law_beta=beta,
    )
