"""Predictions of a tree on an engine's workers: ranges of the rows, the model shipped with them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from xmc_fast._validate import Csr, to_scipy
from xmc_fast._work import Arrays, Engine, Work, dumps

_ROWS, _PARTS = 1024, 64  # rows of a task at least, tasks at most


class RowRanges(Work):
    """Blocks of consecutive rows."""

    block_size = 1 << 30

    def __init__(self, shape: tuple[int, int], options: dict[str, Any]) -> None:
        self.shape, self.options = shape, options
        self.size = max(_ROWS, -(-shape[0] // _PARTS))

    def name(self, block: int) -> str:
        last = min((block + 1) * self.size, self.shape[0]) - 1
        return f"block {block} (rows {block * self.size} to {last})"

    def solve(
        self, arrays: Arrays, blocks: Sequence[int], threads: int, emit: Callable[[int, Any], None]
    ) -> None:
        model = pickle.loads(arrays["model"].data)
        X = to_scipy(arrays["x_indptr"], arrays["x_indices"], arrays["x_data"], self.shape)
        for block in blocks:
            rows = X[block * self.size : (block + 1) * self.size]
            emit(block, model.predict(rows, n_jobs=threads, **self.options))


def predict(engine: Engine, model: Any, x: Csr, options: dict[str, Any], n_jobs: int | None) -> sp.csr_matrix:
    """`LabelTree.predict` over ranges of the rows."""
    work = RowRanges(x.shape, options)
    count = -(-x.shape[0] // work.size)
    arrays: Arrays = {"x_indptr": x.indptr, "x_indices": x.indices, "x_data": x.data}
    arrays["model"] = np.frombuffer(dumps(model), np.uint8)
    parts: dict[int, sp.csr_matrix] = {}
    engine.run(work, arrays, range(count), [1.0] * count, n_jobs=n_jobs, on_block=parts.__setitem__)
    if not count:
        return sp.csr_matrix((0, model.n_labels_), dtype=np.float32)
    indptr = np.concatenate(
        [[0], np.cumsum(np.concatenate([np.diff(parts[i].indptr) for i in range(count)]))]
    )
    indices, data = (
        np.concatenate([getattr(parts[i], n) for i in range(count)]) for n in ("indices", "data")
    )
    return to_scipy(indptr.astype(np.int64), indices, data, (x.shape[0], model.n_labels_))
