"""Exact prediction over shards of labels: each worker the k best of its shard, then one merge."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from xmc_fast._validate import features, to_scipy
from xmc_fast._work import Arrays, Work
from xmc_fast.engine._run import run
from xmc_fast.model import Block, Calibration, SparseModel, merge_topk

SHARD_WEIGHTS = 4 << 20  # a worker's task has at least so many weights, if the model has
MIN_SHARDS = 8


class _Shards(Work):
    """Shards are ranges of a model's blocks; ``folder`` stays None: the lists are returned."""

    block_size = 1 << 30  # one at a time

    def __init__(self, model: Any, k: int, proba: bool, cuts: list[int]) -> None:
        self.source = _blocks_folder(model)
        self.settings = {"bias": model.bias, "normalize": model.normalize}
        self.k, self.proba, self.cuts = k, proba, cuts
        self.first = [model.blocks[b].first_label for b in cuts[:-1]] + [model.n_labels]
        self.n_features, self.n_columns = model.n_features, model.n_columns

    def name(self, block: int) -> str:
        return f"block {block} (labels {self.first[block]} to {self.first[block + 1] - 1})"

    def solve(
        self, arrays: Arrays, blocks: Sequence[int], threads: int, emit: Callable[[int, Any], None]
    ) -> None:
        shape = (len(arrays["x_indptr"]) - 1, self.n_features)
        X = to_scipy(arrays["x_indptr"], arrays["x_indices"], arrays["x_data"], shape)
        stored = [] if self.source is None else SparseModel.load(self.source).blocks
        for shard in blocks:
            first, last = self.first[shard], self.first[shard + 1]
            parts = [
                _block(arrays, stored, b, first, self.n_columns)
                for b in range(self.cuts[shard], self.cuts[shard + 1])
            ]
            model = SparseModel(parts, **self.settings)
            if self.proba:
                model.calibration = Calibration(
                    arrays["scale"][first:last], arrays["shift"][first:last], 1.0, 0.0
                )
            emit(shard, model.predict(X, self.k, proba=self.proba, n_jobs=threads))


def _block(arrays: Arrays, stored: list[Block], number: int, first: int, n_columns: int) -> Block:
    """A block of the model, with labels counted from ``first``."""
    if stored:
        block = stored[number]
        return Block(block.first_label - first, n_columns, block.indptr, block.indices, block.data)
    start = int(arrays["first_label"][number]) - first
    return Block(start, n_columns, *(arrays[f"{part}.{number}"] for part in ("indptr", "indices", "data")))


def predict(
    engine: Any, model: Any, X: Any, k: int, *, proba: bool = False, n_jobs: int | None = None
) -> sp.csr_matrix:
    """`SparseModel.predict` on an engine's workers.

    Workers open a saved model in its folder, which they must all see; one in memory is shipped with X, once per
    machine. Scores may differ in the last bit from those of one process: the order of a sum goes by the shard.

    Examples
    --------
    >>> from xmc_fast import SparseModel
    >>> model = SparseModel(sp.csr_matrix(np.array([[1.0, 0.0], [0.5, 2.0], [0.0, 1.0]])))
    >>> predict("threading", model, np.array([[2.0, 0.0], [0.0, 1.0]]), k=1).indices
    array([0, 1], dtype=int32)
    """
    if k < 0:
        raise ValueError(f"k must be at least 0, got {k}")
    x = features(X, n_features=model.n_features)
    arrays: Arrays = {"x_indptr": x.indptr, "x_indices": x.indices, "x_data": x.data}
    if proba:
        if model.calibration is None:
            raise ValueError("proba=True needs a calibrated model: call calibrate(X, Y) on held-out rows")
        arrays |= {"scale": model.calibration.scale, "shift": model.calibration.shift}
    if _blocks_folder(model) is None:
        arrays["first_label"] = np.array([block.first_label for block in model.blocks], np.int64)
        for number, block in enumerate(model.blocks):
            arrays |= {f"{part}.{number}": getattr(block, part) for part in ("indptr", "indices", "data")}
    weights = np.array([block.nnz + block.n_labels for block in model.blocks])
    cuts = shard_cuts(weights)
    work = _Shards(model, int(k), proba, cuts)
    lists: dict[int, sp.csr_matrix] = {}
    cost = [float(weights[a:b].sum()) for a, b in itertools.pairwise(cuts)]
    run(engine, work, arrays, range(len(cost)), cost, n_jobs=n_jobs, on_block=lists.__setitem__)
    return merge_topk([lists[s] for s in range(len(cost))], k, first_labels=work.first[:-1], n_jobs=n_jobs)


def _blocks_folder(model: Any) -> Any:
    """Where workers find the model's weights; None: nowhere."""
    return None if model.compressed else model.folder


def shard_cuts(weights: Any) -> list[int]:
    """Block numbers at which shards begin, and the number of blocks: shards of about equal weight."""
    total = float(np.sum(weights))
    count = int(min(len(weights), max(MIN_SHARDS, total // SHARD_WEIGHTS)))
    ends = np.searchsorted(np.cumsum(weights), total * np.arange(1, count) / count, side="left") + 1
    return sorted({0, *(int(e) for e in ends if e < len(weights)), len(weights)})
