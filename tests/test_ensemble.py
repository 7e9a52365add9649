"""Neighbours and ensembles against a reference that goes pair by pair, and what blending must bring."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse as sp

import xmc_fast
from reference import blend
from xmc_fast import Ensemble, LabelTree, Lexical, Neighbours, OneVsAll, TextClassifier, metrics
from xmc_fast import ensemble as module


def problem(n=120, features=40, labels=9, seed=0):
    rng = np.random.default_rng(seed)
    X = sp.random(n, features, 0.2, format="csr", dtype=np.float32, random_state=rng)
    Y = sp.csr_matrix((X @ rng.normal(size=(features, labels)) > 0.8).astype(np.float32))
    return X, Y


@pytest.mark.parametrize(("q", "power"), [(1, 2.0), (7, 2.0), (7, 0.0), (500, 1.0)])
def test_neighbours_equal_the_reference(q, power):
    X, Y = problem()
    model = Neighbours(q, power=power).fit(X[:100], Y[:100])
    found = model.predict(X[100:], 9).toarray()
    for i in range(20):
        row = X[100 + i].toarray().ravel()
        expected = blend.neighbour_shares(X[:100].toarray(), Y[:100].toarray(), row, min(q, 100), power)
        if power == 0:  # rows without a common feature are no neighbours
            continue
        np.testing.assert_allclose(found[i], expected, atol=1e-5)


def test_a_row_like_no_other_has_no_labels():
    X = sp.csr_matrix(np.eye(4, dtype=np.float32)[:3])
    top = Neighbours(2, power=0.0).fit(X, np.eye(3)).predict(np.eye(4))
    assert np.diff(top.indptr).tolist() == [1, 1, 1, 0]


def test_bits_do_not_depend_on_threads():
    X, Y = problem(300)
    models = [Ensemble(n_jobs=jobs, folds=2).fit(X, Y) for jobs in (1, 2)]
    assert models[0].weights_.tobytes() == models[1].weights_.tobytes()
    tops = [model.predict(X, proba=True) for model in models]
    assert tops[0].data.tobytes() == tops[1].data.tobytes()
    assert tops[0].indices.tobytes() == tops[1].indices.tobytes()


def test_the_numbers_of_pairs_equal_the_reference():
    X, Y = problem()
    lists = [
        OneVsAll().fit(X, Y).model_.predict(X[:30], 4),
        Neighbours(3).fit(X, Y).predict(X[:30], 5),  # lists of several lengths
    ]
    counts = np.array([0, 1, 2, 5, 10, 99, 500, 1000, 10**6])
    pairs = module._pairs(lists, counts)
    assert len(pairs.row) > 100
    for row, label, numbers in zip(pairs.row, pairs.label, pairs.numbers, strict=True):
        per_member = []
        for top in lists:
            part = slice(top.indptr[row], top.indptr[row + 1])
            per_member.append((top.indices[part].tolist(), top.data[part].tolist()))
        np.testing.assert_allclose(
            numbers, blend.pair_numbers(per_member, counts[label], label), rtol=1e-4, atol=1e-6
        )


def test_log_odds_are_those_of_logistic_regression():
    """The folded weights give what scikit-learn gives on scaled numbers."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    X, Y = problem(200)
    lists = [Neighbours(5).fit(X[:100], Y[:100]).predict(X[100:], 6)]
    pairs = module._pairs(lists, np.full(9, 30))
    truth = sp.csr_matrix(Y[100:], dtype=bool)
    weights = module._fit_weights(pairs, truth)
    relevant = truth.toarray()[pairs.row, pairs.label]
    scaled = StandardScaler().fit_transform(pairs.numbers)
    expected = LogisticRegression(max_iter=300).fit(scaled, relevant).decision_function(scaled)
    np.testing.assert_allclose(pairs.numbers @ weights, expected, atol=1e-3)


def test_the_blend_is_better_than_its_members():
    """Half of the labels follow from a sum of features, half from a single training row: each member sees one half."""
    rng = np.random.default_rng(3)
    n, labels = 1500, 60
    X = sp.random(n, 80, 0.15, format="csr", dtype=np.float32, random_state=rng)
    linear = np.argpartition(-(X @ rng.normal(size=(80, labels // 2))), 2, axis=1)[:, :2]
    groups = rng.integers(0, 300, n)  # rows of a group are nearly the same row
    X = sp.csr_matrix(X[groups] + 0.1 * X)
    Y = np.zeros((n, labels), bool)
    Y[np.arange(n)[:, None], linear[groups]] = True
    Y[np.arange(n), labels // 2 + groups % (labels // 2)] = True
    train, test = slice(0, 1200), slice(1200, n)
    members = [OneVsAll(C=0.1), Neighbours(10)]
    alone = [m.fit(X[train], Y[train]).predict(X[test], 3) for m in members]
    both = Ensemble(members).fit(X[train], Y[train]).predict(X[test], 3)
    scores = [metrics.precision_at_k(Y[test], top, 3) for top in (*alone, both)]
    assert scores[2] >= max(scores[:2]), scores


def test_members_of_other_kinds_survive_save_and_load(tmp_path):
    X, Y = problem(200)
    model = Ensemble([OneVsAll(C=0.5), LabelTree(max_leaf=3), Neighbours(4)], folds=2).fit(X, Y)
    model.save(tmp_path / "m")
    again = xmc_fast.load(tmp_path / "m", verify=True)
    assert again.predict(X, proba=True).data.tobytes() == model.predict(X, proba=True).data.tobytes()
    parts = again.contributions(X[:20], 2)
    scores = again.predict(X[:20], 9).toarray()[:, 2]
    listed = ~np.isnan(parts[:, 0])
    assert listed.any()
    np.testing.assert_allclose(parts[listed].sum(1), scores[listed], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "change",
    [{"members": 3}, {"members": 0}, {"n_labels": 8}, {"n_features": 41}, {"params": {"folds": 0}}],
)
def test_a_damaged_folder_is_refused(change, tmp_path):
    X, Y = problem()
    Ensemble(folds=2).fit(X, Y).save(tmp_path / "m")
    manifest = json.loads((tmp_path / "m/manifest.json").read_text())
    (tmp_path / "m/manifest.json").write_text(json.dumps({**manifest, **change}))
    with pytest.raises(xmc_fast.model.ModelFormatError):
        xmc_fast.load(tmp_path / "m")


@pytest.mark.parametrize(
    "change", [{"n_neighbours": "3"}, {"n_neighbours": 2.5}, {"power": "x"}, {"power": -1.0}]
)
def test_damaged_parameters_of_neighbours_are_refused(change, tmp_path):
    Neighbours(4).fit(*problem()).save(tmp_path / "m")
    manifest = json.loads((tmp_path / "m/manifest.json").read_text())
    manifest["params"] |= change
    (tmp_path / "m/manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(xmc_fast.model.ModelFormatError, match=next(iter(change))):
        xmc_fast.load(tmp_path / "m")


def test_damaged_labels_of_neighbours_are_refused(tmp_path):
    X, Y = problem()
    Neighbours(4).fit(X, Y).save(tmp_path / "m")
    manifest = json.loads((tmp_path / "m/manifest.json").read_text())
    (tmp_path / "m/manifest.json").write_text(json.dumps({**manifest, "n_labels": 3}))
    with pytest.raises(xmc_fast.model.ModelFormatError, match="index"):
        xmc_fast.load(tmp_path / "m")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"members": []}, "at least one estimator"),
        ({"folds": 0}, "folds must be at least 1, got 0"),
        ({"candidates": 0}, "candidates must be at least 1, got 0"),
        ({"folds": 500}, "as many rows as folds"),
    ],
)
def test_wrong_parameters(options, message):
    with pytest.raises(ValueError, match=message):
        Ensemble(**options).fit(*problem())
    with pytest.raises(ValueError, match="n_neighbours must be at least 1"):
        Neighbours(0).fit(*problem())


def test_labels_that_are_all_right_cannot_be_blended():
    X, _ = problem()
    with pytest.raises(ValueError, match="relevant and irrelevant"):
        Ensemble([Neighbours(3)], folds=2).fit(X, np.ones((120, 2)))


def test_an_ensemble_of_texts(tmp_path):
    texts = ["green tea", "black tea", "iron ore", "steel and iron"] * 10
    tags = [["drink"], ["drink"], ["metal", "mining"], ["metal"]] * 10
    model = TextClassifier(model=Ensemble(folds=2)).fit(texts, tags)
    assert model.fit_report_["held_out"] == 0  # the folds serve for probabilities
    model.save(tmp_path / "m")
    best = xmc_fast.load(tmp_path / "m").predict_one("fine tea", k=1)[0]
    assert best[0] == "drink"
    assert 0.5 < best[1] <= 1


TEXTS = ["green tea", "black tea", "iron ore", "steel and iron", "tea from steel"] * 12
Y_TEXTS = np.array([[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0], [1, 1, 0]] * 12)


@pytest.mark.parametrize("folds", [1, 3])
@pytest.mark.parametrize("column", [False, True])
def test_members_that_take_texts(folds, column, tmp_path):
    texts = xmc_fast.data.TextColumn.from_texts(TEXTS) if column else TEXTS
    members = [
        TextClassifier(calibrate=0, ngram_range=(1, 2)),
        TextClassifier(model=Neighbours(5)),
        Lexical(["tea", "iron", "rice"]),
    ]
    model = Ensemble(members, folds=folds, blend_rows=30).fit(texts, Y_TEXTS)
    top = model.predict(["rice and tea", "iron", ""], 3, proba=True)
    assert 2 in top[0].indices  # no row has rice: only the name tells
    assert top[1].indices[0] == 1
    assert (model.label_counts_[0] < 36) == (folds == 1)  # some rows are kept from the members
    model.save(tmp_path / "m")
    again = xmc_fast.load(tmp_path / "m")
    assert again.predict(TEXTS).data.tobytes() == model.predict(TEXTS).data.tobytes()
    assert again.predict_one("rice and tea", 1)[0].tolist() == [0]
    with pytest.raises(ValueError, match="X must be texts as in fit, got features"):
        again.predict(np.eye(3))
    with pytest.raises(ValueError, match="X must be features as in fit, got texts"):
        Ensemble(folds=2).fit(*problem()).predict(TEXTS)


def test_default_members_of_texts():
    model = Ensemble(folds=2).fit(TEXTS, Y_TEXTS)
    assert [type(member).__name__ for member in model.members_] == ["TextClassifier"] * 2
    assert model.predict(["a tea"], 1).indices.tolist() == [0]


def test_one_fold_trains_each_member_once_without_the_rows_of_the_blend():
    X, Y = problem(200)
    fits = []

    class Counted(Neighbours):
        def fit(self, X, Y):
            fits.append(X.shape[0])
            return super().fit(X, Y)

    Ensemble([Counted(5)], folds=1, blend_rows=30).fit(X, Y)
    assert fits == [170]
    Ensemble([Counted(5)], folds=1).fit(X, Y)
    assert fits[1:] == [150]


def test_labels_without_rows_have_a_knot_of_their_own():
    lists = [sp.csr_matrix([[0.5, 0.0, 0.25]]), sp.csr_matrix([[0.0, 1.0, 0.0]])]
    pairs = module._pairs(lists, np.array([0, 1, 5]))
    closeness = pairs.numbers[:, -5:]
    assert closeness[0].tolist() == [1, 0, 0, 0, 0]
    assert closeness[1].tolist() == [0, 1, 0, 0, 0]
    assert closeness[2, 0] == 0
    np.testing.assert_allclose(closeness.sum(1), 1, atol=1e-6)
