"""MACH in plain numpy: the hash family and the aggregated scores."""

from __future__ import annotations

import numpy as np

from reference.cluster import mix64

MASK = 2**64 - 1


def bucket_table(n_labels: int, n_buckets: int, n_repeats: int, seed: int) -> np.ndarray:
    s = mix64(seed)
    l = np.arange(n_labels, dtype=np.uint64)  # noqa: E741 (the paper's letter)
    rows = []
    for r in range(n_repeats):
        a, b = (np.uint64(mix64((s + 2 * r + i) & MASK)) for i in (0, 1))
        rows.append((((a * l + b) >> np.uint64(32)) * np.uint64(n_buckets)) >> np.uint64(32))
    return np.array(rows, np.uint16).reshape(n_repeats, n_labels)


def scores(p: np.ndarray, table: np.ndarray, aggregate: str) -> np.ndarray:
    """(n, L) from p (R, n, B)."""
    n_repeats, _, n_buckets = p.shape
    gathered = np.stack([p[r][:, table[r]] for r in range(n_repeats)])  # R, n, L
    if aggregate == "min":
        return gathered.min(axis=0)
    if aggregate == "median":
        return np.median(gathered, axis=0).astype(np.float32)
    total = np.zeros(gathered.shape[1:], np.float32)
    for row in gathered:
        total += row
    mean = total / np.float32(n_repeats)
    if aggregate == "unbiased":
        return (mean - np.float32(1 / n_buckets)) * np.float32(n_buckets / max(n_buckets - 1, 1))
    return mean


def topk(p: np.ndarray, table: np.ndarray, k: int, aggregate: str) -> tuple[np.ndarray, np.ndarray]:
    """Best first; "unbiased" ranks like the mean it is made from."""
    s = scores(p, table, "mean" if aggregate == "unbiased" else aggregate)
    order = np.lexsort((np.broadcast_to(np.arange(s.shape[1]), s.shape), -s), axis=1)[:, :k]
    return order, np.take_along_axis(scores(p, table, aggregate), order, axis=1)
