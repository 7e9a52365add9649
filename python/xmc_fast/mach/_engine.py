"""Repetitions and predictions of a Mach on an engine's workers (see `xmc_fast.engine`)."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import threadpoolctl

from xmc_fast._progress import progress
from xmc_fast._row_ranges import arrays_of, matrix_of, predict_ranges
from xmc_fast._validate import to_scipy
from xmc_fast._work import Engine, Work
from xmc_fast.mach import _repeats, _store
from xmc_fast.mach._hash import bucket_matrix

_ROWS = 256  # of a task of a prediction, at least


def fit(
    engine: Engine, mach: Any, X: Any, y: sp.csr_matrix, repeats: Sequence[int], folder: Path | None
) -> list[Any]:
    """The models of the repetitions, trained by workers that store them in the folder or return them."""
    work = _Repeats(mach, X, folder)
    todo = [r for r in repeats if not work.has(r)]
    arrays = {**arrays_of(X), "y_indptr": y.indptr, "y_indices": y.indices}
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

    def part(mach: Any, rows: Any, threads: int) -> sp.csr_matrix:
        mach.n_jobs = threads
        with threadpoolctl.threadpool_limits(threads):
            return mach.predict(rows, k, top_buckets=top_buckets)

    return predict_ranges(engine, mach, X, _ROWS, part, mach.n_jobs)


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
        X = matrix_of(arrays, self.shape)
        ones = np.ones(len(arrays["y_indices"]), np.float32)
        y = to_scipy(arrays["y_indptr"], arrays["y_indices"], ones, (self.shape[0], self.n_labels))
        with threadpoolctl.threadpool_limits(threads):
            for r in blocks:
                buckets = bucket_matrix(y, self.n_buckets, r, random_state=self.seed)
                emit(r, _repeats.fitted(_repeats.new_base(self.base, r).fit(X, buckets)))
