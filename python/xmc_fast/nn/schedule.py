"""Learning rates over a run: factors by the fraction of its steps that are done.

Each rises linearly over the first ``warm_up`` of the run, then falls to ``floor``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class _Schedule:
    warm_up: float = 0.0
    floor: float = 0.0

    def __call__(self, t: float) -> float:
        """The factor at the fraction ``t`` of the run."""
        if t < self.warm_up:
            return (t + 1e-3) / (self.warm_up + 1e-3)
        return self._fall((t - self.warm_up) / max(1 - self.warm_up, 1e-9))

    def _fall(self, t: float) -> float:
        raise NotImplementedError


class cosine(_Schedule):
    """Linear warm-up, then half a cosine down to floor.

    >>> [round(cosine()(t), 3) for t in (0.0, 0.5, 1.0)]
    [1.0, 0.5, 0.0]
    """

    def _fall(self, t: float) -> float:
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * t))


class linear(_Schedule):
    """Linear warm-up, then linear decay to floor.

    >>> [round(linear(floor=0.1)(t), 3) for t in (0.0, 0.5, 1.0)]
    [1.0, 0.55, 0.1]
    """

    def _fall(self, t: float) -> float:
        return 1 - (1 - self.floor) * t
