"""Synthetic data for benchmarks and scale tests."""

from __future__ import annotations

import numpy as np

from xmc_fast import _core
from xmc_fast._threads import resolve_threads
from xmc_fast._validate import seed, to_scipy
from xmc_fast.data._dataset import Matrices
from xmc_fast.data._parse import MAX_COLUMNS


def make_synthetic(
    n: int,
    d: int,
    labels: int,
    *,
    features_per_point: float = 75.0,
    labels_per_point: float = 5.0,
    beta: float = 0.9,
    signal: float = 0.3,
    prototype: int = 16,
    random_state: int = 0,
    n_jobs: int | None = None,
) -> Matrices:
    """Make a learnable data set with power-law labels, of any size.

    Points draw their labels with frequencies N_r = N_1 r^-beta. A point's words come from prototypes of its
    labels (a share ``signal``) or are noise with Zipf frequencies; values look like tf-idf, rows have length 1.

    Parameters
    ----------
    n, d, labels : int
        Points, features, labels.
    features_per_point : float
        Mean number of words drawn per point (uniform between half and one and a half of it); words drawn
        twice become one entry, so rows have somewhat fewer.
    labels_per_point : float
        Mean number of labels per point, at least 1.
    beta : float
        Exponent of the label frequencies.
    signal : float
        Share of a point's words that tell of its labels: 0 is pure noise.
    prototype : int
        Words per label prototype; fewer are easier to learn.
    random_state : int
        The same number gives the same data. Point i is the same for every ``n``, so that
        ``make_synthetic(n + m, ...)`` split at n gives a training and a test set.
    n_jobs : int, optional
        Threads; the result does not depend on it.

    Returns
    -------
    X : scipy CSR float32 of shape (n, d)
    Y : scipy CSR float32 of shape (n, labels)
        Ones.

    Examples
    --------
    >>> X, Y = make_synthetic(1000, 500, 100, random_state=1)
    >>> X.shape, Y.shape
    ((1000, 500), (1000, 100))
    """
    for name, count, low in (("n", n, 0), ("d", d, 1), ("labels", labels, 1), ("prototype", prototype, 1)):
        if not low <= count <= MAX_COLUMNS:
            raise ValueError(f"{name} must be in {low}..{MAX_COLUMNS}, got {count}")
    if labels_per_point < 1 or features_per_point < 0:
        raise ValueError(
            "expected labels_per_point >= 1 and features_per_point >= 0,"
            f" got {labels_per_point} and {features_per_point}"
        )
    if not 0 <= signal <= 1 or not np.isfinite(beta) or beta < 0:
        raise ValueError(f"expected signal in 0..1 and beta >= 0, got {signal} and {beta}")
    rng = np.random.default_rng(seed(random_state))
    feature_ids = rng.permutation(d).astype(np.int32)
    label_ids = rng.permutation(labels).astype(np.int32)
    x_indptr, x_indices, x_data, y_indptr, y_indices = _core.make_synthetic(
        n,
        feature_ids,
        label_ids,
        features_per_point,
        labels_per_point,
        beta,
        signal,
        prototype,
        int(rng.integers(2**63)),
        resolve_threads(n_jobs),
    )
    return Matrices(
        to_scipy(x_indptr, x_indices, x_data, (n, d)),
        to_scipy(y_indptr, y_indices, np.ones(len(y_indices), np.float32), (n, labels)),
    )
