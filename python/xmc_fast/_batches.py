"""The batches of labels of a fit: solved here or on workers, kept in memory or in a checkpoint folder."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xmc_fast import _core
from xmc_fast._arrays import Csr
from xmc_fast._files import write_text
from xmc_fast._rows import Rows
from xmc_fast.engine import DATA_NAME, Work
from xmc_fast.model import Block, SparseModel, block_indices, read_block, write_block, write_manifest
from xmc_fast.model.storage import block_path

_REPORT = (
    "status",
    "outer_iterations",
    "inner_iterations",
    "active_rows",
    "objective",
    "gradient_norm",
    "seconds",
)
_CHECKPOINT = "fit.json"
_NO_FLOATS = np.empty(0, np.float32)


def batches_of(start: int, stop: int, size: int) -> list[tuple[int, int]]:
    """Cut at multiples of size, counted from label 0."""
    cuts = [start, *range((start // size + 1) * size, stop, size), stop]
    return list(itertools.pairwise(cuts))


def expected_cost(
    counts: npt.NDArray[np.int64], rows: int, batches: Sequence[tuple[int, int]]
) -> npt.NDArray[np.float64]:
    """Of each batch, in labels with few positives. Measured by bench/calibrate_plan.py: a label on a hundred times
    as many rows costs two to three times as much; one without any, or with all, nothing."""
    cost = np.where((counts == 0) | (counts == rows), 0.01, 1 + 0.3 * np.log1p(counts / 3))
    per_label = np.concatenate([[0.0], np.cumsum(cost)])
    return np.array([per_label[last] - per_label[first] for first, last in batches])


class Batches(Work):
    """The batches of a fit, solved here or on an engine's workers."""

    def __init__(
        self, start: int, stop: int, size: int, options: dict[str, Any], folder: Path | None
    ) -> None:
        self.start, self.stop, self.block_size = start, stop, size
        self.options, self.folder = options, folder

    def labels(self, block: int) -> tuple[int, int]:
        first = (self.start // self.block_size + block) * self.block_size
        return max(first, self.start), min(first + self.block_size, self.stop)

    def name(self, block: int) -> str:
        first, last = self.labels(block)
        return f"block {block} (labels {first} to {last - 1})"

    def has(self, block: int) -> bool:
        return self.folder is not None and block_path(self.folder, block).is_file()

    def store(self, block: int, result: tuple[Block, dict[str, Any]]) -> dict[str, Any]:
        _write(self.folder or Path(), block, *result)
        return result[1]

    def solve(
        self,
        arrays: dict[str, Any],
        blocks: Sequence[int],
        threads: int,
        emit: Callable[[int, Any], None],
    ) -> Any:
        ranges = [self.labels(block) for block in blocks]

        def on_batch(k: int, indptr: Any, indices: Any, data: Any, report: dict[str, Any]) -> None:
            first = ranges[k][0] - self.start
            emit(blocks[k], (Block(first, self.options["n_features"], indptr, indices, data), report))

        return _core.linear_train(
            **arrays,
            **self.options,
            cost_negative=_NO_FLOATS,
            batches=np.array(ranges, np.int64).ravel(),
            threads=threads,
            on_batch=on_batch,
        )


class Store:
    """Solved batches, in memory or in a checkpoint folder."""

    def __init__(
        self,
        folder: str | os.PathLike[str] | None,
        settings: dict[str, Any],
        x: Rows,
        y: Csr,
        label_range: tuple[int, int],
    ) -> None:
        self.blocks: dict[int, Block] = {}
        self.reports: dict[int, dict[str, Any]] = {}
        self.done: set[int] = set()
        self.folder = None if folder is None else Path(folder)
        if self.folder is None:
            return
        fit = {**settings, "labels": list(label_range), "data": _fingerprint(x, y)}
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / _CHECKPOINT
        if path.exists():
            old = json.loads(path.read_text(encoding="utf-8"))
            for name in fit:
                if old.get(name) != fit[name]:
                    raise ValueError(
                        f"checkpoint {self.folder} is of another fit: {name} is {old.get(name)!r} there,"
                        f" {fit[name]!r} here"
                    )
            self.done = set(block_indices(self.folder))
        elif any(self.folder.iterdir()):
            raise ValueError(f"checkpoint {self.folder} is neither empty nor of an earlier fit")
        else:
            write_text(path, json.dumps(fit, indent=1) + "\n")

    def add(self, number: int, block: Block, report: dict[str, Any]) -> None:
        self.reports[number] = report
        if self.folder is None:
            self.blocks[number] = block
        else:
            _write(self.folder, number, block, report)

    def finish(
        self, count: int, n_columns: int, bias: float | None, normalize: bool, params: dict[str, Any]
    ) -> tuple[SparseModel, dict[str, Any]]:
        if self.folder is None:
            blocks = [self.blocks[b] for b in range(count)]
            model = SparseModel(blocks, bias=bias, normalize=normalize, params=params)
        else:
            for b in self.done:
                _, report = read_block(self.folder, b)
                self.reports[b] = {**report, "seconds": np.full(len(report["status"]), np.nan)}
            for leftover in (
                *self.folder.glob(".*.tmp"),
                self.folder / DATA_NAME,
            ):  # of processes that were killed
                leftover.unlink(missing_ok=True)
            write_manifest(self.folder, bias=bias, normalize=normalize, params=params, n_columns=n_columns)
            model = SparseModel.load(self.folder)
        return model, {
            name: np.concatenate([self.reports[b][name] for b in range(count)]) for name in _REPORT
        }


def _write(folder: Path, number: int, block: Block, report: dict[str, Any]) -> None:
    extra = {name: report[name] for name in _REPORT if name != "seconds"}
    write_block(folder, number, block.first_label, block, extra)


def _fingerprint(x: Rows, y: Csr) -> str:
    digest = hashlib.blake2b(digest_size=16)
    arrays = [*x.csr[:3], *y[:2]] if x.dense is None else [x.dense, *y[:2]]
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    digest.update(repr((x.rows, x.features, y.shape)).encode())
    return digest.hexdigest()
