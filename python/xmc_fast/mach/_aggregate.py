"""The scores of all labels from those of the buckets, and the best of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from xmc_fast import _core
from xmc_fast._threads import resolve_threads
from xmc_fast._validate import aligned, at_least

AGGREGATES = {"mean": 0, "unbiased": 0, "min": 1, "median": 2}


def aggregate_topk(
    p: npt.NDArray[np.float32],
    table: npt.NDArray[np.uint16],
    k: int = 5,
    *,
    aggregate: str = "mean",
    top_buckets: int | None = None,
    inverted: tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]] | None = None,
    n_jobs: int | None = None,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """The k best labels by their aggregated bucket scores, exact, without an (n, L) array.

    Parameters
    ----------
    p : (R, n, B) scores of the buckets
    table : (R, L), see `bucket_table`
    k : int
    aggregate : as in `Mach`
    top_buckets : score only labels in one of the so many best buckets of some repetition
    inverted : the table by bucket, made when not given
    n_jobs : threads

    Returns
    -------
    ids (n, k) int32 and scores (n, k) float32, best first; with ``top_buckets`` missing ones are -1 and -inf.

    Examples
    --------
    Two repetitions of two buckets; only label 2 is in the better bucket of both.

    >>> p = [[[0.9, 0.1]], [[0.2, 0.8]]]
    >>> ids, scores = aggregate_topk(p, table=[[0, 1, 0], [0, 1, 1]], k=2)
    >>> ids
    array([[2, 0]], dtype=int32)
    >>> scores.round(2)
    array([[0.85, 0.55]], dtype=float32)
    """
    if aggregate not in AGGREGATES:
        raise ValueError(f"aggregate must be one of {', '.join(AGGREGATES)}, got {aggregate!r}")
    p, table = np.asarray(p), np.asarray(table)
    if p.dtype.kind not in "biuf" or table.dtype.kind not in "iu":
        raise ValueError(f"p must hold real numbers and table integers, got {p.dtype} and {table.dtype}")
    if p.ndim != 3 or table.ndim != 2 or p.shape[0] != table.shape[0]:
        raise ValueError(f"p must be (R, n, B) and table (R, L), got {p.shape} and {table.shape}")
    if not 1 <= k <= table.shape[1]:
        raise ValueError(f"k must be in 1..{table.shape[1]}, got {k}")
    if top_buckets is not None:
        at_least(1, top_buckets=top_buckets)
    if table.size and not 0 <= int(table.min()) <= int(table.max()) < p.shape[2]:
        raise ValueError(f"table has buckets {table.min()} to {table.max()}, p has {p.shape[2]} buckets")
    p, table = aligned(p, np.float32), aligned(table, np.uint16)
    threads, kind = resolve_threads(n_jobs), AGGREGATES[aggregate]
    if top_buckets is None:
        ids, scores = _core.mach_topk(p, table, kind, int(k), threads)
    else:
        offsets, by_bucket = inverted or _core.invert_table(table, p.shape[2], threads)
        ids, scores = _core.mach_topk_candidates(
            p, table, offsets, by_bucket, kind, int(top_buckets), int(k), threads
        )
    if aggregate == "unbiased":
        B = p.shape[2]
        scores = ((scores - np.float32(1 / B)) * np.float32(B / max(B - 1, 1))).astype(np.float32)
    return ids, scores
