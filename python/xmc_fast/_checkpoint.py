"""The label blocks of a fit: solved here or on workers, kept in memory or in a checkpoint folder."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xmc_fast import _core
from xmc_fast._files import locked, remove_leftovers, write_text
from xmc_fast._folder import check_same_fit
from xmc_fast._spill import Spill
from xmc_fast._state import FOLDER, MULTIPLIERS, FitState
from xmc_fast._work import DATA_NAME, Arrays, Work
from xmc_fast.model import (
    Block,
    SparseModel,
    block_indices,
    block_path,
    read_block,
    write_block,
    write_manifest,
)
from xmc_fast.model._tensors import read_tensors, write_tensors

_REPORT = (
    "status",
    "outer_iterations",
    "inner_iterations",
    "active_rows",
    "objective",
    "gradient_norm",
    "gap",
    "seconds",
)
_CHECKPOINT = "fit.json"
# Where labels start when they have no earlier solution.
_NO_START: Arrays = {
    "alpha_indptr": np.zeros(1, np.int64),
    "alpha_rows": np.empty(0, np.int32),
    "alpha": np.empty(0, np.float32),
    "bias_weights": np.empty(0, np.float32),
    "old_objective": np.empty(0, np.float64),
}


def blocks_of(start: int, stop: int, size: int) -> list[tuple[int, int]]:
    """Label ranges, cut at multiples of size counted from label 0."""
    cuts = [start, *range((start // size + 1) * size, stop, size), stop]
    return list(itertools.pairwise(cuts))


def expected_cost(counts: npt.NDArray[np.int64], rows: int, blocks: Sequence[tuple[int, int]]) -> list[float]:
    """Of each block, in labels with few positives. Measured by bench/speed/calibrate_plan.py: a label on a hundred
    times as many rows costs two to three times as much; one without any, or with all, nothing."""
    cost = np.where((counts == 0) | (counts == rows), 0.01, 1 + 0.3 * np.log1p(counts / 3))
    per_label = np.concatenate([[0.0], np.cumsum(cost)])
    return [float(per_label[last] - per_label[first]) for first, last in blocks]


class LabelBlocks(Work):
    """The blocks of a fit, solved here or on an engine's workers."""

    def __init__(
        self, labels: tuple[int, int], size: int, options: dict[str, Any], folder: Path | None
    ) -> None:
        self.start, self.stop = labels
        self.block_size, self.options, self.folder = size, options, folder

    def labels(self, block: int) -> tuple[int, int]:
        """The range of labels of a block."""
        first = (self.start // self.block_size + block) * self.block_size
        return max(first, self.start), min(first + self.block_size, self.stop)

    def name(self, block: int) -> str:
        first, last = self.labels(block)
        return f"block {block} (labels {first} to {last - 1})"

    def has(self, block: int) -> bool:
        return self.folder is not None and block_path(self.folder, block).is_file()

    def store(self, block: int, result: tuple[Block, dict[str, Any]]) -> dict[str, Any]:
        solved, report = result
        extra = {name: report[name] for name in _REPORT if name != "seconds"}
        if "alpha" in report:  # before the block: where that is, this is
            kept = {name: report[name] for name in MULTIPLIERS}
            write_tensors(_multipliers_path(self.folder or Path(), block), kept, {})
        write_block(self.folder or Path(), block, solved.first_label, solved, extra)
        return {name: report[name] for name in _REPORT}

    def solve(
        self, arrays: Arrays, blocks: Sequence[int], threads: int, emit: Callable[[int, Any], None]
    ) -> list[dict[str, Any]]:
        """Solve blocks in threads of this process; returns the placement of X."""
        ranges = [self.labels(block) for block in blocks]
        columns = self.options["n_features"] + (self.options["bias"] is not None)

        def on_block(k: int, indptr: Any, indices: Any, data: Any, report: dict[str, Any]) -> None:
            emit(blocks[k], (Block(ranges[k][0] - self.start, columns, indptr, indices, data), report))

        problem: dict[str, Any] = {**_NO_START, **arrays, **self.options}
        return _core.linear_train(
            **problem,
            blocks=np.array(ranges, np.int64).ravel(),
            threads=threads,
            on_block=on_block,
        )


class Checkpoint:
    """Solved blocks, in memory or in a folder that a later fit goes on from; locked against other fits while open."""

    def __init__(
        self,
        folder: str | os.PathLike[str] | None,
        fit: Callable[[], dict[str, Any]],
        memory: int | None = None,
    ) -> None:
        """``fit()`` is what the folder is bound to: parameters, labels, a hash of the data. ``memory``: bytes that
        blocks may take without a folder."""
        self.blocks: dict[int, Block] = {}
        self.reports: dict[int, dict[str, Any]] = {}
        self.done: set[int] = set()  # found in the folder
        self.folder = None if folder is None else Path(folder)
        self.data: str | None = None
        self._stack = contextlib.ExitStack()
        self._spill = None if memory is None else self._stack.enter_context(Spill(memory))
        if self.folder is None:
            return
        settings = fit()
        self.data = settings["data"]
        self.folder.mkdir(parents=True, exist_ok=True)
        self._stack.enter_context(locked(self.folder))
        with self._stack.pop_all() as opened:
            self._open(self.folder / _CHECKPOINT, settings)
            self._stack = opened.pop_all()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _open(self, path: Path, settings: dict[str, Any]) -> None:
        """The blocks of an earlier fit of the same settings, or a new folder."""
        if check_same_fit(path, settings):
            self.done = set(block_indices(path.parent))
            return
        folder = path.parent
        remove_leftovers(folder, _CHECKPOINT)  # of a fit that was killed as it wrote its first file
        if any(folder.iterdir()):
            raise ValueError(f"checkpoint {folder} is neither empty nor of an earlier fit")
        write_text(path, json.dumps(settings, indent=1) + "\n")

    def add(self, work: LabelBlocks, number: int, result: Any, *, stored: bool) -> None:
        """Take a solved block, or with ``stored`` the report of one that a worker has written (None: found)."""
        if stored and result is None:
            self.done.add(number)
        elif self.folder is not None:
            self.reports[number] = result if stored else work.store(number, result)
        else:
            self.blocks[number], self.reports[number] = result
            if self._spill is not None:
                self._spill.take(number, self.blocks)

    def finish(
        self, count: int, *, n_columns: int, bias: float | None, normalize: bool, params: dict[str, Any]
    ) -> tuple[SparseModel, dict[str, Any]]:
        """The model of all blocks, and the report of all labels."""
        if self.folder is None:
            blocks = [self.blocks[b] for b in range(count)]
            model = SparseModel(blocks, bias=bias, normalize=normalize, params=params)
        else:
            remove_leftovers(self.folder)
            (self.folder / DATA_NAME).unlink(missing_ok=True)
            write_manifest(self.folder, bias=bias, normalize=normalize, params=params, n_columns=n_columns)
            model = SparseModel.load(self.folder)
        return model, joined_reports(self.all_reports(count))

    def all_reports(self, count: int) -> list[dict[str, Any]]:
        """The report of each block."""
        for b in self.done:
            _, report = read_block(self.folder or Path(), b)
            self.reports[b] = {**report, "seconds": np.full(len(report["status"]), np.nan)}
        return [self.reports[b] for b in range(count)]

    def all_blocks(self, count: int) -> list[Block]:
        """The solved blocks, in order."""
        if self.folder is None:
            return [self.blocks[b] for b in range(count)]
        found = [read_block(self.folder, b)[0] for b in range(count)]
        return [
            Block(b.first_label, b.n_columns, b.indptr, b.indices.astype(np.int32), b.data) for b in found
        ]

    def with_multipliers(self, count: int) -> list[dict[str, Any]]:
        """The reports of all blocks with the multipliers that were kept."""
        reports = self.all_reports(count)
        if self.folder is None:
            return reports
        paths = [_multipliers_path(self.folder, b) for b in range(count)]
        if not all(path.is_file() for path in paths):
            return reports
        return [
            {**report, **read_tensors(path, map_file=False, verify=True)[0]}
            for report, path in zip(reports, paths, strict=True)
        ]

    def add_state(self, state: FitState) -> None:
        """Put the state of the fit beside the blocks of a folder."""
        if self.folder is None:
            return
        state.write(self.folder / FOLDER)


def joined_reports(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The reports of consecutive blocks as one."""
    return {name: np.concatenate([report[name] for report in reports]) for name in _REPORT}


def _multipliers_path(folder: Path, block: int) -> Path:
    return folder / f"multipliers-{block:05d}.safetensors"
