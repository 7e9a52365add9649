"""Macro-at-k decisions in plain numpy, as in the papers: slow, dense, one loop per formula."""

from __future__ import annotations

import itertools

import numpy as np


def ratio(a, b):
    a, b = np.broadcast_arrays(np.asarray(a, float), np.asarray(b, float))
    return np.divide(a, b, out=np.zeros(a.shape), where=b > 0)


def tnr(t, q, p, n):
    return ratio(n - p - q + t, n - p)


PSI = {
    "macro-precision": lambda t, q, p, n: ratio(t, q),
    "macro-recall": lambda t, q, p, n: ratio(t, p),
    "macro-f1": lambda t, q, p, n: ratio(2 * t, p + q),
    "macro-f2": lambda t, q, p, n: ratio(5 * t, 4 * p + q),
    "macro-jaccard": lambda t, q, p, n: ratio(t, p + q - t),
    "macro-balanced-accuracy": lambda t, q, p, n: (ratio(t, p) + tnr(t, q, p, n)) / 2,
    "macro-gmean": lambda t, q, p, n: np.sqrt(np.maximum(ratio(t, p) * tnr(t, q, p, n), 0)),
    "macro-hmean": lambda t, q, p, n: ratio(2 * ratio(t, p) * tnr(t, q, p, n), ratio(t, p) + tnr(t, q, p, n)),
}


def utility(eta, chosen, name, k):
    """The expected metric of a 0/1 matrix `chosen` under probabilities `eta` (both dense)."""
    n = len(eta)
    t, q, p = (chosen * eta).sum(0), chosen.sum(0), eta.sum(0)
    if name == "precision":
        return t.sum() / (n * k)
    if name == "coverage":
        return (1 - np.prod(1 - chosen * eta, axis=0)).mean()
    return PSI[name](t, q, p, n).mean()


def subsets(labels, k):
    """Every 0/1 row with k ones."""
    rows = np.zeros((len(list(itertools.combinations(range(labels), k))), labels))
    for row, members in zip(rows, itertools.combinations(range(labels), k), strict=True):
        row[list(members)] = 1
    return rows


def best_response(eta, chosen, i, name, k, value=utility):
    """The highest utility over all k-subsets for instance i, the others as they are."""
    best = -np.inf
    for row in subsets(eta.shape[1], k):
        trial = chosen.copy()
        trial[i] = row
        best = max(best, value(eta, trial, name, k))
    return best


def global_optimum(eta, name, k, value=utility):
    """The highest utility over all predictions: (labels choose k)^n of them."""
    n, labels = eta.shape
    return max(
        value(eta, np.array(rows), name, k) for rows in itertools.product(subsets(labels, k), repeat=n)
    )


def top_k(scores, k):
    """0/1 matrix of the k largest scores per row, lower label first among equals."""
    chosen = np.zeros(scores.shape)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    np.put_along_axis(chosen, order, 1, axis=1)
    return chosen


def gradient(name, t, q, p, n, h=1e-6):
    """Numerical derivatives of psi by t and q."""
    psi = PSI[name]
    return (
        (psi(t + h, q, p, n) - psi(t - h, q, p, n)) / (2 * h),
        (psi(t, q + h, p, n) - psi(t, q - h, p, n)) / (2 * h),
    )


def thresholds(eta, name):
    """The best utility without a budget: for each label the best number of its most probable instances."""
    n, labels = eta.shape
    total = 0.0
    for j in range(labels):
        order = np.argsort(-eta[:, j], kind="stable")
        t = np.concatenate([[0], np.cumsum(eta[order, j])])
        total += PSI[name](t, np.arange(n + 1.0), eta[:, j].sum(), n).max()
    return total / labels
