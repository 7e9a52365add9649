"""A rule for instances that come later: Frank–Wolfe on the population utility."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast import _core
from xmc_fast._threads import resolve_threads
from xmc_fast._validate import Csr, at_least
from xmc_fast.decide._candidates import (
    check_k,
    check_seed,
    choices,
    evidence,
    probabilities,
    truth_at_entries,
)
from xmc_fast.decide._metric import AnyMetric, Metric, to_metric

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class FrankWolfeInfo:
    """How the fit went: utility of the mixture at the start and after each iteration, line-search steps."""

    utility: float
    utilities: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    converged: bool = True
    seconds: float = 0.0

    @property
    def iterations(self) -> int:
        return len(self.steps)


class FrankWolfe:
    """Learn weights for a top-k rule that maximises a metric on the population.

    Repeatedly linearises the metric at the current confusion counts, finds the best rule for the linear
    metric (top-k of a·η + b) and mixes it in by a line search. The result is a mixture of such rules.

    Parameters
    ----------
    metric : str, Metric or callable
        See `metric`. An own metric may also return one number for all labels together (a metric that
        is no mean over labels); it then needs a gradient.
    k : int
    max_iter : int
    tol : float
        Stop when an iteration gains less than this share of the utility.
    smoothing : float
        Added to the predicted count q of each label: t/q gets a finite slope at 0, and rules that serve
        labels seen once or twice do better on new instances. If not 0, the positives p of a label count as
        p / (1 − exp(−p)), their number where there is any (Poisson): t/p stays finite as p goes to 0.
    shrinkage : float
        True labels of a label with m positives count as (m y + s η) / (m + s), s this number of positives:
        rare labels lean on the probabilities. 0: trust the labels alone.
    n_jobs : int, optional

    Attributes
    ----------
    a_, b_ : arrays of shape (rules, labels)
    weights_ : array of shape (rules,)
        Mixture weights, sum 1.
    info_ : FrankWolfeInfo

    Examples
    --------
    >>> import numpy as np
    >>> from xmc_fast import decide
    >>> proba = np.random.default_rng(0).beta(0.3, 2, (200, 20))
    >>> rule = decide.FrankWolfe("macro-f1", 3).fit(proba)
    >>> rule.info_.utility >= rule.info_.utilities[0]
    True
    >>> rule.predict(proba[:4]).shape
    (4, 20)
    """

    def __init__(
        self,
        metric: AnyMetric = "macro-f1",
        k: int = 5,
        *,
        max_iter: int = 100,
        tol: float = 1e-6,
        smoothing: float = 1.0,
        shrinkage: float = 5.0,
        n_jobs: int | None = None,
    ) -> None:
        self.metric = metric
        self.k = k
        self.max_iter = max_iter
        self.tol = tol
        self.smoothing = smoothing
        self.shrinkage = shrinkage
        self.n_jobs = n_jobs

    def fit(self, proba: Any, Y: Any = None) -> FrankWolfe:
        """From probabilities of shape (n, labels), alone or with the true labels of the same shape."""
        started = time.perf_counter()
        m, k, threads = to_metric(self.metric), check_k(self.k), resolve_threads(self.n_jobs)
        at_least(0, max_iter=self.max_iter)
        csr = probabilities(proba, k, threads)
        labels = csr.shape[1]
        known = evidence(csr, Y, self.shrinkage)
        positives = known.positives
        if self.smoothing > 0:
            positives = np.divide(positives, -np.expm1(-positives), where=positives > 0, out=positives)
        self.a_: Floats
        self.b_: Floats
        self.weights_: Floats
        if m.custom is None:
            goal = m.goal(positives, csr.shape[0])
            limits = (int(self.max_iter), float(self.tol), float(self.smoothing))
            a, b, self.weights_, utilities, steps, converged = _core.decide_frank_wolfe(
                csr, known.y, known.trust, goal, k, *limits, threads
            )
            self.a_, self.b_ = (x.reshape(len(self.weights_), labels) for x in (a, b))
        else:
            truth = truth_at_entries(csr, known, threads)
            utilities, steps, converged = self._fit_custom(m, csr, truth, positives, threads)
        seconds = time.perf_counter() - started
        self.info_ = FrankWolfeInfo(utilities[-1], utilities, steps, converged, seconds)
        return self

    def predict(self, proba: Any, *, method: str = "sample", random_state: int | None = 0) -> sp.csr_matrix:
        """k labels per instance, best first.

        Parameters
        ----------
        proba : matrix of shape (n, labels)
        method : {"sample", "expected"}
            Draw a rule of the mixture for each instance (keeps the utility found by the fit), or use the
            mean weights of the mixture (no randomness, an approximation).
        random_state : int or None
            For "sample".
        """
        k, threads = check_k(self.k), resolve_threads(self.n_jobs)
        csr = probabilities(proba, k, threads)
        if csr.shape[1] != self.a_.shape[1]:
            raise ValueError(f"proba has {csr.shape[1]} columns (labels), the rule has {self.a_.shape[1]}")
        gains: npt.NDArray[Any]
        if method == "sample":
            cumulative = np.cumsum(self.weights_)
            a, b = (np.ascontiguousarray(x).ravel() for x in (self.a_, self.b_))
            seed = check_seed(random_state)
            chosen, gains = _core.decide_predict_mixture(csr, a, b, cumulative.tolist(), k, seed, threads)
        elif method == "expected":
            a, b = self.weights_ @ self.a_, self.weights_ @ self.b_
            chosen, gains = _core.decide_weighted_topk(csr, a, b, k, threads)
        else:
            raise ValueError(f"method must be 'sample' or 'expected', got {method!r}")
        return choices(chosen, gains, k, csr.shape)

    @property
    def nbytes(self) -> int:
        """Memory of the rules."""
        return int(self.a_.nbytes + self.b_.nbytes + self.weights_.nbytes)

    def _fit_custom(
        self, m: Metric, csr: Csr, truth: Any, positives: Floats, threads: int
    ) -> tuple[list[float], list[float], bool]:
        """The same algorithm around an own metric: value and gradient come from Python."""
        n, labels = csr.shape
        k = check_k(self.k)
        named = (replace(m, custom=None).goal(positives, n), n, k)

        def value(t: Floats, q: Floats) -> float:
            own = float(np.mean(_call(m, t, q, positives, n))) if labels else 0.0
            return m.custom_weight * own + float(_core.decide_utility(*named, t, q))

        def respond(a: Floats, b: Floats) -> tuple[Floats, Floats]:
            chosen, _ = _core.decide_weighted_topk(csr, a, b, k, threads)
            return _counts(csr, truth, chosen, k, self.smoothing)

        rules = [(np.ones(labels), np.zeros(labels))]
        weights = np.ones(1)
        t, q = respond(*rules[0])
        utilities, steps, converged = [value(t, q)], [], False
        for _ in range(int(self.max_iter)):
            a, b = _core.decide_gradient(*named, t, q)
            da, db = _custom_gradient(m, t, q, positives, n)
            a, b = a + m.custom_weight * da, b + m.custom_weight * db
            t1, q1 = respond(a, b)
            step, best, low, high = 0.0, utilities[-1], 0.0, 1.0
            for _round in range(3):
                for s in low + (high - low) * np.arange(1, 33) / 32:
                    if (u := value(t + s * (t1 - t), q + s * (q1 - q))) > best:
                        step, best = float(s), u
                width = (high - low) / 32
                low, high = max(0.0, step - width), min(1.0, step + width)
            if step == 0:
                converged = True
                break
            rules.append((a, b))
            weights = np.append(weights * (1 - step), step)
            t, q = t + step * (t1 - t), q + step * (q1 - q)
            steps.append(step)
            utilities.append(value(t, q))
            if utilities[-1] - utilities[-2] <= self.tol * abs(utilities[-2]):
                converged = True
                break
        self.a_, self.b_ = (np.stack(x) for x in zip(*rules, strict=True))
        self.weights_ = weights
        return utilities, steps, converged


def _call(m: Metric, t: Floats, q: Floats, p: Floats, n: int) -> Any:
    assert m.custom is not None
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.asarray(m.custom(t, q, p, float(n)), np.float64)
    if values.shape not in ((), t.shape) or not np.isfinite(values).all():
        raise ValueError(f"{m.name} must return finite numbers, one or {len(t)}, got shape {values.shape}")
    return values


def _custom_gradient(m: Metric, t: Floats, q: Floats, p: Floats, n: int) -> tuple[Floats, Floats]:
    """Of the mean over labels (or of the one number): as given, else by small differences."""
    scale = 1.0
    if m.custom_gradient is not None:
        dt, db = (np.asarray(g, np.float64) for g in m.custom_gradient(t, q, p, float(n)))
        if dt.shape != t.shape or db.shape != t.shape:
            raise ValueError(f"the gradient of {m.name} must give two arrays of shape {t.shape}")
        if np.ndim(_call(m, t, q, p, n)):
            scale = 1.0 / len(t)
        return scale * dt, scale * db
    if not np.ndim(_call(m, t, q, p, n)):
        raise ValueError(f"{m.name} returns one number for all labels: give its gradient= to metric()")
    h = 1e-6
    dt = (_call(m, t + h, q, p, n) - _call(m, np.maximum(t - h, 0), q, p, n)) / (t + h - np.maximum(t - h, 0))
    dq = (_call(m, t, q + h, p, n) - _call(m, t, np.maximum(q - h, 0), p, n)) / (q + h - np.maximum(q - h, 0))
    return dt / len(t), dq / len(t)


def _counts(csr: Csr, truth: Any, chosen: Any, k: int, smoothing: float) -> tuple[Floats, Floats]:
    n, labels = csr.shape
    hit = sp.csr_matrix((truth.astype(np.float64), csr.indices, csr.indptr), csr.shape)
    picks = sp.csr_matrix((np.ones(n * k), chosen, np.arange(n + 1) * k), csr.shape)
    t = np.asarray(hit.multiply(picks).sum(axis=0), np.float64).ravel()
    q = np.bincount(chosen, minlength=labels).astype(np.float64) + smoothing
    return t, q
