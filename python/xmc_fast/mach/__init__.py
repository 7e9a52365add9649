"""MACH: merged-average classifiers via hashing, extreme classification in logarithmic memory.

R hash functions send L labels to B buckets each; R small models are trained for the buckets, independently of each
other; a label's score is the mean (or min, or median) of its R buckets' scores.
"""

from __future__ import annotations

from xmc_fast.mach._aggregate import aggregate_topk
from xmc_fast.mach._choose import BucketChoice, choose_buckets, error_bound
from xmc_fast.mach._estimator import Mach
from xmc_fast.mach._hash import bucket_matrices, bucket_matrix, bucket_table

__all__ = [
    "BucketChoice",
    "Mach",
    "aggregate_topk",
    "bucket_matrices",
    "bucket_matrix",
    "bucket_table",
    "choose_buckets",
    "error_bound",
]
