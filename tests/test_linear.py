"""OneVsAll: same optimum as the reference and LIBLINEAR, same bits for any threads, restart, edge cases."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from reference import linear as reference
from xmc_fast import OneVsAll, SparseModel
from xmc_fast.data import make_synthetic


def problem(n=200, D=40, L=37, seed=0, density=0.15):
    """Rows that share features with their labels; label 0 has no positives, label 1 has all."""
    rng = np.random.default_rng(seed)
    X = sp.random(n, D, density, format="csr", random_state=rng, data_rvs=lambda k: rng.random(k) + 0.1)
    V = rng.normal(size=(D, L))
    Y = (X @ V + 0.3 * rng.normal(size=(n, L)) > 1.2).astype(np.int64)
    Y[:, 0] = 0
    if L > 1:
        Y[:, 1] = 1
    return X.astype(np.float32), sp.csr_matrix(Y)


def rows_as_trained(X, normalize=True, bias=1.0):
    X = np.asarray(X.todense() if sp.issparse(X) else X, np.float64)
    if normalize:
        norms = np.linalg.norm(X, axis=1, keepdims=True)
        X = X / np.where(norms > 0, norms, 1)
    return X if bias is None else np.hstack([X, np.full((len(X), 1), bias)])


def signs(Y, label):
    return np.where(np.asarray(Y[:, [label]].todense()).ravel() > 0, 1.0, -1.0)


def same_model(a, b):
    A, B = a.to_csr(), b.to_csr()
    return all(np.array_equal(getattr(A, k), getattr(B, k)) for k in ("indptr", "indices", "data"))


@pytest.mark.parametrize("bias", [None, 1.0])
@pytest.mark.parametrize("dense", [False, True])
def test_optimum_of_the_reference(simd, dense, bias):
    X, Y = problem()
    model = OneVsAll(tol=1e-5, bias=bias, prune=0, n_jobs=1).fit(X.toarray() if dense else X, Y)
    W = model.model_.to_csr().toarray()
    A = rows_as_trained(X, bias=bias)
    for label in range(Y.shape[1]):
        s = signs(Y, label)
        expected = reference.solve(A, s)
        assert np.linalg.norm(W[label] - expected) <= 1e-3 * np.linalg.norm(expected) + 1e-6, label
        report = {k: v[label] for k, v in model.report_.items() if k != "placement"}
        assert report["objective"] == pytest.approx(
            reference.objective(W[label].astype(float), A, s), rel=1e-5
        )
        if label > 1:
            norm = np.linalg.norm(reference.gradient(W[label].astype(float), A, s))
            assert report["status"] == 0
            assert norm <= reference.stop_limit(A, s, 1e-5) * 1.05 + 1e-5
            slack = 1 - s * (A @ expected)
            assert abs(report["active_rows"] - np.sum(slack > 0)) <= np.sum(np.abs(slack) < 1e-3)
    assert model.report_["status"][:2].tolist() == [2, 2]


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize(("bias", "C"), [(0.03, 1.0), (30.0, 1.0), (-2.0, 1e-3), (1.0, 10.0)])
def test_optimum_with_any_bias_and_cost(bias, C, dense):
    """The bias's weight moves on its own (csrc/linear/bias.h): to the same optimum, in few rounds."""
    X, Y = problem(n=300, L=24, seed=3)
    Y = sp.hstack([Y, 1 - Y.toarray()[:, :8]]).tocsr()  # frequent labels too
    model = OneVsAll(C=C, tol=1e-4, bias=bias, normalize=False, prune=0, n_jobs=1)
    model.fit(X.toarray() if dense else X, Y)
    A = rows_as_trained(X, normalize=False, bias=bias)
    for label, w in enumerate(model.model_.to_csr().toarray().astype(float)):
        s = signs(Y, label)
        lowest = reference.objective(reference.solve(A, s, C), A, s, C)
        assert reference.objective(w, A, s, C) <= lowest * (1 + 1e-5) + 1e-7, label
    report = model.report_
    assert report["outer_iterations"][report["status"] == 0].max() <= 25


@pytest.mark.parametrize("C", [1.0, 100.0])
@pytest.mark.parametrize(("alike", "others"), [(3, 0), (200, 0), (200, 400)])
def test_rows_that_are_nearly_alike(simd, alike, others, C):
    """Among many others they look ahead, so their steps come one row late (dual_kernels.h, epoch)."""
    rng = np.random.default_rng(0)
    X = sp.block_diag([1 + 0.02 * rng.normal(size=(alike, 12)), sp.identity(others)]).tocsr()
    Y = np.zeros((alike + others, 6), bool)
    Y[:alike] = rng.random((alike, 6)) < rng.uniform(0.2, 0.5, 6)
    Y[0], Y[1] = True, False
    Y = sp.csr_matrix(Y)
    model = OneVsAll(C=C, bias=None, prune=0, n_jobs=1).fit(X, Y)
    A = rows_as_trained(X, bias=None)
    for label, w in enumerate(model.model_.to_csr().toarray().astype(float)):
        s = signs(Y, label)
        lowest = reference.objective(reference.solve(A, s, C), A, s, C)
        assert reference.objective(w, A, s, C) <= lowest * (1 + 1e-3), label
    assert np.all(model.report_["status"] == 0)


def rows_of_many_lengths(n=500, hot=400, seed=5):
    """Rows of 0 to 60 hot features and two rare ones each; a few rows of so many that ids need more than 16 bits."""
    rng = np.random.default_rng(seed)
    long_rows, width = 5, 13_500
    rows = [rng.choice(hot, size=i % 61, replace=False) for i in range(n)]
    first = hot + long_rows * width  # the rare features of the short rows come last, also by frequency
    rows = [np.append(row, first + 2 * i + np.arange(2)) for i, row in enumerate(rows)]
    rows += [hot + k * width + np.arange(width) for k in range(long_rows)]
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    data = rng.random(indptr[-1]).astype(np.float32) + 0.1
    X = sp.csr_matrix((data, np.concatenate(rows), indptr), shape=(n + long_rows, first + 2 * n))
    Y = X[:, :hot] @ rng.normal(size=(hot, 20)) + rng.normal(size=(n + long_rows, 20)) > 4
    return X, sp.csr_matrix(Y.astype(np.int8))


@pytest.mark.parametrize("bias", [None, 1.0])
def test_rows_of_any_length_and_many_features(simd, bias):
    """Dot products and steps walk through rows in blocks, two rows at a time."""
    X, Y = rows_of_many_lengths()
    model = OneVsAll(tol=1e-4, bias=bias, prune=0, max_iter=20, n_jobs=1).fit(X, Y)
    A = X.astype(np.float64)
    A = sp.diags(1 / np.sqrt(np.asarray(A.multiply(A).sum(axis=1)).ravel())) @ A
    A = sp.csr_matrix(A if bias is None else sp.hstack([A, np.full((A.shape[0], 1), bias)]))
    W = model.model_.to_csr().toarray().astype(np.float64)
    for label in range(Y.shape[1]):
        s = signs(Y, label)
        g0 = 2 * np.linalg.norm(A.T @ s)
        g = W[label] - 2 * (A.T @ (s * np.maximum(0, 1 - s * (A @ W[label]))))
        assert np.linalg.norm(g) <= 1.05e-4 * min(np.sum(s > 0), np.sum(s < 0)) / len(s) * g0 + 1e-5, label
    assert model.report_["status"].tolist() == [0] * Y.shape[1]
    # 21.6 and 30.3: epochs in random order; with all rows sorted by length twice as many
    assert model.report_["inner_iterations"].mean() < 40


def test_stopping_rule_holds_at_the_default_tol(simd):
    X, Y = problem(n=500, D=80, L=50, seed=1)
    model = OneVsAll(prune=0, n_jobs=1).fit(X, Y)
    A = rows_as_trained(X)
    for label, w in enumerate(model.model_.to_csr().toarray().astype(float)):
        s = signs(Y, label)
        norm = np.linalg.norm(reference.gradient(w, A, s))
        assert norm <= reference.stop_limit(A, s, 0.01) * 1.001
        if model.report_["status"][label] == 0:
            assert model.report_["gradient_norm"][label] == pytest.approx(norm, rel=1e-2, abs=1e-5)


@pytest.mark.parametrize("weight", [3.0, "balanced", "array"])
def test_positive_weight_is_the_cost_of_positives(weight):
    X, Y = problem(L=20, seed=2)
    n, L = Y.shape
    counts = np.asarray(Y.sum(axis=0)).ravel()
    cost = {
        3.0: np.full(L, 3.0),
        "balanced": (n - counts) / np.maximum(counts, 1),
        "array": np.linspace(0.2, 9, L),
    }[weight]
    given = cost.astype(np.float32) if weight == "array" else weight
    model = OneVsAll(C=0.7, tol=1e-5, prune=0, positive_weight=given).fit(X, Y)
    A = rows_as_trained(X)
    for label, w in enumerate(model.model_.to_csr().toarray()):
        s = signs(Y, label)
        if label == 1 and weight == "balanced":
            continue  # all positive: the cost is 0 over n
        expected = reference.solve(A, s, 0.7, np.where(s > 0, cost[label], 1.0))
        assert np.linalg.norm(w - expected) <= 2e-3 * np.linalg.norm(expected), label


@pytest.mark.parametrize("L", [1, 15, 16, 17, 255, 256, 257])
def test_label_counts_around_the_block_sizes(L):
    X, Y = problem(n=60, D=20, L=L, seed=3)
    model = OneVsAll(tol=1e-4, prune=0, block_labels=100).fit(X, Y)
    A = rows_as_trained(X)
    W = model.model_.to_csr().toarray()
    assert W.shape == (L, 21)
    for label in {0, L // 2, L - 1}:
        expected = reference.solve(A, signs(Y, label))
        assert np.linalg.norm(W[label] - expected) <= 3e-3 * np.linalg.norm(expected)


def test_same_bits_for_any_number_of_threads():
    X, Y = problem(n=300, D=50, L=700, seed=4)
    fits = [OneVsAll(block_labels=300, n_jobs=jobs).fit(X, Y) for jobs in (1, 2, 4)]
    assert same_model(fits[0].model_, fits[1].model_)
    assert same_model(fits[0].model_, fits[2].model_)
    assert np.array_equal(fits[0].report_["objective"], fits[2].report_["objective"])
    assert not same_model(fits[0].model_, OneVsAll(block_labels=300, random_state=1).fit(X, Y).model_)


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint8, np.int64, np.float32, np.float64])
def test_any_dtype_of_y_gives_the_same_model(dtype):
    X, Y = problem(L=300, seed=5, n=80)
    expected = OneVsAll().fit(X, Y).model_
    assert same_model(expected, OneVsAll().fit(X, Y.astype(dtype)).model_)
    assert same_model(expected, OneVsAll().fit(X, Y.toarray().astype(dtype)).model_)


def test_pruning():
    X, Y = problem(seed=6)
    full = OneVsAll(prune=0).fit(X, Y).model_.to_csr().toarray()
    pruned = OneVsAll(prune=0.1).fit(X, Y).model_.to_csr().toarray()
    assert np.array_equal(pruned, np.where(np.abs(full) >= np.float32(0.1), full, 0))
    top = OneVsAll(prune=0, keep_top=5).fit(X, Y).model_.to_csr()
    assert np.diff(top.indptr).max() == 5
    for label, row in enumerate(top.toarray()):
        kept = np.sort(np.abs(row[row != 0]))
        assert np.array_equal(kept, np.sort(np.abs(full[label]))[-5:])


def test_labels_of_one_class_get_the_constant_model():
    X, Y = problem(seed=7)
    model = OneVsAll(prune=0).fit(X, Y)
    scores = model.decision_function(X)
    assert scores[:, 0].max() < -0.9
    assert scores[:, 1].min() > 0.9
    assert model.report_["status"][:2].tolist() == [2, 2]
    assert model.report_["seconds"][:2].tolist() == [0, 0]


def test_no_positives_on_many_rows_end_where_rounding_does():
    """The limit of such a label falls with the rows, below what 32 bits can reach."""
    X = make_synthetic(5000, 135_909, 50_000, features_per_point=15, signal=0.6, random_state=0).X
    report = OneVsAll(prune=0).fit(X, sp.csr_matrix((5000, 1))).report_
    assert report["outer_iterations"][0] <= 8
    assert report["objective"][0] < 0.5  # that of the bias alone
    assert report["gradient_norm"][0] < 0.01


def test_partial_labels_are_the_same_bits():
    X, Y = problem(L=250, seed=8, n=80)
    whole = OneVsAll(block_labels=100).fit(X, Y)
    parts = [OneVsAll(block_labels=100).fit(X, Y, labels=r).model_ for r in ((0, 100), (100, 250))]
    assert same_model(whole.model_, SparseModel.concat(parts))
    with pytest.raises(ValueError, match=r"labels must be a range inside \(0, 250\), got \(100, 251\)"):
        OneVsAll().fit(X, Y, labels=(100, 251))


def test_empty_rows_empty_columns_one_row_duplicates():
    X = sp.csr_matrix(np.array([[0, 0, 0.0], [1, 0, 0], [0, 0, 2]]))
    Y = np.array([[1, 0], [1, 0], [0, 1]])
    model = OneVsAll(tol=1e-5, prune=0).fit(X, Y)
    A = rows_as_trained(X)
    for label, w in enumerate(model.model_.to_csr().toarray()):
        assert np.allclose(w, reference.solve(A, signs(sp.csr_matrix(Y), label)), atol=1e-4)
    assert model.report_["objective"].shape == (2,)
    one = OneVsAll().fit(sp.csr_matrix([[1.0, 2.0]]), np.array([[1, 0]]))
    assert one.predict(sp.csr_matrix([[1.0, 2.0]]), k=1).indices.tolist() == [0]
    nothing = OneVsAll(bias=None).fit(sp.csr_matrix((4, 3)), np.eye(4))
    assert nothing.model_.nnz == 0
    twice = sp.csr_matrix((np.array([0.5, 0.5]), np.array([0, 0]), np.array([0, 2, 2, 2])), shape=(3, 3))
    once = sp.csr_matrix((np.array([1.0]), np.array([0]), np.array([0, 1, 1, 1])), shape=(3, 3))
    assert same_model(OneVsAll().fit(twice, Y).model_, OneVsAll().fit(once, Y).model_)


@pytest.mark.parametrize("dense", [False, True])
def test_bad_input_is_refused(dense):
    X, Y = problem(n=20, L=3)
    given = X.toarray() if dense else X
    with pytest.raises(ValueError, match="Y has 19 rows, expected 20"):
        OneVsAll().fit(given, Y[:19])
    bad = X.toarray()
    bad[3, 7] = np.nan
    with pytest.raises(ValueError, match="X must be finite, got nan at row 3, column 7"):
        OneVsAll().fit(bad if dense else sp.csr_matrix(bad), Y)
    with pytest.raises(ValueError, match="Y must be binary"):
        OneVsAll().fit(given, Y * 2)
    with pytest.raises(ValueError, match="C must be a positive number, got -1"):
        OneVsAll(C=-1).fit(given, Y)
    with pytest.raises(ValueError, match=r"positive_weight has shape \(2,\), expected \(3,\)"):
        OneVsAll(positive_weight=[1.0, 2.0]).fit(given, Y)
    fitted = OneVsAll().fit(given, Y)
    with pytest.raises(ValueError, match="X has 39 columns, expected 40"):
        fitted.decision_function(given[:, :39])


def test_scores_and_top_k():
    X, Y = problem(L=12, seed=9)
    model = OneVsAll().fit(X, Y)
    scores = model.decision_function(X)
    expected = rows_as_trained(X) @ model.model_.to_csr().toarray().T
    assert np.allclose(scores, expected, atol=1e-4)
    assert np.allclose(model.decision_function(X.toarray()), expected, atol=1e-4)
    top = model.predict(X, k=3)
    assert top.shape == (200, 12)
    best = np.argsort(-expected, axis=1)[:, 0]
    assert np.mean(top.indices.reshape(-1, 3)[:, 0] == best) > 0.99
    hits = np.asarray(Y.todense())[np.arange(200), top.indices.reshape(-1, 3)[:, 0]]
    assert model.score(X, Y) == pytest.approx(hits.mean())


def test_scikit_learn_conventions():
    X, Y = problem(L=10, seed=10)
    model = OneVsAll(C=2.0, keep_top=7)
    assert clone(model).get_params() == model.get_params()
    assert model.set_params(C=3.0).C == 3.0
    pipeline = make_pipeline(FunctionTransformer(np.sqrt, accept_sparse=True), OneVsAll()).fit(X, Y)
    assert pipeline.predict(X).shape == (200, 10)
    search = GridSearchCV(OneVsAll(n_jobs=1), {"C": [0.01, 1.0]}, cv=2).fit(X, Y)
    assert search.best_params_["C"] in (0.01, 1.0)
    with pytest.raises(Exception, match="not fitted"):
        OneVsAll().predict(X)


def eurlex(data_dir, n_labels):
    """A sample of labels, head and tail, with the training rows of EURLex-4K."""
    import xmc_fast

    X, Y = xmc_fast.data.read_xmc(data_dir("eurlex-4k") / "train.txt.xz")[:2]
    counts = np.asarray(Y.sum(axis=0)).ravel()
    by_size = np.argsort(-counts, kind="stable")[: int(np.sum(counts > 0))]
    pick = by_size[np.linspace(0, len(by_size) - 1, n_labels).astype(int)]
    return X.tocsr()[:4000], Y.tocsr()[:4000][:, np.sort(pick)].tocsr()


def liblinear_weights(X, s, options):
    util = pytest.importorskip("liblinear.liblinearutil")
    model = util.train(util.problem(s, X), util.parameter(f"{options} -q"))
    w = np.array(model.w[: X.shape[1]])
    return w if model.label[0] == 1 else -w


def test_same_optimum_as_liblinear(data_dir):
    pytest.importorskip("liblinear")
    X, Y = eurlex(data_dir, 24)
    A = sp.csr_matrix(rows_as_trained(X))
    loose = OneVsAll(prune=0).fit(X, Y).model_.to_csr().toarray().astype(float)
    tight = OneVsAll(prune=0, tol=1e-4).fit(X, Y).model_.to_csr().toarray().astype(float)
    for label in range(Y.shape[1]):
        s = signs(Y, label)
        if np.all(s < 0):
            continue
        peer = reference.objective(liblinear_weights(A, s, "-s 2 -c 1 -e 0.01"), A, s)
        assert reference.objective(loose[label], A, s) <= peer * (1 + 1e-3)
        w = liblinear_weights(A, s, "-s 2 -c 1 -e 0.0001")
        assert np.linalg.norm(tight[label] - w) <= 1e-3 * np.linalg.norm(w)


def test_bias_and_scaling_are_those_of_prepared_rows():
    """The core's scaled rows and its own bias give the model of rows that were scaled before."""
    X, Y = problem()
    norms = np.sqrt(np.asarray(X.multiply(X).sum(1), np.float64).ravel())
    scaled = sp.csr_matrix(sp.diags(1 / np.where(norms > 0, norms, 1)) @ X, dtype=np.float32)
    a = OneVsAll(tol=1e-4, prune=0).fit(X, Y).model_.to_csr().toarray()
    b = OneVsAll(tol=1e-4, prune=0, normalize=False).fit(scaled, Y).model_.to_csr().toarray()
    np.testing.assert_allclose(a, b, atol=2e-3)


@pytest.mark.parametrize("solver", ["dual", "newton"])
def test_rows_without_features_are_rows(solver):
    Y = sp.csr_matrix(np.array([[1, 0], [0, 1], [1, 1]], np.float32))
    X = np.empty((3, 0), np.float32)
    dense, sparse = (
        OneVsAll(solver=solver, prune=0.0).fit(rows, Y).predict(X, k=2) for rows in (X, sp.csr_matrix(X))
    )
    assert np.allclose(dense.toarray(), 2 / 7)  # the minimum of b^2 / 2 + (2 (1 - b)^2 + (1 + b)^2)
    assert (dense != sparse).nnz == 0
