"""Text, JSON and npz readers, filters, statistics, synthetic data and their picture."""

from __future__ import annotations

import gzip
import json
import re

import numpy as np
import pytest
import scipy.sparse as sp

from xmc_fast import data


def write(path, text):
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def test_read_text(tmp_path):
    texts = write(tmp_path / "t.txt.gz", "Grüner Tee\n\nblack tea".encode())
    labels = write(tmp_path / "l.txt", b"3 1\n\n 2,0\t1 \r\n")
    found, Y = data.read_text(texts, labels)
    assert found == ["Grüner Tee", "", "black tea"]
    assert Y.toarray().tolist() == [[0, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 0]]
    assert Y.dtype == np.float32
    assert Y.has_sorted_indices
    assert data.read_text(texts, labels, n_labels=9).Y.shape == (3, 9)
    assert data.read_text(texts).Y is None


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (b"", {}, "l:1:1: the file is empty"),
        (b"0\n1 x\n2", {}, "l:2:3: label id expected (a whole number), got 'x'"),
        (b"0\n-1\n2", {}, "l:2:1: label id expected (a whole number), got '-1'"),
        (b"0\n1 1_0\n2", {}, "l:2:3: label id expected"),
        (b"0\n1 2\n3", {"n_labels": 3}, "l:3:1: label id out of range, expected 0..2, got '3'"),
        (b"1\n1 0\n3", {"one_based": True}, "l:2:3: label id out of range, expected 1.."),
        (b"0\n1 2 1\n3", {}, "l:2:5: repeated label, got '1'"),
        (b"0\n9999999999999999999999\n3", {}, "l:2:1: label id out of range"),
        (b"0\n1\n", {}, "has 3 lines, .*l has 2: expected the same"),
    ],
)
def test_read_text_errors(tmp_path, labels, options, message):
    texts = write(tmp_path / "t", b"a\nb\nc\n")
    pattern = message if ".*" in message else re.escape(message)
    with pytest.raises(ValueError, match=pattern):
        data.read_text(texts, write(tmp_path / "l", labels), **options)


def test_read_text_of_an_empty_file(tmp_path):
    with pytest.raises(ValueError, match="t:1:1: the file is empty"):
        data.read_text(write(tmp_path / "t", b""))


def test_read_npz(tmp_path):
    X = sp.random(6, 4, 0.5, format="coo", random_state=0)
    Y = sp.csc_matrix(np.eye(6, 3, dtype=np.int8))
    sp.save_npz(tmp_path / "x.npz", X)
    sp.save_npz(tmp_path / "y.npz", Y)
    A, B = data.read_npz(tmp_path / "x.npz", tmp_path / "y.npz")
    assert A.dtype == B.dtype == np.float32
    assert np.array_equal(A.toarray(), X.toarray().astype(np.float32))
    assert np.array_equal(B.toarray(), Y.toarray())
    sp.save_npz(tmp_path / "y.npz", Y[:5])
    with pytest.raises(ValueError, match=r"y\.npz has 5 rows, expected 6"):
        data.read_npz(tmp_path / "x.npz", tmp_path / "y.npz")
    for bad in (b"", b"PK\x03\x04 nonsense", b"hello"):
        (tmp_path / "x.npz").write_bytes(bad)
        with pytest.raises(ValueError, match=r"x\.npz: a matrix saved by scipy\.sparse\.save_npz expected"):
            data.read_npz(tmp_path / "x.npz", tmp_path / "y.npz")


def test_filters(tmp_path):
    path = write(tmp_path / "f.txt", b"0 2\n2 0\n0 2\n")
    drop = data.read_filter(path, n_points=3, n_labels=3)
    assert drop.toarray().tolist() == [[0, 0, 1], [0, 0, 0], [1, 0, 0]]
    scores = sp.csr_matrix((3, 3), dtype=np.float32)  # best first, an explicit zero
    scores.indptr = np.array([0, 3, 5, 6], np.int32)
    scores.indices = np.array([2, 0, 1, 1, 0, 0], np.int32)
    scores.data = np.array([3, 2, 0, 5, 4, 1], np.float32)
    left = data.filter_labels(scores, drop)
    assert left.indptr.tolist() == [0, 2, 4, 4]
    assert left.indices.tolist() == [0, 1, 1, 0]
    assert left.data.tolist() == [2, 0, 5, 4]
    with pytest.raises(ValueError, match=r"pairs has shape \(3, 3\), expected that of M, \(2, 3\)"):
        data.filter_labels(scores[:2], drop)
    for text, message in [
        (b"0 2\n0\n", "f.txt:2:1: 2 ids per line expected, got '0'"),
        (b"0 1 2\n", "f.txt:1:5: 2 ids per line expected, got '2' after them"),
        (b"0 3\n", "f.txt:1:3: label id out of range, expected 0..2, got '3'"),
        (b"3 0\n", "f.txt:1:1: point id out of range, expected 0..2, got '3'"),
    ]:
        with pytest.raises(ValueError, match=re.escape(message)):
            data.read_filter(write(path, text), n_points=3, n_labels=3)
    assert data.read_filter(write(path, b""), n_points=3, n_labels=3).nnz == 0
    assert data.reciprocal_pairs([], ["a"]).shape == (0, 1)


def test_describe_the_demo():
    demo = data.load_demo()
    s = data.describe(demo.X_train, demo.Y_train)
    assert (s.points, s.features, s.labels, s.labels_used) == (8393, 577, 400, 400)
    assert round(s.labels_per_point, 2) == 2.22
    assert (s.labels_per_point_median, s.labels_per_point_max) == (2, 5)
    assert round(s.points_per_label, 2) == 46.63
    assert (s.points_per_label_median, s.points_per_label_max) == (22, 781)
    assert (s.points_without_labels, s.points_without_features) == (111, 3)
    assert round(s.features_per_point, 1) == 16.0
    assert s.tail_share == 0
    assert json.loads(json.dumps(s.to_dict()))["points"] == 8393
    assert "labels per point" in str(s)


def test_describe_tail_and_head():
    Y = sp.csr_matrix(np.arange(200)[:, None] < np.array([200] * 2 + [5] * 99 + [6] * 98 + [0]))
    s = data.describe(np.ones((200, 1)), Y)
    assert s.labels_used == 199
    assert s.tail_share == 99 / 199
    assert s.head_share == 400 / (400 + 5 * 99 + 6 * 98)


def test_describe_nothing():
    s = data.describe(sp.csr_matrix((0, 3)), sp.csr_matrix((0, 0)))
    assert (s.points, s.labels, s.power_law_beta, s.labels_per_point) == (0, 0, 0, 0)


def test_synthetic_is_seeded_and_thread_free():
    make = {"n": 3000, "d": 400, "labels": 50, "random_state": 3}
    X, Y = data.make_synthetic(**make, n_jobs=1)
    for jobs in (2, 5):
        A, B = data.make_synthetic(**make, n_jobs=jobs)
        assert X.data.tobytes() == A.data.tobytes()
        assert X.indices.tobytes() == A.indices.tobytes()
        assert Y.indices.tobytes() == B.indices.tobytes()
        assert Y.indptr.tobytes() == B.indptr.tobytes()
    A, B = data.make_synthetic(**{**make, "n": 100})
    assert abs(A - X[:100]).nnz == 0
    assert abs(B - Y[:100]).nnz == 0
    assert abs(data.make_synthetic(**{**make, "random_state": 4}).X - X).nnz > 0
    assert X.has_canonical_format
    assert Y.has_canonical_format
    assert np.allclose(np.sqrt(X.multiply(X).sum(1)), 1, atol=1e-5)


def test_synthetic_follows_its_options():
    X, Y = data.make_synthetic(20_000, 5000, 1000, features_per_point=40, labels_per_point=3, beta=0.8)
    s = data.describe(X, Y)
    assert abs(s.power_law_beta - 0.8) < 0.05
    assert abs(s.labels_per_point - 3) < 0.1
    assert 30 < s.features_per_point < 40


def test_synthetic_can_be_learnt():
    X, Y = data.make_synthetic(6000, 2000, 500, random_state=1)
    train, test = slice(0, 5000), slice(5000, 6000)
    C = sp.csr_matrix(Y[train].T @ X[train])
    C = sp.diags(1 / np.maximum(1e-9, np.sqrt(C.multiply(C).sum(1)).A1)) @ C
    best = np.asarray((X[test] @ C.T).argmax(axis=1)).ravel()
    popular = Y[train].sum(0).argmax()
    precision = Y[test][np.arange(1000), best].mean()
    assert precision > 0.8
    assert precision > 2 * Y[test][:, popular].mean()
    noise = data.make_synthetic(6000, 2000, 500, random_state=1, signal=0.0).X
    C = sp.csr_matrix(Y[train].T @ noise[train])
    C = sp.diags(1 / np.maximum(1e-9, np.sqrt(C.multiply(C).sum(1)).A1)) @ C
    assert Y[test][np.arange(1000), np.asarray((noise[test] @ C.T).argmax(axis=1)).ravel()].mean() < 0.4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": -1}, "n must be in 0"),
        ({"d": 0}, "d must be in 1"),
        ({"labels": 0}, "labels must be in 1"),
        ({"labels_per_point": 0.5}, "labels_per_point >= 1"),
        ({"signal": 1.5}, "signal in"),
        ({"beta": -1}, "beta >= 0"),
    ],
)
def test_synthetic_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        data.make_synthetic(**{"n": 10, "d": 10, "labels": 10, **options})


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0, 1.7])
def test_synthetic_edges(beta):
    X, Y = data.make_synthetic(0, 5, 5, beta=beta)
    assert X.shape == Y.shape == (0, 5)
    X, Y = data.make_synthetic(1025, 1, 1, beta=beta, labels_per_point=9)
    assert Y.nnz == 1025
    assert X.nnz == 1025


def test_label_distribution():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    from matplotlib.figure import Figure

    from xmc_fast import plots

    counts = np.array([100, 50, 25, 0])
    Y = np.arange(100)[:, None] < counts
    ax = Figure().add_subplot()
    assert plots.label_distribution(Y, ax) is ax
    drawn, fitted = ax.get_lines()
    assert drawn.get_ydata().tolist() == [100, 50, 25]
    assert np.allclose(fitted.get_ydata(), data.fit_power_law(counts)([1, 2, 3]))
    assert ax.get_xscale() == ax.get_yscale() == "log"
    with pytest.raises(ValueError, match="no positive entry"):
        plots.label_distribution(np.zeros((2, 2)), ax)
