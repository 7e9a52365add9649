"""The weights of a saved exact model: the prediction layout (csrc/predict/layout.h) as it is in the file."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from xmc_fast import _core
from xmc_fast._folder import ModelFormatError
from xmc_fast._threads import resolve_threads
from xmc_fast.model._form import Form
from xmc_fast.model._predict import build_layout
from xmc_fast.model._storage import Block, remembered
from xmc_fast.model._tensors import Tensors

FORM = Form("xmc_fast.layout", 1, ("n_labels", "n_columns", "nnz"))


@dataclass(frozen=True)
class StoredLayout:
    """A layout whose ``arrays`` may be mapped. ``ends`` is the first label behind each block of labels."""

    n_labels: int
    n_columns: int
    nnz: int
    ends: tuple[int, ...]
    arrays: Tensors
    path: Path | None = None
    known: bool = False  # this process has checked the file before

    @functools.cached_property
    def opened(self) -> _core.PredictLayout:
        """The layout, its structure checked: `read_layout` and whoever unpickles it do that."""
        try:
            return _core.PredictLayout.open(
                self.n_labels, self.n_columns, self.arrays, self.known, resolve_threads(None)
            )
        except (TypeError, ValueError) as error:
            where = "" if self.path is None else f"{self.path}: "
            raise ModelFormatError(f"{where}the weights are damaged: {error}") from None

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name != "opened"}
        return state | {"known": False}

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return int(sum(array.nbytes for array in self.arrays.values()))

    def blocks(self) -> list[Block]:
        """The weights by label, the same bits as before they were saved."""
        indptr, indices, data = self.opened.rows(resolve_threads(None))
        indices = indices.astype(np.uint16 if self.n_columns <= 1 << 16 else np.int32, copy=False)
        blocks = []
        for first, last in itertools.pairwise((0, *self.ends)):
            rows = indptr[first : last + 1]
            part = slice(int(rows[0]), int(rows[-1]))
            blocks.append(Block(first, self.n_columns, rows - rows[0], indices[part], data[part]))
        return blocks


def store_layout(blocks: Sequence[Block], n_labels: int, n_columns: int, built: Any) -> StoredLayout:
    """The layout of float32 blocks, ready to be written; ``built`` is theirs if there is one already."""
    layout = build_layout(blocks, n_labels, n_columns, None) if built is None else built
    ends = tuple(itertools.accumulate(block.n_labels for block in blocks))
    nnz = sum(block.nnz for block in blocks)
    return StoredLayout(n_labels, n_columns, nnz, ends, layout.arrays())


def write_layout(path: str | os.PathLike[str], layout: StoredLayout) -> None:
    """Write the arrays as one file, atomically."""
    FORM.write(path, layout.arrays, layout.n_labels, layout.n_columns, layout.nnz)


def read_layout(path: Path, ends: Any, *, mmap: bool, verify: bool) -> tuple[StoredLayout, dict[str, str]]:
    """What `write_layout` wrote, checked, and the file's metadata."""
    with remembered(path) as known:
        return _read(path, ends, mmap, verify, known)


def _read(
    path: Path, ends: Any, mmap: bool, verify: bool, known: bool
) -> tuple[StoredLayout, dict[str, str]]:
    (n_labels, n_columns, nnz), arrays, metadata = FORM.read(path, map_file=mmap, verify=verify)
    try:
        parts, entry = [arrays[name] for name in ("weight", "posting", "outlier")], arrays["entry"]
    except KeyError as error:
        raise ModelFormatError(f"{path}: damaged, {error} is missing or bad") from None
    fit = isinstance(ends, list) and len(ends) > 0 and all(type(end) is int for end in ends)
    if not fit or ends[-1] != n_labels or any(a > b for a, b in itertools.pairwise([0, *ends])):
        raise ModelFormatError(f"{path}: damaged, its blocks of labels do not end at {n_labels}")
    weights, postings, outliers = (part.size for part in parts)
    heads = int(np.count_nonzero(entry < -1))
    if nnz != weights + postings // 3 - heads + outliers // 3 - 1:
        raise ModelFormatError(f"{path}: damaged, it does not have {nnz} weights")
    layout = StoredLayout(n_labels, n_columns, nnz, tuple(ends), arrays, path, known)
    layout.opened  # noqa: B018  checks it
    return layout, metadata
