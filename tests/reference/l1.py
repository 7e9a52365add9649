"""The l1-regularised squared hinge in plain float64 numpy: |w|_1 + sum_i c_i max(0, 1 - s_i w.x_i)^2."""

from __future__ import annotations

import numpy as np


def objective(w, X, s, c):
    return np.abs(w).sum() + c @ np.maximum(0, 1 - s * (X @ w)) ** 2


def solve(X, s, c, sweeps=3000):
    """The optimum by proximal gradient with momentum (FISTA), step 1/L."""
    L = 2 * np.linalg.norm(X * np.sqrt(c)[:, None], 2) ** 2
    w = v = np.zeros(X.shape[1])
    t = 1.0
    for _ in range(sweeps):
        g = -2 * X.T @ (c * s * np.maximum(0, 1 - s * (X @ v)))
        u = v - g / L
        new = np.sign(u) * np.maximum(np.abs(u) - 1 / L, 0)
        after = (1 + np.sqrt(1 + 4 * t * t)) / 2
        v = new + (t - 1) / after * (new - w)
        w, t = new, after
    return w
