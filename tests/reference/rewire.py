"""Dynamic sparse training in plain numpy: one index list at a time, as the rules read (nn/rewire.py)."""

from __future__ import annotations

import math

import numpy as np


def pruned(weight, rule, *, fraction=0.0, threshold=0.0, before=None, group_size=1):
    """Positions (lists x fan_in, bool) that lose their connection."""
    groups = -(-len(weight) // group_size)
    out = np.zeros((groups, weight.shape[1]), bool)
    for g in range(groups):
        w = weight[g * group_size : (g + 1) * group_size].astype(np.float64)
        if rule == "magnitude":
            size = np.abs(w).sum(0)
            out[g, np.argsort(size, kind="stable")[: int(fraction * w.shape[1])]] = True
        elif rule == "threshold":
            out[g] = np.abs(w).mean(0) <= threshold
        else:
            old = before[g * group_size : (g + 1) * group_size]
            out[g] = (np.sign(w) * np.sign(old) < 0).mean(0) >= 0.5
    return out


def missing(x, g, indices, count, group_size=1):
    """The features of largest gradient that each list lacks, best first; -1 where the gradient is zero."""
    full = np.abs(g.T.astype(np.float64) @ x)  # labels x features
    best = np.full((len(indices), count), -1)
    for i, held in enumerate(indices):
        strength = full[i * group_size : (i + 1) * group_size].sum(0)
        strength[held.astype(int)] = -1
        order = np.argsort(-strength, kind="stable")[:count]
        best[i] = np.where(strength[order] > 0, order, -1)
    return best


def cosine(fraction, step, last):
    return fraction / 2 * (1 + math.cos(math.pi * min(step / last, 1)))
