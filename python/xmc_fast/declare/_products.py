"""Products of a sparse matrix and of its transpose with dense blocks, over blocks of rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from xmc_fast import _core
from xmc_fast._validate import Csr, transpose

Dense = npt.NDArray[np.float32]


class Operator:
    """A sparse (n, m) matrix cut into blocks of rows, each kept with its transpose."""

    def __init__(self, matrix: Csr, block_rows: int, threads: int) -> None:
        self.shape = matrix.shape
        self.threads = threads
        self._rows = range(0, matrix.shape[0], block_rows)
        self._blocks = [_rows(matrix, i, min(i + block_rows, matrix.shape[0])) for i in self._rows]
        self._transposed = [transpose(block) for block in self._blocks]

    def times(self, dense: Dense) -> Dense:
        """A · dense, (n, k)."""
        parts = [_product(block, dense, self.threads) for block in self._blocks]
        return (
            parts[0]
            if len(parts) == 1
            else np.concatenate([np.empty((0, dense.shape[1]), np.float32), *parts])
        )

    def transposed_times(self, dense: Dense) -> Dense:
        """Aᵀ · dense, (m, k)."""
        total = np.zeros((self.shape[1], dense.shape[1]), np.float32)
        for start, block in zip(self._rows, self._transposed, strict=True):
            total += _product(block, dense[start : start + block.shape[1]], self.threads)
        return total

    def gram_times(self, dense: Dense) -> Dense:
        """Aᵀ A · dense, (m, k), with one block of A · dense in memory at a time."""
        total = np.zeros((self.shape[1], dense.shape[1]), np.float32)
        for block, back in zip(self._blocks, self._transposed, strict=True):
            total += _product(back, _product(block, dense, self.threads), self.threads)
        return total


def _product(block: Csr, dense: Dense, threads: int) -> Dense:
    return _core.spmm(block, np.ascontiguousarray(dense), threads)


def _rows(matrix: Csr, start: int, stop: int) -> Csr:
    first, last = int(matrix.indptr[start]), int(matrix.indptr[stop])
    return Csr(
        matrix.indptr[start : stop + 1] - first,
        matrix.indices[first:last],
        matrix.data[first:last],
        (stop - start, matrix.shape[1]),
    )
