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
from xmc_fast.model import _packed_before
from xmc_fast.model._form import Form
from xmc_fast.model._storage import Block
from xmc_fast.model._tensors import Tensors, read_tensors

FORM = Form("xmc_fast.packed", 2, ("n_labels", "n_columns", "nnz"))
_BLOCK_LABELS = 4096  # of an unpacked block
_MOST_VALUE, _MOST_SUM, _SMALLEST_UNIT = 32767, 1 << 24, np.float32(1e-30)  # as in csrc/predict/packed.h


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
    parts = [
        (b.first_label, Csr(b.indptr, b.indices, b.data.astype(np.float32, copy=False), b.shape))
        for b in blocks
    ]
    for _, part in parts:
        if not np.isfinite(part.data).all():
            raise ValueError("a model with weights that are not finite cannot be compressed")
    arrays, nnz = _core.pack_model(
        n_labels, n_columns, parts, has_bias, float(delta), resolve_threads(n_jobs)
    )
    return Packed.open(n_labels, n_columns, nnz, arrays)


def as_summed(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The values of a row as prediction sums them: multiples of a unit, see csrc/predict/packed.h.

    >>> as_summed(np.array([1.0, 0.50001]))
    array([1.        , 0.50001526])
    """
    sizes = np.abs(values)
    most = sizes.max(initial=0.0)
    levels = np.floor((_MOST_SUM - len(values)) * most / max(sizes.sum(), 1e-300))
    unit = float(np.maximum(np.float32(most / np.clip(levels, 1, _MOST_VALUE)), _SMALLEST_UNIT))
    return np.sign(values) * np.floor(sizes / unit + 0.5) * unit


def write_packed(path: str | os.PathLike[str], packed: Packed) -> None:
    """Write the arrays as one file, atomically."""
    FORM.write(path, packed.arrays, packed.n_labels, packed.n_columns, packed.nnz)


def read_packed(path: Path, *, mmap: bool, verify: bool) -> tuple[Packed | list[Block], dict[str, str]]:
    """What `write_packed` wrote, or the blocks of an earlier version's file, and the file's metadata.

    The structure is checked in any case.
    """
    if read_tensors(path, map_file=True, verify=False)[1].get("format_version") == "1":
        return _packed_before.read_blocks(path, mmap=mmap, verify=verify)
    (n_labels, n_columns, nnz), arrays, metadata = FORM.read(path, map_file=mmap, verify=verify)
    try:
        return Packed.open(n_labels, n_columns, nnz, arrays), metadata
    except (TypeError, ValueError) as error:
        raise ModelFormatError(f"{path}: damaged, {error}") from None
