"""Propensities: the chance p_j that a true label j was written down at all.

A model is anything that turns label counts into propensities: ``model(counts, n) -> p`` with counts of shape
(L,) from n rows, p in (0, 1]. `estimate` applies one to a label matrix. Propensities enter metrics
(``metrics.psp_at_k``), torch losses (``nn.losses``) and the linear model
(``OneVsAll(positive_weight=surrogate_weights(p))``).

All models here assume that labels go missing independently of the row and of each other. Whether a model fits
shows in un-normalised PSP: above 100 % it does not (PropensityWarning).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast import _validate

__all__ = [
    "JPV",
    "PRESETS",
    "Constant",
    "PropensityModel",
    "PropensityWarning",
    "Richards",
    "Vector",
    "direct",
    "estimate",
    "rebalancing_weights",
    "surrogate_weights",
]

Floats = npt.NDArray[np.float64]


class PropensityWarning(UserWarning):
    """The propensities do not fit the data: an estimate is outside what is possible."""


class PropensityModel(Protocol):
    """Label counts of shape (L,) from n rows -> propensities of shape (L,) in (0, 1]."""

    def __call__(self, counts: npt.NDArray[Any], n: int) -> Floats: ...


@dataclass(frozen=True)
class JPV:
    """p_j = 1 / (1 + (log n − 1) (b + 1)^a (n_j + b)^−a)   (Jain, Prabhu and Varma 2016).

    ``PRESETS`` has the usual (a, b). The curve was fitted on two data sets only and tends to 1 as a data set
    grows: treat it as a habit of the field, not as a measurement.

    >>> JPV()(np.array([1, 10, 1000]), n=10_000).round(3)
    array([0.109, 0.22 , 0.767])
    """

    a: float = 0.55
    b: float = 1.5

    def __call__(self, counts: npt.NDArray[Any], n: int) -> Floats:
        c = (np.log(max(n, 1)) - 1.0) * (self.b + 1.0) ** self.a
        counts = np.asarray(counts, np.float64)
        p: Floats = 1.0 / (1.0 + max(c, 0.0) * (counts + self.b) ** -self.a)
        return p


PRESETS = {"wikipedia": JPV(0.5, 0.4), "amazon": JPV(0.6, 2.6), "default": JPV(0.55, 1.5)}


@dataclass(frozen=True)
class Richards:
    """A generalised logistic curve in the logarithm of the count:

    p_j = low + (high − low) (1 + exp(−slope (log(1 + n_j) − mid)))^(−1/shape).
    """

    low: float
    high: float
    slope: float
    mid: float
    shape: float

    def __call__(self, counts: npt.NDArray[Any], n: int) -> Floats:
        return self._value(np.log1p(np.asarray(counts, np.float64)), *self._parameters())

    def _parameters(self) -> tuple[float, ...]:
        return (self.low, self.high, self.slope, self.mid, self.shape)

    @staticmethod
    def _value(x: Floats, low: float, high: float, slope: float, mid: float, shape: float) -> Floats:
        return low + (high - low) * np.exp(-np.logaddexp(0.0, -slope * (x - mid)) / shape)

    @classmethod
    def fit(cls, counts: Any, propensity: Any, *, weights: Any = None) -> Richards:
        """Least squares fit to known (count, propensity) pairs, each of shape (m,); weights optional.

        >>> counts = np.array([0, 1, 3, 10, 30, 100, 300, 1000])
        >>> known = Richards(0.1, 0.9, 1.2, 3.0, 1.0)(counts, n=0)
        >>> bool(np.allclose(Richards.fit(counts, known)(counts, n=0), known, atol=1e-3))
        True
        """
        from scipy.optimize import least_squares

        x = np.log1p(np.maximum(_validate.numbers(counts, "counts", ndim=1), 0.0))
        p = checked(propensity, x.shape)
        w = np.ones_like(x) if weights is None else np.sqrt(_validate.numbers(weights, "weights", ndim=1))
        if x.size < 5 or w.shape != x.shape:
            raise ValueError(
                f"a Richards curve needs at least 5 counts and as many weights, got {x.size} and {w.size}"
            )
        bounds = ([1e-6, 1e-6, 1e-3, -20.0, 0.05], [1.0, 1.0, 20.0, 40.0, 20.0])
        best = None
        for mid in np.quantile(x, [0.25, 0.5, 0.75]):
            start = np.clip([p.min(), p.max(), 1.0, mid, 1.0], bounds[0], bounds[1])
            found = least_squares(lambda v: w * (cls._value(x, *v) - p), start, bounds=bounds)
            if best is None or found.cost < best.cost:
                best = found
        assert best is not None
        return cls(*(float(v) for v in best.x))


@dataclass(frozen=True)
class Constant:
    """The same propensity for each label.

    >>> Constant(0.5)(np.array([3, 7]), n=10)
    array([0.5, 0.5])
    """

    p: float

    def __call__(self, counts: npt.NDArray[Any], n: int) -> Floats:
        return checked(np.full(len(counts), float(self.p)), (len(counts),), "p")


@dataclass(frozen=True)
class Vector:
    """Given propensities, one per label."""

    p: Any

    def __call__(self, counts: npt.NDArray[Any], n: int) -> Floats:
        return checked(self.p, (len(counts),), "p")


def direct(Y_observed: Any, Y_controlled: Any, *, shrinkage: float = 5.0) -> Vector:
    """Propensities measured with a controlled sample, where every label of every row was queried.

    p_j = (o_j m / n + s p̄) / (t_j + s): the rate of label j among the n observed rows relative to its rate in
    the m controlled rows (o_j and t_j positives), drawn to the overall ratio p̄ = (Σo / n) / (Σt / m) as if
    ``shrinkage`` s more positives had been seen with it: labels with few controlled positives lean on p̄.

    Parameters
    ----------
    Y_observed : binary matrix of shape (n, L)
    Y_controlled : binary matrix of shape (m, L)
    shrinkage : float
        0 for the plain ratio (labels without controlled positives then get p̄).

    Returns
    -------
    Vector

    Examples
    --------
    >>> observed, controlled = np.array([[1, 0], [0, 0], [0, 1], [0, 0]]), np.array([[1, 1], [1, 0]])
    >>> direct(observed, controlled, shrinkage=0.0).p
    array([0.25, 0.5 ])
    """
    observed = _validate.labels(Y_observed, "Y_observed")
    controlled = _validate.labels(Y_controlled, "Y_controlled", n_labels=observed.shape[1])
    if shrinkage < 0:
        raise ValueError(f"shrinkage must be >= 0, got {shrinkage}")
    if len(controlled.indices) == 0 or len(observed.indices) == 0:
        raise ValueError("Y_observed and Y_controlled must each hold at least one positive")
    n_labels = observed.shape[1]
    scale = controlled.shape[0] / observed.shape[0]
    o = np.bincount(observed.indices, minlength=n_labels) * scale
    t = np.bincount(controlled.indices, minlength=n_labels).astype(np.float64)
    overall = o.sum() / t.sum()
    p = np.full(n_labels, overall)
    np.divide(o + shrinkage * overall, t + shrinkage, out=p, where=t + shrinkage > 0)
    return Vector(np.clip(p, 1e-6, 1.0))


def estimate(Y: Any, model: str | float | PropensityModel | npt.NDArray[Any] = "default") -> Floats:
    """Propensities of the labels of a training set.

    Parameters
    ----------
    Y : binary matrix of shape (n, L)
    model : {"default", "wikipedia", "amazon"}, float, array of shape (L,), or a model
        A JPV preset, a constant, given values, or anything that takes (counts, n).

    Returns
    -------
    array of shape (L,), in (0, 1]

    Examples
    --------
    >>> estimate(np.eye(3), 0.5)
    array([0.5, 0.5, 0.5])
    """
    labels = _validate.labels(Y)
    counts = np.bincount(labels.indices, minlength=labels.shape[1])
    if isinstance(model, str):
        if model not in PRESETS:
            raise ValueError(
                f"model must be one of {', '.join(PRESETS)}, a number, an array or a model, got {model!r}"
            )
        model = PRESETS[model]
    elif not callable(model):
        model = Constant(float(model)) if np.ndim(model) == 0 else Vector(model)
    return checked(model(counts, labels.shape[0]), counts.shape)


def rebalancing_weights(counts: Any, beta: float) -> Floats:
    """c⁺ = (1 − β) / (1 − β^n_j): weights by the effective number of examples (Cui et al. 2019).

    A label without positives is treated as one with a single positive (weight 1).

    >>> rebalancing_weights([1, 2, 1000], beta=0.5).round(3)
    array([1.   , 0.667, 0.5  ])
    """
    if not 0 <= beta < 1:
        raise ValueError(f"beta must be in [0, 1), got {beta}")
    counts = np.maximum(_validate.numbers(counts, "counts", ndim=1), 1.0)
    weights: Floats = (1.0 - beta) / (1.0 - beta**counts)
    return weights


def surrogate_weights(
    propensity: Any, *, counts: Any = None, beta: float | None = None, normalize: bool = False
) -> Floats:
    """Weights of positives that make a binary loss a convex surrogate of the unbiased 0-1 loss.

    The unbiased estimate of the 0-1 loss under missing labels charges a missed observed positive 2/p − 1 more
    than a found one; weighting a convex loss of positives by w⁺ = 2/p − 1 (negatives by 1) bounds it. With
    ``beta``, times the class re-balancing weights of ``rebalancing_weights(counts, beta)``.

    Parameters
    ----------
    propensity : array of shape (L,), in (0, 1]
    counts : array of shape (L,), or label matrix of shape (n, L)
        Needed with ``beta``.
    beta : float, optional
        In [0, 1).
    normalize : bool
        Divide by the mean weight: steadier training of deep networks.

    Returns
    -------
    array of shape (L,)

    Examples
    --------
    >>> surrogate_weights([1.0, 0.5])
    array([1., 3.])
    """
    p = checked(_validate.numbers(propensity, "propensity", ndim=1), np.shape(propensity))
    weights = 2.0 / p - 1.0
    if beta is not None:
        if counts is None:
            raise ValueError("beta needs counts (how often each label occurs)")
        if sp.issparse(counts) or np.ndim(counts) == 2:
            labels = _validate.labels(counts, "counts")
            counts = np.bincount(labels.indices, minlength=labels.shape[1])
        if np.shape(counts) != p.shape:
            raise ValueError(f"counts has shape {np.shape(counts)}, expected {p.shape}")
        weights = weights * rebalancing_weights(counts, beta)
    if normalize and weights.size:
        weights = weights / weights.mean()
    return weights


def checked(p: Any, shape: tuple[int, ...], name: str = "propensity") -> Floats:
    """Propensities as float64 of this shape, in (0, 1], or ValueError."""
    values = _validate.numbers(p, name)
    if values.shape != shape:
        raise ValueError(f"{name} has shape {values.shape}, expected {shape}")
    if values.size and not (values.min() > 0 and values.max() <= 1):
        raise ValueError(f"{name} must be in (0, 1], got values in [{values.min()}, {values.max()}]")
    return values
