"""Pictures of decisions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xmc_fast import decide
from xmc_fast._validate import labels, matrix_of, numbers, valid_csr
from xmc_fast.plots._axes import axes, finish


def plot_tradeoff(
    proba: Any,
    k: int = 5,
    ax: Any = None,
    *,
    metric: str = "macro-f1",
    lambdas: Sequence[float] = (0.0, 0.2, 0.5, 0.8, 0.9, 0.95, 0.99, 1.0),
    exponents: Sequence[float] = (0.25, 0.5, 1.0),
    label_counts: Any = None,
    Y: Any = None,
    n_jobs: int | None = None,
) -> Any:
    """Precision@k against a macro metric over the mixture λ · P@k + (1 − λ) · metric, heuristics beside it.

    Parameters
    ----------
    proba : matrix of shape (n, labels)
    k : int
    ax : matplotlib Axes, optional
    metric : str
        The macro metric of the vertical axis.
    lambdas : sequence of float
    exponents : sequence of float
        Of the power-law weightings.
    label_counts : array of shape (labels,), optional
        Label frequencies for the heuristics, by default the expected ones.
    Y : binary matrix of shape (n, labels), optional
        Measure with these true labels instead of the probabilities.
    n_jobs : int, optional

    Examples
    --------
    >>> import numpy as np
    >>> eta = np.random.default_rng(0).beta(0.3, 2, (200, 20)) / (1 + np.arange(20))
    >>> ax = plot_tradeoff(eta, 3)
    >>> ax.get_xlabel()
    'precision@3'
    """
    ax = axes(ax)
    proba, _ = valid_csr(proba, "proba")
    truth = proba if Y is None else matrix_of(labels(Y))

    def measure(prediction: Any) -> tuple[float, float]:
        values = (decide.expected_utility(truth, prediction, m, k=k) for m in ("precision", metric))
        x, y = values
        return x, y

    counts = (
        _expected_counts(proba) if label_counts is None else numbers(label_counts, "label_counts", ndim=1)
    )
    n = proba.shape[0]
    curve = [
        measure(decide.bca(proba, decide.mix(lambda_, metric), k, n_jobs=n_jobs)[0]) for lambda_ in lambdas
    ]
    ax.plot(*zip(*curve, strict=True), "o-", label=f"mixture with {metric}")
    for lambda_, point in zip(lambdas, curve, strict=True):
        ax.annotate(f"{lambda_:g}", point, textcoords="offset points", xytext=(4, 4), fontsize="x-small")
    power = [
        measure(decide.weighted_topk(proba, decide.power_law_gains(counts, e), k, n_jobs=n_jobs))
        for e in exponents
    ]
    ax.plot(*zip(*power, strict=True), "s--", label="power law")
    log = measure(decide.weighted_topk(proba, decide.log_gains(counts, n), k, n_jobs=n_jobs))
    ax.plot(*log, "^", label="log")
    return finish(ax, f"precision@{k}", f"{metric}@{k}")


def _expected_counts(proba: Any) -> Any:
    return np.asarray(proba.sum(axis=0), np.float64).ravel()
