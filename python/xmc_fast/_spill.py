"""Solved blocks that a fit hands to disk, so that it keeps to a budget of memory."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np

from xmc_fast._memory import release_memory
from xmc_fast._validate import Csr
from xmc_fast.model import Block, block_path, write_block
from xmc_fast.model._tensors import read_tensors

_IN_WORK = 2.5  # of the bytes of a block: what ordering, solving and joining its labels takes, about
_KEPT: list[
    tempfile.TemporaryDirectory[str]
] = []  # until the process ends: mapped files cannot be removed there
_MANY_ROWS, _SHORT_ROWS = 131072, 24  # of which the core makes postings: csrc/linear/tail_tuning.h


def least_memory(x: Csr | np.ndarray, n_labels: int, threads: int) -> int:
    """Bytes that a fit needs beside its data, about: the core's rows, their postings, what a thread works with."""
    if isinstance(x, Csr):
        n, entries = x.shape[0], len(x.indices)
        searched = n >= _MANY_ROWS and entries <= _SHORT_ROWS * n
        rows = (10 if searched else 6) * entries + 48 * n + 16 * x.shape[1]
    else:
        n = x.shape[0]
        rows = x.nbytes + 32 * n
    lanes = 16 * (4 * x.shape[1] + 8 * n) + 16 * n
    return int(1.2 * (rows + threads * lanes) + 200 * n_labels)  # and what lies between pieces of memory


class Spill:
    """Takes the blocks of a fit; the largest part of them is mapped from files when memory runs out.

    ``memory`` is what is left for them, in bytes. A context: at its end the files have no names any more.
    """

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self.written = 0
        self._held: dict[int, int] = {}  # bytes in memory, by block
        self._largest = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Spill:
        return self

    def __exit__(self, *_: object) -> None:
        if self._folder is None:
            return
        if os.name == "nt":
            _KEPT.append(self._folder)
        else:
            self._folder.cleanup()

    def take(self, number: int, blocks: dict[int, Block]) -> None:
        """Block ``number`` was put into ``blocks``: replaces it and those before it if they are too many."""
        size = blocks[number].nbytes
        self._largest = max(self._largest, size)
        self._held[number] = size
        if sum(self._held.values()) + _IN_WORK * self._largest <= self.memory:
            return
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="xmc_fast-", ignore_cleanup_errors=True)
        for held in self._held:
            blocks[held] = self._mapped(held, blocks[held])
        self._held.clear()
        release_memory()  # what the core freed in small pieces

    def _mapped(self, number: int, block: Block) -> Block:
        folder = Path(self._folder.name if self._folder else "")
        write_block(folder, number, block.first_label, block)
        self.written += block.nbytes
        tensors, _ = read_tensors(block_path(folder, number))
        return Block(
            block.first_label, block.n_columns, tensors["indptr"], tensors["indices"], tensors["data"]
        )
