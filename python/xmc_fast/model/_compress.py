"""Choosing how much of a model to drop for its small form (`SparseModel.compress`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from xmc_fast._validate import labels
from xmc_fast.model._calibrate import is_relevant
from xmc_fast.model._packed import pack

DELTA = 0.03  # costs no accuracy on the sets at hand (docs/experiments/pruning.md)
# Thresholds to choose from: each 12 % above the one before, from next to nothing to most of the weights.
DELTAS: tuple[float, ...] = tuple(0.005 * 1.12**i for i in range(48))
TRIED = DELTAS[::4]  # on held-out rows


def compress(
    model: Any,
    X: Any,
    Y: Any,
    *,
    max_loss: float,
    delta: float | None,
    max_bytes: int | None,
    n_jobs: int | None,
) -> Any:
    """`SparseModel.compress`."""
    if (X is None) != (Y is None):
        raise ValueError("X and Y must be given together")
    if delta is not None and not 0 <= delta < np.inf:
        raise ValueError(f"delta must be at least 0 and finite, got {delta}")
    if not max_loss >= 0:
        raise ValueError(f"max_loss must be at least 0, got {max_loss}")
    blocks = model.blocks

    def at(threshold: float) -> Any:
        has_bias = model.bias is not None
        shape = model.n_labels, model.n_columns
        small = model._with(pack(blocks, *shape, has_bias=has_bias, delta=threshold, n_jobs=n_jobs))
        small.params["compressed_at"] = float(threshold)
        return small

    if delta is not None:
        return at(delta)
    if max_bytes is not None:
        return _smallest_delta(at, max_bytes)
    if X is None:
        return at(DELTA)
    small = at(largest_delta(lost_at(at, model, X, Y, n_jobs), max_loss))
    return small if model.calibration is None else small.calibrate(X, Y, n_jobs=n_jobs)


def _smallest_delta(at: Any, max_bytes: int) -> Any:
    """The model at the smallest threshold of DELTAS whose weights take at most ``max_bytes``."""
    smallest = at(DELTAS[-1])
    if smallest.nbytes > max_bytes:
        raise ValueError(f"max_bytes must be at least {smallest.nbytes} for this model, got {max_bytes}")
    return at(DELTAS[_bisect(lambda delta: at(delta).nbytes > max_bytes)])


def lost_at(at: Callable[[float], Any], model: Any, X: Any, Y: Any, n_jobs: int | None) -> Any:
    """Points of P@1, P@3 and P@5 that the rows lose at each threshold of TRIED: (thresholds, 3)."""
    truth = labels(Y, n_labels=model.n_labels)
    ranks = np.minimum((1, 3, 5), max(model.n_labels, 1))

    def precisions(of: Any) -> Any:
        top = of.predict(X, int(ranks[-1]), n_jobs=n_jobs)
        if top.shape[0] != truth.shape[0]:
            raise ValueError(f"X has {top.shape[0]} rows, Y has {truth.shape[0]}")
        hits = is_relevant(top, truth).reshape(top.shape[0], -1)
        return np.array([100 * hits[:, :k].sum() / max(top.shape[0] * k, 1) for k in ranks])

    exact = precisions(model)
    return np.array([exact - precisions(at(delta)) for delta in TRIED])


def largest_delta(lost: Any, max_loss: float) -> float:
    """The largest threshold of DELTAS that is expected to lose at most ``max_loss`` of P@1, of P@3 and of P@5.

    On some thousand rows P@k moves by tenths of a point from one threshold to the next. So what is expected is, for
    each k, the best rising curve through the losses at TRIED.
    """
    from sklearn.isotonic import IsotonicRegression

    rising = [IsotonicRegression().fit_transform(np.log(TRIED), of_k) for of_k in lost.T]
    expected = np.max([np.interp(np.log(DELTAS), np.log(TRIED), curve) for curve in rising], axis=0)
    fits = np.flatnonzero(expected <= max_loss)
    if not len(fits):
        raise ValueError(
            f"max_loss must be at least {expected[0]:.3g} for this model and these rows, got {max_loss}"
        )
    return float(DELTAS[fits[-1]])


def _bisect(holds: Callable[[float], bool]) -> int:
    """The first of DELTAS for which ``holds`` is false, if it is true before and false after; or their number."""
    low, high = 0, len(DELTAS)
    while low < high:
        middle = (low + high) // 2
        if holds(DELTAS[middle]):
            low = middle + 1
        else:
            high = middle
    return low
