"""From label blocks to exact top-k: the prediction layout and the merging of lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast import _core
from xmc_fast._threads import resolve_threads
from xmc_fast._validate import Csr, aligned, features, to_scipy, valid_csr
from xmc_fast.model._storage import Block

PAD = 64  # labels: csrc reads calibrations in whole tiles
NONE = np.empty(0, np.float32)


def build_layout(
    blocks: Sequence[Block],
    n_labels: int,
    n_columns: int,
    n_jobs: int | None,
    *,
    min_density: float | None = None,
) -> _core.PredictLayout:
    """The prediction layout (csrc/predict/layout.h) of a model."""
    parts = [
        (b.first_label, Csr(b.indptr, b.indices, b.data.astype(np.float32, copy=False), b.shape))
        for b in blocks
    ]
    return _core.PredictLayout.build(n_labels, n_columns, parts, min_density, resolve_threads(n_jobs))


def in_layout(values: npt.NDArray[np.float32], order: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
    """Per-label values in the order of a layout, zero-padded to whole tiles."""
    return np.concatenate([values[order], np.zeros(-len(values) % PAD, np.float32)])


def padded_calibration(
    calibration: Any, stored: Any
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Its scales and shifts in the order of a built layout, or of stored weights."""
    if calibration is None:
        raise ValueError("proba=True needs a calibrated model: call calibrate(X, Y) on held-out rows")
    label = (stored.arrays() if isinstance(stored, _core.PredictLayout) else stored.arrays)["label"]
    return in_layout(calibration.scale, label), in_layout(calibration.shift, label)


def one_row(x: Any, n_features: int) -> Csr:
    """One row, given as (columns ascending, values), a matrix or an array, as CSR."""
    if not isinstance(x, tuple):
        row = features(x if sp.issparse(x) else np.atleast_2d(x), "x", n_features=n_features)
        if row.shape[0] != 1:
            raise ValueError(f"x must be one row, got {row.shape[0]}")
        return row
    columns, values = aligned(x[0], np.int64), aligned(x[1], np.float32)
    if columns.ndim != 1 or columns.shape != values.shape:
        raise ValueError(f"x must be a pair of equal length, got {columns.shape} and {values.shape}")
    if len(columns) and (columns[0] < 0 or columns[-1] >= n_features or (np.diff(columns) <= 0).any()):
        raise ValueError(f"columns of x must be ascending and in [0, {n_features})")
    if not np.isfinite(values).all():
        raise ValueError("values of x must be finite")
    return Csr(np.array([0, len(columns)], np.int64), columns.astype(np.int32), values, (1, n_features))


def top_csr(ids: Any, scores: Any, rows: int, n_labels: int) -> sp.csr_matrix:
    """Flat lists of equal length per row as CSR, order kept."""
    indptr = np.arange(rows + 1, dtype=np.int64) * (len(ids) // max(rows, 1))
    return to_scipy(indptr, ids, scores, (rows, n_labels))


def merge_topk(
    predictions: Sequence[Any],
    k: int = 5,
    *,
    first_labels: Sequence[int] | None = None,
    n_jobs: int | None = None,
) -> sp.csr_matrix:
    """The ``k`` best of several predictions for the same rows.

    For shards of the labels give ``first_labels``, the label of each shard's column 0; for an ensemble give
    none: then all have the same labels, and a label's scores are added up (a member that did not list it adds
    nothing, so let the members list more than ``k``).

    Parameters
    ----------
    predictions : list of scipy CSR, n x L_i
        As `SparseModel.predict` returns them.
    k : int
        Labels per row to keep.
    first_labels : list of int, optional
    n_jobs : int, optional

    Returns
    -------
    scipy CSR n x L of scores, best first in each row.

    Examples
    --------
    >>> import numpy as np, scipy.sparse as sp
    >>> a = sp.csr_matrix(np.array([[0.5, 0.0, 2.0]], np.float32))
    >>> b = sp.csr_matrix(np.array([[1.0, 0.0]], np.float32))
    >>> merge_topk([a, b], 2, first_labels=[0, 3]).indices
    array([2, 3], dtype=int32)
    """
    if not len(predictions):
        raise ValueError("predictions must hold at least one matrix, got none")
    if k < 0:
        raise ValueError(f"k must be at least 0, got {k}")
    starts = [0] * len(predictions) if first_labels is None else [int(f) for f in first_labels]
    if len(starts) != len(predictions):
        raise ValueError(f"first_labels has {len(starts)} entries, predictions {len(predictions)}")
    rows = predictions[0].shape[0]
    lists = []
    n_labels = 0
    for position, (P, start) in enumerate(zip(predictions, starts, strict=True)):
        if not sp.issparse(P) or P.format != "csr":
            raise ValueError(f"predictions[{position}] must be scipy CSR, got {type(P).__name__}")
        P, _ = valid_csr(P, f"predictions[{position}]")
        if P.shape[0] != rows:
            raise ValueError(f"predictions[{position}] has {P.shape[0]} rows, predictions[0] has {rows}")
        if first_labels is None and P.shape[1] != predictions[0].shape[1]:
            raise ValueError(
                f"predictions[{position}] has {P.shape[1]} labels, predictions[0] has"
                f" {predictions[0].shape[1]}: give first_labels for shards"
            )
        n_labels = max(n_labels, start + P.shape[1])
        lists.append(
            Csr(
                aligned(P.indptr, np.int64),
                aligned(P.indices + start, np.int32),
                aligned(P.data, np.float32),
                (rows, start + P.shape[1]),
            )
        )
    k = min(int(k), n_labels)
    ids, scores, counts = _core.merge_topk(lists, k, resolve_threads(n_jobs))
    given = np.arange(k) < counts[:, None]
    indptr = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    return to_scipy(indptr, ids.reshape(rows, k)[given], scores.reshape(rows, k)[given], (rows, n_labels))
