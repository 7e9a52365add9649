"""Sizes, numbers and orders of magnitude of what people pass; test_inputs_all.py has the forms of every argument."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import xmc_fast
from reference.matrices import csr
from xmc_fast import decide, knn, metrics
from xmc_fast._validate import labels

N, D, L = 12, 7, 5
ROWS = np.random.default_rng(1).integers(0, 3, (N, D)).astype(np.float32) / 4
TRUTH = (np.random.default_rng(2).random((N, L)) < 0.4).astype(np.float32)


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


@pytest.mark.parametrize("columns", [[2**32], [-1], [7], [3, 3], [3, 2]])
def test_one_row_as_a_pair(columns):
    """Columns beyond 32 bits were taken modulo 2^32."""
    model = xmc_fast.SparseModel(sp.csr_matrix(ROWS))
    with pytest.raises(ValueError, match="columns of x must be ascending"):
        model.predict_one((np.array(columns), np.ones(len(columns))), 2)


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
