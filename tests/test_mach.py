"""csrc/mach and xmc_fast.mach: hashing, aggregation, the estimator."""

from __future__ import annotations

import itertools
import json
import lzma

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import BaseEstimator

from reference import mach as reference
from xmc_fast import Mach, data, mach
from xmc_fast.engine import connect
from xmc_fast.mach import _estimator
from xmc_fast.model import SparseModel

AGGREGATES = ["mean", "unbiased", "min", "median"]


class Ridge(BaseEstimator):
    """A stand-in base: least squares onto ±1, kept as a SparseModel."""

    def __init__(self, alpha=1e-2):
        self.alpha = alpha

    def fit(self, X, Y):
        x = np.asarray(sp.csr_matrix(X).toarray(), np.float64)
        x = np.hstack([x, np.ones((len(x), 1))])
        target = 2 * sp.csr_matrix(Y).toarray() - 1
        W = np.linalg.solve(x.T @ x + self.alpha * np.eye(x.shape[1]), x.T @ target).T
        self.model_ = SparseModel(sp.csr_matrix(W.astype(np.float32)), bias=1.0)
        return self


class Scores(BaseEstimator):
    """A base without a SparseModel: hot buckets of memorised rows."""

    def fit(self, X, Y):
        self.Y_ = sp.csr_matrix(Y)
        return self

    def decision_function(self, X):
        return 20 * self.Y_.toarray() - 10


def random_labels(n, n_labels, per_row, seed=0):
    rng = np.random.default_rng(seed)
    rows = np.repeat(np.arange(n), per_row)
    Y = sp.csr_matrix((np.ones(len(rows)), (rows, rng.integers(n_labels, size=len(rows)))), (n, n_labels))
    Y.data[:] = 1
    return Y


@pytest.mark.parametrize("n_buckets", [1, 2, 1000, 65536])
@pytest.mark.parametrize("n_labels", [0, 1, 65_535, 65_537])
def test_table_equals_numpy(n_buckets, n_labels, simd):
    table = mach.bucket_table(n_labels, n_buckets, 3, random_state=7)
    np.testing.assert_array_equal(table, reference.bucket_table(n_labels, n_buckets, 3, 7))


def test_known_buckets():
    """Fixed for ever: stored models depend on them."""
    known = [[52, 89, 26, 63, 99, 36], [69, 43, 16, 90, 64, 38]]
    assert mach.bucket_table(6, 100, 2, random_state=1).tolist() == known


def test_hash_quality():
    """Over 50,000 hash functions: pairs share a bucket with probability 1/B, buckets are evenly used,
    repetitions independent."""
    B = 10
    tables = np.concatenate([mach.bucket_table(1000, B, 200, random_state=s)[:, ::333] for s in range(250)])
    n = len(tables)
    assert tables.shape == (50_000, 4)

    def near(rate, p):
        return abs(rate - p) < 5 * np.sqrt(p * (1 - p) / n)

    for i in range(4):
        assert all(near((tables[:, i] == b).mean(), 1 / B) for b in range(B))
        for j in range(i):
            assert near((tables[:, i] == tables[:, j]).mean(), 1 / B)
    both = (tables[0::2, 1] == 3) & (tables[1::2, 1] == 3)
    assert abs(both.mean() - 1 / B**2) < 5 * np.sqrt(0.01 * 0.99 * 2 / n)
    assert (
        mach.bucket_table(1000, B, 1, random_state=0) != mach.bucket_table(1000, B, 1, random_state=1)
    ).any()


@pytest.mark.parametrize("threads", [1, 3])
def test_bucket_matrix(threads, simd):
    Y = sp.vstack([random_labels(4_000, 500, per_row) for per_row in range(1, 12)]).tocsr()
    long, empty = sp.csr_matrix(np.r_[np.ones(100), np.zeros(400)]), sp.csr_matrix((1, 500))
    Y = sp.vstack([Y[:5], empty, long, Y[5:]]).tocsr()
    for repeat in (0, 3):
        M = mach.bucket_matrix(Y, 64, repeat, random_state=2, n_jobs=threads)
        table = reference.bucket_table(500, 64, 4, 2)[repeat]
        hashing = sp.csr_matrix((np.ones(500), (np.arange(500), table)), (500, 64))
        expected = (Y @ hashing) > 0
        assert M.has_canonical_format
        assert (expected != M).nnz == 0
        assert (M.data == 1).all()


def test_bucket_matrices():
    Y = random_labels(300, 70, 9)
    for B in (1, 3, 65536):
        for r, M in enumerate(mach.bucket_matrices(Y, B, 3, random_state=5)):
            alone = mach.bucket_matrix(Y, B, r, random_state=5)
            assert (alone != M).nnz == 0
            assert M.nnz == alone.nnz
            table = reference.bucket_table(70, B, 3, 5)[r]
            assert all(M[i].indices.tolist() == sorted(set(table[Y[i].indices])) for i in range(0, 300, 7))


def test_bucket_matrix_small():
    assert mach.bucket_matrix(sp.csr_matrix((0, 5)), 3, 0).shape == (0, 3)
    assert mach.bucket_matrix(sp.csr_matrix((4, 0)), 3, 0).nnz == 0


@pytest.mark.parametrize("aggregate", AGGREGATES)
@pytest.mark.parametrize(
    ("R", "n", "B", "n_labels"),
    [(1, 1, 1, 1), (3, 17, 7, 60), (4, 16, 50, 500), (9, 5, 33, 20_000), (3, 2, 900, 70_000)],
)
def test_topk_equals_reference(R, n, B, n_labels, aggregate, simd):
    rng = np.random.default_rng(R)
    table = mach.bucket_table(n_labels, B, R)
    for p in (rng.random((R, n, B)), rng.normal(0, 10, (R, n, B)), rng.random((R, n, B)) ** 12):
        p = p.astype(np.float32)
        for k in {1, min(5, n_labels), min(40, n_labels)}:
            ids, scores = mach.aggregate_topk(p, table, k, aggregate=aggregate)
            expected_ids, expected = reference.topk(p, table, k, aggregate)
            np.testing.assert_array_equal(scores, expected)
            np.testing.assert_array_equal(ids, expected_ids)


@pytest.mark.parametrize("n", [15, 16, 17, 63, 64, 65, 130])
def test_topk_tiles(n, simd):
    """Around the tile widths, for one thread (64 instances side by side) and for many (16)."""
    rng = np.random.default_rng(n)
    p = rng.gamma(0.1, size=(6, n, 37)).astype(np.float32)
    table = mach.bucket_table(3000, 37, 6)
    expected = reference.topk(p, table, 3, "mean")
    for jobs in (1, 9):
        ids, scores = mach.aggregate_topk(p, table, 3, n_jobs=jobs)
        np.testing.assert_array_equal(ids, expected[0])
        np.testing.assert_array_equal(scores, expected[1])


@pytest.mark.parametrize("aggregate", AGGREGATES)
@pytest.mark.parametrize("shift", [0, 1e3, -1e6])
def test_topk_far_from_zero(aggregate, shift):
    """Outputs whose differences are close to the rounding of their sums."""
    p = (shift + np.random.default_rng(0).random((5, 20, 40))).astype(np.float32)
    table = mach.bucket_table(2000, 40, 5)
    ids, scores = mach.aggregate_topk(p, table, 7, aggregate=aggregate)
    expected_ids, expected = reference.topk(p, table, 7, aggregate)
    np.testing.assert_array_equal(scores, expected)
    np.testing.assert_array_equal(ids, expected_ids)


def test_topk_ties_extremes_and_threads():
    table = mach.bucket_table(40_000, 10, 2)
    p = np.zeros((2, 33, 10), np.float32)
    ids, scores = mach.aggregate_topk(p, table, 4)
    assert (ids == np.arange(4)).all()
    assert (scores == 0).all()
    p = (1e30 * np.random.default_rng(0).normal(size=p.shape)).astype(np.float32)
    one = mach.aggregate_topk(p, table, 4, n_jobs=1)
    for jobs in (2, 5):
        other = mach.aggregate_topk(p, table, 4, n_jobs=jobs)
        assert all(a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True))
    np.testing.assert_array_equal(one[0], reference.topk(p, table, 4, "mean")[0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", [0, 18])
def test_topk_refuses_non_finite(bad, where):
    p = np.zeros((2, 3, 19), np.float32)
    p[1, 2, where] = bad
    with pytest.raises(ValueError, match="finite"):
        mach.aggregate_topk(p, mach.bucket_table(10, 19, 2), 1)


def test_candidates():
    rng = np.random.default_rng(0)
    p = (rng.random((6, 20, 40)) ** 6).astype(np.float32)
    table = mach.bucket_table(900, 40, 6)
    exact = mach.aggregate_topk(p, table, 5)
    everything = mach.aggregate_topk(p, table, 5, top_buckets=40)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(exact, everything, strict=True))
    some, scores = mach.aggregate_topk(p, table, 5, top_buckets=8)
    assert (some == exact[0]).mean() > 0.9
    few, few_scores = mach.aggregate_topk(p, table, 900, top_buckets=1)
    assert (few[:, -1] == -1).all()
    assert np.isneginf(few_scores[few == -1]).all()
    for i in range(20):  # exactly the labels of the six best buckets
        best = p[:, i].argmax(axis=1)
        assert set(few[i][few[i] >= 0]) == set(np.flatnonzero((table == best[:, None]).any(axis=0)))
    np.testing.assert_array_equal(
        scores, np.take_along_axis(reference.scores(p, table, "mean"), some, axis=1)
    )


def test_recovery_with_an_oracle():
    """Perfect buckets at the chosen (B, R): the labels of at least 99 % of the rows come back, all of them."""
    n_labels, per_row, n = 20_000, 5, 400
    choice = mach.choose_buckets(
        n_labels, 4 * 500 * 1000, bytes_per_bucket=1000, error=0.01, labels_per_row=per_row
    )
    Y = random_labels(n, n_labels, per_row)
    assert share_that_comes_back(Y, choice.n_buckets, choice.n_repeats) >= 0.99


def share_that_comes_back(Y, B, R):
    """Of rows whose m labels are the m best, if every bucket model is perfect."""
    X, sizes = np.zeros((Y.shape[0], 1)), np.diff(Y.indptr)
    found = Mach(B, R, base=Scores()).fit(X, Y).predict(X, k=sizes.max()).indices.reshape(len(sizes), -1)
    return np.mean([set(Y[i].indices) == set(found[i, :m]) for i, m in enumerate(sizes)])


@pytest.mark.parametrize(
    ("name", "part", "B", "R"),
    [("eurlex-4k", "test", 250, 8), ("eurlex57k", "test", 500, 8), ("tibkat-gnd", "dev", 1000, 8)],
)
def test_recovery_at_the_documented_settings(name, part, B, R, data_dir):
    """The settings of docs/experiments/mach.md, on labels of real rows."""
    folder = data_dir(name)
    if (folder / f"{part}_labels.txt.xz").exists():
        rows = data.read_lines(folder / f"{part}_labels.txt.xz")[:600]
        n_labels = len(data.read_lines(folder / "label_names.txt.xz"))
    else:
        with lzma.open(folder / f"{part}.txt.xz", "rt") as file:
            n_labels = int(file.readline().split()[2])
            rows = [line.split(" ", 1)[0].replace(",", " ") for line in itertools.islice(file, 600)]
    lists = [np.unique(np.array(row.split(), np.int32)) for row in rows if row.strip()]
    indptr = np.cumsum([0, *map(len, lists)])
    Y = sp.csr_matrix((np.ones(indptr[-1]), np.concatenate(lists), indptr), (len(lists), n_labels))
    assert share_that_comes_back(Y, B, R) >= 0.99
    assert share_that_comes_back(Y, B, 1) < 0.5  # one repetition cannot


def test_choose_and_error_bound():
    choice = mach.choose_buckets(10**6, 10**9, bytes_per_bucket=10**4, error=1e-3)
    assert choice.nbytes <= 10**9
    assert choice.error <= 1e-3
    assert choice.error == mach.error_bound(10**6, choice.n_buckets, choice.n_repeats, labels_per_row=5)
    if choice.n_repeats > 1:
        fewer = choice.n_repeats - 1
        assert mach.error_bound(10**6, min(10**5 // fewer, 65536), fewer, labels_per_row=5) > 1e-3
    errors = [mach.error_bound(10**6, 1000, r) for r in range(1, 8)]
    assert errors == sorted(errors, reverse=True)
    assert mach.error_bound(10, 1, 5) == 1
    with pytest.raises(ValueError, match="give more memory"):
        mach.choose_buckets(10**6, 10**4, bytes_per_bucket=10**4)


def blobs(n=300, n_labels=40, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(n_labels, size=n)
    y[:n_labels] = np.arange(n_labels)
    centres = rng.normal(size=(n_labels, 30))
    return (centres[y] + 0.1 * rng.normal(size=(n, 30))).astype(np.float32), y


@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_multiclass(aggregate):
    X, y = blobs()
    model = Mach(16, 9, base=Ridge(), aggregate=aggregate).fit(X, y)
    top = model.predict(X, k=3)
    assert top.shape == (300, 40)
    assert (np.diff(top.indptr) == 3).all()
    assert (top.indices[::3] == y).mean() > 0.9


def test_multilabel_and_logits():
    X, y = blobs()
    Y = sp.csr_matrix((np.ones(600), (np.tile(np.arange(300), 2), np.r_[y, (y + 1) % 40])), (300, 40))
    for outputs in ("probability", "logit"):
        top = Mach(20, 9, base=Ridge(), outputs=outputs).fit(X, Y).predict(sp.csr_matrix(X), k=2)
        hits = Y.multiply(top != 0).sum() if outputs == "probability" else None
        if hits is not None:
            assert hits / 600 > 0.7
        found = np.sort(top.indices.reshape(-1, 2), axis=1)
        assert (found == np.sort(Y.indices.reshape(-1, 2), axis=1)).mean() > 0.7


def test_predict_in_batches(monkeypatch):
    X, y = blobs()
    model = Mach(16, 5, base=Ridge()).fit(X, y)
    whole = model.predict(X)
    monkeypatch.setattr(_estimator, "_BATCH_BYTES", 4 * 5 * 16 * 64)
    parts = model.predict(X)
    assert whole.indices.tobytes() == parts.indices.tobytes()
    np.testing.assert_allclose(whole.data, parts.data, rtol=1e-6)
    assert model.predict(X[:0]).shape == (0, 40)
    assert model.predict(X, k=100).nnz == 300 * 40
    near = model.predict(X, k=1, top_buckets=3)
    assert (near.indices == whole.indices[::5]).mean() > 0.95


def test_save_and_load(tmp_path):
    X, y = blobs()
    model = Mach(16, 3, base=Ridge(), aggregate="median", random_state=4).fit(X, y)
    model.save(tmp_path / "m")
    loaded = Mach.load(tmp_path / "m")
    a, b = model.predict(X), loaded.predict(X)
    assert a.data.tobytes() == b.data.tobytes()
    assert a.indices.tobytes() == b.indices.tobytes()
    assert 0 < loaded.nbytes <= model.nbytes
    loaded.save(tmp_path / "m")  # over itself, while its files are mapped
    assert Mach.load(tmp_path / "m").predict(X).data.tobytes() == a.data.tobytes()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("x")
    with pytest.raises(ValueError, match="not overwritten"):
        model.save(tmp_path / "other")
    with pytest.raises(ValueError, match=r"manifest\.json: file is missing"):
        Mach.load(tmp_path)
    with pytest.raises(TypeError, match="cannot be stored"):
        Mach(16, 3, base=Scores()).fit(X, y).save(tmp_path / "s")


def test_compress(tmp_path):
    X, y = blobs()
    model = Mach(16, 5, base=Ridge()).fit(X, y)
    small = model.compress(keep_top=20, dtype="float16")
    for own, full in zip(small.models_, model.models_, strict=True):
        assert own.nnz == 16 * 21  # the bias stays
        assert own.dtype == np.float16
        assert full.nnz == 16 * 31
    assert small.nbytes < 0.6 * model.nbytes
    assert (small.predict(X, k=1).indices == y).mean() > 0.8
    small.save(tmp_path / "m")
    assert Mach.load(tmp_path / "m").predict(X).data.tobytes() == small.predict(X).data.tobytes()
    assert model.compress().predict(X).data.tobytes() == model.predict(X).data.tobytes()
    one_byte = model.compress(delta=0.01)
    assert one_byte.nbytes < 0.6 * model.nbytes
    rounded = [m.to_csr().toarray() for m in one_byte.models_]
    ones = np.hstack([X, np.ones((len(X), 1), np.float32)])
    for given, W in zip(one_byte.bucket_scores(X[:7]), rounded, strict=True):
        # The small form rounds a row's values to 1/32,767 of the largest.
        np.testing.assert_allclose(given, 1 / (1 + np.exp(-ones[:7] @ W.T)), atol=5e-5)
    assert (one_byte.predict(X, k=1).indices == y).mean() > 0.8
    one_byte.save(tmp_path / "small")
    assert Mach.load(tmp_path / "small").predict(X).data.tobytes() == one_byte.predict(X).data.tobytes()
    with pytest.raises(TypeError, match="compress needs models that are SparseModel, got Scores"):
        Mach(16, 3, base=Scores()).fit(X, y).compress()


def test_checkpoint_in_jobs(tmp_path):
    """Repetitions trained in separate jobs give the model of one fit; those there are not trained again."""
    X, y = blobs()
    whole = Mach(16, 3, base=Ridge()).fit(X, y)
    folder = tmp_path / "c"
    part = Mach(16, 3, base=Ridge()).fit(X, y, repeats=(1, 3), checkpoint=folder)
    with pytest.raises(ValueError, match="2 of 3 repetitions are here"):
        part.predict(X)
    with pytest.raises(ValueError, match="lacks 1 of 3 repetitions, first 0"):
        Mach.load(folder)
    stamp = (folder / "repeat_0001").stat().st_mtime_ns
    done = Mach(16, 3, base=Ridge()).fit(X, y, checkpoint=folder)
    assert (folder / "repeat_0001").stat().st_mtime_ns == stamp
    for model in (done, Mach.load(folder)):
        assert model.predict(X).data.tobytes() == whole.predict(X).data.tobytes()
    with pytest.raises(ValueError, match="random_state is 0 there, 1 here"):
        Mach(16, 3, base=Ridge(), random_state=1).fit(X, y, checkpoint=folder)
    assert json.loads((folder / "mach.json").read_text())["n_labels"] == 40
    X[0, 0] += 1
    with pytest.raises(ValueError, match="is of another fit: data is"):
        Mach(16, 3, base=Ridge()).fit(X, y, checkpoint=folder)


def test_errors():
    X, y = blobs()
    for kwargs, message in [
        ({"n_buckets": 0}, r"n_buckets must be in 1\.\.65536, got 0"),
        ({"n_repeats": 257}, r"n_repeats must be in 1\.\.256, got 257"),
        ({"aggregate": "mode"}, "aggregate must be one of mean, unbiased, min, median, got 'mode'"),
        ({"outputs": "x"}, "outputs must be one of probability, logit, softmax, got 'x'"),
        ({"aggregate": "unbiased", "outputs": "logit"}, "is for probabilities"),
    ]:
        with pytest.raises(ValueError, match=message):
            Mach(**{"base": Ridge(), **kwargs}).fit(X, y)
    with pytest.raises(ValueError, match="needs a checkpoint"):
        Mach(4, 2, base=Ridge()).fit(X, y, repeats=(0, 1))
    with pytest.raises(ValueError, match="class ids"):
        Mach(4, 2, base=Ridge()).fit(X, y.astype(float))
    model = Mach(4, 2, base=Ridge()).fit(X, y)
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        model.predict(X, k=0)
    with pytest.raises(ValueError, match="table has bucket"):
        mach.aggregate_topk(np.zeros((1, 1, 2), np.float32), np.full((1, 3), 2, np.uint16), 1)


def test_default_base_is_one_vs_all():
    pytest.importorskip("xmc_fast.linear")
    X, y = blobs()
    model = Mach(16, 4).fit(sp.csr_matrix(X), y)
    assert isinstance(model.models_[0], SparseModel)
    assert (model.predict(X, k=1).indices == y).mean() > 0.9


def test_plot():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    from xmc_fast.plots import accuracy_against_memory

    ax = accuracy_against_memory([(500, 8, 4e6, 0.7), (250, 8, 2e6, 0.6), (250, 4, 1e6, 0.5)])
    assert [line.get_xdata().tolist() for line in ax.get_lines()] == [[1, 2], [4]]
    assert len(ax.texts) == 3
    matplotlib.pyplot.close(ax.figure)


@pytest.mark.parametrize("dense", [False, True])
def test_an_engine_predicts_the_same_bytes(dense):
    Y = random_labels(700, 30, 2)
    X = sp.random(700, 20, 0.3, "csr", np.float32, random_state=0)
    X = X.toarray() if dense else X
    model = Mach(8, 3, base=Ridge(), n_jobs=1).fit(X, Y)
    workers = connect("threading")
    for options in ({}, {"top_buckets": 2}):
        here, there = model.predict(X, 4, **options), model.predict(X, 4, engine=workers, **options)
        assert here.shape == there.shape
        for part in ("indptr", "indices", "data"):
            np.testing.assert_array_equal(getattr(there, part), getattr(here, part))
    assert model.predict(X[:0], 4, engine=workers).shape == (0, 30)
