"""Labels in the forms that people have them: names, ids, lists, strings with a separator, matrices."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast import _core
from xmc_fast._validate import labels as binary
from xmc_fast._validate import to_scipy
from xmc_fast.data._column import TextColumn, rows_of
from xmc_fast.data._parse import MAX_COLUMNS

FIELD_SEPARATORS = ("|", ";", "\t", ",")  # in a field of a table, the first that occurs
LINE_SEPARATORS = ("\t", "|", ";", ",", " ")  # in a file with a line of labels per row


class Labels(NamedTuple):
    """What `as_labels` returns: exactly one of ``names`` and ``Y`` is given."""

    names: list[list[str]] | None
    Y: Any  # scipy CSR float32 of ones, rows x labels
    repeated: int = 0  # labels that a row had twice
    sep: str | None = None  # where strings were split


def as_labels(labels: Any, *, sep: str | None = None) -> Labels:
    """Bring labels into one of two forms: lists of names, or a matrix if they are ids.

    Parameters
    ----------
    labels : sequence of length n, or binary matrix of shape (n, labels)
        Per row a string (split at ``sep``), a list of strings, an id, a list of ids, or nothing (None, NaN).
    sep : str, optional
        Where strings are split. Without it at the first of ``| ; tab ,`` that occurs in any of them.

    Examples
    --------
    >>> as_labels(["tea|green", None, "tea|tea"]).names
    [['tea', 'green'], [], ['tea']]
    >>> as_labels([["tea, green"], []]).names
    [['tea, green'], []]
    >>> as_labels([[0, 2], []]).Y.toarray().tolist()
    [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    """
    if sp.issparse(labels) or (isinstance(labels, np.ndarray) and labels.ndim == 2):
        y = binary(labels, "labels")
        return Labels(None, to_scipy(y.indptr, y.indices, np.ones(len(y.indices), np.float32), y.shape))
    if isinstance(labels, (str, bytes)):
        raise ValueError(f"labels must be a sequence with one item per row, got the string {labels!r:.40}")
    given = labels.to_pylist() if hasattr(labels, "to_pylist") else labels  # the former: pyarrow
    cells = [_cell(cell, i) for i, cell in enumerate(given)]
    strings = [cell for cell in cells if isinstance(cell, str)]
    if sep is None and strings:
        sep = guess_sep("\n".join(strings).encode("utf-8", "surrogatepass"), FIELD_SEPARATORS)
    rows = [_split(cell, sep) if isinstance(cell, str) else cell for cell in cells]
    kinds = {type(item) for row in rows for item in row}
    if kinds == {int}:
        sizes = np.array([len(row) for row in rows], np.int64)
        Y, repeated = id_matrix(sizes, np.array([item for row in rows for item in row], np.int64))
        return Labels(None, Y, repeated)
    if int in kinds:
        raise ValueError("labels hold integers and strings: expected ids or names")
    found = [list(dict.fromkeys(row)) for row in rows]
    repeated = sum(len(row) for row in rows) - sum(len(row) for row in found)
    return Labels(found, None, repeated, sep if strings else None)


def _cell(cell: Any, row: int) -> str | list[Any]:
    if isinstance(cell, str):
        return cell
    if isinstance(cell, Integral) and not isinstance(cell, bool):
        return [int(cell)]
    if is_missing(cell):
        return []
    if isinstance(cell, Iterable) and not isinstance(cell, (bytes, dict)):
        items = [item for item in cell if not is_missing(item)]
        if all(isinstance(item, str) for item in items):
            return [item for item in map(str.strip, items) if item]
        if all(isinstance(item, Integral) and not isinstance(item, bool) for item in items):
            return [int(item) for item in items]
    raise ValueError(f"labels of row {row}: a string, a list of strings or of ids expected, got {cell!r:.60}")


def is_missing(value: Any) -> bool:
    """None, NaN, NaT or pandas' NA."""
    if value is None:
        return True
    if isinstance(value, (str, bytes, list, tuple, dict, np.ndarray)):
        return False
    return type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)


def _split(text: str, sep: str | None) -> list[str]:
    parts = text.split(sep) if sep else [text]
    return [part for part in map(str.strip, parts) if part]


def guess_sep(data: bytes, candidates: tuple[str, ...]) -> str | None:
    """The first candidate that occurs."""
    return next((sep for sep in candidates if sep.encode() in data), None)


def id_matrix(sizes: npt.NDArray[np.int64], ids: npt.NDArray[np.int64]) -> tuple[Any, int]:
    """The CSR matrix of ones with ``sizes[i]`` ids in row i, and how many ids were repeated in their row."""
    if ids.size and (ids.min() < 0 or ids.max() >= MAX_COLUMNS):
        wrong = ids[(ids < 0) | (ids >= MAX_COLUMNS)][0]
        raise ValueError(f"label id in 0..{MAX_COLUMNS - 1} expected, got {wrong}")
    rows = np.repeat(np.arange(len(sizes)), sizes)
    width = int(ids.max(initial=-1)) + 1
    keys = np.unique(rows * max(1, width) + ids)
    rows, columns = keys // max(1, width), keys % max(1, width)
    indptr = np.searchsorted(rows, np.arange(len(sizes) + 1))
    ones = np.ones(len(keys), np.float32)
    return to_scipy(indptr, columns.astype(np.int32), ones, (len(sizes), width)), len(ids) - len(keys)


def from_column(column: TextColumn, rows: npt.NDArray[np.int64] | None, sep: str | None) -> Labels:
    """Names of each row: strings split at ``sep``, or with ``rows`` lists of strings."""
    found = _core.split_labels(column.data, column.offsets, rows, sep or "")
    indptr, ids, names, repeated = found
    flat = [names[k] for k in ids.tolist()]
    return Labels(rows_of(indptr, flat), None, repeated, sep)


def from_lines(column: TextColumn, sep: str | None) -> Labels:
    """Labels from lines: ids if every label is a whole number, else names."""
    data = column.data[column.offsets[0] : column.offsets[-1]]
    if sep is None and data.size and np.isin(data, np.frombuffer(b"0123456789 \t,", np.uint8)).all():
        spaced = column.data.copy()
        spaced[spaced < ord("0")] = ord(" ")
        sizes, tokens = np.zeros(len(column), np.int64), []
        for i, line in enumerate(TextColumn(spaced, column.offsets)):
            found = line.split()
            sizes[i] = len(found)
            tokens += found
        if max(map(len, tokens), default=0) <= 18:
            Y, repeated = id_matrix(sizes, np.array(tokens, np.int64))
            return Labels(None, Y, repeated)
    if sep is None:
        sep = guess_sep(data.tobytes(), LINE_SEPARATORS)
    return from_column(column, None, sep)


def written_lists(sample: list[str]) -> bool:
    """Whether strings are lists as Python or JSON write them: ['a', 'b']."""
    given = [text.strip() for text in sample if text.strip()]
    return bool(given) and all(text.startswith("[") and text.endswith("]") for text in given)


def from_written_lists(texts: Iterable[str], where: str) -> Labels:
    """Labels of cells like ``['a', 'b']``."""
    cells = []
    for i, text in enumerate(texts):
        try:
            cells.append(json.loads(text) if text.strip() else [])
        except ValueError:
            try:
                cells.append(ast.literal_eval(text.strip()))
            except (ValueError, SyntaxError):
                raise ValueError(
                    f"{where}: row {i + 1}: a list of labels expected, got {text!r:.60}"
                ) from None
    return as_labels(cells)
