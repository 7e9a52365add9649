"""What people pass: the same answer however a matrix is stored, and a ValueError that names it when it is none."""

from __future__ import annotations

import functools
import inspect
import itertools

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import xmc_fast
from xmc_fast import cluster, decide, knn, metrics, propensity
from xmc_fast._validate import features, labels
from xmc_fast.declare import compress, ridge
from xmc_fast.mach import bucket_matrix

N, D, L = 12, 7, 5
few = settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


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
    *("fewer values", "nan", "inf", "csc index", "coo index", "text", "complex", "three dimensions"),
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


ROWS = np.random.default_rng(1).integers(0, 3, (N, D)).astype(np.float32) / 4
TRUTH = (np.random.default_rng(2).random((N, L)) < 0.4).astype(np.float32)
SCORES = np.random.default_rng(3).random((N, L)).astype(np.float32)
SCORES[SCORES < 0.3] = 0

# Name -> (a call of one matrix, a good one, the name it has in messages).
OF_FEATURES = {
    "OneVsAll.fit": lambda X: xmc_fast.OneVsAll(n_jobs=1).fit(X, TRUTH).model_.to_csr(),
    "OneVsAll.predict": lambda X: xmc_fast.OneVsAll(n_jobs=1).fit(ROWS, TRUTH).predict(X, 3),
    "LabelTree.fit": lambda X: xmc_fast.LabelTree(max_leaf=2, n_jobs=1).fit(X, TRUTH).predict(ROWS, 3),
    "LabelTree.predict": lambda X: xmc_fast.LabelTree(max_leaf=2, n_jobs=1).fit(ROWS, TRUTH).predict(X, 3),
    "LinearDeclare.fit": lambda X: xmc_fast.LinearDeclare(3, n_jobs=1).fit(X, TRUTH).coef_,
    "LinearDeclare.predict": lambda X: xmc_fast.LinearDeclare(3, n_jobs=1).fit(ROWS, TRUTH).predict(X, 3),
    "Mach.predict": lambda X: xmc_fast.Mach(3, 2, n_jobs=1).fit(ROWS, TRUTH).predict(X, 3),
    "label_tree": lambda X: cluster.label_tree(X, TRUTH, max_leaf=2, n_jobs=1).order,
    "ridge": lambda X: ridge(X, SCORES, n_jobs=1),
    "features": lambda X: features(X)[:3],
}  # fmt: skip
OF_LABELS = {
    "OneVsAll.fit": lambda Y: xmc_fast.OneVsAll(n_jobs=1).fit(ROWS, Y).model_.to_csr(),
    "LabelTree.fit": lambda Y: xmc_fast.LabelTree(max_leaf=2, n_jobs=1).fit(ROWS, Y).predict(ROWS, 3),
    "LinearDeclare.fit": lambda Y: xmc_fast.LinearDeclare(3, n_jobs=1).fit(ROWS, Y).coef_,
    "Mach.fit": lambda Y: xmc_fast.Mach(3, 2, n_jobs=1).fit(ROWS, Y).predict(ROWS, 3),
    "label_tree": lambda Y: cluster.label_tree(ROWS, Y, max_leaf=2, n_jobs=1).order,
    "compress": lambda Y: compress(Y, 3, n_jobs=1),
    "bucket_matrix": lambda Y: bucket_matrix(Y, 3, 0, n_jobs=1),
    "recover_labels": lambda Y: knn.recover_labels(
        np.array([[0, 3]]), np.array([[1.0, 0.5]]), Y, 3, n_jobs=1
    ),
    "precision_at_k": lambda Y: metrics.precision_at_k(Y, SCORES, 3),
    "ndcg_at_k": lambda Y: metrics.ndcg_at_k(Y, SCORES, 3),
    "estimate": lambda Y: propensity.estimate(Y),
    "labels": lambda Y: labels(Y)[:2],
}
OF_SCORES = {
    "precision_at_k": lambda P: metrics.precision_at_k(TRUTH, P, 3),
    "coverage_error": lambda P: metrics.coverage_error(TRUTH, P),
    "bca": lambda P: decide.bca(P, "macro-f1", 2, random_state=0, n_jobs=1)[0],
    "weighted_topk": lambda P: decide.weighted_topk(P, np.ones(L), 2, n_jobs=1),
}


def of_pairs(module):
    """Every public function of a module that takes the true labels and predictions."""
    for name in module.__all__:
        function = getattr(module, name)
        names = list(inspect.signature(function).parameters) if inspect.isfunction(function) else []
        if names[:1] == ["Y_true"]:
            more = {"propensity": np.full(L, 0.5)} if names[2:3] == ["propensity"] else {}
            more |= {"k": 2} if name == "precision_recall_f1" else {}
            yield name, functools.partial(function, n_jobs=1, **more)


PAIRS = dict(of_pairs(metrics))
OF_LABELS |= {name: lambda Y, call=call: call(Y, SCORES) for name, call in PAIRS.items()}
OF_SCORES |= {name: lambda P, call=call: call(TRUTH, P) for name, call in PAIRS.items()}
OF_LABELS |= {
    "direct(observed)": lambda Y: propensity.direct(Y, TRUTH),
    "direct(controlled)": lambda Y: propensity.direct(TRUTH, Y),
}
OF_SCORES |= {
    "optimize": lambda P: decide.optimize(P, metric="macro-f1", k=2, n_jobs=1)[0],
    "expected_utility": lambda P: decide.expected_utility(P, TRUTH, "macro-f1", k=2),
}
CALLS = [
    *((f"{name}(X)", call, ROWS, "X") for name, call in OF_FEATURES.items()),
    *((f"{name}(Y)", call, TRUTH, r"Y") for name, call in OF_LABELS.items()),
    *((f"{name}(P)", call, SCORES, r"pred|proba") for name, call in OF_SCORES.items()),
]
every_call = pytest.mark.parametrize(
    ("call", "good", "named"), [c[1:] for c in CALLS], ids=[c[0] for c in CALLS]
)


@every_call
@few
@given(how=st.sampled_from(FORMS), seed=st.integers(0, 9))
def test_the_form_does_not_matter(call, good, named, how, seed):
    expected = plain(call(good if how in DENSE else sp.csr_matrix(good)))
    assert plain(call(stored(good, how, np.random.default_rng(seed)))) == expected


@every_call
@few
@given(how=st.sampled_from(BAD))
def test_what_is_no_matrix_is_named(call, good, named, how):
    if named == "pred|proba" and how in ("nan", "inf"):
        return  # metrics rank them, and bca says what is wrong with a value
    with pytest.raises(ValueError, match=rf"\b({named})"):
        call(spoiled(good, how))


@pytest.mark.parametrize("name", [name for name in OF_LABELS if name != "recover_labels"])
@pytest.mark.parametrize("value", [2, -1, 0.5, 300, np.nan])
def test_labels_are_zero_or_one(name, value):
    Y = TRUTH.copy()
    Y[0, 0] = value
    with pytest.raises(ValueError, match=r"\bY"):
        OF_LABELS[name](Y)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "bool", "float16", "int64"])
def test_more_labels_than_a_byte_counts(dtype):
    """scikit-learn's OneVsRestClassifier scrambles int8 labels past 127."""
    wide = sp.csr_matrix(np.eye(300, dtype=np.float32))
    if dtype == "float16":  # scipy has no such matrix
        narrow = wide.toarray().astype(dtype)
    else:
        narrow = csr(wide.data.astype(dtype), wide.indices, wide.indptr, wide.shape)
    model = xmc_fast.OneVsAll(n_jobs=1, C=10).fit(wide, narrow)
    assert model.predict(wide, 1).indices.tolist() == list(range(300))


@pytest.mark.parametrize(
    ("X", "Y"),
    [
        (np.empty((0, D)), np.empty((0, L))),
        (np.empty((N, 0)), TRUTH),
        (ROWS, np.empty((N, 0))),
        (ROWS, np.zeros((N, L))),
        (np.zeros((N, D)), TRUTH),
        (ROWS[:1], TRUTH[:1]),
    ],
    ids=["no rows", "no columns", "no labels", "no positives", "only zeros", "one row"],
)
@pytest.mark.parametrize(
    "make",
    [
        lambda: xmc_fast.OneVsAll(n_jobs=1),
        lambda: xmc_fast.LabelTree(max_leaf=2, n_jobs=1),
        lambda: xmc_fast.LinearDeclare(2, n_jobs=1),
        lambda: xmc_fast.Mach(3, 2, n_jobs=1),
    ],
    ids=["OneVsAll", "LabelTree", "LinearDeclare", "Mach"],
)
def test_empty_sizes(make, X, Y):
    """A model, or a ValueError that says what is missing."""
    try:
        model = make().fit(X, Y)
    except ValueError:
        return
    top = model.predict(np.zeros((2, np.shape(X)[1])), 3)
    assert top.shape == (2, np.shape(Y)[1])
    assert model.predict(np.zeros((0, np.shape(X)[1])), 3).shape == (0, np.shape(Y)[1])


@pytest.mark.parametrize("name", ["OneVsAll", "LabelTree", "LinearDeclare", "Mach"])
def test_k(name):
    options = {"Mach": (3, 2), "LinearDeclare": (3,)}.get(name, ())
    model = getattr(xmc_fast, name)(*options, n_jobs=1).fit(ROWS, TRUTH)
    with pytest.raises(ValueError, match=r"\bk must"):
        model.predict(ROWS, -1)
    if name == "OneVsAll":
        assert model.predict(ROWS, 0).nnz == 0
    else:
        with pytest.raises(ValueError, match="k must be at least 1"):
            model.predict(ROWS, 0)
    assert model.predict(ROWS, 10**12).shape == (N, L)
    assert np.diff(model.predict(ROWS, 10**12).indptr).max() <= L


def test_stored_zeros_are_no_labels():
    Y = csr(
        TRUTH.reshape(-1).copy(), np.tile(np.arange(L, dtype=np.int32), N), np.arange(0, N * L + 1, L), (N, L)
    )
    for call in OF_LABELS.values():
        assert plain(call(Y)) == plain(call(sp.csr_matrix(TRUTH)))


@pytest.mark.parametrize("ids", [[[2**32]], [[N]], [[-2]], [[0.5]], [0], [[0, 1]]])
def test_neighbours_out_of_range(ids):
    with pytest.raises(ValueError, match=r"\bids must"):
        knn.recover_labels(np.array(ids), np.ones((1, 1)), TRUTH, 2)


def test_counts_beyond_what_float32_counts():
    """More than 2^24 labels: ids and counts stay exact."""
    n = 2**24 + 3
    Y = csr(np.ones(2, np.int8), np.array([n - 1, n - 2], np.int32), np.array([0, 1, 2]), (2, n))
    pred = csr(np.ones(2, np.float32), np.array([n - 1, n - 1], np.int32), np.array([0, 1, 2]), (2, n))
    assert metrics.precision_at_k(Y, pred, 1) == 0.5
    assert labels(Y).indices.tolist() == [n - 1, n - 2]


def test_products_of_sizes_beyond_31_bits():
    """Rows x labels, labels x columns and rows x columns above 2^31, with few entries."""
    n = 50_000
    one = csr(
        np.ones(2, np.float32), np.array([0, n - 1], np.int32), np.r_[[0, 1], np.full(n - 1, 2)], (n, n)
    )
    model = xmc_fast.SparseModel(one)  # label 0 has column 0, label 1 the last one
    for made in (model, model.compress(delta=0)):
        top = made.predict(one[:200], 1, n_jobs=1)
        assert top.indices[:2].tolist() == [0, 1]
        np.testing.assert_allclose(top.data[:2], 1)
    truth = csr(one.data, np.array([0, 1], np.int32), one.indptr, (n, n))
    assert metrics.precision_at_k(truth, truth, 1) == 2 / n
    chosen = decide.bca(truth, "macro-f1", 1, n_jobs=1)[0]
    assert chosen.indices[:2].tolist() == [0, 1]
    found = xmc_fast.OneVsAll(n_jobs=1, max_iter=2).fit(one[:3], truth[:3]).predict(one[:2], 1)
    assert found.indices.tolist() == [0, 1]
