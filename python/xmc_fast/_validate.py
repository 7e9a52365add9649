"""The public edge: turn what people pass into the arrays the compiled core takes, or say what is wrong.

Everything compiled takes CSR as (indptr int64, indices int32, data float32 or none), C-contiguous, sorted
and without duplicates unless stated. Validation happens here, once.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast import _core

_PER_THREAD = 1 << 20  # entries


class Csr(NamedTuple):
    """The core's currency. ``data`` is float32, or empty for binary matrices (every entry is 1)."""

    indptr: npt.NDArray[np.int64]  # rows + 1
    indices: npt.NDArray[np.int32]  # nnz
    data: npt.NDArray[np.float32]  # nnz, or 0
    shape: tuple[int, int]


def features(X: Any, name: str = "X", *, n_features: int | None = None) -> Csr:
    """Sparse or dense features as CSR float32 with sorted, unique columns; NaN and inf are refused."""
    matrix, canonical = valid_csr(X, name)
    if matrix.data.dtype != np.float32:
        with np.errstate(over="ignore"):  # told below
            matrix = matrix.astype(np.float32)
    if not canonical:
        matrix = _canonical(matrix)
    bad = np.flatnonzero(~np.isfinite(matrix.data))
    if bad.size:
        row, col = _position(matrix, int(bad[0]))
        raise ValueError(
            f"{name} must be finite, got {matrix.data[bad[0]]} at row {row}, column {col}"
            f" ({bad.size} such values)"
        )
    if n_features is not None and matrix.shape[1] != n_features:
        raise ValueError(f"{name} has {matrix.shape[1]} columns, expected {n_features}")
    return _csr(matrix, matrix.data)


def dense_features(X: Any, name: str = "X", *, n_features: int | None = None) -> npt.NDArray[np.float32]:
    """Dense features as a C-contiguous float32 matrix (not copied if it is one); NaN and inf are refused."""
    array = np.asarray(X)
    if array.ndim != 2:
        raise ValueError(f"{name} must be two-dimensional, got shape {array.shape}")
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} must hold real numbers, got dtype {array.dtype}")
    if n_features is not None and array.shape[1] != n_features:
        raise ValueError(f"{name} has {array.shape[1]} columns, expected {n_features}")
    with np.errstate(over="ignore"):
        x = aligned(array, np.float32)
    bad = np.argwhere(~np.isfinite(x))
    if len(bad):
        row, col = bad[0]
        raise ValueError(
            f"{name} must be finite, got {x[row, col]} at row {row}, column {col} ({len(bad)} such values)"
        )
    return x


def numbers(values: Any, name: str, *, ndim: int | None = None) -> npt.NDArray[np.float64]:
    """Real, finite numbers as a new float64 array, of so many dimensions if that is given."""
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} must hold real numbers, got dtype {array.dtype}")
    if ndim is not None and array.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} dimension(s), got shape {array.shape}")
    array = array.astype(np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, got {array[~np.isfinite(array)][0]}")
    return array


def at_least(low: float, **values: float) -> None:
    """Numbers of a call by name, none below ``low``, NaN or inf.

    >>> at_least(1, k=0)
    Traceback (most recent call last):
    ValueError: k must be at least 1, got 0
    """
    for name, value in values.items():
        if not low <= value < math.inf:
            raise ValueError(f"{name} must be at least {low:g}, got {value!r}")


def above_zero(**values: float) -> None:
    """As `at_least`, above 0."""
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be above 0, got {value!r}")


def seed(value: int, name: str = "random_state") -> int:
    """A seed that every generator takes: 0..2^63 - 1."""
    if not 0 <= value < 1 << 63:
        raise ValueError(f"{name} must be in 0..2^63 - 1, got {value!r}")
    return int(value)


def fingerprint(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """A hash of named arrays: names, types, shapes and bytes."""
    digest = hashlib.blake2b(digest_size=16)
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def labels(Y: Any, name: str = "Y", *, n_rows: int | None = None, n_labels: int | None = None) -> Csr:
    """A binary label matrix of any dtype as CSR without data: stored zeros dropped, other values refused."""
    matrix, canonical = valid_csr(Y, name)
    if matrix.data.dtype != np.bool_:
        values = matrix.data
        bad = np.flatnonzero((values != 0) & (values != 1))
        if bad.size:
            row, col = _position(matrix, int(bad[0]))
            raise ValueError(f"{name} must be binary (0/1), got {values[bad[0]]} at row {row}, column {col}")
    if not np.all(matrix.data != 0):
        matrix = matrix.copy()
        matrix.eliminate_zeros()
    if not canonical:
        matrix = matrix.astype(bool)
        matrix.sum_duplicates()
    if n_rows is not None and matrix.shape[0] != n_rows:
        raise ValueError(f"{name} has {matrix.shape[0]} rows, expected {n_rows}")
    if n_labels is not None and matrix.shape[1] != n_labels:
        raise ValueError(f"{name} has {matrix.shape[1]} columns (labels), expected {n_labels}")
    return _csr(matrix, np.empty(0, np.float32))


def to_scipy(indptr: Any, indices: Any, data: Any, shape: tuple[int, int]) -> sp.csr_matrix:
    """Core arrays as a scipy CSR matrix without copies beyond the index width scipy wants."""
    index = (
        np.int64 if len(indices) > np.iinfo(np.int32).max or max(shape) > np.iinfo(np.int32).max else np.int32
    )
    matrix = sp.csr_matrix(shape, dtype=data.dtype)
    matrix.indptr = np.asarray(indptr).astype(index, copy=False)
    matrix.indices = np.asarray(indices).astype(index, copy=False)
    matrix.data = data
    return matrix


def matrix_of(c: Csr) -> sp.csr_matrix:
    """Core arrays as scipy CSR float32, ones where they are binary."""
    data = c.data if len(c.data) else np.ones(len(c.indices), np.float32)
    return to_scipy(c.indptr, c.indices, data, c.shape)


def transpose(c: Csr) -> Csr:
    """The CSR of the transpose (binary stays binary)."""
    data = c.data if len(c.data) else np.ones(len(c.indices), np.int8)
    t = to_scipy(c.indptr, c.indices, data, c.shape).T.tocsr()
    return _csr(t, t.data if len(c.data) else np.empty(0, np.float32))


def valid_csr(M: Any, name: str) -> tuple[Any, bool]:
    """A matrix of real numbers as scipy CSR whose indices are all in range, and whether they are sorted and unique.

    scipy checks neither (an index out of range would be read or written there), and what it has once found out
    about a matrix it does not find out again when the matrix is changed.
    """
    if not sp.issparse(M):
        array = np.asarray(M)
        if array.ndim != 2:
            raise ValueError(f"{name} must be two-dimensional, got shape {array.shape}")
        if array.dtype.kind not in "biuf":
            raise ValueError(f"{name} must hold real numbers, got dtype {array.dtype}")
        if array.dtype in (np.float16, np.longdouble):  # scipy has no such matrices
            array = array.astype(np.float64)
        return sp.csr_matrix(array), True
    if M.ndim != 2:
        raise ValueError(f"{name} must be two-dimensional, got {M.ndim} dimension(s)")
    if M.dtype.kind not in "biuf":
        raise ValueError(f"{name} must hold real numbers, got dtype {M.dtype}")
    if M.format == "csc":
        _check_compressed(M, name, M.shape[::-1])
    elif M.format == "bsr":
        _check_compressed(M, name, tuple(np.floor_divide(M.shape, M.blocksize).tolist()))
    elif M.format == "coo" and M.nnz:
        for index, size, what in ((M.row, M.shape[0], "row"), (M.col, M.shape[1], "column")):
            if index.min() < 0 or index.max() >= size:
                wrong = index.min() if index.min() < 0 else index.max()
                raise ValueError(f"{name} has the {what} index {wrong}, expected 0..{size - 1}")
    matrix = M if M.format == "csr" else M.tocsr()
    canonical = _check_compressed(matrix, name, matrix.shape)
    used = int(matrix.indptr[-1])
    if used < len(matrix.indices):  # room at the end is allowed
        matrix = to_scipy(matrix.indptr, matrix.indices[:used], matrix.data[:used], matrix.shape)
    return matrix, canonical


def _check_compressed(M: Any, name: str, shape: tuple[int, ...]) -> bool:
    """Whether the indices of each row of M (of each column, with the shape turned round) ascend."""
    if M.indptr.shape != (shape[0] + 1,):
        raise ValueError(f"{name}.indptr has shape {M.indptr.shape}, expected ({shape[0] + 1},)")
    if M.indices.shape != M.data.shape[:1]:  # of blocks with format "bsr"
        raise ValueError(f"{name} has {len(M.indices)} indices but {len(M.data)} values")
    narrow = M.indices.dtype == np.int32
    indptr, indices = aligned(M.indptr, np.int64), aligned(M.indices, np.int32 if narrow else np.int64)
    threads = min(_core.default_threads(), 1 + len(indices) // _PER_THREAD)
    check = _core.csr_check_i32 if narrow else _core.csr_check_i64
    state, at = check(indptr, indices, int(shape[1]), threads)
    if state == 2:
        raise ValueError(
            f"{name}.indptr must rise from 0 to at most {len(indices)} (the number of entries), it does not at"
            f" row {at}: {M.indptr[at]}, {M.indptr[at + 1]}"
        )
    if state == 3:
        raise ValueError(f"{name} has the index {indices[at]} at entry {at}, expected 0..{shape[1] - 1}")
    return bool(state == 0)


def aligned(array: Any, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """The array as the core takes it: of this type, contiguous, at an address the type allows."""
    made = np.ascontiguousarray(array, dtype)
    return made if made.flags.aligned else made.copy()


def _canonical(matrix: Any) -> Any:
    matrix = matrix.copy()
    matrix.sum_duplicates()
    return matrix


def _position(matrix: Any, entry: int) -> tuple[int, int]:
    row = int(np.searchsorted(matrix.indptr, entry, side="right")) - 1
    return row, int(matrix.indices[entry])


def _csr(matrix: Any, data: npt.NDArray[np.float32]) -> Csr:
    if matrix.shape[1] > np.iinfo(np.int32).max:
        raise ValueError(f"at most {np.iinfo(np.int32).max} columns are supported, got {matrix.shape[1]}")
    return Csr(
        aligned(matrix.indptr, np.int64),
        aligned(matrix.indices, np.int32),
        aligned(data, data.dtype),
        (int(matrix.shape[0]), int(matrix.shape[1])),
    )
