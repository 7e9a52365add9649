"""How many buckets and repetitions: the count-min bound and a memory budget."""

from __future__ import annotations

import math
from typing import NamedTuple

from xmc_fast._validate import above_zero, at_least


class BucketChoice(NamedTuple):
    """B and R, what they cost and how often they fail."""

    n_buckets: int
    n_repeats: int
    nbytes: int
    error: float  # bound on the probability, see `error_bound`


def error_bound(n_labels: int, n_buckets: int, n_repeats: int, *, labels_per_row: float = 1) -> float:
    """A bound on the probability that R perfect bucket models do not tell a row's labels.

    The larger of two union bounds: some pair of labels shares all its buckets, L²/2 · B^-R (labels that no row
    could tell apart); and some other label has all its buckets among those of the row's m labels,
    L · (1 - (1 - 1/B)^m)^R (the count-min bound).

    >>> error_bound(670_091, 10_000, 4) < 1e-3 < error_bound(670_091, 10_000, 2)
    True
    """
    above_zero(labels_per_row=labels_per_row)
    if n_buckets < 2:
        return 1.0
    pairs = 2 * math.log(max(n_labels, 1)) - math.log(2) - n_repeats * math.log(n_buckets)
    hit = -math.expm1(labels_per_row * math.log1p(-1 / n_buckets))
    false = math.log(max(n_labels, 1)) + n_repeats * math.log(hit)
    return min(1.0, math.exp(min(max(pairs, false), 0.0)))


def choose_buckets(
    n_labels: int,
    memory: int,
    *,
    bytes_per_bucket: float,
    error: float = 0.01,
    labels_per_row: float = 5,
    min_repeats: int = 1,
) -> BucketChoice:
    """B and R for a memory budget: the fewest repetitions (so the most buckets) that keep the error bound.

    Parameters
    ----------
    n_labels : L
    memory : bytes that R · B weight vectors may take
    bytes_per_bucket : of one weight vector: 4 · n_features if dense, 8 per weight if sparse
    error : the largest `error_bound`
    labels_per_row : mean number of labels of a row
    min_repeats : more repetitions average out the errors of the models, too

    Examples
    --------
    >>> choose_buckets(670_091, 2 << 30, bytes_per_bucket=8_000, min_repeats=8)[:2]
    (33554, 8)
    """
    at_least(1, n_labels=n_labels)
    above_zero(bytes_per_bucket=bytes_per_bucket, labels_per_row=labels_per_row)
    if not 0 < error < 1:
        raise ValueError(f"error must be between 0 and 1, got {error}")
    for repeats in range(max(int(min_repeats), 1), 257):
        buckets = min(int(memory / bytes_per_bucket / repeats), n_labels, 65536)
        if buckets < 2:
            break
        bound = error_bound(n_labels, buckets, repeats, labels_per_row=labels_per_row)
        if bound <= error:
            return BucketChoice(buckets, repeats, int(buckets * repeats * bytes_per_bucket), bound)
    raise ValueError(
        f"no (B, R) within {memory} bytes keeps the error of {n_labels} labels below {error}: give more memory"
    )
