"""Balanced spherical 2-means label tree in plain numpy; same steps and random choices as csrc/cluster."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
SAMPLE = 64  # labels that the start of a large node is made from


def mix64(x: int) -> int:
    x = (x + GOLDEN) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


class Rng:
    """splitmix64, as csrc/core/rng.h."""

    def __init__(self, seed: int) -> None:
        self.state = mix64(seed)

    def next(self) -> int:
        x, self.state = self.state, (self.state + GOLDEN) & MASK
        return mix64(x)

    def below(self, n: int) -> int:
        return (self.next() >> 32) * n >> 32


def label_centroids(X, Y, max_features: int | None = None) -> sp.csr_matrix:
    sums = sp.csr_matrix(sp.csr_matrix(Y, dtype=np.float64).T @ sp.csr_matrix(X, dtype=np.float64))
    if max_features is not None:
        for start, end in zip(sums.indptr[:-1], sums.indptr[1:], strict=True):
            values, columns = sums.data[start:end], sums.indices[start:end]
            values[np.lexsort((columns, -np.abs(values)))[max_features:]] = 0
    norms = np.sqrt(np.asarray(sums.multiply(sums).sum(axis=1)).ravel())
    return sp.csr_matrix(sp.diags(1 / np.where(norms > 0, norms, 1)) @ sums)


def side_one(n: int, C: int) -> int:
    """Size of the first side: half, or a cut that avoids a child of C + 1 labels when C is even."""
    half = n // 2
    if C % 2 == 0 and C > 2 and n > C + 1 and C + 1 in (half, n - half):
        return min(C, n - C - 2)
    return half


def direction(V, side) -> tuple[np.ndarray, float]:
    """S_1/|S_1| - S_2/|S_2| and |S_1| + |S_2|."""
    sums = [np.asarray(V[s].sum(axis=0)).ravel() for s in (side, ~side)]
    norms = [np.linalg.norm(s) for s in sums]
    a, b = (s / norm if norm > 0 else s for s, norm in zip(sums, norms, strict=True))
    return a - b, sum(norms)


def rounds(V, w, ones: int, max_iter: int, tol: float) -> np.ndarray:
    """True for the labels (rows of V) of side 1, from the direction w on."""
    n = V.shape[0]
    side, objective = np.zeros(n, bool), 0.0
    for iteration in range(max_iter):
        new = np.zeros(n, bool)
        new[np.lexsort((np.arange(n), -(V @ w)))[:ones]] = True
        if iteration > 0 and (new == side).all():
            break
        side = new
        w, now = direction(V, side)
        if now - objective <= tol * objective:
            break
        objective = now
    return side


def two_means(V, ones: int, seed: int, max_iter: int, tol: float) -> np.ndarray:
    n, rng = V.shape[0], Rng(seed)
    p = rng.below(n)
    q = (p + 1 + rng.below(n - 1)) % n
    return rounds(V, (V[p] - V[q]).toarray().ravel(), ones, max_iter, tol)


def two_means_large(V, ones: int, seed: int, max_iter: int, tol: float) -> np.ndarray:
    n, rng = V.shape[0], Rng(seed)
    sample = list(range(n))
    for k in range(SAMPLE):
        j = k + rng.below(n - k)
        sample[k], sample[j] = sample[j], sample[k]
    own = V[sorted(sample[:SAMPLE])]
    side = two_means(own, SAMPLE * ones // n, rng.next(), max_iter, tol)
    return rounds(V, direction(own, side)[0], ones, min(max_iter, 6), tol)


def label_tree(
    X,
    Y,
    *,
    max_leaf: int,
    max_features: int | None = 256,
    max_iter: int = 20,
    tol: float = 1e-4,
    random_state: int = 0,
):
    """(order, offsets)"""
    V = label_centroids(X, Y, max_features)
    filled = np.asarray(V.multiply(V).sum(axis=1)).ravel() > 0
    order = np.concatenate([np.flatnonzero(filled), np.flatnonzero(~filled)])
    clustered, starts = int(filled.sum()), []

    def split(first: int, size: int, depth: int) -> None:
        if size <= max_leaf:
            starts.extend([first] if size else [])
            return
        ones = side_one(size, max_leaf)
        if first < clustered:
            labels = order[first : first + size].copy()
            seed = mix64(random_state ^ mix64(first << 8 | depth))
            side = (two_means_large if size > 512 else two_means)(V[labels], ones, seed, max_iter, tol)
            order[first : first + size] = np.concatenate([labels[side], labels[~side]])
        split(first, ones, depth + 1)
        split(first + ones, size - ones, depth + 1)

    split(0, clustered, 0)
    split(clustered, len(order) - clustered, 0)
    return order, np.array([*starts, len(order)])
