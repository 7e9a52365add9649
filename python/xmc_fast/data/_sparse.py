"""Readers and writer of sparse text: Extreme Classification Repository, libsvm, and the two-file form."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from xmc_fast import _core
from xmc_fast._files import atomic_path
from xmc_fast._threads import resolve_threads
from xmc_fast._validate import features, labels
from xmc_fast.data._dataset import Matrices
from xmc_fast.data._io import Path, file_name, open_binary
from xmc_fast.data._parse import XMC_HEADER, Duplicates, Format, check_count, is_sum, read_sparse


def read_xmc(path: Path, *, duplicates: Duplicates = "error", n_jobs: int | None = None) -> Matrices:
    """Read the Extreme Classification Repository's text format.

    A header line ``points features labels``, then one line per point, ``l1,l2 f:v f:v ...`` with zero-based
    ids. A point without labels starts with a space; a point may be blank. Features may come in any order.

    Parameters
    ----------
    path : str or path
        Plain, ``.gz``, ``.xz`` or ``.zst``.
    duplicates : {"error", "sum"}
        What to do with a feature that a point has twice: refuse, or add the values up (a label that is given
        twice is then taken once).
    n_jobs : int, optional
        Threads; the result does not depend on it.

    Returns
    -------
    X : scipy CSR float32 of shape (points, features)
        Sorted; values are the correctly rounded floats of the text, explicit zeros kept.
    Y : scipy CSR float32 of shape (points, labels)
        Ones.

    Raises
    ------
    ValueError
        ``file:line:column: reason, got token`` for the first bad token: ids out of range, values that are no
        finite 32-bit floats, repeated features or labels, more or fewer points than the header says, anything
        else that is not of the format.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "train.txt"
    >>> _ = path.write_text("2 4 3\\n0,2 0:0.5 3:1\\n 1:2.25\\n")
    >>> X, Y = read_xmc(path)
    >>> X.toarray().tolist()
    [[0.5, 0.0, 0.0, 1.0], [0.0, 2.25, 0.0, 0.0]]
    >>> Y.toarray().tolist()
    [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    """
    form = Format(True, XMC_HEADER, sum_duplicates=is_sum(duplicates))
    return read_sparse(path, form, n_jobs)


def read_libsvm(
    path: Path,
    *,
    header: bool = False,
    one_based: bool = False,
    n_features: int | None = None,
    n_labels: int | None = None,
    duplicates: Duplicates = "error",
    blank: Literal["error", "skip", "point"] = "error",
    n_jobs: int | None = None,
) -> Matrices:
    """Read libsvm's multi-label text: ``l1,l2 f:v f:v ...``, one point per line.

    Parameters
    ----------
    path : str or path
        Plain, ``.gz``, ``.xz`` or ``.zst``.
    header : bool
        Whether the first line gives ``points features labels`` as in `read_xmc`.
    one_based : bool
        Feature and label ids start at 1 instead of 0.
    n_features, n_labels : int, optional
        The size of the id spaces, for files without a header (give the training set's for a test set).
        Without them: as many as the largest id needs.
    duplicates : {"error", "sum"}
        As in `read_xmc`.
    blank : {"error", "skip", "point"}
        What a blank line is in a file without a header; blank lines at the very end are ignored unless
        "point". Text after ``#`` is a comment in such files.
    n_jobs : int, optional
        Threads; the result does not depend on it.

    Returns
    -------
    X, Y
        As `read_xmc`; raises the same errors.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "train.svm"
    >>> _ = path.write_text("1,3 1:0.5 4:1\\n2 2:2.25\\n")
    >>> X, Y = read_libsvm(path, one_based=True)
    >>> X.shape, Y.shape
    ((2, 4), (2, 3))
    """
    if blank not in ("error", "skip", "point"):
        raise ValueError(f"blank must be 'error', 'skip' or 'point', got {blank!r}")
    if header and (n_features is not None or n_labels is not None):
        raise ValueError("n_features and n_labels come from the header: give them for header=False only")
    form = Format(
        True,
        XMC_HEADER if header else (),
        n_features=check_count("n_features", n_features),
        n_labels=check_count("n_labels", n_labels),
        base=int(one_based),
        comments=not header,
        sum_duplicates=is_sum(duplicates),
        blank="point" if header else blank,
    )
    return read_sparse(path, form, n_jobs)


def read_pair(
    x_path: Path,
    y_path: Path,
    *,
    duplicates: Duplicates = "error",
    binarize: bool = False,
    n_jobs: int | None = None,
) -> Matrices:
    """Read the two-file form: features in one file (trn_X_Xf.txt), labels in the other (trn_X_Y.txt).

    Each has a header ``rows columns``, then one line of ``column:value ...`` per point.

    Parameters
    ----------
    x_path, y_path : str or path
        Plain, ``.gz``, ``.xz`` or ``.zst``.
    duplicates : {"error", "sum"}
        As in `read_xmc`.
    binarize : bool
        Take every label value above 0 as 1 and drop the others (relevance scores); else values other than 0
        and 1 are refused. Zeros are dropped either way.
    n_jobs : int, optional
        Threads; the result does not depend on it.

    Returns
    -------
    X, Y
        As `read_xmc`; raises the same errors, and ValueError if the row counts differ.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "trn_X_Xf.txt").write_text("2 4\\n0:0.5 3:1\\n1:2.25\\n")
    >>> _ = (folder / "trn_X_Y.txt").write_text("2 3\\n2:1\\n0:1 1:1\\n")
    >>> X, Y = read_pair(folder / "trn_X_Xf.txt", folder / "trn_X_Y.txt")
    >>> Y.toarray().tolist()
    [[0.0, 0.0, 1.0], [1.0, 1.0, 0.0]]
    """
    form = Format(False, ("rows", "columns"), sum_duplicates=is_sum(duplicates))
    X = read_sparse(x_path, form, n_jobs).X
    Y = read_sparse(y_path, form, n_jobs).X
    if X.shape[0] != Y.shape[0]:
        raise ValueError(
            f"{file_name(x_path)} has {X.shape[0]} rows, {file_name(y_path)} has {Y.shape[0]}:"
            " expected the same"
        )
    if binarize:
        Y.data = (Y.data > 0).astype(np.float32)
    bad = np.flatnonzero((Y.data != 0) & (Y.data != 1))
    if bad.size:
        row = int(np.searchsorted(Y.indptr, bad[0], side="right"))
        raise ValueError(
            f"{file_name(y_path)}:{row + 1}: label value 0 or 1 expected, got {Y.data[bad[0]]:g} for label"
            f" {Y.indices[bad[0]]} (binarize=True takes every positive value as 1)"
        )
    Y.eliminate_zeros()
    return Matrices(X, Y)


def write_xmc(path: Path, X: Any, Y: Any, *, n_jobs: int | None = None) -> None:
    """Write the Extreme Classification Repository's text format, readable by `read_xmc`.

    Values are the shortest decimals that read back as the same 32-bit float, so write and read are exact.

    Parameters
    ----------
    path : str or path
        Compressed if it ends in ``.gz``, ``.xz`` or ``.zst``. Written whole or not at all.
    X : array or sparse matrix of shape (points, features)
    Y : binary array or sparse matrix of shape (points, labels)
    n_jobs : int, optional
        Threads.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "train.txt"
    >>> write_xmc(path, [[0.1, 0.0], [0.0, 3.0]], [[0, 1], [0, 0]])
    >>> path.read_text()
    '2 2 2\\n1 0:0.1\\n 1:3\\n'
    """
    x = features(X)
    y = labels(Y, n_rows=x.shape[0])
    threads = resolve_threads(n_jobs)
    rows = 1 + max(1, (16 << 20) // (16 * (1 + len(x.indices) // max(1, x.shape[0]))))
    with atomic_path(path) as temporary, open_binary(temporary, "wb", like=path) as file:
        file.write(b"%d %d %d\n" % (*x.shape, y.shape[1]))
        for first in range(0, x.shape[0], rows):
            last = min(first + rows, x.shape[0])
            file.write(
                _core.format_rows(
                    x.indptr, x.indices, x.data, y.indptr, y.indices, True, first, last, threads
                )
            )
