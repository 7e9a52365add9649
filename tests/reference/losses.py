"""Multi-label losses of one row, label by label, and what missing labels do to them."""

from __future__ import annotations

import itertools

import numpy as np


def binary(base, s, y):
    sign = 1 if y else -1
    if base == "bce":
        return np.log1p(np.exp(-sign * s))
    return max(0.0, 1 - sign * s) ** 2


def picked(base, s, j):
    """The loss of label j alone against all others."""
    if base == "softmax":
        return np.log(np.sum(np.exp(s))) - s[j]
    return sum(binary(base, s[i], i == j) for i in range(len(s)))


def clean(base, reduction, s, y):
    """The loss on complete labels y."""
    n = max(sum(y), 1) if reduction.endswith("_n") else 1
    if reduction.startswith("pal"):
        return sum(picked(base, s, j) / n for j in range(len(s)) if y[j])
    share = [y[j] / n for j in range(len(s))]
    return sum(t * binary(base, s[j], 1) + (1 - t) * binary(base, s[j], 0) for j, t in enumerate(share))


def masks(y, p):
    """All observations of the complete labels y, each with its probability."""
    true = [j for j in range(len(y)) if y[j]]
    for seen in itertools.product([0, 1], repeat=len(true)):
        observed, chance = np.zeros(len(y)), 1.0
        for j, m in zip(true, seen, strict=True):
            observed[j] = m
            chance *= p[j] if m else 1 - p[j]
        yield observed, chance


def general(loss, observed, p):
    """Theorem 19 with the sign of its linearisation: sum over all subsets of the observed labels."""
    true = [j for j in range(len(observed)) if observed[j]]
    total = 0.0
    for inside in itertools.product([0, 1], repeat=len(true)):
        subset, weight = np.zeros(len(observed)), 1.0
        for j, m in zip(true, inside, strict=True):
            subset[j] = m
            weight *= 1 / p[j] if m else (p[j] - 1) / p[j]
        total += weight * loss(subset)
    return total
