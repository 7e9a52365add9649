"""Micro, macro and sample averages, rankings, suggestions and intervals, against scikit-learn and the reference."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn import metrics as sk

from reference import metrics as ref
from xmc_fast import metrics


def problem(n=80, n_labels=15, seed=0):
    """Truth with empty rows and labels, scores with ties."""
    rng = np.random.default_rng(seed)
    Y = rng.random((n, n_labels)) < rng.uniform(0, 0.4, n_labels)
    Y[::9] = False
    Y[:, 3] = False
    return Y, np.round(0.6 * rng.random((n, n_labels)) + 0.4 * Y, 1)


def top(scores, k):
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    P = np.zeros(scores.shape, bool)
    np.put_along_axis(P, order, True, axis=1)
    return P


@pytest.mark.parametrize("average", ["micro", "macro", "sample"])
def test_averages_are_those_of_scikit_learn(average):
    Y, scores = problem()
    named = "samples" if average == "sample" else average
    thresholds, ks = (-1.0, 0.3, 0.5, 0.9, 2.0), (1, 2, 7, 15)
    at_t = metrics.precision_recall_f1(Y, scores, threshold=thresholds, average=average)
    at_k = metrics.precision_recall_f1(Y, scores, k=ks, average=average)
    sets = [(at_t, i, scores >= t) for i, t in enumerate(thresholds)]
    sets += [(at_k, i, top(scores, k)) for i, k in enumerate(ks)]
    for found, i, P in sets:
        expected = sk.precision_recall_fscore_support(Y, P, average=named, zero_division=0)[:3]
        assert [v[i] for v in found] == pytest.approx(expected)
        assert [v[i] for v in found] == pytest.approx(ref.precision_recall_f1(Y, P, average))
    one = metrics.precision_recall_f1(Y, sp.csr_matrix(scores), threshold=0.3, average=average)
    assert one == pytest.approx(tuple(v[1] for v in at_t))
    assert isinstance(one.f1, float)


def test_averages_refuse_what_they_cannot_do():
    Y, scores = problem(5, 4)
    for options, text in (
        ({}, "k or threshold"),
        ({"k": 1, "threshold": 0.5}, "k or threshold"),
        ({"k": 1, "average": "weighted"}, "average must"),
    ):
        with pytest.raises(ValueError, match=text):
            metrics.precision_recall_f1(Y, scores, **options)
    with pytest.raises(ValueError, match="label ids"):
        metrics.precision_recall_f1(Y, np.zeros((5, 1), int), threshold=0.5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rankings_are_those_of_scikit_learn(dtype):
    Y, scores = problem()
    Y[1] = True
    scores = scores.astype(dtype)
    assert metrics.coverage_error(Y, scores) == pytest.approx(sk.coverage_error(Y, scores))
    assert metrics.label_ranking_loss(Y, scores, n_jobs=3) == pytest.approx(sk.label_ranking_loss(Y, scores))


def test_rankings_of_lists():
    """Labels that are not listed share the last place."""
    Y, scores = problem(30, 9)
    kept = top(scores, 3)
    listed = sp.csr_matrix((scores[kept], np.nonzero(kept)), scores.shape)
    full = np.where(kept, scores, -1.0)
    coverage, loss = ref.ranking(Y, np.where(kept, scores, np.nan))
    assert (
        metrics.coverage_error(Y, listed)
        == pytest.approx(coverage)
        == pytest.approx(sk.coverage_error(Y, full))
    )
    assert metrics.label_ranking_loss(Y, listed) == pytest.approx(loss)
    ids = np.argsort(-scores, axis=1, kind="stable")[:, :3]
    ordered = np.full(scores.shape, np.nan)
    np.put_along_axis(ordered, ids, -np.arange(3.0)[None].repeat(30, 0), axis=1)
    coverage, loss = ref.ranking(Y, ordered)
    assert metrics.coverage_error(Y, ids) == pytest.approx(coverage)
    assert metrics.label_ranking_loss(Y, ids) == pytest.approx(loss)
    with pytest.raises(ValueError, match="label ids must be"):
        metrics.coverage_error(Y, ids + 9)
    assert metrics.coverage_error(np.zeros((0, 3)), np.zeros((0, 3))) == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_suggestion_is_the_best_of_all(seed):
    Y, scores = problem(60, 12, seed)
    found = metrics.suggest(Y, scores)
    ks = range(1, 13)
    by_k = metrics.precision_recall_f1(Y, scores, k=list(ks)).f1
    by_t = metrics.precision_recall_f1(Y, scores, threshold=np.unique(scores)).f1
    assert found.micro_f1_at_k == pytest.approx(max(by_k))
    assert by_k[found.k - 1] == pytest.approx(max(by_k))
    assert found.micro_f1_at_threshold == pytest.approx(max(by_t))
    sample = metrics.precision_recall_f1(Y, scores, k=found.k, average="sample").f1
    assert found.sample_f1_at_k == pytest.approx(sample)
    kept = top(scores, 5)
    short = metrics.suggest(Y, sp.csr_matrix((scores[kept], np.nonzero(kept)), scores.shape))
    assert 1 <= short.k <= 5


def test_suggestion_of_nothing():
    found = metrics.suggest(np.zeros((3, 4)), sp.csr_matrix((3, 4)))
    assert found.k == 1
    assert found.micro_f1_at_k == 0


def test_fewer_columns_need_n_labels():
    Y, scores = problem(20, 6)
    wide = np.hstack([Y, np.zeros((20, 2), bool)])
    with pytest.raises(ValueError, match="pass n_labels=8"):
        metrics.precision_at_k(Y, sp.csr_matrix((20, 8)))
    more = np.hstack([scores, np.full((20, 2), 0.05)])
    for pred in (more, sp.csr_matrix(more), np.argsort(-more, axis=1, kind="stable")[:, :5]):
        for f in (metrics.precision_at_k, metrics.macro_f1_at_k, metrics.micro_f1_at_k):
            assert f(Y, pred, k=3, n_labels=8) == f(wide, pred, k=3)
    r = metrics.report(Y, more, n_labels=8, metrics=["micro_f1", "macro_f1", "ndcg"])
    assert list(r.values) == ["micro_f1", "macro_f1", "ndcg"]
    assert "8 labels" in str(r)
    assert metrics.coverage_error(Y, more, n_labels=8) == metrics.coverage_error(wide, more)
    assert metrics.precision_at_k(wide, scores, k=3, n_labels=8) == metrics.precision_at_k(Y, scores, k=3)
    with pytest.raises(ValueError, match="n_labels is 7"):
        metrics.precision_at_k(Y, more, n_labels=7)


def test_report_has_the_micro_averages():
    Y, scores = problem()
    r = metrics.report(Y, scores, k=(1, 3))
    for c, k in enumerate((1, 3)):
        for average in ("micro", "sample"):
            p, _, f1 = ref.precision_recall_f1(Y, top(scores, k), average)
            assert r[f"{average}_precision"][c] == pytest.approx(p)
            assert r[f"{average}_f1"][c] == pytest.approx(f1)
    assert r["micro_recall@3"] == pytest.approx(ref.precision_recall_f1(Y, top(scores, 3), "micro")[1])


def test_empty_bins_are_shown_as_such():
    Y, scores = problem(40, 6)
    bins = metrics.LabelBins(("none", "without positives", "all"), np.array([2, 2, 2, 1, 2, 2]))
    r = metrics.report(Y, scores, bins=bins, bootstrap=20)
    assert np.isnan(r.bins["none"]["precision"]).all()
    assert np.isnan(r.bins["without positives"]["recall"]).all()
    row = next(line for line in str(r).splitlines() if line.startswith("nDCG") and "–" in line)
    assert row.split()[1:3] == ["–", "–"]
    assert r.to_dict()["bins"]["none"]["macro_f1"][5] is None
    pytest.importorskip("matplotlib").use("Agg")
    r.plot()


def test_intervals_cover_the_expected_value():
    """Nominal 95 %: at least 92 % of the intervals hold the expected metric, all of them their estimate.

    Most labels are rare: many are hit once or never, which the bootstrap alone does not see (75 %).
    """
    n, n_labels, k = 120, 100, 2
    names = ["precision", "ndcg", "micro_f1", "macro_f1", "macro_recall", "coverage", "abandonment"]
    chance = 0.6 / (1 + np.arange(n_labels))

    def draw(rng):
        Y = rng.random((n, n_labels)) < chance
        return Y, rng.random((n, n_labels)) + 0.5 * Y

    def estimates(seed, bootstrap=0):
        Y, scores = draw(np.random.default_rng(seed))
        return metrics.report(Y, scores, k=k, metrics=names, bootstrap=bootstrap, random_state=seed, n_jobs=1)

    runs = [estimates(seed, 40) for seed in range(150)]
    more = [estimates(10_000 + seed) for seed in range(400)]
    expected = {m: np.mean([r[m][0] for r in more]) for m in names}
    for name in names:
        low, high = np.array([r.intervals[name][:, 0] for r in runs]).T
        values = np.array([r[name][0] for r in runs])
        assert (low <= values).all()
        assert (values <= high).all()
        covered = np.mean((low <= expected[name]) & (expected[name] <= high))
        assert covered >= 0.92, (name, covered)
        if name in ("precision", "ndcg", "micro_f1"):  # and no wider than needed
            assert covered <= 0.985, (name, covered)


def test_intervals_of_what_never_happened():
    Y = np.ones((50, 1))
    r = metrics.report(Y, np.zeros((50, 1), int), 1, bootstrap=20)
    low, high = r.intervals["precision"][:, 0]
    assert (low, high) == (pytest.approx(0.025 ** (1 / 50)), 1)
    low, high = r.intervals["abandonment"][:, 0]
    assert (low, high) == (0, pytest.approx(1 - 0.025 ** (1 / 50)))
    one = metrics.report(Y[:1], np.zeros((1, 1), int), 1, bootstrap=20)
    assert one.intervals["precision"][:, 0] == pytest.approx([0.025, 1])


def test_error_bars_are_the_interval():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    Y, scores = problem()
    r = metrics.report(Y, scores, k=(1, 3), bootstrap=30)
    ax = r.plot(["macro_f1"])
    for c, container in enumerate(bars for bars in ax.containers if hasattr(bars, "errorbar")):
        segment = container.errorbar.lines[2][0].get_segments()[0]
        np.testing.assert_allclose(segment[:, 1], 100 * r.intervals["macro_f1"][:, c])
