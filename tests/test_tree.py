"""Label trees: chunks, training per node, beam search, files."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import scipy.sparse as sp

import xmc_fast
from reference.tree import search
from xmc_fast import LabelTree, OneVsAll, _core, metrics
from xmc_fast._folder import ModelFormatError
from xmc_fast.data import load_demo, make_synthetic


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
@pytest.mark.parametrize("power", [1, 2, 3])
def test_search_is_that_of_the_reference(data, tree, beam, power):
    X, _ = data
    levels, order = tree.trees_[0]
    model = LabelTree(power=power, normalize=True)
    model.trees_, model.n_labels_, model.n_features_in_ = tree.trees_, 400, 300
    got = model.predict(X[:40], 5, beam=beam)
    for row in range(40):
        ids, scores = search(X[row].toarray().ravel(), levels, beam, 5, power)
        part = slice(got.indptr[row], got.indptr[row + 1])
        np.testing.assert_allclose(got.data[part], scores, rtol=2e-4, atol=1e-6)
        clear = np.abs(np.diff(scores, append=0)) > 1e-4 * np.maximum(scores, 1e-6)
        assert (got.indices[part] == order[ids])[clear].all()


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
    [({"C": 0}, "C must be"), ({"max_leaf": 300}, "max_leaf must be"), ({"power": 4}, "power must be")],
)
def test_bad_parameters(data, options, message):
    with pytest.raises(ValueError, match=message):
        LabelTree(**options).fit(*data)
