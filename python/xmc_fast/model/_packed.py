"""The small form of a model's weights: one byte each, with coded places (csrc/predict/packed.h)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xmc_fast import _core
from xmc_fast._folder import ModelFormatError
from xmc_fast._threads import resolve_threads
from xmc_fast._validate import Csr
from xmc_fast.model._form import Form
from xmc_fast.model._storage import Block
from xmc_fast.model._tensors import Tensors

FORM = Form("xmc_fast.packed", 1, ("n_labels", "n_columns", "nnz"))
LEVELS = 256
_SAMPLE = 1 << 20  # weights that the levels are fitted to, and as many of the largest as there are levels
_BLOCK_LABELS = 4096  # of an unpacked block


@dataclass(frozen=True)
class Packed:
    """Weights in the small form. ``arrays`` may be mapped; they are checked when the object is made."""

    n_labels: int
    n_columns: int
    nnz: int
    arrays: Tensors
    opened: _core.PackedModel

    @staticmethod
    def open(n_labels: int, n_columns: int, nnz: int, arrays: Tensors) -> Packed:
        """Check the arrays (ValueError) and take them as they are."""
        return Packed(n_labels, n_columns, nnz, arrays, _core.PackedModel.open(n_labels, n_columns, arrays))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "opened": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        state["opened"] = _core.PackedModel.open(state["n_labels"], state["n_columns"], state["arrays"])
        self.__dict__.update(state)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return int(sum(array.nbytes for array in self.arrays.values()))

    def blocks(self) -> list[Block]:
        """The weights as float32 blocks."""
        indptr, indices, data = self.opened.unpack()
        blocks = []
        for first in range(0, max(self.n_labels, 1), _BLOCK_LABELS):
            ends = indptr[first : first + _BLOCK_LABELS + 1]
            part = slice(int(ends[0]), int(ends[-1]))
            blocks.append(Block(first, self.n_columns, ends - ends[0], indices[part], data[part]))
        return blocks


def pack(
    blocks: Sequence[Block],
    n_labels: int,
    n_columns: int,
    *,
    has_bias: bool,
    delta: float,
    n_jobs: int | None,
) -> Packed:
    """The small form of the weights of at least ``delta`` in absolute value; a bias stays as it is."""
    constant = n_columns - 1 if has_bias else -1
    parts = [
        (b.first_label, Csr(b.indptr, b.indices, b.data.astype(np.float32, copy=False), b.shape))
        for b in blocks
    ]
    for _, part in parts:
        if not np.isfinite(part.data).all():
            raise ValueError("a model with weights that are not finite cannot be compressed")
    levels = fit_levels(_sample(blocks, constant, delta))
    arrays, nnz = _core.pack_model(
        n_labels, n_columns, parts, has_bias, float(delta), levels, resolve_threads(n_jobs)
    )
    return Packed.open(n_labels, n_columns, nnz, arrays)


def _sample(blocks: Sequence[Block], constant: int, delta: float) -> npt.NDArray[np.float64]:
    """Some of the weights that are kept, evenly, and the largest of each block."""
    step = max(1, sum(block.nnz for block in blocks) // _SAMPLE)
    parts = [np.empty(0, np.float32)]
    for block in blocks:
        data = block.data.astype(np.float32, copy=False)
        own = data[(block.indices != constant) & (np.abs(data) >= delta) & (data != 0)]
        parts.append(own[::step])
        if step > 1 and len(own):
            parts.append(np.array([own.min(), own.max()]))
    return np.concatenate(parts).astype(np.float64)


def fit_levels(weights: npt.NDArray[np.float64], n_levels: int = LEVELS) -> npt.NDArray[np.float32]:
    """0 and ``n_levels - 1`` ascending values that the weights are rounded to.

    Lloyd's method in one dimension: each value is the mean of the weights nearest to it, so that rounding
    changes the mean of none of these groups.
    """
    count = n_levels - 1
    values = np.sort(weights) if len(weights) else np.zeros(1)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    # Small weights are many and large ones matter: geometric steps for either sign are a start near the best.
    sides = [side for side in (-values[values < 0], values[values > 0]) if len(side)] or [np.ones(1)]
    sign = -1.0 if values[0] < 0 else 1.0
    parts = []
    for side, n in zip(sides, (count - count // len(sides) * (len(sides) - 1), count // 2), strict=False):
        parts.append(sign * np.geomspace(max(side.min(), 1e-2 * side.max()), side.max(), n))
        sign = 1.0
    levels = np.sort(np.concatenate(parts))
    for _ in range(50):
        cuts = np.searchsorted(values, (levels[1:] + levels[:-1]) / 2)
        ends = np.concatenate([[0], cuts, [len(values)]])
        size = np.diff(ends)
        means = (sums[ends[1:]] - sums[ends[:-1]]) / np.maximum(size, 1)
        levels = np.sort(np.where(size > 0, means, levels))
    return np.concatenate([[0.0], _bfloat16(levels)]).astype(np.float32)


def _bfloat16(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """The nearest numbers of 16 bits, with which prediction is fastest (csrc/predict/packed.h)."""
    most = np.uint32(0x7F7F0000).view(np.float32)
    bits = np.clip(values, -most, most).astype(np.float32).view(np.uint32)
    rounded: npt.NDArray[np.float32] = ((bits + np.uint32(0x8000)) & np.uint32(0xFFFF0000)).view(np.float32)
    return rounded


def write_packed(path: str | os.PathLike[str], packed: Packed) -> None:
    """Write the arrays as one file, atomically."""
    FORM.write(path, packed.arrays, packed.n_labels, packed.n_columns, packed.nnz)


def read_packed(path: Path, *, mmap: bool, verify: bool) -> tuple[Packed, dict[str, str]]:
    """What `write_packed` wrote, and the file's metadata. The structure is checked in any case."""
    (n_labels, n_columns, nnz), arrays, metadata = FORM.read(path, map_file=mmap, verify=verify)
    try:
        return Packed.open(n_labels, n_columns, nnz, arrays), metadata
    except (TypeError, ValueError) as error:
        raise ModelFormatError(f"{path}: damaged, {error}") from None
