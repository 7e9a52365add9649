"""Learning rates over a run: factors by the fraction of its steps that are done."""

from __future__ import annotations

import math
from collections.abc import Callable


def cosine(warm_up: float = 0.0, floor: float = 0.0) -> Callable[[float], float]:
    """Learning-rate factor: linear warm-up over that fraction of the run, then half a cosine down to floor."""

    def factor(t: float) -> float:
        if t < warm_up:
            return (t + 1e-3) / (warm_up + 1e-3)
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * (t - warm_up) / max(1 - warm_up, 1e-9)))

    return factor


def linear(warm_up: float = 0.0, floor: float = 0.0) -> Callable[[float], float]:
    """Learning-rate factor: linear warm-up, then linear decay to floor."""

    def factor(t: float) -> float:
        if t < warm_up:
            return (t + 1e-3) / (warm_up + 1e-3)
        return 1 - (1 - floor) * (t - warm_up) / max(1 - warm_up, 1e-9)

    return factor
