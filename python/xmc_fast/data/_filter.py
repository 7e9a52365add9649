"""Pairs of point and label that do not count at evaluation, such as a product recommended to itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast._validate import to_scipy, valid_csr
from xmc_fast.data._ids import read_id_lines
from xmc_fast.data._io import Path
from xmc_fast.data._parse import check_count


def read_filter(path: Path, *, n_points: int, n_labels: int) -> Any:
    """Read a filter file of the LF-* data sets (filter_labels_test.txt): one pair ``point label`` per line.

    Parameters
    ----------
    path : str or path
        Plain, ``.gz``, ``.xz`` or ``.zst``; zero-based ids.
    n_points, n_labels : int
        The shape of the matrix the filter is for.

    Returns
    -------
    scipy CSR float32 of shape (n_points, n_labels)
        Ones at the pairs, for `filter_labels`.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "filter_labels_test.txt"
    >>> _ = path.write_text("0 2\\n1 0\\n")
    >>> read_filter(path, n_points=2, n_labels=3).toarray().tolist()
    [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    """
    check_count("n_points", n_points)
    check_count("n_labels", n_labels)
    _, ids = read_id_lines(path, limits=(n_points, n_labels), names=("point", "label"))
    pairs = ids.reshape(-1, 2)
    return _ones(pairs[:, 0], pairs[:, 1], (n_points, n_labels))


def reciprocal_pairs(point_ids: Sequence[Any], label_ids: Sequence[Any]) -> Any:
    """The filter of all pairs where point and label are the same thing.

    Parameters
    ----------
    point_ids : sequence of length n
        What each point is, e.g. the ``uid`` of a product.
    label_ids : sequence of length L
        What each label is, in the same terms.

    Returns
    -------
    scipy CSR float32 of shape (n, L)
        For `filter_labels`.

    Examples
    --------
    >>> reciprocal_pairs(["tea", "pot", "cup"], ["cup", "tea"]).toarray().tolist()
    [[0.0, 1.0], [0.0, 0.0], [1.0, 0.0]]
    """
    places: dict[Any, list[int]] = {}
    for j, key in enumerate(label_ids):
        places.setdefault(key, []).append(j)
    pairs = [(i, j) for i, key in enumerate(point_ids) for j in places.get(key, ())]
    rows, columns = np.array(pairs, np.int64).reshape(-1, 2).T
    return _ones(rows, columns, (len(point_ids), len(label_ids)))


def filter_labels(M: Any, pairs: Any) -> Any:
    """Drop the entries of a label or prediction matrix that are at filtered pairs.

    Apply it to the true labels and to the predictions (made with some spare k) before the metrics.

    Parameters
    ----------
    M : sparse matrix of shape (n, L)
        True labels, or predictions with the best label first in each row.
    pairs : sparse matrix of shape (n, L)
        Its stored entries are the pairs to drop: `read_filter`, `reciprocal_pairs`.

    Returns
    -------
    scipy CSR of M's shape and type
        The other entries, in M's order (explicit zeros kept).

    Examples
    --------
    >>> Y = sp.csr_matrix([[1.0, 1.0], [0.0, 1.0]])
    >>> filter_labels(Y, sp.csr_matrix([[0, 1], [0, 0]])).toarray().tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    (matrix, _), (drop, _) = valid_csr(M, "M"), valid_csr(pairs, "pairs")
    if matrix.shape != drop.shape:
        raise ValueError(f"pairs has shape {drop.shape}, expected that of M, {matrix.shape}")
    keep = ~np.isin(_keys(matrix), _keys(drop))
    kept = np.concatenate([[0], np.cumsum(keep, dtype=np.int64)])
    return to_scipy(kept[matrix.indptr], matrix.indices[keep], matrix.data[keep], matrix.shape)


def _keys(matrix: Any) -> npt.NDArray[np.int64]:
    rows = np.repeat(np.arange(matrix.shape[0], dtype=np.int64), np.diff(matrix.indptr.astype(np.int64)))
    keys: npt.NDArray[np.int64] = rows * matrix.shape[1] + matrix.indices.astype(np.int64)
    return keys


def _ones(rows: npt.NDArray[np.int64], columns: npt.NDArray[np.int64], shape: tuple[int, int]) -> Any:
    matrix = sp.csr_matrix((np.ones(len(rows), np.float32), (rows, columns)), shape=shape)
    matrix.data[:] = 1  # a pair given twice is one pair
    return matrix
