"""A matrix in every form that people pass, and what is no matrix."""

from __future__ import annotations

import itertools

import numpy as np
import scipy.sparse as sp


def unaligned(array):
    """The same numbers at an odd address."""
    raw = np.empty(array.nbytes + 1, np.uint8)[1:]
    raw[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return raw.view(array.dtype).reshape(array.shape)


def csr(data, indices, indptr, shape):
    """A matrix of exactly these arrays, whatever scipy would make of them."""
    matrix = sp.csr_matrix(shape, dtype=np.asarray(data).dtype)
    matrix.data, matrix.indices, matrix.indptr = data, indices, indptr
    return matrix


def stored(M, how, rng):
    """A dense matrix in one of many forms."""
    base = sp.csr_matrix(M)
    data, indices, indptr = base.data, base.indices.copy(), base.indptr
    if how == "dense":
        return M
    if how in ("csc", "coo", "lil", "dok", "bsr"):
        return base.asformat(how)
    if how == "array":
        return sp.csr_array(base)
    if how == "fortran":
        return np.asfortranarray(M)
    if how in ("unsorted", "stale"):
        order = np.concatenate(
            [np.arange(a, b)[rng.permutation(b - a)] for a, b in itertools.pairwise(indptr)] or [[]]
        ).astype(int)
        out = csr(data[order], indices[order], indptr, M.shape)
        if how == "stale":  # scipy believes that it is sorted
            out.has_canonical_format = out.has_sorted_indices = True
        return out
    if how in ("halves", "twice"):  # each entry twice: to be added up, or the same label again
        values = np.repeat(data / 2 if how == "halves" else data, 2)
        return csr(values, np.repeat(indices, 2), 2 * indptr, M.shape)
    if how == "zeros":  # all stored
        columns = np.tile(np.arange(M.shape[1], dtype=np.int32), len(M))
        return csr(M.reshape(-1).copy(), columns, np.arange(len(M) + 1) * M.shape[1], M.shape)
    if how == "room":  # longer arrays than the rows use
        return csr(np.r_[data, data[:1]], np.r_[indices, indices[:1]].astype(np.int32), indptr, M.shape)
    if how in ("int64", "uint32", "uint64", "int16"):
        return csr(data, indices.astype(how), indptr.astype(how if how != "int16" else np.int64), M.shape)
    if how == "readonly":
        out = csr(data.copy(), indices.copy(), indptr.copy(), M.shape)
        for array in (out.data, out.indices, out.indptr):
            array.flags.writeable = False
        return out
    if how == "unaligned":
        return csr(unaligned(data), unaligned(indices), unaligned(indptr), M.shape)
    if how == "unaligned dense":
        return unaligned(M)
    return base if how == "csr" else base.astype(how)


DENSE = ("dense", "fortran", "unaligned dense")  # solvers have a path of their own for them
FORMS = [
    *("csr", "dense", "csc", "coo", "lil", "dok", "bsr", "array", "fortran", "unsorted", "stale", "room"),
    *("int64", "uint32", "uint64", "int16", "readonly", "unaligned", "unaligned dense", "float64"),
]  # fmt: skip


def spoiled(M, how):
    """A matrix that is none, or has values that are refused."""
    base = sp.csr_matrix(M)
    data, indices, indptr = base.data.copy(), base.indices.copy(), base.indptr.copy()
    if how == "index too large":
        indices[-1] = M.shape[1]
    elif how == "index negative":
        indices[0] = -1
    elif how == "index huge":
        indices = indices.astype(np.int64)
        indices[0] = 2**32
    elif how == "indptr falls":
        indptr[1] = indptr[-1] + 1
    elif how == "indptr negative":
        indptr[1] = -3
    elif how == "indptr past the end":
        indptr[-1] += 5
    elif how == "fewer values":
        data = data[:-1]
    elif how in ("nan", "inf", "-inf"):
        data = data.astype(np.float32)
        data[0] = float(how)
    elif how == "csc index":
        out = base.tocsc()
        out.indices[0] = M.shape[0] + 3
        return out
    elif how == "bsr index":
        out = base.tobsr()
        out.indptr[1] = out.indptr[-1] + 7
        return out
    elif how == "coo index":
        out = base.tocoo()
        out.col[0] = M.shape[1]
        return out
    elif how == "text":
        return np.full(M.shape, "x")
    elif how == "complex":
        return M.astype(complex)
    elif how == "three dimensions":
        return M[None]
    return csr(data, indices, indptr, M.shape)


BAD = [
    *(
        "index too large",
        "index negative",
        "index huge",
        "indptr falls",
        "indptr negative",
        "indptr past the end",
    ),
    *(
        "fewer values",
        "nan",
        "inf",
        "csc index",
        "bsr index",
        "coo index",
        "text",
        "complex",
        "three dimensions",
    ),
]


def plain(result):
    """What a call returned, as something that can be compared."""
    if sp.issparse(result):
        return result.toarray().tolist()
    if isinstance(result, tuple | list):
        return [plain(part) for part in result]
    if hasattr(result, "__dict__") or hasattr(result, "__slots__") or hasattr(result, "columns"):
        return repr(result)
    return np.asarray(result).tolist()
