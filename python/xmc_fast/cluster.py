"""Label clusters: balanced 2-means on the labels' mean inputs.

One tree serves the linear solver's label blocks, LightXML's clusters and the shared fan-in groups.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast import _core
from xmc_fast._threads import resolve_threads
from xmc_fast._validate import features, labels, to_scipy, transpose


class LabelTree(NamedTuple):
    """Leaves of a balanced label tree, neighbours in the tree side by side.

    Cluster ``c`` holds the labels ``order[offsets[c]:offsets[c + 1]]``, ascending.
    """

    order: npt.NDArray[np.int32]  # (L,) a permutation of the labels
    cluster: npt.NDArray[np.int32]  # (L,) the cluster of each label
    offsets: npt.NDArray[np.int64]  # (K + 1,)

    @property
    def n_clusters(self) -> int:
        """K, the number of leaves."""
        return len(self.offsets) - 1

    def matrix(self) -> sp.csr_matrix:
        """The clusters as a binary CSR matrix (K, L); ``Y @ matrix().T > 0`` are the rows' clusters."""
        data = np.ones(len(self.order), np.float32)
        return to_scipy(self.offsets, self.order, data, (self.n_clusters, len(self.order)))


def label_centroids(
    X: Any, Y: Any, *, max_features: int | None = None, n_jobs: int | None = None
) -> sp.csr_matrix:
    """Label vectors: the l2-normalised sums of the rows of X that have the label.

    Parameters
    ----------
    X : (n, D) features, sparse or dense
    Y : (n, L) binary labels, sparse or dense
    max_features : keep only so many of a label's largest entries (before the scaling to norm 1)
    n_jobs : threads; None for the default

    Returns
    -------
    scipy CSR (L, D) float32, rows of norm 1; a label without rows has an empty one.

    Examples
    --------
    >>> import numpy as np
    >>> label_centroids(np.eye(3), np.array([[1, 0], [0, 0], [1, 0]])).toarray().round(3).tolist()
    [[0.7070000171661377, 0.0, 0.7070000171661377], [0.0, 0.0, 0.0]]
    """
    x = features(X)
    positives = transpose(labels(Y, n_rows=x.shape[0]))
    arrays = _core.label_centroids(x, positives, _count(max_features), resolve_threads(n_jobs))
    return to_scipy(*arrays, (positives.shape[0], x.shape[1]))


def label_tree(
    X: Any,
    Y: Any,
    *,
    max_leaf: int = 100,
    max_features: int | None = 256,
    max_iter: int = 20,
    tol: float = 1e-4,
    random_state: int = 0,
    n_jobs: int | None = None,
) -> LabelTree:
    """Cluster the labels by recursive balanced 2-means of their label vectors.

    A label's vector is that of `label_centroids`. Clusters are halved (by the difference of the cosines
    to the two centres) until they have at most ``max_leaf`` labels; they then have more than ``max_leaf / 2``
    (exactly half only where no other cut exists). Labels without positives follow at the end, ascending, in
    clusters of their own. The result depends on ``random_state`` only, not on ``n_jobs``.

    Parameters
    ----------
    X : (n, D) features, sparse or dense, usually l2-normalised tf-idf rows
    Y : (n, L) binary labels, sparse or dense
    max_leaf : the most labels in a cluster
    max_features : how many of a label vector's largest entries count (None: all); bounds memory and time
    max_iter : the most 2-means rounds per split
    tol : a split ends when its mean cosine grows by less than this share
    random_state : seed of the starting centres
    n_jobs : threads; None for the default

    Returns
    -------
    LabelTree with ``order`` (L,), ``cluster`` (L,) and ``offsets`` (K + 1,).

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[1, 0.1], [1, 0], [0, 1], [0.1, 1]])
    >>> tree = label_tree(X, np.eye(4)[:, [0, 2, 1, 3]], max_leaf=2)
    >>> sorted(tree.order[:2].tolist()), tree.offsets.tolist()
    ([0, 2], [0, 2, 4])
    """
    if max_leaf < 1:
        raise ValueError(f"max_leaf must be at least 1, got {max_leaf}")
    if max_iter < 1:
        raise ValueError(f"max_iter must be at least 1, got {max_iter}")
    if not tol >= 0:
        raise ValueError(f"tol must not be negative, got {tol}")
    x = features(X)
    positives = transpose(labels(Y, n_rows=x.shape[0]))
    arrays = _core.label_tree(
        x,
        positives,
        int(max_leaf),
        _count(max_features),
        int(max_iter),
        float(tol),
        int(random_state) % 2**64,
        resolve_threads(n_jobs),
    )
    return LabelTree(*arrays)


def _count(max_features: int | None) -> int:
    if max_features is None:
        return 0
    if max_features < 1:
        raise ValueError(f"max_features must be at least 1, or None for all, got {max_features}")
    return int(max_features)
