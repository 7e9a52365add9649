"""Balanced spherical 2-means label tree in plain numpy; same steps and random choices as csrc/cluster."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix64(x: int) -> int:
    x = (x + GOLDEN) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def label_centroids(X, Y) -> sp.csr_matrix:
    sums = sp.csr_matrix(Y, dtype=np.float64).T @ sp.csr_matrix(X, dtype=np.float64)
    norms = np.sqrt(np.asarray(sums.multiply(sums).sum(axis=1)).ravel())
    return sp.csr_matrix(sp.diags(1 / np.where(norms > 0, norms, 1)) @ sums)


def side_one(n: int, C: int) -> int:
    """Size of the first side: half, or a cut that avoids a child of C + 1 labels when C is even."""
    half = n // 2
    if C % 2 == 0 and C > 2 and n > C + 1 and C + 1 in (half, n - half):
        return min(C, n - C - 2)
    return half


def two_means(V, ones: int, seed: int, max_iter: int, tol: float) -> np.ndarray:
    """True for the labels (rows of V) of side 1."""
    n = V.shape[0]
    state = mix64(seed)
    p = (mix64(state) >> 32) * n >> 32
    q = (p + 1 + ((mix64((state + GOLDEN) & MASK) >> 32) * (n - 1) >> 32)) % n
    w = (V[p] - V[q]).toarray().ravel()
    side, objective = np.zeros(n, bool), 0.0
    for iteration in range(max_iter):
        d = V @ w
        new = np.zeros(n, bool)
        new[np.lexsort((np.arange(n), -d))[:ones]] = True
        if iteration > 0 and (new == side).all():
            break
        side = new
        sums = [np.asarray(V[s].sum(axis=0)).ravel() for s in (side, ~side)]
        norms = [np.linalg.norm(s) for s in sums]
        if sum(norms) - objective <= tol * objective:
            break
        objective = sum(norms)
        a, b = (s / norm if norm > 0 else s for s, norm in zip(sums, norms, strict=True))
        w = a - b
    return side


def label_tree(X, Y, *, max_leaf: int, max_iter: int = 20, tol: float = 1e-4, random_state: int = 0):
    """(order, offsets)"""
    V = label_centroids(X, Y)
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
            side = two_means(V[labels], ones, mix64(random_state ^ mix64(first << 8 | depth)), max_iter, tol)
            order[first : first + size] = np.concatenate([labels[side], labels[~side]])
        split(first, ones, depth + 1)
        split(first + ones, size - ones, depth + 1)

    split(0, clustered, 0)
    split(clustered, len(order) - clustered, 0)
    return order, np.array([*starts, len(order)])
