"""DECLARE without torch: products, truncated SVD, neighbour compression, ridge regression, recovery."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import svds

from reference import declare as reference
from xmc_fast import _core, data, declare
from xmc_fast.declare import (
    LabelRecovery,
    LinearDeclare,
    neighbour_embedding,
    neighbour_pairs,
    ridge,
    truncated_svd,
)


def label_matrix(n, n_labels, per_row=3, seed=0):
    """Labels with a long tail, some rows without any."""
    rng = np.random.default_rng(seed)
    p = 1 / np.arange(1, n_labels + 1)
    columns = rng.choice(n_labels, (n, per_row), p=p / p.sum())
    rows = np.repeat(np.arange(n), per_row)
    Y = sp.csr_matrix((np.ones(n * per_row), (rows, columns.ravel())), shape=(n, n_labels))
    Y.data[:] = 1
    keep = np.arange(n) % 17 != 5
    Y = sp.csr_matrix(sp.diags(keep.astype(float)) @ Y)
    Y.eliminate_zeros()
    return Y


@pytest.mark.parametrize("k", [1, 3, 16, 17, 32, 130, 151])
@pytest.mark.parametrize("binary", [True, False])
def test_spmm_equals_scipy(simd, k, binary):
    rng = np.random.default_rng(k)
    A = sp.random(131, 40, 0.1, format="csr", random_state=1, dtype=np.float32)
    A.data[:] = 1 if binary else rng.standard_normal(A.nnz)
    B = rng.standard_normal((40, k)).astype(np.float32)
    stored = np.empty(0, np.float32) if binary else A.data
    matrix = (A.indptr.astype(np.int64), A.indices.astype(np.int32), stored, A.shape)
    got = _core.spmm(matrix, B, 1)
    np.testing.assert_allclose(got, A.astype(np.float64) @ B.astype(np.float64), rtol=1e-5, atol=1e-5)
    again = _core.spmm(matrix, B, 3)
    assert np.array_equal(got, again)


def subspace_error(V, W):
    """The sine of the largest angle between the columns' spans."""
    cosine = np.linalg.svd(V.T.astype(np.float64) @ W.astype(np.float64), compute_uv=False).min()
    return np.sqrt(max(0.0, 1 - cosine**2))


@pytest.mark.parametrize(("n", "n_labels"), [(3000, 1500), (900, 2000)])
def test_svd_equals_svds(n, n_labels):
    Y = label_matrix(n, n_labels)
    c = 20
    U, s, Vt = svds(Y, c, random_state=0)
    order = np.argsort(-s)
    U, s, Vt = U[:, order], s[order], Vt[order]
    got = truncated_svd(Y, c)
    assert got.Z.shape == (n, c)
    assert got.V.shape == (n_labels, c)
    np.testing.assert_allclose(got.singular_values, s, rtol=1e-5)
    assert subspace_error(got.V, Vt.T) < 0.02
    np.testing.assert_allclose(got.Z, Y @ got.V, atol=1e-4)
    np.testing.assert_allclose(got.Z @ got.Z[:50].T, (U * s) @ (U[:50] * s).T, atol=2e-3)
    power = truncated_svd(Y, c, max_iter=1, degree=1)  # randomised SVD without the filter is far off
    assert subspace_error(power.V, Vt.T) > 2 * subspace_error(got.V, Vt.T)


def test_svd_is_the_same_for_any_threads_and_close_for_any_blocks():
    Y = label_matrix(2500, 1300)
    a = truncated_svd(Y, 10)
    b = truncated_svd(Y, 10, n_jobs=3)
    assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    c = truncated_svd(Y, 10, block_rows=777)
    np.testing.assert_allclose(c.singular_values, a.singular_values, rtol=1e-5)
    np.testing.assert_allclose(np.abs(c.Z[:, :4]), np.abs(a.Z[:, :4]), atol=1e-2)
    d = truncated_svd(Y, 10, random_state=5)
    np.testing.assert_allclose(d.singular_values, a.singular_values, rtol=1e-5)


@pytest.mark.parametrize("n_components", [2, 3, 50])
def test_svd_of_low_rank(n_components):
    Y = np.tile(np.array([[1, 1, 0, 0], [0, 0, 1, 0]]), (20, 1))  # rank 2, duplicate rows
    got = truncated_svd(Y, n_components)
    assert got.Z.shape == (40, 2)
    np.testing.assert_allclose(got.Z @ got.Z.T, Y @ Y.T, atol=1e-5)
    wide = truncated_svd(Y.T, n_components)
    np.testing.assert_allclose(wide.Z @ wide.V.T, Y.T, atol=1e-5)


def test_svd_of_low_rank_above_the_exact_size():
    base = label_matrix(60, 2000, seed=3)
    Y = sp.vstack([base] * 40).tocsr()  # (2400, 2000), rank at most 60
    got = truncated_svd(Y, 100)
    assert got.Z.shape[1] <= 60
    np.testing.assert_allclose((got.Z @ got.V.T)[:60], base.toarray(), atol=1e-3)


@pytest.mark.parametrize("shape", [(5, 1), (1, 5), (4, 3)])
def test_svd_without_labels(shape):
    got = truncated_svd(sp.csr_matrix(shape), 3)
    assert got.Z.shape == (shape[0], 1)
    assert not got.Z.any()


@pytest.mark.parametrize("label_scaling", ["none", "length", "sum"])
@pytest.mark.parametrize(("n", "n_labels"), [(400, 60), (900, 2000), (3000, 1500)])
def test_svd_of_scaled_rows(n, n_labels, label_scaling):
    """Exact, wide and iterated: the SVD of the rows as the reference scales them; rows without labels stay zero."""
    Y = label_matrix(n, n_labels)
    scaled = reference.scaled(Y.toarray(), label_scaling)
    got = truncated_svd(Y, 20, label_scaling=label_scaling)
    s = np.linalg.svd(scaled, compute_uv=False)[:20]
    np.testing.assert_allclose(got.singular_values, s, rtol=1e-4)
    np.testing.assert_allclose(got.Z, scaled @ got.V, atol=1e-4)
    np.testing.assert_allclose(got.Z[np.diff(Y.indptr) == 0], 0, atol=1e-5)


def test_neighbour_pairs_equal_reference():
    Y = label_matrix(80, 30)
    got = neighbour_pairs(Y, 5, block_rows=33)
    omega = reference.near(Y.toarray(), 5)
    assert np.array_equal(got.toarray() > 0, omega)
    np.testing.assert_array_equal(got.toarray()[omega], (Y @ Y.T).toarray()[omega])


@pytest.mark.parametrize("label_scaling", ["length", "sum"])
def test_neighbour_pairs_of_scaled_rows(label_scaling):
    Y = label_matrix(80, 30)
    got = neighbour_pairs(Y, 5, label_scaling=label_scaling, block_rows=33).toarray()
    scaled = reference.scaled(Y.toarray(), label_scaling)
    similar = scaled @ scaled.T
    found = got > 0
    np.testing.assert_allclose(got[found], similar[found], rtol=1e-6)
    assert np.array_equal(found, found.T)
    for i in range(80):  # ties may go either way in float32
        fifth = np.sort(similar[i])[-5]
        assert found[i, similar[i] > fifth + 1e-6].all()
    assert not np.array_equal(found, reference.near(Y.toarray(), 5))


def test_neighbour_embedding_of_scaled_rows():
    Y = label_matrix(150, 60)
    start = truncated_svd(Y, 8, label_scaling="length").Z
    Z, losses = neighbour_embedding(Y, start, neighbours=6, label_scaling="length", penalty=0.1)
    omega = neighbour_pairs(Y, 6, label_scaling="length").toarray() > 0
    scaled = reference.scaled(Y.toarray(), "length")
    expected = [reference.neighbour_loss(scaled, z, start, omega, 0.1) for z in (start, Z)]
    np.testing.assert_allclose([losses[0], losses[-1]], expected, rtol=1e-3)
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("penalty", [0.0, 0.1])
def test_neighbour_embedding_lowers_the_loss_it_states(penalty):
    Y = label_matrix(150, 60)
    dense = Y.toarray()
    start = truncated_svd(Y, 8).Z
    Z, losses = neighbour_embedding(Y, start, neighbours=6, penalty=penalty)
    assert Z.shape == start.shape
    assert all(b <= a for a, b in pairwise(losses))
    omega = reference.near(dense, 6)
    expected = [reference.neighbour_loss(dense, z, start, omega, penalty) for z in (start, Z)]
    np.testing.assert_allclose([losses[0], losses[-1]], expected, rtol=1e-3)
    assert losses[-1] < 0.9 * losses[0]


def test_neighbour_embedding_keeps_an_exact_start():
    Y = label_matrix(40, 10)
    start = truncated_svd(Y, 10).Z
    Z, losses = neighbour_embedding(Y, start)
    np.testing.assert_allclose(Z @ Z.T, (Y @ Y.T).toarray(), atol=1e-3)
    assert losses[-1] < 1e-3


@pytest.mark.parametrize("alpha", [0.1, 3.0])
def test_ridge_equals_reference(alpha):
    rng = np.random.default_rng(0)
    X = sp.random(200, 30, 0.2, format="csr", random_state=0)
    Z = rng.standard_normal((200, 70)) + 1
    got = ridge(X, Z, alpha=alpha, tol=1e-6)
    np.testing.assert_allclose(got, reference.ridge(X.toarray(), Z, alpha), atol=2e-4)
    assert np.array_equal(ridge(X, Z, alpha=alpha, tol=1e-6, n_jobs=3), got)
    assert not ridge(X, np.zeros((200, 2))).any()


def test_recovery_by_inner_product_and_cosine():
    Z = np.array([[3.0, 0.0], [0.5, 0.5], [0.0, 1.0]])
    Y = np.eye(3)
    z = np.array([[0.6, 0.4]])
    assert LabelRecovery(Z, Y, neighbours=1, similarity="inner").predict(z, 1).indices.tolist() == [0]
    assert LabelRecovery(Z, Y, neighbours=1, similarity="cosine").predict(z, 1).indices.tolist() == [1]
    zero = LabelRecovery(np.zeros((3, 2)), Y, neighbours=2).predict(z, 2)
    assert np.isfinite(zero.data).all()


def test_cosine_does_not_scale_up_rounding_noise():
    """A row whose labels the compression lost must not become a neighbour of all others."""
    Z = np.array([[1e-9, 0.0], [0.5, 0.5], [0.6, 0.4], [0.4, 0.6]])
    recovery = LabelRecovery(Z, np.eye(4), neighbours=1, similarity="cosine")
    assert 0 not in recovery.predict(np.array([[1.0, 0.3], [0.9, 0.2], [0.2, 0.7]]), 1).indices


def test_faiss_finds_nearly_the_same():
    pytest.importorskip("faiss")
    rng = np.random.default_rng(0)
    Z, Y = rng.standard_normal((5000, 8)), label_matrix(5000, 50)
    z = rng.standard_normal((40, 8))
    exact = LabelRecovery(Z, Y).predict(z, 3).toarray()
    near = LabelRecovery(Z, Y, search="faiss").predict(z, 3).toarray()
    assert (exact.argmax(1) == near.argmax(1)).mean() > 0.9


@pytest.mark.parametrize("compression", ["svd", "neighbour"])
@pytest.mark.parametrize("label_scaling", ["none", "length"])
def test_linear_model_save_load_predict(tmp_path, compression, label_scaling):
    rng = np.random.default_rng(0)
    Y = label_matrix(300, 40)
    X = sp.csr_matrix(Y @ rng.standard_normal((40, 60)))
    options = {"compression": compression, "label_scaling": label_scaling}
    model = LinearDeclare(30, alpha=0.01, neighbours=5, **options).fit(X, Y)
    top = model.predict(X, 3)
    assert top.shape == (300, 40)
    labelled = np.flatnonzero(np.diff(Y.indptr))
    first = top.indices[top.indptr[labelled]]
    assert np.asarray(Y[labelled, first]).mean() > 0.95
    model.save(tmp_path / "m")
    model.save(tmp_path / "m")  # again onto itself
    again = LinearDeclare.load(tmp_path / "m")
    assert again.get_params() == model.get_params()
    assert again.nbytes == model.nbytes
    other = again.predict(X, 3)
    assert np.array_equal(other.indices, top.indices)
    assert np.array_equal(other.data, top.data)


def test_linear_model_saved_before_label_scaling(tmp_path):
    """A folder without the field holds a model whose labels were not scaled."""
    Y = label_matrix(60, 12)
    model = LinearDeclare(6).fit(Y, Y)
    model.save(tmp_path / "m")
    path = tmp_path / "m" / "manifest.json"
    settings = json.loads(path.read_text())
    assert settings["params"].pop("label_scaling") == "none"
    path.write_text(json.dumps(settings))
    again = LinearDeclare.load(tmp_path / "m")
    assert again.label_scaling == "none"
    assert np.array_equal(again.predict(Y, 3).data, model.predict(Y, 3).data)


@pytest.mark.parametrize("n_labels", [1, 3])
def test_linear_model_on_degenerate_labels(n_labels):
    X = np.random.default_rng(0).standard_normal((30, 4))
    X[10:20] = X[:10]  # duplicate rows
    Y = np.zeros((30, n_labels))
    Y[:20, 0] = 1  # the last rows have no label
    top = LinearDeclare(5).fit(X, Y).predict(X, 2)
    assert top.shape == (30, n_labels)
    assert set(top.indices.tolist()) <= {0}
    assert np.isfinite(top.data).all()
    empty = LinearDeclare(5).fit(X, np.zeros((30, n_labels))).predict(X, 2)
    assert empty.nnz == 0


def test_linear_model_on_bibtex(data_dir):
    folder = data_dir("bibtex")
    train, test = (data.read_xmc(folder / f"{part}.txt.xz") for part in ("train", "test"))
    scale = [
        sp.diags(1 / np.sqrt(np.maximum(m.X.multiply(m.X).sum(1).A1, 1e-9))) @ m.X for m in (train, test)
    ]
    top = LinearDeclare(100).fit(scale[0], train.Y).predict(scale[1], 1)
    hits = np.asarray(test.Y[np.arange(test.Y.shape[0]), top.indices]).mean()
    assert hits > 0.61  # 62.4 in DECLARE's paper with a network


def test_errors():
    Y = np.eye(4)
    with pytest.raises(ValueError, match="n_components must be at least 1, got 0"):
        truncated_svd(Y, 0)
    with pytest.raises(ValueError, match='compression must be "svd" or "neighbour", got \'pca\''):
        declare.compress(Y, 2, compression="pca")
    with pytest.raises(ValueError, match='label_scaling must be "none", "length" or "sum", got \'l2\''):
        declare.compress(Y, 2, label_scaling="l2")
    with pytest.raises(ValueError, match='similarity must be "inner" or "cosine"'):
        LabelRecovery(Y, Y, similarity="euclid")
    with pytest.raises(ValueError, match="Y has 3 rows, expected 4"):
        LabelRecovery(Y, Y[:3])
    with pytest.raises(ValueError, match=r"Z must have shape \(4, c\), got \(3, 4\)"):
        ridge(Y, Y[:3])
    with pytest.raises(ValueError, match="start has 3 rows, Y has 4"):
        neighbour_embedding(Y, Y[:3])
    with pytest.raises(ValueError, match="X has 3 columns, expected 4"):
        LinearDeclare(2).fit(Y, Y).predict(Y[:, :3])


def test_loading_something_else(tmp_path):
    with pytest.raises(ValueError, match=r"manifest\.json: file is missing"):
        LinearDeclare.load(tmp_path)
    (tmp_path / "declare.json").write_text('{"format": "other"}')
    with pytest.raises(ValueError, match="linear_declare expected, got other"):
        LinearDeclare.load(tmp_path)
