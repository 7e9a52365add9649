"""Label trees: chunks, training per node, beam search, files."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time

import numpy as np
import pytest
import scipy.sparse as sp

import xmc_fast
from reference.tree import search
from xmc_fast import LabelTree, OneVsAll, TextClassifier, _core, cluster, engine, metrics
from xmc_fast._folder import ModelFormatError
from xmc_fast.data import load_demo, make_synthetic
from xmc_fast.tree import _hierarchy


@pytest.fixture(scope="module")
def data():
    X, Y = make_synthetic(600, 300, 400, random_state=0)[:2]
    return X, Y


@pytest.fixture(scope="module")
def tree(data):
    return LabelTree(max_leaf=8, branching=4, max_first=12, prune=0.01).fit(*data)


def test_levels_hold_every_label_once(data, tree):
    levels, order = tree.trees_[0]
    assert len(levels) == 4
    assert sorted(order.tolist()) == list(range(400))
    assert all(np.diff(level["child_start"]).max() <= 256 for level in levels)
    for above, below in itertools.pairwise(levels):
        assert len(below["child_start"]) - 1 == above["child_start"][-1]


@pytest.mark.parametrize("beam", [1, 3, 100])
@pytest.mark.parametrize(("power", "slack"), [(1, 0.3), (2, None), (3, None), (3, 1.0), (3, 0)])
def test_search_is_that_of_the_reference(data, tree, beam, power, slack):
    X, _ = data
    levels, order = tree.trees_[0]
    decay = 1 if power == 1 else 0.7
    model = LabelTree(power=power, decay=decay, slack=slack, normalize=True)
    model.trees_, model.n_labels_, model.n_features_in_, model.calibration = tree.trees_, 400, 300, None
    got = model.predict(X[:40], 5, beam=beam)
    for row in range(40 if beam < 100 else 3):
        margin = np.inf if slack is None else slack
        ids, scores = search(X[row].toarray().ravel(), levels, beam, 5, power, decay, margin)
        part = slice(got.indptr[row], got.indptr[row + 1])
        np.testing.assert_allclose(got.data[part], scores, rtol=2e-4, atol=1e-6)
        clear = np.abs(np.diff(scores, append=0)) > 1e-4 * np.maximum(scores, 1e-6)
        assert (got.indices[part] == order[ids])[clear].all()


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_rows_of_any_size_give_the_same_search(data, tree, size):
    """Values become integers: their steps follow the row."""
    X, _ = data
    expected, got = tree.predict(X[:40], 5), tree.predict((X[:40] * np.float64(size)).astype(np.float32), 5)
    np.testing.assert_allclose(got.data, expected.data, rtol=1e-4)


def test_weights_are_those_of_one_vs_all_on_the_rows_of_the_node(data, tree):
    """Scores of a leaf's labels against an exact fit on the leaf's own rows, within the rounding to bytes."""
    X, Y = data
    levels, order = tree.trees_[0]
    starts = levels[-1]["child_start"]
    p = int(np.argmax(np.diff(starts)))
    labels = order[starts[p] : starts[p + 1]]
    rows = np.flatnonzero(np.asarray(Y[:, labels].sum(1)).ravel())
    exact = OneVsAll(prune=0.01, tol=1e-3).fit(X[rows], Y[rows][:, labels]).decision_function(X[:50])
    from reference.tree import chunk_scores

    rough = np.array([chunk_scores(X[i].toarray().ravel(), levels[-1], p) for i in range(50)])
    seen = np.asarray(Y[rows][:, labels].sum(0)).ravel() > 0
    assert np.abs(rough - exact)[:, seen].max() < 0.1


@pytest.mark.parametrize("options", [{}, {"n_trees": 2}, {"matched": 3}, {"bias": None, "normalize": False}])
def test_same_bits_for_any_number_of_threads(data, options):
    X, Y = data
    one, two = (LabelTree(max_leaf=8, n_jobs=n, **options).fit(X, Y) for n in (1, 3))
    for (a, order), (b, other) in zip(one.trees_, two.trees_, strict=True):
        assert (order == other).all()
        assert all(x[name].tobytes() == y[name].tobytes() for x, y in zip(a, b, strict=True) for name in x)
    assert (one.predict(X) != two.predict(X)).nnz == 0


def test_close_to_one_vs_all_on_the_demo():
    demo = load_demo()
    exact = OneVsAll().fit(demo.X_train, demo.Y_train).predict(demo.X_test)
    quick = LabelTree(max_leaf=20).fit(demo.X_train, demo.Y_train).predict(demo.X_test)
    p, q = (np.asarray(metrics.precision_at_k(demo.Y_test, top, k=(1, 3, 5))) for top in (exact, quick))
    assert (q > p - 0.02).all()


def test_labels_without_rows_are_never_suggested(data):
    X, Y = data
    empty = sp.hstack([Y, sp.csr_matrix((Y.shape[0], 7))]).tocsr()
    top = LabelTree(max_leaf=8).fit(X, empty).predict(X, 10)
    assert top.shape[1] == 407
    assert top.data[top.indices >= 400].max(initial=0) < 1e-20


def test_damaged_files_are_refused(tree, tmp_path):
    tree.save(tmp_path / "m")
    again = xmc_fast.load(tmp_path / "m", verify=True)
    assert isinstance(again, LabelTree)
    levels, _ = tree.trees_[0]
    for name in ("child_start", "bucket_start", "feature_start", "entry_start", "bucket", "count", "child"):
        for place in (0, -1):
            bad = {key: array.copy() for key, array in levels[-1].items()}
            bad[name][place] += 77
            with pytest.raises(ValueError, match="damaged label tree"):
                _core.tree_check([*levels[:-1], bad], 300)
    short = {**levels[-1], "weight": levels[-1]["weight"][:-1]}
    with pytest.raises(ValueError, match="lengths"):
        _core.tree_check([*levels[:-1], short], 300)
    manifest = tmp_path / "m" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "n_labels": 3}))
    with pytest.raises(ModelFormatError, match="order"):
        LabelTree.load(tmp_path / "m")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"C": 0}, "C must be"),
        ({"max_leaf": 300}, "max_leaf must be"),
        ({"power": 4}, "power must be"),
        ({"decay": 0}, "decay must be"),
        ({"slack": -1}, "slack must be"),
    ],
)
def test_bad_parameters(data, options, message):
    with pytest.raises(ValueError, match=message):
        LabelTree(**options).fit(*data)


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


TRAIN = """
import sys
from xmc_fast import LabelTree
from xmc_fast.data import make_synthetic
X, Y = make_synthetic(1500, 300, 2000, random_state=0)[:2]
LabelTree(max_leaf=16, branching=8, max_first=100, n_trees=2).fit(X, Y, checkpoint=sys.argv[1])
"""


def test_killed_run_resumes_to_the_same_bytes(tmp_path):
    def start(folder):
        return subprocess.Popen([sys.executable, "-c", TRAIN, str(folder)])

    killed, whole = tmp_path / "killed", tmp_path / "whole"
    run = start(killed)
    deadline = time.time() + 60
    while (
        len(list(killed.glob("tree-0/level-2/block-*"))) < 3 and run.poll() is None and time.time() < deadline
    ):
        time.sleep(0.002)
    run.kill()
    run.wait()
    done = {path: path.stat().st_mtime_ns for path in killed.rglob("block-*")}
    assert len(done) >= 3
    assert not (killed / "manifest.json").exists()
    assert start(whole).wait() == 0
    assert start(killed).wait() == 0
    assert contents(killed) == contents(whole)
    assert sorted(contents(whole)) == [
        "fit.json",
        "manifest.json",
        "tree-0.safetensors",
        "tree-1.safetensors",
    ]


def test_checkpoint_is_the_model_of_a_fit_without_one(data, tmp_path):
    X, Y = data
    model = LabelTree(max_leaf=8, branching=4, max_first=12)
    plain = model.fit(X, Y).predict(X)
    model.fit(X, Y, checkpoint=tmp_path / "c")
    assert (model.predict(X) != plain).nnz == 0
    made = contents(tmp_path / "c")
    again = xmc_fast.load(tmp_path / "c")
    assert (again.predict(X) != plain).nnz == 0
    before = (tmp_path / "c" / "tree-0.safetensors").stat().st_mtime_ns
    LabelTree(max_leaf=8, branching=4, max_first=12).fit(X, Y, checkpoint=tmp_path / "c")
    assert contents(tmp_path / "c") == made
    assert (tmp_path / "c" / "tree-0.safetensors").stat().st_mtime_ns == before
    with pytest.raises(ValueError, match="of another fit: C is"):
        LabelTree(C=2, max_leaf=8, branching=4, max_first=12).fit(X, Y, checkpoint=tmp_path / "c")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine").touch()
    with pytest.raises(ValueError, match="neither empty"):
        LabelTree().fit(X, Y, checkpoint=tmp_path / "other")


@pytest.mark.parametrize("stored", [False, True])
def test_engine_gives_the_bytes_of_one_process(data, stored, tmp_path):
    X, Y = data
    options = {"max_leaf": 8, "branching": 4, "max_first": 12, "matched": 2}
    LabelTree(**options).fit(X, Y, checkpoint=tmp_path / "one")
    workers = engine.connect("threading")
    model = LabelTree(**options).fit(X, Y, engine=workers, checkpoint=tmp_path / "many" if stored else None)
    if stored:
        assert contents(tmp_path / "many") == contents(tmp_path / "one")
    model.save(tmp_path / "saved")
    name = "tree-0.safetensors"
    assert (tmp_path / "saved" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()
    here, there = model.predict(X, 7), model.predict(X, 7, engine=workers)
    assert all(
        getattr(here, part).tobytes() == getattr(there, part).tobytes()
        for part in ("indptr", "indices", "data")
    )


@pytest.mark.parametrize("n_trees", [1, 2])
def test_probabilities_are_calibrated(n_trees, tmp_path):
    X, Y = make_synthetic(4000, 300, 200, random_state=1)[:2]
    model = LabelTree(max_leaf=16, max_first=20, n_trees=n_trees, beam=20).fit(X[:2000], Y[:2000])
    with pytest.raises(ValueError, match="calibrate"):
        model.predict(X, proba=True)
    model.calibrate(X[2000:3000], Y[2000:3000])
    p = model.predict(X[3000:], 5, proba=True)
    assert ((p.data >= 0) & (p.data <= 1)).all()
    assert all((np.diff(p.data[a:b]) <= 0).all() for a, b in itertools.pairwise(p.indptr))
    truth = np.asarray(Y[3000:][np.repeat(np.arange(1000), np.diff(p.indptr)), p.indices]).ravel()
    for low, high in ((0, 0.25), (0.25, 0.6), (0.6, 1.01)):
        inside = (p.data >= low) & (p.data < high)
        if inside.sum() > 100:
            assert abs(truth[inside].mean() - p.data[inside].mean()) < 0.06
    model.save(tmp_path / "m")
    again = xmc_fast.load(tmp_path / "m").predict(X[3000:], 5, proba=True)
    assert (again != p).nnz == 0


def test_reliability_of_a_tree(data):
    pytest.importorskip("matplotlib")
    from xmc_fast import plots

    X, Y = data
    model = LabelTree(max_leaf=8).fit(X[:300], Y[:300]).calibrate(X[300:], Y[300:])
    p = model.predict(X[300:], 5, proba=True)
    line = plots.reliability(model, X[300:], Y[300:], k=5, bins=4).lines[-1]
    np.testing.assert_allclose(np.mean(line.get_xdata()), p.data.mean(), atol=0.01)


def test_label_vectors_are_bounded_together(data, monkeypatch):
    """Above so many entries of all labels together, each vector is shorter; below nothing changes."""
    seen = []
    plain = cluster.label_tree
    monkeypatch.setattr(
        cluster, "label_tree", lambda *a, **o: seen.append(o["max_features"]) or plain(*a, **o)
    )
    LabelTree(max_leaf=8, max_first=100).fit(*data)
    monkeypatch.setattr(_hierarchy, "_ENTRIES", 400 * 40)
    LabelTree(max_leaf=8, max_first=100).fit(*data)
    assert seen == [256, 40]


def test_steps_of_an_explanation_multiply_to_the_score(data):
    X, Y = data
    model = LabelTree(max_leaf=8, branching=4, max_first=12, n_trees=2, beam=100).fit(X, Y)
    top = model.predict(X[:5], 3)
    for row in range(5):
        for label, score in zip(*model.predict_one(X[row], 3), strict=True):
            steps = model.explain(X[row], int(label))
            assert [s.tree for s in steps] == sorted(s.tree for s in steps)
            assert all(np.isclose(s.bias + s.contributions.sum(), s.score) for s in steps)
            product = [np.prod([s.factor for s in steps if s.tree == t]) for t in range(2)]
            np.testing.assert_allclose(np.mean(product), score, rtol=1e-3)
    assert top.nnz == 15
    with pytest.raises(ValueError, match="label must be from 0"):
        model.explain(X[0], 400)


def test_texts_and_names(tmp_path):
    texts = ["green tea", "black tea", "iron ore", "steel and iron", "milk and bread", "fresh bread"] * 20
    tags = [["drink"], ["drink"], ["metal", "mining"], ["metal"], ["food"], ["food"]] * 20
    classifier = TextClassifier(model=LabelTree(max_leaf=2), calibrate=0.2).fit(texts, tags)
    assert classifier.calibrated
    best = classifier.predict_one("fine black tea", k=1)[0]
    assert best.label == "drink"
    why = classifier.explain("fine black tea")
    assert why.label == "drink"
    np.testing.assert_allclose(why.probability, best[1], rtol=1e-3)
    assert "product" in str(why)
    assert "tea" in why.to_html()
    assert json.dumps(why.to_dict())
    about = classifier.describe_label("metal")
    assert about.rows == 40
    classifier.save(tmp_path / "m")
    again = xmc_fast.load(tmp_path / "m", mmap=False)
    assert again.predict(["iron", "bread"]) == classifier.predict(["iron", "bread"])
