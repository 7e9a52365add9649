"""Exact top-k prediction, merging, calibration."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from reference import predict as reference
from xmc_fast.data import read_xmc
from xmc_fast.model import Calibration, SparseModel, merge_topk, write_block, write_manifest
from xmc_fast.model._predict import build_layout


def weights_like_trained(labels, columns, rng, full=0.2):
    """Some columns nearly full, the others nearly empty, as one-vs-all training leaves them."""
    density = np.where(rng.random(columns) < full, 0.95, 0.02)
    W = rng.normal(size=(labels, columns)).astype(np.float32)
    W[rng.random(W.shape) >= density] = 0
    return W


def rows(n, columns, rng, density=0.2):
    X = rng.random((n, columns)).astype(np.float32)
    X[rng.random(X.shape) >= density] = 0
    if n:
        X[0] = 0  # an empty row
    return X


def assert_exact(top, S, k):
    """Same scores as the reference; same labels wherever scores differ by more than rounding."""
    ids, best = reference.top_k(S, k)
    k = ids.shape[1]
    assert top.shape == S.shape
    np.testing.assert_array_equal(np.diff(top.indptr), k)
    got, value = top.indices.reshape(-1, k), top.data.reshape(-1, k)
    tolerance = 2e-5 * max(1.0, np.abs(S).max(initial=0))
    np.testing.assert_allclose(value, best, rtol=0, atol=tolerance)
    np.testing.assert_allclose(value, np.take_along_axis(S, got, axis=1), rtol=0, atol=tolerance)
    assert all(len(set(row)) == k for row in got.tolist())
    assert np.all((np.diff(value, axis=1) < 0) | ((np.diff(value, axis=1) == 0) & (np.diff(got, axis=1) > 0)))
    clear = np.abs(np.diff(reference.top_k(S, k + 1)[1], axis=1)) > 2 * tolerance
    if clear.shape[1] == k:
        firm = clear & np.hstack([np.ones((len(S), 1), bool), clear[:, :-1]])
        assert np.array_equal(got[firm], ids[firm])


@pytest.mark.parametrize("labels", [1, 2, 63, 64, 65, 127, 129, 511, 512, 513, 1100])
def test_matches_the_reference(simd, labels):
    rng = np.random.default_rng(labels)
    W = weights_like_trained(labels, 41, rng)
    X = rows(37, 40, rng)
    for normalize, bias in [(False, None), (True, None), (True, 1.5)]:
        part = W if bias is not None else W[:, :40]
        model = SparseModel(sp.csr_matrix(part), bias=bias, normalize=normalize)
        S = reference.scores(part, X, bias=bias, normalize=normalize)
        for k in (1, 5, labels + 3):
            assert_exact(model.predict(sp.csr_matrix(X), k), S, k)


@pytest.mark.parametrize("full", [0.0, 0.5, 1.0])
def test_dense_and_sparse_columns(simd, full):
    """All columns of one kind, or mixed, give the same scores."""
    rng = np.random.default_rng(3)
    W = weights_like_trained(300, 50, rng, full)
    X = rows(20, 50, rng)
    assert_exact(SparseModel(sp.csr_matrix(W)).predict(X, 7), reference.scores(W, X), 7)


def test_empty_sizes():
    rng = np.random.default_rng(0)
    W = weights_like_trained(70, 9, rng)
    model = SparseModel(sp.csr_matrix(W))
    assert model.predict(np.zeros((0, 9)), 3).shape == (0, 70)
    assert model.predict(np.zeros((2, 9)), 0).nnz == 0
    top = model.predict(sp.csr_matrix((2, 9)), 3)  # all scores zero: the lowest ids
    np.testing.assert_array_equal(top.indices, [0, 1, 2, 0, 1, 2])
    np.testing.assert_array_equal(top.data, 0)
    for shape in [(0, 9), (3, 0), (0, 0)]:
        empty = SparseModel(sp.csr_matrix(shape, dtype=np.float32))
        assert empty.predict(np.zeros((2, shape[1])), 2).shape == (2, shape[0])
        assert empty.predict(np.zeros((2, shape[1])), 2).nnz == 2 * min(2, shape[0])


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_ties_and_missing(simd, kind):
    """Equal scores go by the lower label; a NaN weight of a damaged file ranks last, an infinite one works."""
    labels = 200
    W = np.zeros((labels, 40), np.float32)
    if kind == "dense":
        W[:, 0] = 1
    W[[7, 100], 0] = 2
    finite = [7, 100, 0, 1]
    W[3, 0], W[150, 0], W[151, 0] = 31, 32, 33
    model = SparseModel(sp.csr_matrix(W))
    weights = model.blocks[0].data
    for placeholder, value in ((31, np.nan), (32, np.inf), (33, -np.inf)):
        weights[weights == placeholder] = value
    x = np.zeros((1, 40))
    x[0, 0] = 1
    top = model.predict(x, labels)
    assert top.indices[:5].tolist() == [150, *finite]
    assert top.indices[-2:].tolist() == [151, 3]
    assert np.isnan(top.data[-1])
    np.testing.assert_array_equal(top.data[1:3], 2)
    few = model.predict(x, 4)  # by bounds, which such weights have not
    np.testing.assert_array_equal(few.indices, top.indices[:4])
    np.testing.assert_array_equal(few.data, top.data[:4])


def test_same_bits_for_any_threads_blocks_and_batches(simd):
    rng = np.random.default_rng(5)
    W = sp.csr_matrix(weights_like_trained(9000, 300, rng))
    X = sp.csr_matrix(rows(700, 300, rng, 0.1))
    expected = SparseModel(W).predict(X, 5, n_jobs=1)

    def same(other):
        assert other.indices.tobytes() == expected.indices.tobytes()
        assert other.data.tobytes() == expected.data.tobytes()

    for threads in (2, 3, 7):
        same(SparseModel(W).predict(X, 5, n_jobs=threads))
    same(SparseModel([W[:1], W[1:700], W[700:700], W[700:]]).predict(X, 5))
    same(sp.vstack([SparseModel(W).predict(X[i : i + 97], 5) for i in range(0, 700, 97)]).tocsr())
    assert build_layout(SparseModel(W).blocks, *W.shape, 1).arrays()["block"][0] < 9000
    postings = SparseModel(W)
    postings._layout = build_layout(postings.blocks, *W.shape, 1, min_density=2.0)
    postings = postings.predict(X, 5)
    np.testing.assert_allclose(postings.data, expected.data, atol=1e-4)


@pytest.mark.parametrize("proba", [False, True])
def test_weights_that_differ_in_their_last_bits_only(simd, proba):
    """Bounds cannot tell such labels apart, exact scores do: 600 of them for 500 rows, more than are kept."""
    rng = np.random.default_rng(12)
    W = np.tile(rng.normal(size=(1, 30)), (600, 1)).astype(np.float32)
    W[:, 3] += (rng.permutation(600) * 2e-6).astype(np.float32)
    X = rows(500, 30, rng, 0.9)
    X[:, 3] = 1
    model = SparseModel(sp.csr_matrix(W))
    if proba:
        model.calibration = Calibration(np.full(600, 2, np.float32), np.full(600, -1, np.float32), 2.0, -1.0)
    best = model.predict(X, 5, proba=proba)
    everything = model.predict(X, 600, proba=proba)  # k is large: no bounds
    for i in range(500):
        chosen = everything.indices[600 * i : 600 * i + 5]
        np.testing.assert_array_equal(best.indices[5 * i : 5 * i + 5], chosen)
        np.testing.assert_array_equal(best.data[5 * i : 5 * i + 5], everything.data[600 * i : 600 * i + 5])
    S = reference.scores(W, X)
    scores = np.take_along_axis(S, best.indices.reshape(-1, 5), axis=1)
    np.testing.assert_allclose(scores, -np.sort(-S, axis=1)[:, :5], rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", [1e-42, 1e-38, 1e-20, 1e18, 3e38])
def test_weights_of_any_size(simd, size):
    """Few of many labels, chosen by bounds, are those of the list of all, scored without bounds."""
    rng = np.random.default_rng(13)
    W = (rng.random((900, 20)) * size).astype(np.float32)
    W[rng.random(W.shape) < 0.3] *= -0.5
    X = rows(40, 20, rng, 0.5)
    model = SparseModel(sp.csr_matrix(W))
    few, everything = model.predict(X, 3), model.predict(X, 900)
    first = np.arange(40)[:, None] * 900 + np.arange(3)
    np.testing.assert_array_equal(few.indices, everything.indices[first].ravel())
    np.testing.assert_array_equal(few.data, everything.data[first].ravel())


@pytest.mark.parametrize("bias", [None, 1.0])
@pytest.mark.parametrize("signs", ["positive", "negative", "both"])
def test_bounds_hold(simd, signs, bias):
    """Few of many labels, chosen by bounds on rounded weights and values, are those of the list of all."""
    rng = np.random.default_rng(14)
    # Scores that differ by less than rounding to bytes does, outliers, a heavy column, labels of all sizes.
    columns = 700
    W = rng.normal(size=(1300, columns)) * np.exp(rng.normal(size=(1300, 1)))
    W[rng.random(W.shape) < 0.002] *= 30
    W -= W.mean(axis=1)[:, None]
    if bias is not None:
        W = np.hstack([W, 400 - 1e-3 * rng.random((1300, 1))])
    X = 1 + 0.002 * rng.normal(size=(100, columns))
    X *= {"positive": 1, "negative": -1, "both": np.where(np.arange(columns) % 2, 1, -1)}[signs]
    model = SparseModel(sp.csr_matrix(W.astype(np.float32)), bias=bias)
    layout = model.prepare()._layout.arrays()
    assert layout["outlier"].size > 3000
    assert layout["parts"][1] >= (bias is not None)  # heavy columns
    few, everything = model.predict(X, 6), model.predict(X, 1300)
    first = np.arange(100)[:, None] * 1300 + np.arange(6)
    np.testing.assert_array_equal(few.indices, everything.indices[first].ravel())
    np.testing.assert_array_equal(few.data, everything.data[first].ravel())


def labels_with_step_one(columns):
    """900 labels whose weights are rounded to integers, by what they have in 100 columns before the others."""
    W = np.zeros((900, 100 + columns), np.float32)
    W[:, :100] = 1
    for shift in (0, 1):
        W[np.arange(900), (np.arange(900) + shift) % 100] = 127
    return W


def best_by_bounds(W, X):
    model = SparseModel(sp.csr_matrix(W))
    layout = model.prepare()._layout.arrays()
    np.testing.assert_array_equal(layout["step"][:900], 1)
    return model.predict(np.hstack([np.zeros((1, 100)), X]), 1).indices.tolist()


def test_bound_of_rounded_weights_is_needed(simd):
    """The best label looks worse than all others by as much as rounding its weights and theirs can do."""
    n = 300
    W = labels_with_step_one(1 + n)
    W[:, 100], W[:, 101:] = -0.02 * n - 1, 10.51  # looks like 11
    W[899, 100], W[899, 101:] = 0, 10.49  # looks like 10
    W[896:899, 100] = -1e4  # alone in its tile
    assert best_by_bounds(W, np.ones((1, n + 1))) == [899]


@pytest.mark.parametrize("levels", [127, 255])
@pytest.mark.parametrize("sign", [1, -1])
def test_bound_of_rounded_values_is_needed(simd, levels, sign):
    """The same for rounding the row's values."""
    n = 100
    W = labels_with_step_one(2 + n)
    W[:, 100] = 1000  # heavy, hence exact
    W[:899, 100] += 200 * n * 100.49 / levels - 1
    W[896:899, 100] = -1e4  # the best one is alone in its tile
    W[:, 101] = 1  # dense; has the largest value
    W[:, 102:] = -100 * sign
    W[899, 102:] = 100 * sign
    X = np.full((1, n + 2), sign * 100.49 / levels)  # looks like 100 / levels
    X[0, :2] = 1
    assert best_by_bounds(W, X) == [899]


def labels_of_all_sizes(labels, columns, rng):
    """Sparse weights: a few labels have most columns, most labels have a few."""
    sizes = np.minimum(columns, 3 + (columns / (1 + np.arange(labels) / 50)).astype(int))
    order = rng.permutation(labels)
    picked = [rng.choice(columns, size, replace=False) for size in sizes[order]]
    ends = np.cumsum([0] + [len(p) for p in picked])
    data = rng.normal(size=ends[-1]).astype(np.float32)
    W = sp.csr_matrix((data, np.concatenate(picked), ends), shape=(labels, columns))
    W.sort_indices()
    return W


def test_blocks_of_labels_with_few_and_many_weights(simd):
    """Columns that are dense in one block, sparse or empty in another; rows in several groups."""
    rng = np.random.default_rng(6)
    W = labels_of_all_sizes(13000, 400, rng)
    X = rows(70, 400, rng, 0.1)
    model = SparseModel(W)
    layout = model.prepare()._layout.arrays()
    assert np.diff(W.indptr)[layout["label"]].tolist() == sorted(np.diff(W.indptr), reverse=True)
    kinds = np.sign(layout["entry"].reshape(-1, 400) + 1) + (layout["entry"].reshape(-1, 400) >= 0)
    assert len(kinds) == 4
    assert (kinds[0] == 2).sum() > (kinds[-1] == 2).sum()
    assert (kinds == -1).any()
    S = reference.scores(W.toarray(), X)
    few, everything = model.predict(X, 6), model.predict(X, 13000)
    assert_exact(few, S, 6)
    first = np.arange(70)[:, None] * 13000 + np.arange(6)
    np.testing.assert_array_equal(few.indices, everything.indices[first].ravel())
    np.testing.assert_array_equal(few.data, everything.data[first].ravel())
    np.testing.assert_allclose(np.sort(everything.data[:13000]), np.sort(S[0]), atol=1e-5)


@pytest.mark.parametrize("k", [5, 1000, 9000])
def test_ties_across_blocks(simd, k):
    """The lower label wins although its block comes last."""
    W = np.zeros((9000, 30), np.float32)
    W[:, 0] = 1
    for label in range(9000):
        W[label, 1 : 1 + label // 500] = 1
    X = np.zeros((3, 30))
    X[:, 0] = 0.5
    top = SparseModel(sp.csr_matrix(W)).predict(X, k)
    np.testing.assert_array_equal(top.indices.reshape(3, -1), [np.arange(k)] * 3)


def test_calibration_follows_the_labels(simd):
    """Scales and shifts are those of the labels, wherever the layout puts them."""
    rng = np.random.default_rng(8)
    W = labels_of_all_sizes(300, 60, rng)
    X = rows(20, 60, rng, 0.3)
    model = SparseModel(W)
    scale = rng.uniform(0.5, 2, 300).astype(np.float32)
    shift = rng.normal(size=300).astype(np.float32)
    model.calibration = Calibration(scale, shift, 1.0, 0.0)
    P = 1 / (1 + np.exp(-(reference.scores(W.toarray(), X) * scale + shift)))
    for k in (3, 300):
        top = model.predict(X, k, proba=True)
        np.testing.assert_allclose(top.data.reshape(20, k), -np.sort(-P, axis=1)[:, :k], atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_mapped_models_predict_the_same(tmp_path, dtype):
    rng = np.random.default_rng(7)
    W = sp.csr_matrix(weights_like_trained(600, 80, rng))
    X = rows(30, 79, rng)
    model = SparseModel(W, bias=1.0, normalize=True).astype(dtype)
    expected = model.predict(X, 5)
    model.save(tmp_path / "m")
    for mmap in (False, True):
        top = SparseModel.load(tmp_path / "m", mmap=mmap).predict(X, 5)
        assert top.indices.tobytes() == expected.indices.tobytes()
        assert top.data.tobytes() == expected.data.tobytes()
    # folders of earlier versions hold blocks, and perhaps a prediction layout, which is not looked at
    for index, block in enumerate(model.blocks):
        write_block(tmp_path / "old", index, block.first_label, block)
    (tmp_path / "old" / "layout.safetensors").write_bytes(b"anything")
    write_manifest(tmp_path / "old", bias=1.0, normalize=True, files={"layout": "layout.safetensors"})
    assert SparseModel.load(tmp_path / "old").predict(X, 5).data.tobytes() == expected.data.tobytes()


def test_predict_one_agrees(simd):
    rng = np.random.default_rng(8)
    W = sp.csr_matrix(weights_like_trained(300, 60, rng))
    X = sp.csr_matrix(rows(10, 59, rng))
    model = SparseModel(W, bias=0.5, normalize=True)
    top = model.predict(X, 4)
    for i in range(10):
        row = X[i]
        for x in (row, row.toarray()[0], (row.indices, row.data)):
            ids, values = model.predict_one(x, 4)
            np.testing.assert_array_equal(ids, top.indices[4 * i : 4 * i + 4])
            np.testing.assert_array_equal(values, top.data[4 * i : 4 * i + 4])
    with pytest.raises(ValueError, match="ascending"):
        model.predict_one(([3, 3], [1.0, 1.0]), 1)
    with pytest.raises(ValueError, match="ascending"):
        model.predict_one(([59], [1.0]), 1)
    with pytest.raises(ValueError, match="one row"):
        model.predict_one(X, 1)


def test_input_errors():
    model = SparseModel(sp.csr_matrix((3, 4), dtype=np.float32))
    with pytest.raises(ValueError, match="X has 5 columns, expected 4"):
        model.predict(np.zeros((1, 5)), 1)
    with pytest.raises(ValueError, match="k must be at least 0"):
        model.predict(np.zeros((1, 4)), -1)
    with pytest.raises(ValueError, match="calibrate"):
        model.predict(np.zeros((1, 4)), 1, proba=True)


def test_merge_of_shards_is_the_whole():
    rng = np.random.default_rng(9)
    W = sp.csr_matrix(weights_like_trained(500, 40, rng, 1.0))
    X = rows(300, 40, rng)
    whole = SparseModel(W).predict(X, 6)
    shards = [SparseModel(part).predict(X, 6) for part in (W[:3], W[3:200], W[200:])]
    for threads in (1, 2):
        merged = merge_topk(shards, 6, first_labels=[0, 3, 200], n_jobs=threads)
        np.testing.assert_array_equal(merged.indptr, whole.indptr)
        np.testing.assert_array_equal(merged.indices, whole.indices)
        # A shard's columns may be dense where the whole's are sparse: same sums in another order.
        np.testing.assert_allclose(merged.data, whole.data, rtol=1e-5)


def test_merge_of_an_ensemble_adds_up():
    rng = np.random.default_rng(10)
    A, B = (sp.random(50, 30, 0.3, "csr", np.float32, random_state=rng) for _ in range(2))
    merged = merge_topk([A, B], 4)
    total = (A + B).tocsr()
    for i in range(50):
        ids, values = total[i].indices, total[i].data
        order = np.lexsort((ids, -values))[:4]
        lo, hi = merged.indptr[i], merged.indptr[i + 1]
        np.testing.assert_array_equal(merged.indices[lo:hi], ids[order])
        np.testing.assert_array_equal(merged.data[lo:hi], values[order])
    with pytest.raises(ValueError, match="rows"):
        merge_topk([A, B[:3]], 4)
    with pytest.raises(ValueError, match="first_labels"):
        merge_topk([A, B[:, :3]], 4)


# Calibration


def log_loss(p, y):
    p = np.clip(p, 1e-7, 1 - 1e-7)
    return float(-np.mean(np.where(y, np.log(p), np.log(1 - p))))


def calibration_error(p, y, bins=15):
    """Expected calibration error over equal-width bins."""
    place = np.minimum((p * bins).astype(int), bins - 1)
    return sum(abs(p[place == b].sum() - y[place == b].sum()) for b in range(bins)) / len(p)


def test_calibration_on_real_data(data_dir, tmp_path):
    """Probabilities fitted on one half of the test rows are better on the other half than raw sigmoids."""
    X, Y = read_xmc(data_dir("stackex-cs") / "train.txt.xz")
    Xt, Yt = read_xmc(data_dir("stackex-cs") / "test.txt.xz")
    from sklearn.linear_model import Ridge

    W = Ridge(alpha=3.0, fit_intercept=False).fit(X, Y.toarray() * 2 - 1).coef_
    model = SparseModel(sp.csr_matrix(W.astype(np.float32)))
    half = Xt.shape[0] // 2
    model.calibrate(Xt[:half], Yt[:half])
    top = model.predict(Xt[half:], 20)
    y = np.asarray(Yt[half:].toarray(), bool)[np.repeat(np.arange(top.shape[0]), 20), top.indices]
    p = model.predict(Xt[half:], 20, proba=True)
    y_p = np.asarray(Yt[half:].toarray(), bool)[np.repeat(np.arange(p.shape[0]), 20), p.indices]
    raw = 1 / (1 + np.exp(-top.data))
    assert log_loss(p.data, y_p) < 0.5 * log_loss(raw, y)
    assert calibration_error(p.data, y_p) < 0.03
    assert calibration_error(raw, y) > 0.1
    # The per-label part helps over the global pair alone.
    common = SparseModel(model.blocks).calibrate(Xt[:half], Yt[:half], min_positives=10**9)
    q = common.predict(Xt[half:], 20, proba=True)
    y_q = np.asarray(Yt[half:].toarray(), bool)[np.repeat(np.arange(q.shape[0]), 20), q.indices]
    assert log_loss(p.data, y_p) < log_loss(q.data, y_q) + 1e-3
    np.testing.assert_array_equal(q.indices, top.indices)  # one common monotone map keeps the order
    model.save(tmp_path / "m")
    loaded = SparseModel.load(tmp_path / "m").predict(Xt[half:], 20, proba=True)
    assert loaded.data.tobytes() == p.data.tobytes()


def test_calibrated_ranking_is_by_probability(simd):
    rng = np.random.default_rng(11)
    W = sp.csr_matrix(weights_like_trained(200, 50, rng))
    X = rows(400, 50, rng)
    S = reference.scores(W.toarray(), X)
    Y = sp.csr_matrix(rng.random(S.shape) < 1 / (1 + np.exp(-(2 * S - 1 + 2 * np.sin(np.arange(200))))))
    model = SparseModel(W).calibrate(X, Y, candidates=200, prior_strength=5)
    c = model.calibration
    P = 1 / (1 + np.exp(-(S * c.scale + c.shift)))
    top = model.predict(X, 5, proba=True)
    np.testing.assert_allclose(top.data.reshape(-1, 5), reference.top_k(P, 5)[1], atol=1e-5)
    assert np.all(c.scale > 0)
    assert abs(np.median(c.scale) - 2) < 0.3
    assert np.corrcoef(c.shift, -1 + 2 * np.sin(np.arange(200)))[0, 1] > 0.95


def test_own_probabilities_need_many_rows():
    """A label of another scale gets it with a thousand rows; with ten it stays near the common one."""
    rng = np.random.default_rng(12)
    shifts = {}
    for n in (10, 1000):
        scores = rng.normal(size=(n, 2)) - 1
        Y = sp.csr_matrix(rng.random((n, 2)) < 1 / (1 + np.exp(-(2 * scores + [0, 2]))))
        model = SparseModel(sp.csr_matrix(np.eye(2, dtype=np.float32)))
        c = model.calibrate(scores.astype(np.float32), Y, min_positives=1, prior_strength=100).calibration
        shifts[n] = c.shift[1] - c.global_shift
    assert abs(shifts[10]) < 0.1 < 0.4 < shifts[1000] < 1.2


def test_calibration_errors():
    model = SparseModel(sp.csr_matrix(np.eye(3, dtype=np.float32)))
    with pytest.raises(ValueError, match="relevant and irrelevant"):
        model.calibrate(np.eye(3), np.zeros((3, 3)))
    with pytest.raises(ValueError, match="X has 3 rows, Y has 2"):
        model.calibrate(np.eye(3), np.eye(3)[:2])
