"""Repetitions and predictions of a Mach on an engine's workers (see `xmc_fast.engine`)."""

from __future__ import annotations

import os
import pickle
import shutil
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import threadpoolctl

from xmc_fast._progress import progress
from xmc_fast._validate import to_scipy
from xmc_fast._work import Engine, Work, dumps
from xmc_fast.mach import _repeats, _store
from xmc_fast.mach._hash import bucket_matrix

_ROWS, _PARTS = 256, 64  # of a prediction: rows of a task at least, tasks at most


def fit(
    engine: Engine, mach: Any, X: Any, y: sp.csr_matrix, repeats: Sequence[int], folder: Path | None
) -> list[Any]:
    """The models of the repetitions, trained by workers that store them in the folder or return them."""
    work = _Repeats(mach, X, folder)
    todo = [r for r in repeats if not work.has(r)]
    arrays = {**_arrays(X), "y_indptr": y.indptr, "y_indices": y.indices}
    models: dict[int, Any] = {}
    with progress(len(repeats), unit="repeat", desc="Mach") as bar:
        bar.update(len(repeats) - len(todo))

        def on_block(repeat: int, model: Any) -> None:
            models[repeat] = model
            bar.update(1)

        engine.run(work, arrays, todo, [1.0] * len(todo), n_jobs=mach.n_jobs, on_block=on_block)
    if folder is None:
        return [models[r] for r in repeats]
    for leftover in folder.glob(".*.tmp"):  # of workers that were killed
        shutil.rmtree(leftover, ignore_errors=True)
    shape = (mach.n_buckets, mach.n_features_in_)
    return [_repeats.load(_store.repeat_path(folder, r), shape) for r in repeats]


def predict(engine: Engine, mach: Any, X: Any, k: int, top_buckets: int | None) -> sp.csr_matrix:
    """`Mach.predict` over ranges of the rows; the models are shipped with X, once per machine."""
    rows = int(X.shape[0])
    size = max(_ROWS, -(-rows // _PARTS))
    work = _RowRanges(X, k, top_buckets, size)
    count = -(-rows // size)
    arrays = {**_arrays(X), "mach": np.frombuffer(dumps(mach), np.uint8)}
    parts: dict[int, sp.csr_matrix] = {}
    engine.run(work, arrays, range(count), [1.0] * count, n_jobs=mach.n_jobs, on_block=parts.__setitem__)
    return sp.vstack([parts[i] for i in range(count)], format="csr")


class _Repeats(Work):
    block_size = 1 << 30  # one at a time

    def __init__(self, mach: Any, X: Any, folder: Path | None) -> None:
        self.base, self.n_buckets, self.seed = mach.base, mach.n_buckets, mach.random_state
        self.n_labels, self.shape, self.folder = mach.n_labels_, tuple(X.shape), folder

    def name(self, block: int) -> str:
        return f"repetition {block}"

    def has(self, block: int) -> bool:
        return self.folder is not None and _store.repeat_path(self.folder, block).is_dir()

    def store(self, block: int, result: Any) -> None:
        target = _store.repeat_path(self.folder or Path(), block)
        temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
        try:
            _repeats.save(result, temporary)
            os.rename(temporary, target)
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            if not self.has(block):  # else another worker was first, with the same bytes
                raise

    def solve(
        self, arrays: dict[str, Any], blocks: Sequence[int], threads: int, emit: Callable[[int, Any], None]
    ) -> None:
        X = _matrix(arrays, self.shape)
        ones = np.ones(len(arrays["y_indices"]), np.float32)
        y = to_scipy(arrays["y_indptr"], arrays["y_indices"], ones, (self.shape[0], self.n_labels))
        with threadpoolctl.threadpool_limits(threads):
            for r in blocks:
                buckets = bucket_matrix(y, self.n_buckets, r, random_state=self.seed)
                emit(r, _repeats.fitted(_repeats.new_base(self.base, r).fit(X, buckets)))


class _RowRanges(Work):
    block_size = 1 << 30

    def __init__(self, X: Any, k: int, top_buckets: int | None, size: int) -> None:
        self.k, self.top_buckets, self.size, self.shape = k, top_buckets, size, tuple(X.shape)

    def name(self, block: int) -> str:
        last = min((block + 1) * self.size, self.shape[0]) - 1
        return f"block {block} (rows {block * self.size} to {last})"

    def solve(
        self, arrays: dict[str, Any], blocks: Sequence[int], threads: int, emit: Callable[[int, Any], None]
    ) -> None:
        mach = pickle.loads(arrays["mach"].data)
        mach.n_jobs = threads
        X = _matrix(arrays, self.shape)
        with threadpoolctl.threadpool_limits(threads):
            for block in blocks:
                rows = X[block * self.size : (block + 1) * self.size]
                emit(block, mach.predict(rows, self.k, top_buckets=self.top_buckets))


def _arrays(X: Any) -> dict[str, npt.NDArray[Any]]:
    """A sparse or dense matrix as arrays that can be shipped."""
    if sp.issparse(X):
        matrix = X.tocsr()
        return {f"x_{part}": getattr(matrix, part) for part in ("indptr", "indices", "data")}
    array = np.asarray(X)
    if array.dtype.kind not in "iuf":
        raise ValueError(f"an engine takes X as numbers, sparse or dense, got {type(X).__name__}")
    return {"x_dense": array}


def _matrix(arrays: dict[str, Any], shape: tuple[int, int]) -> Any:
    if "x_dense" in arrays:
        return arrays["x_dense"]
    return to_scipy(arrays["x_indptr"], arrays["x_indices"], arrays["x_data"], shape)
