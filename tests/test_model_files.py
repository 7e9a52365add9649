"""Predicting files, other packages' weights, descriptions and pictures of models."""

from __future__ import annotations

import gzip
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp

from xmc_fast import data
from xmc_fast import model as xm
from xmc_fast.model import SparseModel


def random_csr(rows, cols, density=0.3, seed=0):
    rng = np.random.default_rng(seed)
    return sp.random(rows, cols, density, "csr", np.float32, random_state=rng)


@pytest.fixture
def test_file(tmp_path):
    X, Y = random_csr(50, 20), random_csr(50, 7, seed=1)
    Y.data[:] = 1
    data.write_xmc(tmp_path / "test.txt", X, Y)
    return tmp_path / "test.txt", X, Y


@pytest.mark.parametrize("chunk_bytes", [1, 100, 5000, 1 << 20])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_iter_xmc_is_read_xmc_in_pieces(test_file, chunk_bytes, suffix):
    path, _, _ = test_file
    if suffix:
        packed = path.with_name("test.txt.gz")
        packed.write_bytes(gzip.compress(path.read_bytes()))
        path = packed
    X, Y = data.read_xmc(path)
    pieces = list(data.iter_xmc(path, chunk_bytes=chunk_bytes))
    assert len(pieces) >= min(50, X.nnz * 4 // max(chunk_bytes, 100))
    got = sp.vstack([piece.X for piece in pieces]).tocsr()
    np.testing.assert_array_equal(got.indptr, X.indptr)
    np.testing.assert_array_equal(got.indices, X.indices)
    assert got.data.tobytes() == X.data.tobytes()
    assert (sp.vstack([piece.Y for piece in pieces]) != Y).nnz == 0


def test_iter_xmc_errors(tmp_path):
    path = tmp_path / "bad.txt"
    for text, message in [
        ("", "empty"),
        ("3 2 2\n0 0:1\n", "truncated: the header says 3"),
        ("1 2 2\n0 0:1\n1 1:1\n", "bad.txt:3"),
        ("2 2 2\n0 0:1\n0 5:1\n", "bad.txt:3"),
    ]:
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            list(data.iter_xmc(path, chunk_bytes=4))
    path.write_text("0 2 2\n")
    assert list(data.iter_xmc(path)) == []


def test_predict_file(test_file, tmp_path):
    path, X, _ = test_file
    model = SparseModel(random_csr(9, 20, seed=2), normalize=True)
    expected = model.predict(X, 4)
    for chunk_bytes in (64, 1 << 20):
        assert xm.predict_file(model, path, tmp_path / "out.txt", 4, chunk_bytes=chunk_bytes) == 50
        got = xm.read_predictions(tmp_path / "out.txt", 9)
        np.testing.assert_array_equal(got.indptr, expected.indptr)
        np.testing.assert_array_equal(got.indices, expected.indices)
        assert got.data.tobytes() == expected.data.tobytes()
    xm.write_predictions(tmp_path / "same.txt", expected)
    assert (tmp_path / "same.txt").read_bytes() == (tmp_path / "out.txt").read_bytes()


def test_predict_file_leaves_no_half_output(test_file, tmp_path):
    path, _, _ = test_file
    path.write_text(path.read_text() + "0 99:1\n")
    model = SparseModel(random_csr(9, 20, seed=2))
    with pytest.raises(ValueError, match=r"test.txt:52"):
        xm.predict_file(model, path, tmp_path / "out.txt", 4, chunk_bytes=64)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["test.txt"]


def test_predict_file_in_constant_memory(tmp_path):
    """A file whose dense scores would take 2.4 GB is predicted with little more than the model needs."""
    pytest.importorskip("resource")
    lines, labels = 60_000, 10_000
    line = "0 " + " ".join(f"{j}:{1 + j % 3}" for j in range(0, 300, 10)) + "\n"
    path = tmp_path / "big.txt"
    path.write_text(f"{lines} 300 {labels}\n" + line * lines)
    rng = np.random.default_rng(0)
    values, columns = rng.normal(size=5 * labels).astype(np.float32), rng.integers(300, size=5 * labels)
    weights = sp.csr_matrix((values, columns, np.arange(0, 5 * labels + 1, 5)), shape=(labels, 300))
    SparseModel(weights).save(tmp_path / "m")
    script = (
        "import resource, sys\n"
        "from xmc_fast.model import SparseModel, predict_file\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024\n"
        "model = SparseModel.load(sys.argv[1])\n"
        "predict_file(model, sys.argv[3], sys.argv[4], 5, chunk_bytes=1 << 18)\n"
        "before = peak()\n"
        "predict_file(model, sys.argv[2], sys.argv[4], 5, chunk_bytes=1 << 18)\n"
        "print(peak() - before)\n"
    )
    small = tmp_path / "small.txt"
    small.write_text(f"4000 300 {labels}\n" + line * 4000)
    run = [sys.executable, "-c", script, *map(str, (tmp_path / "m", path, small, tmp_path / "out.txt"))]
    out = subprocess.run(run, check=True, capture_output=True, text=True)
    assert int(out.stdout) < 10e6
    with open(tmp_path / "out.txt") as file:
        assert sum(1 for _ in file) == lines


def test_npz_round_trip(tmp_path):
    weights = random_csr(6, 5)
    sp.save_npz(tmp_path / "w.npz", weights)
    model = xm.from_npz(tmp_path / "w.npz", bias=1.0, label_names=list("abcdef"))
    assert (model.to_csr() != weights).nnz == 0
    assert (model.n_features, model.label_names[2]) == (4, "c")


@pytest.mark.parametrize(("classes", "bias"), [(2, -1), (2, 1), (4, -1), (4, 0.5)])
def test_liblinear_file(tmp_path, classes, bias):
    """Their file gives our model the decision values of their predict."""
    liblinear = pytest.importorskip("liblinear.liblinearutil")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 5))
    y = rng.integers(classes, size=60) + 10
    X[np.arange(60), y % 5] += 2
    theirs = liblinear.train(y.tolist(), sp.csr_matrix(X), f"-s 1 -c 1 -q -B {bias}")
    liblinear.save_model(str(tmp_path / "theirs.model"), theirs)
    model = xm.from_liblinear(tmp_path / "theirs.model")
    predicted, _, values = liblinear.predict(y.tolist(), sp.csr_matrix(X), theirs, "-q")
    top = model.predict(X, classes)
    ours = top.toarray() if classes > 2 else top.toarray()[:, :1]
    np.testing.assert_allclose(ours, np.array(values)[:, : ours.shape[1]], atol=1e-4)
    best = [int(model.label_names[label]) for label in top.indices[:: top.shape[1]]]
    assert best == [int(p) for p in predicted]


def test_liblinear_errors(tmp_path):
    path = tmp_path / "x.model"
    path.write_text("nonsense\n")
    with pytest.raises(ValueError, match="no line 'w'"):
        xm.from_liblinear(path)
    path.write_text("solver_type L2R_LR\nnr_class 3\nlabel 1 2 3\nnr_feature 2\nbias -1\nw\n1 2 3\n1 2\n")
    with pytest.raises(ValueError, match="expected 6 weights, got 5"):
        xm.from_liblinear(path)


def test_describe_model():
    weights = sp.csr_matrix(np.array([[0.5, 0.0, -0.02], [0.0, 0.0, 0.0], [1e-5, 20.0, 0.01]], np.float32))
    facts = xm.describe_model(SparseModel(weights, params={"C": 1.0}))
    assert (facts.nnz, facts.empty_labels, facts.density) == (5, 1, 5 / 9)
    counts = dict(zip(facts.histogram["edges"], facts.histogram["counts"], strict=False))
    assert sum(counts.values()) == 5
    assert (counts[0.0], counts[0.01], counts[0.3], counts[10.0]) == (1, 2, 1, 1)
    assert facts.to_dict()["weights_per_label"]["max"] == 3
    assert "55.556%" in str(facts)
    empty = xm.describe_model(SparseModel(sp.csr_matrix((0, 3), dtype=np.float32)))
    assert "labels" in str(empty)


def test_pictures():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    from matplotlib import pyplot

    from xmc_fast import plots

    rng = np.random.default_rng(0)
    weights = sp.csr_matrix(rng.normal(size=(30, 20)).astype(np.float32))
    X = rng.random((200, 20))
    Y = sp.csr_matrix((X @ weights.toarray().T + rng.normal(size=(200, 30))) > 3)
    model = SparseModel(weights).calibrate(X, Y)
    counts = plots.weight_histogram(model, delta=0.5)
    assert f"{model.prune(0.5).nnz:,}" in counts.get_legend().get_texts()[1].get_text()
    curve = plots.pruning_curve(model, X, Y, deltas=(0, 0.1, 10))
    assert [len(line.get_ydata()) for line in curve.lines] == [3, 3, 3]
    assert curve.lines[0].get_ydata()[0] > curve.lines[0].get_ydata()[2]
    sizes = curve.figure.axes[-1].lines[0].get_ydata()
    assert sizes[0] > sizes[1] > sizes[2]
    line = plots.reliability(model, X, Y).lines[-1]
    assert np.abs(line.get_xdata() - line.get_ydata()).max() < 0.15
    pyplot.close("all")
