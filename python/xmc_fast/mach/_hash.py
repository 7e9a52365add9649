"""Labels to buckets: the hash table of all labels, and label matrices hashed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast import _core
from xmc_fast._threads import resolve_threads
from xmc_fast._validate import Csr, at_least, labels, to_scipy


def bucket_table(
    n_labels: int, n_buckets: int, n_repeats: int, *, random_state: int = 0, n_jobs: int | None = None
) -> npt.NDArray[np.uint16]:
    """The buckets of all labels, (R, L) uint16.

    With 64-bit unsigned arithmetic, s = mix64(seed), a = mix64(s + 2r), b = mix64(s + 2r + 1) (splitmix64's
    finaliser): bucket = (((a · label + b) >> 32) · B) >> 32, a 2-universal family.

    >>> bucket_table(5, 3, 2).shape
    (2, 5)
    """
    check_sizes(n_buckets, n_repeats)
    at_least(0, n_labels=n_labels)
    threads = resolve_threads(n_jobs)
    return _core.mach_table(_seed(random_state), int(n_repeats), int(n_labels), int(n_buckets), threads)


def bucket_matrix(
    Y: Any, n_buckets: int, repeat: int, *, random_state: int = 0, n_jobs: int | None = None
) -> sp.csr_matrix:
    """The labels of each row hashed: (n, B) binary CSR, bucket b where one of the row's labels falls into b.

    >>> import numpy as np
    >>> bucket_matrix(np.eye(4), 8, 0).sum()
    np.float32(4.0)
    """
    check_sizes(n_buckets, 1)
    if not 0 <= repeat < 256:
        raise ValueError(f"repeat must be in 0..255, got {repeat}")
    y = labels(Y)
    return _hashed(y, np.ones(len(y.indices), np.float32), n_buckets, repeat, random_state, n_jobs)


def bucket_matrices(
    Y: Any, n_buckets: int, n_repeats: int, *, random_state: int = 0, n_jobs: int | None = None
) -> list[sp.csr_matrix]:
    """`bucket_matrix` of the repetitions 0, 1, ..., R - 1. Their ``data`` (all ones) share memory.

    >>> import numpy as np
    >>> [M.shape for M in bucket_matrices(np.eye(4), 8, 2)]
    [(4, 8), (4, 8)]
    """
    check_sizes(n_buckets, n_repeats)
    y = labels(Y)
    ones = np.ones(len(y.indices), np.float32)
    return [_hashed(y, ones, n_buckets, r, random_state, n_jobs) for r in range(n_repeats)]


def label_matrix(Y: Any, n_labels: int | None = None) -> sp.csr_matrix:
    """A label matrix as it is, class ids as one-hot rows; ``n_labels`` is the expected number of columns."""
    if sp.issparse(Y) or np.ndim(Y) != 1:
        y = labels(Y, n_labels=n_labels)
        return to_scipy(y.indptr, y.indices, np.ones(len(y.indices), np.float32), y.shape)
    classes = np.asarray(Y)
    if classes.dtype.kind not in "iu" or (classes.size and int(classes.min()) < 0):
        raise ValueError(f"Y must be a label matrix or class ids 0, 1, ..., got an array of {classes.dtype}")
    largest = int(classes.max()) if classes.size else -1
    if n_labels is not None and largest >= n_labels:
        raise ValueError(f"Y has class {largest}, expected classes below {n_labels}")
    shape = (len(classes), largest + 1 if n_labels is None else n_labels)
    return to_scipy(
        np.arange(len(classes) + 1), classes.astype(np.int32), np.ones(len(classes), np.float32), shape
    )


def check_sizes(n_buckets: int, n_repeats: int) -> None:
    """B and R in their ranges, or ValueError."""
    if not 1 <= n_buckets <= 65536:
        raise ValueError(f"n_buckets must be in 1..65536, got {n_buckets}")
    if not 1 <= n_repeats <= 256:
        raise ValueError(f"n_repeats must be in 1..256, got {n_repeats}")


def _hashed(
    y: Csr, ones: npt.NDArray[np.float32], n_buckets: int, repeat: int, seed: int, n_jobs: int | None
) -> sp.csr_matrix:
    indptr, indices, used = _core.bucket_matrix(
        y, _seed(seed), int(repeat), int(n_buckets), resolve_threads(n_jobs)
    )
    return to_scipy(indptr, indices[:used], ones[:used], (y.shape[0], int(n_buckets)))


def _seed(random_state: int) -> int:
    return int(random_state) % 2**64
