"""Exact nearest neighbours by inner product, and label scores recovered from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast import _core, _validate
from xmc_fast._threads import resolve_threads


class InnerProductIndex:
    """Finds, for each query, the database rows with the largest dot product: exact, no approximation.

    Parameters
    ----------
    rows : (n, c) array, the database, kept as float32 and as bytes: 5 bytes per value. A first pass on the bytes
        bounds all scores; only rows that may be among the best are scored in float32.

    Examples
    --------
    >>> index = InnerProductIndex(np.eye(3))
    >>> ids, scores = index.search(np.array([[0.0, 2.0, 1.0]]), 2)
    >>> ids.tolist(), scores.tolist()
    ([[1, 2]], [[2.0, 1.0]])
    """

    def __init__(self, rows: Any) -> None:
        self._index = _core.KnnIndex(_validate.dense_features(rows, "rows"))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and features of the database."""
        return self._index.rows, self._index.features

    @property
    def nbytes(self) -> int:
        """Memory of the database, as float32 and as bytes."""
        return self._index.nbytes

    def search(
        self, queries: Any, q: int, *, n_jobs: int | None = None
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """The ``min(q, n)`` best rows of each query.

        Parameters
        ----------
        queries : (m, c) array.
        q : neighbours per query.

        Returns
        -------
        ids, scores : (m, min(q, n)) int32 and float32, best first; equal scores by lower row.
        """
        array = _queries(queries, q, self._index.features)
        ids, scores = self._index.search(array, min(q, self._index.rows), resolve_threads(n_jobs))
        return ids, scores


class FaissIndex:
    """Approximate search for millions of rows through faiss (``pip install 'xmc-fast[faiss]'``).

    Rows are put into about 4·√n cells by k-means, of which ``probes`` are looked through per query. Same calls
    as `InnerProductIndex`; missing neighbours have id -1 and score 0.

    Parameters
    ----------
    rows : (n, c) array.
    probes : cells per query; more find more of the true neighbours.
    """

    def __init__(self, rows: Any, *, probes: int = 32) -> None:
        try:
            import faiss
        except ModuleNotFoundError as error:
            raise ImportError("the faiss index needs faiss: pip install 'xmc-fast[faiss]'") from error
        self._faiss: Any = faiss
        array = _validate.dense_features(rows, "rows")
        n, c = array.shape
        self.shape: tuple[int, int] = (int(n), int(c))
        cells = max(1, min(int(4 * n**0.5), n // 39))  # faiss requires 39 rows per cell
        quantizer = faiss.IndexFlatIP(c)
        self._index = faiss.IndexIVFFlat(quantizer, c, cells, faiss.METRIC_INNER_PRODUCT)
        self._index.train(array)
        self._index.add(array)
        self._index.nprobe = min(probes, cells)

    @property
    def nbytes(self) -> int:
        """Memory of the rows in the index."""
        return 4 * self.shape[0] * self.shape[1]

    def search(
        self, queries: Any, q: int, *, n_jobs: int | None = None
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """The ``min(q, n)`` best rows found for each query, best first."""
        array = _queries(queries, q, self.shape[1])
        self._faiss.omp_set_num_threads(resolve_threads(n_jobs))
        scores, ids = self._index.search(array, min(q, self.shape[0]))
        return ids.astype(np.int32), np.where(ids < 0, np.float32(0), scores)


def recover_labels(
    ids: npt.NDArray[np.int32],
    similarity: npt.NDArray[np.float32],
    Y: Any,
    k: int = 5,
    *,
    n_jobs: int | None = None,
) -> sp.csr_matrix:
    """Score labels by neighbours: the sum of ``similarity`` over the neighbours that carry the label.

    Parameters
    ----------
    ids, similarity : (m, q) arrays, rows of Y and their weights (from `InnerProductIndex.search`).
    Y : (n, L) binary label matrix of the database rows.
    k : labels to keep per query.

    Returns
    -------
    (m, L) CSR of scores with at most k entries per row, best first.

    Examples
    --------
    >>> Y = sp.csr_matrix([[1, 0, 1], [0, 0, 1]])
    >>> ids, weights = np.array([[0, 1]], np.int32), np.array([[1.0, 0.5]], np.float32)
    >>> recover_labels(ids, weights, Y, 2).toarray().tolist()
    [[1.0, 0.0, 1.5]]
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    labels = _validate.labels(Y)
    n, n_labels = labels.shape
    ids, k = np.asarray(ids), min(int(k), max(1, n_labels))
    if ids.ndim != 2 or ids.dtype.kind not in "iu" or ids.shape != np.shape(similarity):
        raise ValueError(
            f"ids must be integers of the shape of similarity {np.shape(similarity)}, got {ids.dtype} of {ids.shape}"
        )
    if ids.size and (ids.max() >= n or ids.min() < -1):
        raise ValueError(f"ids must be rows of Y (0 to {n - 1}, or -1), got {ids.min()} to {ids.max()}")
    ids, weights = _validate.aligned(ids, np.int32), _validate.dense_features(similarity, "similarity")
    found_labels, scores, found = _core.recover_labels(ids, weights, labels, k, resolve_threads(n_jobs))
    keep = np.arange(k) < found[:, None]
    indptr = np.concatenate([[0], np.cumsum(found)])
    return _validate.to_scipy(indptr, found_labels[keep], scores[keep], (len(ids), n_labels))


def _queries(queries: Any, q: int, features: int) -> npt.NDArray[np.float32]:
    if q < 1:
        raise ValueError(f"q must be at least 1, got {q}")
    array = _validate.dense_features(queries, "queries")
    if array.shape[1] != features:
        raise ValueError(f"queries has {array.shape[1]} columns, the index has {features}")
    return array
