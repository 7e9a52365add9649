"""Predictions on an engine's workers over ranges of the rows, the model shipped with them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from xmc_fast._validate import to_scipy
from xmc_fast._work import Arrays, Engine, Work, dumps

_PARTS = 64  # tasks at most

Predict = Callable[[Any, Any, int], sp.csr_matrix]  # of a model, rows and threads


class RowRanges(Work):
    """Blocks of at least ``least`` consecutive rows."""

    block_size = 1 << 30

    def __init__(self, shape: tuple[int, int], least: int, predict: Predict) -> None:
        self.shape, self.predict = shape, predict
        self.size = max(least, -(-shape[0] // _PARTS))

    def name(self, block: int) -> str:
        last = min((block + 1) * self.size, self.shape[0]) - 1
        return f"block {block} (rows {block * self.size} to {last})"

    def solve(
        self, arrays: Arrays, blocks: Sequence[int], threads: int, emit: Callable[[int, Any], None]
    ) -> None:
        model = pickle.loads(arrays["model"].data)
        X = matrix_of(arrays, self.shape)
        for block in blocks:
            rows = X[block * self.size : (block + 1) * self.size]
            emit(block, self.predict(model, rows, threads))


def predict_ranges(
    engine: Engine, model: Any, X: Any, least: int, predict: Predict, n_jobs: int | None
) -> sp.csr_matrix:
    """What ``predict`` gives for all rows; ``model`` and ``X`` are shipped once per machine."""
    work = RowRanges(tuple(X.shape), least, predict)
    count = -(-work.shape[0] // work.size)
    arrays = {**arrays_of(X), "model": np.frombuffer(dumps(model), np.uint8)}
    parts: dict[int, sp.csr_matrix] = {}
    engine.run(work, arrays, range(count), [1.0] * count, n_jobs=n_jobs, on_block=parts.__setitem__)
    if not count:
        return sp.csr_matrix((0, model.n_labels_), dtype=np.float32)
    sizes = np.concatenate([np.diff(parts[i].indptr) for i in range(count)])
    indptr = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    indices, data = (
        np.concatenate([getattr(parts[i], name) for i in range(count)]) for name in ("indices", "data")
    )
    return to_scipy(indptr, indices, data, (work.shape[0], model.n_labels_))


def arrays_of(X: Any) -> Arrays:
    """A sparse or dense matrix as arrays that can be shipped."""
    if sp.issparse(X):
        matrix = X.tocsr()
        return {f"x_{part}": getattr(matrix, part) for part in ("indptr", "indices", "data")}
    array = np.asarray(X)
    if array.dtype.kind not in "iuf":
        raise ValueError(f"an engine takes X as numbers, sparse or dense, got {type(X).__name__}")
    return {"x_dense": array}


def matrix_of(arrays: Arrays, shape: tuple[int, int]) -> Any:
    """The matrix of `arrays_of`."""
    if "x_dense" in arrays:
        return arrays["x_dense"]
    return to_scipy(arrays["x_indptr"], arrays["x_indices"], arrays["x_data"], shape)
