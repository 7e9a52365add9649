"""LIBLINEAR on a sample of the labels, the peer of the linear benches."""

from __future__ import annotations

from typing import Any

import numpy as np

_MOST = 1.001  # our summed objective, as a multiple of LIBLINEAR's


class Liblinear:
    """Problems of some labels: their signs (label -> n numbers -1 or +1) on the rows X."""

    def __init__(self, signs: dict[int, np.ndarray], X: Any) -> None:
        from liblinear import liblinearutil

        self._train, self._signs, self._X = liblinearutil.train, signs, X
        self._problems = [liblinearutil.problem(s, X) for s in signs.values()]

    def train(self, solver: int) -> list[Any]:
        """A model per label, by ``-s solver``."""
        return [self._train(problem, f"-s {solver} -c 1 -e 0.01 -q") for problem in self._problems]

    def objective_ratio(self, model: Any) -> float:
        """The summed objective of a fitted `OneVsAll` relative to that of ``-s 2``; an error if it is worse."""
        value = 0.0
        for s, peer in zip(self._signs.values(), self.train(2), strict=True):
            w = np.array(peer.w[: self._X.shape[1]]) * (1 if peer.label[0] == 1 else -1)
            value += 0.5 * w @ w + np.sum(np.maximum(0, 1 - s * (self._X @ w)) ** 2)
        ratio = float(model.report_["objective"][list(self._signs)].sum() / value)
        if ratio > _MOST:
            raise RuntimeError(f"summed objective {ratio} times LIBLINEAR's")
        return ratio
