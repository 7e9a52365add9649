"""Reading the small form of earlier folders (`_packed.FORM` of version 1) as blocks of labels.

Its lists are records of two weights: two gaps of 4, 8 or 16 bits, two codes. A code is a place in ``level``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy.sparse as sp

from xmc_fast._folder import ModelFormatError
from xmc_fast.model._form import Form
from xmc_fast.model._storage import Block
from xmc_fast.model._tensors import Tensors

FORM = Form("xmc_fast.packed", 1, ("n_labels", "n_columns", "nnz"))


def read_blocks(path: Path, *, mmap: bool, verify: bool) -> tuple[list[Block], dict[str, str]]:
    """The weights, float32, and the file's metadata."""
    (n_labels, n_columns, _), arrays, metadata = FORM.read(path, map_file=mmap, verify=verify)
    try:
        W = _weights(arrays, n_labels, n_columns)
    except (KeyError, ValueError, IndexError) as error:
        raise ModelFormatError(f"{path}: damaged, {error}") from None
    return [Block(0, n_columns, W.indptr.astype(np.int64), W.indices.astype(np.int32), W.data)], metadata


def _weights(t: Tensors, n_labels: int, n_columns: int) -> sp.csr_matrix:
    label, column, weight = [], [], []
    for b, ptr in enumerate(t["ptr"].reshape(-1, n_columns + 1).astype(np.int64)):
        lists, size = t["list"][t["first"][b] : t["first"][b + 1]], np.diff(ptr >> 2)
        of_byte = np.repeat(ptr[:-1] & 3, size)
        for width, record in enumerate((3, 4, 6)):
            two = lists[of_byte == width].reshape(-1, record)
            gaps = np.stack([two[:, 0] & 15, two[:, 0] >> 4], 1) if width == 0 else two[:, :-2]
            gaps = (np.ascontiguousarray(gaps).view("<u2") if width == 2 else gaps).ravel().astype(np.int64)
            of_list = np.where((ptr[:-1] & 3) == width, size, 0) // record * 2
            sums = np.cumsum(gaps)
            before = np.concatenate([[0], sums])[np.cumsum(of_list) - of_list]
            place = sums - np.repeat(before, of_list) - 1
            code = two[:, -2:].ravel()
            label.append(t["label"][65536 * b + place[code > 0]])
            column.append(np.repeat(np.arange(n_columns), of_list)[code > 0])
            weight.append(t["level"][code[code > 0]])
    if len(t["bias"]):
        has = np.flatnonzero(t["bias"])
        label.append(t["label"][has])
        column.append(np.full(len(has), n_columns - 1))
        weight.append(t["bias"][has])
    none = [np.empty(0, np.int64)]
    where = np.concatenate(none + label), np.concatenate(none + column)
    return sp.csr_matrix((np.concatenate([np.empty(0, np.float32), *weight]), where), (n_labels, n_columns))
