"""What LightXML takes where its parameters are left open: by the steps of the run and the number of labels."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

LONG = 20_000  # steps from which on a run is one as in the paper
_HEAD_STEPS = 1250  # of the warm-up of a short run
_FASTEST = 20.0  # times lr


class Chosen(NamedTuple):
    """Settings of a run."""

    head_lr: float
    warmup_epochs: int
    swa_start: int | None


def choose(n_texts: int, *, epochs: int, batch_size: int, accumulate: int, lr: float) -> Chosen:
    """Heads start from random weights: a short run gives them a higher rate and epochs of their own on the vectors of
    the encoder as it comes. Averaged weights lag behind, so that only the second half of a long run is averaged.

    >>> choose(2000, epochs=8, batch_size=16, accumulate=1, lr=1e-4)
    Chosen(head_lr=0.002, warmup_epochs=10, swa_start=None)
    >>> choose(500_000, epochs=10, batch_size=32, accumulate=1, lr=1e-4)
    Chosen(head_lr=0.0001, warmup_epochs=0, swa_start=5)
    """
    per_epoch = math.ceil(math.ceil(n_texts / batch_size) / accumulate)
    steps = per_epoch * epochs
    if steps >= LONG:
        return Chosen(lr, 0, epochs // 2)
    factor = min(_FASTEST, LONG / max(steps, 1))
    return Chosen(lr * factor, max(1, min(10, math.ceil(_HEAD_STEPS / per_epoch))), None)


def beam_of(n_labels: int) -> int:
    """Clusters whose labels are ranked: the authors' 32 for half a million labels and 75 for 670,000.

    >>> beam_of(4000), beam_of(501_070), beam_of(670_091)
    (10, 32, 75)
    """
    return 10 if n_labels < 300_000 else 32 if n_labels < 600_000 else 75


def check_settings(model: Any) -> None:
    """ValueError for a setting of `xmc_fast.nn.LightXML` that cannot be."""
    for name, allowed in (
        ("mode", ("auto", "flat", "clusters")),
        ("negatives", ("dynamic", "static", "static_copy", "random")),
        ("activation", ("sigmoid", "identity")),
        ("pooling", ("cls", "mean")),
        ("head_start", ("random", "centroids")),
    ):
        if getattr(model, name) not in allowed:
            raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(model, name)!r}")
    for name in ("max_leaf", "beam", "bottleneck", "layers", "lora"):
        if getattr(model, name) is not None and getattr(model, name) < 1:
            raise ValueError(f"{name} must be at least 1, got {getattr(model, name)}")
    warmup = 1 if model.warmup_epochs is None else model.warmup_epochs
    least = 0 if model.head_start == "centroids" else 1  # a model without a step
    if min(warmup, model.epochs) < 0 or warmup + model.epochs < least:
        raise ValueError(
            f"epochs and warmup_epochs must not be negative or both 0, got {model.epochs} and {model.warmup_epochs}"
        )
    for name in ("rank_weight", "frozen_layers"):
        if getattr(model, name) < 0:
            raise ValueError(f"{name} must not be negative, got {getattr(model, name)}")
    if model.head_start == "centroids" and (model.activation != "identity" or model.fan_in is not None):
        raise ValueError('head_start="centroids" needs activation="identity" and no fan_in')
    if model.cooldown_epochs < 0:
        raise ValueError(f"cooldown_epochs must not be negative, got {model.cooldown_epochs}")
