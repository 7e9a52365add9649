"""Texts with label ids, and matrices saved by scipy."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast._validate import features, labels, to_scipy
from xmc_fast.data._dataset import Matrices
from xmc_fast.data._ids import read_id_lines
from xmc_fast.data._io import Path, file_name, read_lines
from xmc_fast.data._parse import MAX_COLUMNS, check_count


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
        UTF-8; plain, ``.gz``, ``.xz`` or ``.zst``.
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


def read_npz(x_path: Path, y_path: Path) -> Matrices:
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
    return Matrices(
        to_scipy(x.indptr, x.indices, x.data, x.shape), to_scipy(y.indptr, y.indices, ones, y.shape)
    )


def _load_npz(path: Path) -> Any:
    with open(path, "rb") as file:
        try:
            return sp.load_npz(file)
        except MemoryError:
            raise
        except Exception as error:  # a damaged zip is anything, from KeyError to NotImplementedError
            raise ValueError(
                f"{file_name(path)}: a matrix saved by scipy.sparse.save_npz expected: {error}"
            ) from None


def _label_matrix(sizes: npt.NDArray[np.int64], ids: npt.NDArray[np.int64], n_labels: int | None) -> Any:
    indptr = np.concatenate([[0], np.cumsum(sizes)])
    count = int(ids.max(initial=-1)) + 1 if n_labels is None else n_labels
    Y = to_scipy(indptr, ids.astype(np.int32), np.ones(len(ids), np.float32), (len(sizes), count))
    Y.sort_indices()
    return Y
