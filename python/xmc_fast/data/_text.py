"""Raw text with labels, and matrices saved by scipy."""

from __future__ import annotations

import json
import zipfile
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast._arrays import features, labels, to_scipy
from xmc_fast.data._ids import read_id_lines
from xmc_fast.data._io import Path, file_name, read_lines
from xmc_fast.data._parse import MAX_COLUMNS, Dataset, check_count


class TextDataset(NamedTuple):
    """Texts and labels of the same points: unpack as ``texts, Y = ...``."""

    texts: list[str]
    Y: Any  # scipy CSR float32 of ones, points x labels; None if there are no labels


def read_text(
    texts_path: Path, labels_path: Path | None = None, *, n_labels: int | None = None, one_based: bool = False
) -> TextDataset:
    """Read raw text, one point per line, and its labels, one line of ids per point.

    Parameters
    ----------
    texts_path : str or path
        UTF-8; plain, ``.gz`` or ``.xz``.
    labels_path : str or path, optional
        Label ids separated by spaces, tabs or commas; a blank line is a point without labels.
    n_labels : int, optional
        Number of labels; by default as many as the largest id needs (give the training set's for a test set).
    one_based : bool
        Label ids start at 1 instead of 0.

    Returns
    -------
    texts : list of str
    Y : scipy CSR float32 of shape (points, labels)
        Ones; None without ``labels_path``.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "texts.txt").write_text("green tea\\nblack tea\\n")
    >>> _ = (folder / "labels.txt").write_text("0 2\\n\\n")
    >>> texts, Y = read_text(folder / "texts.txt", folder / "labels.txt")
    >>> texts, Y.toarray().tolist()
    (['green tea', 'black tea'], [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    """
    texts = read_lines(texts_path)
    if not texts:
        raise ValueError(f"{file_name(texts_path)}:1:1: the file is empty")
    if labels_path is None:
        return TextDataset(texts, None)
    limit = MAX_COLUMNS if check_count("n_labels", n_labels) is None else int(n_labels or 0)
    sizes, ids = read_id_lines(labels_path, limits=(limit,), names=("label",), base=int(one_based))
    if len(sizes) != len(texts):
        raise ValueError(
            f"{file_name(texts_path)} has {len(texts)} lines, {file_name(labels_path)} has {len(sizes)}:"
            " expected the same"
        )
    return TextDataset(texts, _label_matrix(sizes, ids, n_labels))


def read_jsonl(
    path: Path,
    *,
    fields: tuple[str, ...] = ("title", "content"),
    target: str | None = "target_ind",
    n_labels: int | None = None,
) -> TextDataset:
    """Read JSON lines as the LF-* data sets have them (trn.json, tst.json, lbl.json).

    Parameters
    ----------
    path : str or path
        One JSON object per line; plain, ``.gz`` or ``.xz``.
    fields : tuple of str
        The fields that make up the text, joined by a space; missing or empty ones are left out, but a record
        must have at least one of them.
    target : str or None
        The field with the list of label ids; None reads texts only (lbl.json).
    n_labels : int, optional
        Number of labels; by default as many as the largest id needs.

    Returns
    -------
    texts, Y
        As :func:`read_text`.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "trn.json"
    >>> _ = path.write_text('{"title": "Tea", "content": "green", "target_ind": [1]}\\n')
    >>> texts, Y = read_jsonl(path)
    >>> texts, Y.toarray().tolist()
    (['Tea green'], [[0.0, 1.0]])
    """
    limit = MAX_COLUMNS if check_count("n_labels", n_labels) is None else int(n_labels or 0)
    texts, sizes, ids = [], [], []
    for number, line in enumerate(read_lines(path), 1):
        where = f"{file_name(path)}:{number}"
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            got = line[error.colno - 1 : error.colno + 19]
            raise ValueError(f"{where}:{error.colno}: JSON expected ({error.msg}), got {got!r}") from None
        if not isinstance(record, dict):
            raise ValueError(f"{where}:1: a JSON object expected, got {line[:40]!r}")
        texts.append(_text(record, fields, where))
        if target is not None:
            row = _targets(record, target, limit, where)
            sizes.append(len(row))
            ids.extend(row)
    if not texts:
        raise ValueError(f"{file_name(path)}:1:1: the file is empty")
    if target is None:
        return TextDataset(texts, None)
    return TextDataset(texts, _label_matrix(np.array(sizes, np.int64), np.array(ids, np.int64), n_labels))


def read_npz(x_path: Path, y_path: Path) -> Dataset:
    """Read features and labels saved by ``scipy.sparse.save_npz``, any sparse format and number type.

    Parameters
    ----------
    x_path, y_path : str or path
        Features (finite) and labels (0/1) of the same points.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> sp.save_npz(folder / "X.npz", sp.csr_matrix([[0.5, 0.0], [0.0, 1.0]]))
    >>> sp.save_npz(folder / "Y.npz", sp.csc_matrix([[1, 0], [1, 1]]))
    >>> X, Y = read_npz(folder / "X.npz", folder / "Y.npz")
    >>> X.dtype, Y.toarray().tolist()
    (dtype('float32'), [[1.0, 0.0], [1.0, 1.0]])
    """
    x = features(_load_npz(x_path), file_name(x_path))
    y = labels(_load_npz(y_path), file_name(y_path), n_rows=x.shape[0])
    ones = np.ones(len(y.indices), np.float32)
    return Dataset(
        to_scipy(x.indptr, x.indices, x.data, x.shape), to_scipy(y.indptr, y.indices, ones, y.shape)
    )


def _load_npz(path: Path) -> Any:
    try:
        with open(path, "rb") as file:
            return sp.load_npz(file)
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{file_name(path)}: a matrix saved by scipy.sparse.save_npz expected: {error}"
        ) from None


def _text(record: dict[str, Any], fields: tuple[str, ...], where: str) -> str:
    parts = [record[field] for field in fields if field in record]
    if not parts:
        raise ValueError(f"{where}:1: one of the fields {', '.join(fields)} expected, got {sorted(record)}")
    for part in parts:
        if not isinstance(part, str):
            raise ValueError(f"{where}:1: text expected, got {part!r:.40}")
    return " ".join(part for part in parts if part)


def _targets(record: dict[str, Any], target: str, limit: int, where: str) -> list[int]:
    row = record.get(target)
    if not isinstance(row, list):
        raise ValueError(f"{where}:1: a list of label ids in the field {target!r} expected, got {row!r:.40}")
    for label in row:
        if type(label) is not int or not 0 <= label < limit:
            raise ValueError(
                f"{where}:1: label id in 0..{limit - 1} expected in {target!r}, got {label!r:.40}"
            )
    if len(set(row)) != len(row):
        repeated = next(label for label in row if row.count(label) > 1)
        raise ValueError(f"{where}:1: repeated label in {target!r}, got {repeated}")
    return row


def _label_matrix(sizes: npt.NDArray[np.int64], ids: npt.NDArray[np.int64], n_labels: int | None) -> Any:
    indptr = np.concatenate([[0], np.cumsum(sizes)])
    count = int(ids.max(initial=-1)) + 1 if n_labels is None else n_labels
    Y = to_scipy(indptr, ids.astype(np.int32), np.ones(len(ids), np.float32), (len(sizes), count))
    Y.sort_indices()
    return Y
