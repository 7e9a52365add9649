"""Metrics by name, own metrics, mixtures, and the value of a prediction."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast import _core
from xmc_fast._validate import numbers, valid_csr
from xmc_fast.decide._candidates import column_sums, from_torch, probabilities
from xmc_fast.propensity import checked

Floats = npt.NDArray[np.float64]

# name -> number in csrc/decide/metric.h
_KINDS = {
    "precision": 0,
    "psp": 1,
    "weighted-precision": 1,
    "macro-precision": 2,
    "macro-recall": 3,
    "macro-f1": 4,
    "macro-jaccard": 5,
    "macro-balanced-accuracy": 6,
    "macro-gmean": 7,
    "macro-hmean": 8,
    "coverage": 9,
}
_COVERAGE = _KINDS["coverage"]
_INSTANCE_WISE = {0, 1}
_LINEAR = {0, 1, 3, 6}

AnyMetric = Any  # a name, a Metric, or a callable psi(t, q, p, n)

#: Names that `metric` knows. Every ``macro-f<β>`` works too: ``macro-f2``, ``macro-f0.5``.
METRICS: tuple[str, ...] = tuple(_KINDS)


@dataclass(frozen=True, eq=False)
class Metric:
    """A weighted sum of metrics. Made by `metric` and `mix`.

    Attributes
    ----------
    name : str
    terms : tuple of (kind, weight, beta)
        Built-in metrics in it.
    label_weights : array of shape (labels,), or None
        For ``psp`` and ``weighted-precision``.
    custom : callable or None
        Own metric ψ(t, q, p, n), with ``custom_weight`` and perhaps ``custom_gradient``.
    """

    name: str
    terms: tuple[tuple[int, float, float], ...] = ()
    label_weights: Floats | None = None
    custom: Callable[..., Any] | None = None
    custom_weight: float = 0.0
    custom_gradient: Callable[..., Any] | None = None

    def __repr__(self) -> str:
        return f"Metric({self.name!r})"

    @property
    def linear(self) -> bool:
        """Whether one weighted top-k is optimal."""
        return self.custom is None and all(kind in _LINEAR for kind, weight, _ in self.terms)

    @property
    def instance_wise(self) -> bool:
        """Whether precision-like terms, which need a budget k, are in it."""
        return any(kind in _INSTANCE_WISE for kind, _, _ in self.terms)

    def goal(self, positives: Floats, n: int) -> tuple[Any, ...]:
        """What the core takes (bind_decide.cpp): terms, label weights, positives per label, own metric."""
        weights = np.empty(0) if self.label_weights is None else self.label_weights
        if len(weights) not in (0, len(positives)):
            raise ValueError(f"{self.name} has weights for {len(weights)} labels, proba has {len(positives)}")
        return list(self.terms), weights, positives, _checked(self, n), self.custom_weight


def metric(
    name: AnyMetric,
    *,
    propensity: npt.ArrayLike | None = None,
    weights: npt.ArrayLike | None = None,
    gradient: Callable[..., Any] | None = None,
) -> Metric:
    """A metric by name, or an own one.

    With t true positives, q predicted positives and p positives of a label, n instances: ``macro-precision``
    t/q, ``macro-recall`` t/p, ``macro-f1`` 2t/(p+q) (``macro-f<β>`` likewise), ``macro-jaccard`` t/(p+q−t),
    ``macro-balanced-accuracy``, ``macro-gmean`` and ``macro-hmean`` (arithmetic, geometric and harmonic mean
    of the true positive and true negative rates), averaged over labels with 0/0 = 0; ``coverage`` the share
    of labels with at least one true positive; ``precision`` P@k; ``psp`` propensity-scored P@k and
    ``weighted-precision`` P@k with own label weights.

    Parameters
    ----------
    name : str, Metric or callable
        A name of `METRICS`; or an own macro metric, a function ψ(t, q, p, n) of three float arrays of
        the same length and a number that gives an array of values (it is called for many labels at once and
        must treat each alike; its mean over labels is maximised; slower than a name).
    propensity : array-like of shape (labels,), for "psp"
        Chance of each label to be observed, in (0, 1].
    weights : array-like of shape (labels,), for "weighted-precision"
    gradient : callable, for own metrics
        (t, q, p, n) → (∂ψ/∂t, ∂ψ/∂q), used by `FrankWolfe`; numerical differences otherwise.

    Examples
    --------
    >>> from xmc_fast import decide
    >>> decide.metric("macro-f1")
    Metric('macro-f1')
    >>> decide.metric("psp", propensity=[0.5, 1.0]).label_weights
    array([2., 1.])
    >>> decide.metric("macro-g")
    Traceback (most recent call last):
    ValueError: unknown metric 'macro-g', known: precision, psp, weighted-precision, macro-precision, \
macro-recall, macro-f1, macro-jaccard, macro-balanced-accuracy, macro-gmean, macro-hmean, coverage
    """
    if isinstance(name, Metric):
        return name
    if callable(name):
        return Metric(
            getattr(name, "__name__", "custom"), custom=name, custom_weight=1.0, custom_gradient=gradient
        )
    beta = 1.0
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None and isinstance(name, str) and (found := re.fullmatch(r"macro-f(\d+(?:\.\d+)?)", name)):
        kind, beta = _KINDS["macro-f1"], float(found[1])
    if kind is None:
        raise ValueError(f"unknown metric {name!r}, known: {', '.join(METRICS)}")
    label_weights = None
    if kind == _KINDS["psp"]:
        label_weights = _label_weights(name, propensity, weights)
    elif propensity is not None or weights is not None:
        raise ValueError(f"{name} takes neither propensity nor weights")
    return Metric(name, ((kind, 1.0, beta),), label_weights)


def _label_weights(name: str, propensity: Any, weights: Any) -> Floats:
    given, option = (propensity, "propensity") if name == "psp" else (weights, "weights")
    if given is None:
        raise ValueError(f"{name} needs {option}=: metric({name!r}, {option}=...), one number per label")
    values = numbers(given, option, ndim=1)
    return 1.0 / checked(values, values.shape) if name == "psp" else values


def mix(lambda_: float, metric: AnyMetric, other: str | Metric = "precision") -> Metric:
    """λ · other + (1 − λ) · metric; ``other`` is P@k unless given.

    Examples
    --------
    >>> from xmc_fast import decide
    >>> decide.mix(0.2, "macro-f1")
    Metric('0.2·precision + 0.8·macro-f1')
    """
    if not 0 <= lambda_ <= 1:
        raise ValueError(f"lambda_ must be in [0, 1], got {lambda_}")
    first, second = to_metric(other), to_metric(metric)
    if first.custom is not None and second.custom is not None:
        raise ValueError("two own metrics cannot be mixed: write their sum as one function")
    weighted = [m.label_weights for m in (first, second) if m.label_weights is not None]
    if len(weighted) == 2 and not np.array_equal(weighted[0], weighted[1]):
        raise ValueError("two metrics with different label weights cannot be mixed")
    own = first if first.custom is not None else second
    share = {id(first): lambda_, id(second): 1 - lambda_}
    terms = tuple(
        (kind, share[id(m)] * weight, beta)
        for m in (first, second)
        for kind, weight, beta in m.terms
        if share[id(m)] > 0
    )
    return replace(
        own,
        name=f"{lambda_:g}·{first.name} + {1 - lambda_:g}·{second.name}",
        terms=terms,
        label_weights=weighted[0] if weighted else None,
        custom=own.custom if share[id(own)] > 0 else None,
        custom_weight=share[id(own)] * own.custom_weight,
    )


def _checked(m: Metric, n: int) -> Callable[[Floats, Floats, Floats], Floats] | None:
    """The own metric of ``m`` as a function of (t, q, p), its result checked."""
    custom = m.custom
    if custom is None:
        return None

    def values(t: Floats, q: Floats, p: Floats) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            result = np.asarray(custom(t, q, p, float(n)), np.float64)
        if result.shape != t.shape:
            raise ValueError(f"{m.name} must return an array of shape {t.shape}, got {result.shape}")
        if not np.isfinite(result).all():
            raise ValueError(f"{m.name} must return finite numbers (0/0 included)")
        return result

    return values


def expected_utility(proba: Any, predictions: Any, metric: AnyMetric, *, k: int | None = None) -> float:
    """The metric of a prediction when labels are drawn from ``proba``.

    Counts are replaced by their expectations (exact for metrics that are linear in them, and for coverage).
    With a binary label matrix in place of ``proba`` this is the metric's true value.

    Parameters
    ----------
    proba : matrix of shape (n, labels), probabilities or true labels
    predictions : sparse matrix of shape (n, labels)
        Every stored entry is a predicted label.
    metric : str, Metric or callable
    k : int, optional
        Divisor of precision-like metrics, by default predictions per instance.

    Examples
    --------
    >>> import numpy as np
    >>> from xmc_fast import decide
    >>> proba = np.array([[0.9, 0.2], [0.8, 0.4]])
    >>> chosen, info = decide.bca(proba, "macro-f1", 1)
    >>> round(decide.expected_utility(proba, chosen, "macro-f1"), 4)
    0.5833
    """
    m = to_metric(metric)
    eta = probabilities(proba, 0, 1)
    n, labels = eta.shape
    chosen, _ = valid_csr(from_torch(predictions), "predictions")
    if chosen.shape != (n, labels):
        raise ValueError(f"predictions has shape {chosen.shape}, proba has {eta.shape}")
    chosen = sp.csr_matrix((np.ones(chosen.nnz), chosen.indices, chosen.indptr), shape=chosen.shape)
    hits = chosen.multiply(sp.csr_matrix((eta.data.astype(np.float64), eta.indices, eta.indptr), eta.shape))
    hits = hits.tocsr()
    t = np.bincount(hits.indices, hits.data, labels).astype(np.float64)
    q = np.bincount(chosen.indices, minlength=labels).astype(np.float64)
    budget = k if k is not None else max(1, round(chosen.nnz / max(n, 1)))
    without = replace(m, terms=tuple(term for term in m.terms if term[0] != _COVERAGE))
    value = _core.decide_utility(without.goal(column_sums(eta), n), n, budget, t, q)
    with np.errstate(divide="ignore"):
        missed = np.exp(np.bincount(hits.indices, np.log1p(-hits.data), labels))
    covered = float(1 - missed.mean()) if labels else 1.0
    return float(value + sum(weight for kind, weight, _ in m.terms if kind == _COVERAGE) * covered)


to_metric = metric  # where a parameter is called metric
