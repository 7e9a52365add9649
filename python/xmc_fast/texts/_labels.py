"""Labels of any form as a binary matrix with the columns of known names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast._validate import to_scipy
from xmc_fast.data import as_labels


class Encoded(NamedTuple):
    """Labels of n rows. Columns of ``Y`` beyond ``names`` are labels that the names do not have."""

    Y: sp.csr_matrix  # n x (names, then unknown), float32 ones
    names: list[str]
    unknown: list[str]  # labels that are not in names
    repeated: int = 0  # repetitions of a label within a row, counted once
    sep: str | None = None  # where strings were split
    by_name: bool = True  # else labels are ids

    @property
    def labelled(self) -> npt.NDArray[np.bool_]:
        """Which rows have a label, known or not."""
        has: npt.NDArray[np.bool_] = np.diff(self.Y.indptr) > 0
        return has

    @property
    def known(self) -> sp.csr_matrix:
        """The columns of the names only."""
        return self.Y[:, : len(self.names)] if self.unknown else self.Y

    @property
    def unknown_count(self) -> int:
        """Occurrences of unknown labels."""
        return int((self.Y.indices >= len(self.names)).sum())


def encode(labels: Any, names: Sequence[str] | None = None, sep: str | None = None) -> Encoded:
    """Encode the labels of rows.

    Parameters
    ----------
    labels, sep
        As in `xmc_fast.data.as_labels`: names, ids or a matrix.
    names : sequence of str, optional
        The labels in order. By default the names that occur, sorted; ids and matrices keep their order and
        are named by their numbers. Ids are matched with names that are all numbers, else with positions.
    """
    found = as_labels(labels.to_pylist() if hasattr(labels, "to_pylist") else labels, sep=sep)
    order = None if names is None else [str(name) for name in names]
    if order is not None and len(set(order)) < len(order):
        raise ValueError("label_names must be different from each other")
    if found.names is None:
        return _from_ids(found.Y, order, found.repeated)
    flat = [name for row in found.names for name in row]
    occurring = sorted(set(flat))
    order = occurring if order is None else order
    column = {name: i for i, name in enumerate(order)}
    unknown = [name for name in occurring if name not in column]
    column |= {name: len(order) + i for i, name in enumerate(unknown)}
    indptr = np.cumsum([0, *map(len, found.names)])
    Y = _matrix(indptr, np.array([column[name] for name in flat], np.int32), len(column))
    return Encoded(Y, order, unknown, found.repeated, found.sep)


def keep_entries(matrix: sp.csr_matrix, keep: npt.NDArray[np.bool_]) -> sp.csr_matrix:
    """The stored entries marked in ``keep``, their order kept."""
    if keep.all():
        return matrix
    ends = np.concatenate([[0], np.cumsum(keep, dtype=np.int64)])
    return to_scipy(ends[matrix.indptr], matrix.indices[keep], matrix.data[keep], matrix.shape)


def _from_ids(Y: Any, names: list[str] | None, repeated: int) -> Encoded:
    if names is None:
        return Encoded(Y, [str(i) for i in range(Y.shape[1])], [], repeated, by_name=False)
    by_number = all(name.isdecimal() for name in names)
    place = {int(name) if by_number else i: i for i, name in enumerate(names)}
    ids = np.unique(Y.indices).tolist()
    unknown = [i for i in ids if i not in place]
    place |= {label: len(names) + i for i, label in enumerate(unknown)}
    column = np.zeros(max(ids, default=-1) + 1, np.int32)
    column[ids] = [place[i] for i in ids]
    matched = _matrix(Y.indptr, column[Y.indices], len(names) + len(unknown))
    return Encoded(matched, names, list(map(str, unknown)), repeated, by_name=False)


def _matrix(indptr: Any, columns: npt.NDArray[np.int32], width: int) -> sp.csr_matrix:
    Y = to_scipy(
        indptr.astype(np.int64), columns, np.ones(len(columns), np.float32), (len(indptr) - 1, width)
    )
    Y.sort_indices()
    return Y
