"""Rules that decide about new instances: weighted top-k, per-label thresholds, Frank-Wolfe, heuristics."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import reference.decide as ref
from reference.decide_data import assert_k_best_first, dense, random_proba, short_lists
from xmc_fast import decide


def test_weighted_topk_equals_numpy(simd):
    rng = np.random.default_rng(0)
    eta = random_proba(50, 30)
    a, b = rng.normal(size=30), rng.normal(size=30)
    for k in (1, 2, 30):
        prediction = decide.weighted_topk(eta, (a, b), k, n_jobs=2)
        assert_k_best_first(prediction, k)
        gains = a * eta.astype(float) + b
        assert (dense(prediction) == ref.top_k(gains, k)).all()
        np.testing.assert_allclose(
            prediction.max(axis=1).toarray().ravel() if k == 30 else prediction.data[::k],
            np.maximum(gains.max(1), 0) if k == 30 else gains.max(1),
            rtol=1e-6,
        )
    # Gains that float32 cannot tell apart are ranked in double.
    close = 1e6 + np.array([0.0, 3e-10, 1e-9, 2e-10])
    eta, order = np.full((1, 4), 0.5), np.argsort(-(0.5 + close))[:2]
    assert decide.weighted_topk(eta, (np.ones(4), close), 2).indices.tolist() == order.tolist()
    ties = decide.weighted_topk(np.full((1, 6), 0.5), np.ones(6), 3)
    assert ties.indices.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "name", ["macro-f1", "macro-precision", "macro-jaccard", "macro-gmean", "macro-recall"]
)
def test_thresholds_are_optimal(name):
    eta = random_proba(40, 7, density=0.6)
    prediction, info = decide.bca(eta, name, None, n_jobs=2)
    assert info.utility == pytest.approx(ref.thresholds(eta.astype(float), name), abs=1e-12)
    assert info.utility == pytest.approx(decide.expected_utility(eta, prediction, name), abs=1e-12)
    assert info.utility >= decide.bca(eta, name, 2)[1].utility - 1e-12


def test_thresholds_with_labels_and_shrinkage():
    rng = np.random.default_rng(0)
    eta = random_proba(500, 12)
    Y = (rng.random(eta.shape) < eta).astype(np.int8)
    fitted = {s: decide.Thresholds("macro-f1", shrinkage=s).fit(eta, Y) for s in (0, 5, 1e12)}
    # no shrinkage: the best threshold for these labels; full shrinkage: as if there were none
    chosen = dense(fitted[0].predict(eta))
    for j in range(12):
        scores = [
            ref.PSI["macro-f1"](
                (Y[:, j] * (eta[:, j] >= c)).sum(), (eta[:, j] >= c).sum(), Y[:, j].sum(), 500
            )
            for c in eta[:, j]
        ]
        got = ref.PSI["macro-f1"]((Y[:, j] * chosen[:, j]).sum(), chosen[:, j].sum(), Y[:, j].sum(), 500)
        assert got == pytest.approx(max(scores), abs=1e-12)
    np.testing.assert_allclose(
        fitted[1e12].thresholds_, decide.Thresholds("macro-f1").fit(eta).thresholds_, atol=1e-6
    )
    assert not np.allclose(fitted[5].thresholds_, fitted[0].thresholds_)
    best_first = fitted[5].predict(eta)
    for i in range(500):
        assert (np.diff(best_first.data[best_first.indptr[i] : best_first.indptr[i + 1]]) <= 0).all()


@pytest.mark.parametrize("name", ["macro-f1", "macro-precision", "macro-recall", "macro-jaccard", "coverage"])
def test_frank_wolfe(name):
    rng = np.random.default_rng(0)
    eta = random_proba(400, 15)
    Y = (rng.random(eta.shape) < eta).astype(np.int8)
    for labels in (None, Y):
        rules = [decide.FrankWolfe(name, 2, n_jobs=jobs).fit(eta, labels) for jobs in (1, 3)]
        info = rules[0].info_
        assert (rules[0].a_ == rules[1].a_).all()
        assert (np.diff(info.utilities) > 0).all()
        assert rules[0].weights_.sum() == pytest.approx(1)
        assert len(rules[0].weights_) == info.iterations + 1
        if name != "macro-recall":
            assert info.utility > info.utilities[0]
        sampled = rules[0].predict(eta, random_state=3)
        assert_k_best_first(sampled, 2)
        assert (sampled.indices == rules[1].predict(eta, random_state=3).indices).all()
        assert_k_best_first(rules[0].predict(eta, method="expected"), 2)


@pytest.mark.parametrize("labelled", [False, True])
def test_frank_wolfe_counts_are_those_of_its_rules(simd, labelled):
    """The utility is that of the mixture of its rules, each a plain weighted top-k; ties and k > 16 included."""
    rng = np.random.default_rng(2)
    for size, k in ((1, 1), (16, 3), (33, 5), (40, 17)):
        proba = short_lists(200, 400, size, seed=size)
        proba.data = np.maximum(np.round(proba.data, 2), 0.01).astype(np.float32)  # many are equal
        eta = proba.toarray().astype(float)
        Y = (rng.random(eta.shape) < eta).astype(np.int8) if labelled else None
        rule = decide.FrankWolfe("macro-f1", k, max_iter=6, smoothing=0, tol=0).fit(proba, Y)
        truth, p = eta, eta.sum(0)
        if labelled:
            counts = Y.sum(0)
            trust = counts / (counts + 5.0)
            truth, p = trust * Y + (1 - trust) * eta, trust * counts + (1 - trust) * p
        t, q = np.zeros(400), np.zeros(400)
        for w, a, b in zip(rule.weights_, rule.a_, rule.b_, strict=True):
            chosen = dense(decide.weighted_topk(proba, (a, b), k))
            t += w * (chosen * truth).sum(0)
            q += w * chosen.sum(0)
        assert rule.info_.utility == pytest.approx(ref.PSI["macro-f1"](t, q, p, 200).mean(), abs=1e-7)
        assert size == 1 or rule.info_.iterations > 1


def test_frank_wolfe_shrinkage():
    """Full shrinkage is a fit without labels; none is a fit to the labels alone."""
    rng = np.random.default_rng(0)
    eta = random_proba(300, 10)
    Y = (rng.random(eta.shape) < eta).astype(np.int8)
    fits = {s: decide.FrankWolfe("macro-f1", 2, shrinkage=s, smoothing=0).fit(eta, Y) for s in (0, 1e15)}
    alone = decide.FrankWolfe("macro-f1", 2, smoothing=0).fit(eta)
    np.testing.assert_allclose(fits[1e15].info_.utilities[0], alone.info_.utilities[0], rtol=1e-6)
    topk = decide.expected_utility(Y, decide.weighted_topk(eta, np.ones(10), 2), "macro-f1")
    assert fits[0].info_.utilities[0] == pytest.approx(topk, abs=1e-9)


def test_frank_wolfe_smoothing_bounds_the_weight_of_rare_labels():
    eta = random_proba(100, 4)
    eta[:, 0] = 1e-5
    p = eta.astype(float).sum(0)
    for smoothing, counted in ((0, p), (1.0, p / (1 - np.exp(-p)))):
        rule = decide.FrankWolfe("macro-recall", 1, smoothing=smoothing).fit(eta)
        np.testing.assert_allclose(rule.a_[-1], 1 / counted / 4, rtol=1e-6)


def test_frank_wolfe_finds_the_optimum_of_a_concave_utility():
    """sum_j sqrt(t_j / p_j), without smoothing effects: compare with projected ascent's duality gap."""

    def psi(t, q, p, n):
        return np.sqrt(ref.ratio(t, p) + 1e-3)

    eta = random_proba(200, 6)
    rule = decide.FrankWolfe(psi, 2, max_iter=300, tol=0, smoothing=0).fit(eta)
    # Duality gap of Frank-Wolfe: <gradient, best response - mixture> bounds the distance to the optimum.
    p = eta.astype(float).sum(0)
    t = sum(
        w * (dense(decide.weighted_topk(eta, (a, b), 2)) * eta).sum(0)
        for w, a, b in zip(rule.weights_, rule.a_, rule.b_, strict=True)
    )
    grad = 0.5 / np.sqrt(t / p + 1e-3) / p / 6
    response = (dense(decide.weighted_topk(eta, grad, 2)) * eta).sum(0)
    assert rule.info_.utility == pytest.approx(psi(t, None, p, 200).mean(), abs=1e-9)
    assert 0 <= grad @ (response - t) < 2e-3 * rule.info_.utility


@pytest.mark.parametrize("name", ["macro-f1", "macro-jaccard"])
def test_frank_wolfe_own_metric_agrees(name):
    eta = random_proba(200, 10)
    built_in = decide.FrankWolfe(name, 2, max_iter=5).fit(eta)
    own = decide.FrankWolfe(ref.PSI[name], 2, max_iter=5).fit(eta)
    np.testing.assert_allclose(own.info_.utilities, built_in.info_.utilities, rtol=1e-4)


def test_frank_wolfe_metric_that_is_no_mean_over_labels():
    """Micro-F1: one number for all labels, with its gradient."""

    def micro_f1(t, q, p, n):
        return 2 * t.sum() / (p.sum() + q.sum())

    def gradient(t, q, p, n):
        d = p.sum() + q.sum()
        return np.full(len(t), 2 / d), np.full(len(t), -2 * t.sum() / d**2)

    eta = random_proba(100, 10)
    rule = decide.FrankWolfe(decide.metric(micro_f1, gradient=gradient), 2).fit(eta)
    assert rule.info_.utility >= rule.info_.utilities[0]
    with pytest.raises(ValueError, match="give its gradient"):
        decide.FrankWolfe(micro_f1, 2).fit(eta)


def test_heuristic_gains():
    counts = np.array([100.0, 10, 0])
    assert (np.diff(decide.power_law_gains(counts, 1.0)) > 0).all()
    assert (np.diff(decide.log_gains(counts, 100)) > 0).all()
    eta = random_proba(20, 3)
    propensity = np.array([0.9, 0.5, 0.1])
    heuristic = decide.weighted_topk(eta, decide.propensity_gains(propensity), 1)
    best, _ = decide.bca(eta, decide.metric("psp", propensity=propensity), 1)
    assert (heuristic.indices == best.indices).all()


@pytest.mark.parametrize("rule", [decide.Thresholds("macro-f1"), decide.FrankWolfe("macro-f1", 2)])
def test_rules_survive_pickle_and_deepcopy(rule):
    eta = np.random.default_rng(0).beta(0.3, 2, (40, 8))
    rule = copy.deepcopy(rule).fit(eta)
    for _ in range(2):  # before and after predict
        for again in (copy.deepcopy(rule), pickle.loads(pickle.dumps(rule))):
            assert again.nbytes == rule.nbytes > 0
            assert (again.predict(eta) != rule.predict(eta)).nnz == 0
