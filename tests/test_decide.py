"""Decisions for macro-at-k metrics: guarantees, brute force, closed forms, equal over inputs and threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import reference.decide as ref
from xmc_fast import _core, decide

MACRO = list(ref.PSI)
BUILT_IN = [*MACRO, "coverage", "precision"]
NON_LINEAR = [
    "macro-precision",
    "macro-f1",
    "macro-f2",
    "macro-jaccard",
    "macro-gmean",
    "macro-hmean",
    "coverage",
]


def random_proba(n, labels, seed=0, density=1.0):
    """Long-tailed probabilities: some labels frequent, most rare; float32 so that all sides see the same."""
    rng = np.random.default_rng(seed)
    eta = rng.beta(0.4, 2.0, (n, labels)) * (1.0 / np.sqrt(1 + np.arange(labels)))
    eta[rng.random((n, labels)) > density] = 0
    return eta.astype(np.float32)


def short_lists(n, labels, size, seed=0):
    """Sparse probabilities with `size` candidates per row."""
    rng = np.random.default_rng(seed)
    popular = rng.permutation(labels)
    indices = np.stack(
        [popular[np.unique((labels * rng.random(4 * size) ** 2).astype(int))[:size]] for _ in range(n)]
    )
    data = rng.beta(0.3, 2.0, indices.shape).astype(np.float32)
    matrix = sp.csr_matrix((data.ravel(), indices.ravel(), np.arange(n + 1) * size), shape=(n, labels))
    matrix.sort_indices()
    return matrix


def dense(prediction):
    chosen = sp.csr_matrix(
        (np.ones(prediction.nnz), prediction.indices, prediction.indptr), shape=prediction.shape
    )
    return chosen.toarray()


def assert_k_best_first(prediction, k):
    assert (np.diff(prediction.indptr) == k).all()
    scores = prediction.data.reshape(-1, k)
    assert (np.diff(scores, axis=1) <= 0).all()
    assert dense(prediction).max(initial=0) <= 1


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("k", [1, 3])
def test_utility_is_the_metrics_and_never_decreases(name, k):
    eta = random_proba(60, 12)
    topk = ref.utility(eta.astype(float), ref.top_k(eta, k), name, k)
    for init in ("relaxed", "topk", "random", "greedy", decide.weighted_topk(eta, np.ones(12), k)):
        prediction, info = decide.bca(eta, name, k, init=init)
        assert_k_best_first(prediction, k)
        assert info.utility == pytest.approx(
            ref.utility(eta.astype(float), dense(prediction), name, k), abs=1e-12
        )
        assert info.utility == pytest.approx(decide.expected_utility(eta, prediction, name), abs=1e-12)
        assert info.utility >= topk - 1e-12
        assert info.topk_utility == pytest.approx(topk, abs=1e-12)
        path = (
            info.utilities
            if isinstance(init, str) and init == "greedy"
            else [info.start_utility, *info.utilities]
        )
        assert (np.diff(path) >= -1e-12).all()
        assert info.converged
        assert info.passes == len(info.changed)
    assert info.start_utility == pytest.approx(topk, abs=1e-12)


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("k", [1, 2])
def test_each_step_is_the_best_response(name, k):
    """One instance is free to move: all others are frozen by having only k candidates."""
    rng = np.random.default_rng(5)
    for trial in range(6):
        eta = random_proba(5, 6, seed=trial).astype(float)
        frozen = ref.top_k(rng.random(eta.shape), k)
        eta[1:] *= frozen[1:]
        eta = eta.astype(np.float32)
        prediction, _ = decide.bca(eta, name, k, init="topk", max_passes=1, random_state=trial)
        chosen, eta = dense(prediction), eta.astype(float)
        assert (chosen[1:] == frozen[1:]).all()
        expected = ref.best_response(eta, chosen, 0, name, k)
        assert ref.utility(eta, chosen, name, k) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", BUILT_IN)
def test_stationary_and_close_to_the_global_optimum(name, record_property):
    gaps = []
    for seed in range(8):
        k = 1 + seed % 2
        eta = random_proba(4, 5, seed=seed).astype(float)
        prediction, info = decide.bca(eta.astype(np.float32), name, k, tolerance=0)
        eta = eta.astype(np.float32).astype(float)
        for i in range(len(eta)):
            assert info.utility >= ref.best_response(eta, dense(prediction), i, name, k) - 1e-12
        best = ref.global_optimum(eta, name, k)
        gaps.append((best - info.utility) / best)
    record_property("relative gap to the global optimum: mean, max", (np.mean(gaps), np.max(gaps)))
    assert min(gaps) >= -1e-12
    assert np.mean(gaps) < 0.05
    if name in ("precision", "macro-recall", "macro-balanced-accuracy"):
        assert max(gaps) < 1e-12


@pytest.mark.parametrize("name", ["precision", "macro-recall", "macro-balanced-accuracy", "psp", "mixture"])
def test_linear_metrics_equal_the_ascent(name):
    """The closed form (string init) and the ascent from a given start end at the same utility."""
    eta = random_proba(80, 10, density=0.7)
    metric = {"psp": decide.metric("psp", propensity=np.linspace(0.1, 1, 10))}.get(name, name)
    if name == "mixture":
        metric = decide.mix(0.3, "macro-recall")
    start = decide.weighted_topk(eta, np.ones(10), 3)
    closed, closed_info = decide.bca(eta, metric, 3)
    ascent, ascent_info = decide.bca(eta, metric, 3, init=start, tolerance=0)
    assert closed_info.passes == 0
    assert closed_info.utility == pytest.approx(ascent_info.utility, abs=1e-12)
    assert closed_info.utility == pytest.approx(decide.expected_utility(eta, closed, metric), abs=1e-12)
    assert closed_info.utility > closed_info.start_utility or name in ("precision",)
    assert closed_info.start_utility == pytest.approx(ascent_info.start_utility, abs=1e-12)
    assert (dense(closed) == dense(ascent)).all()


@pytest.mark.parametrize("name", ["macro-f1", "coverage"])
def test_the_relaxed_start_is_no_worse_on_average(name):
    rng = np.random.default_rng(0)
    proba = (rng.beta(0.2, 2, (600, 200)) / (1 + np.arange(200)) ** 0.7).astype(np.float32)
    seeds = range(3)
    ends = {
        init: np.mean([decide.bca(proba, name, 1, init=init, random_state=s)[1].utility for s in seeds])
        for init in ("relaxed", "topk", "random")
    }
    assert ends["relaxed"] >= 0.9995 * max(ends.values())


@pytest.mark.parametrize("name", MACRO)
def test_gradients(name):
    rng = np.random.default_rng(1)
    n = 50.0
    p = rng.uniform(1, 20, 30)
    q = rng.uniform(1, 20, 30)
    t = np.minimum(p, q) * rng.uniform(0.1, 0.9, 30)
    term = [(*decide.metric(name).terms[0][:1], 30.0, decide.metric(name).terms[0][2])]
    dt, dq = _core.decide_gradient(term, np.empty(0), p, 50, 1, t, q)
    expected_dt, expected_dq = ref.gradient(name, t, q, p, n)
    np.testing.assert_allclose(dt, expected_dt, atol=1e-7)
    np.testing.assert_allclose(dq, expected_dq, atol=1e-7)


def test_gradient_convention_of_the_confusion_tensor():
    """dt = G11 + G00 - G01 - G10 and dq = G01 - G00 with the truth as the first index (equation 4.22)."""

    def balanced_accuracy(c11, c01, c10, c00):
        return 0.5 * (c11 / (c11 + c10) + c00 / (c00 + c01))

    n, p, q, t, h = 40.0, 9.0, 7.0, 4.0, 1e-6
    cells = np.array([t, q - t, p - t, n - p - q + t])
    G11, G01, G10, G00 = (
        (balanced_accuracy(*(cells + h * e)) - balanced_accuracy(*(cells - h * e))) / (2 * h)
        for e in np.eye(4)
    )
    terms = list(decide.metric("macro-balanced-accuracy").terms)
    one = np.ones(1)
    dt, dq = _core.decide_gradient(terms, np.empty(0), p * one, int(n), 1, t * one, q * one)
    assert dt[0] == pytest.approx(G11 + G00 - G01 - G10, abs=1e-8)
    assert dq[0] == pytest.approx(G01 - G00, abs=1e-8)


@pytest.mark.parametrize("name", NON_LINEAR)
@pytest.mark.parametrize("init", ["relaxed", "topk"])
def test_bit_equal_for_any_number_of_threads(name, init):
    proba = short_lists(6000, 400, 12)
    if name == "coverage":  # else nearly every label is covered whatever is chosen
        proba.data *= 0.02
    results = [decide.bca(proba, name, 3, init=init, n_jobs=jobs) for jobs in (1, 2, 5)]
    for prediction, info in results[1:]:
        assert (prediction.indices == results[0][0].indices).all()
        assert (prediction.data == results[0][0].data).all()
        assert info.utilities == results[0][1].utilities
    if init == "topk":  # the parallel passes did run
        assert 4 * results[0][1].changed[-1] < proba.shape[0]
        assert results[0][1].passes > 2


def test_dense_sparse_unsorted_and_torch_agree():
    torch = pytest.importorskip("torch")
    eta = random_proba(40, 15, density=0.5)
    sparse = sp.csr_matrix(eta)
    shuffled = sparse.copy()
    for i in range(40):  # best first, as predictions are stored
        row = slice(shuffled.indptr[i], shuffled.indptr[i + 1])
        order = np.argsort(-shuffled.data[row])
        shuffled.indices[row] = shuffled.indices[row][order]
        shuffled.data[row] = shuffled.data[row][order]
    shuffled.has_sorted_indices = False
    zeros = sp.csr_matrix(
        (np.r_[sparse.data, 0], np.r_[sparse.indices, 14], np.r_[sparse.indptr[:-1], sparse.nnz + 1])
    )
    zeros = sp.csr_matrix(zeros, shape=eta.shape) if eta[-1, 14] == 0 else sparse
    halves = sp.coo_matrix(sparse)
    doubled = sp.csr_matrix(
        (np.r_[halves.data, halves.data] / 2, (np.r_[halves.row, halves.row], np.r_[halves.col, halves.col])),
        shape=eta.shape,
    )
    expected, _ = decide.bca(eta, "macro-f1", 3)
    for other in (
        sparse,
        shuffled,
        zeros,
        doubled,
        sparse.tocsc(),
        eta.astype(np.float64),
        np.asfortranarray(eta),
        torch.from_numpy(eta),
        torch.from_numpy(eta).to_sparse(),
    ):
        prediction, _ = decide.bca(other, "macro-f1", 3)
        assert (prediction.indices == expected.indices).all()
        assert (prediction.data == expected.data).all()


def test_torch_is_not_imported():
    code = (
        "import sys, numpy; from xmc_fast import decide; decide.bca(numpy.eye(3), 'macro-f1', 1);"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)


@pytest.mark.parametrize("name", ["macro-f1", "macro-precision", "macro-jaccard"])
def test_own_metrics_agree_with_built_in_ones(name):
    eta = random_proba(300, 20, density=0.6)
    for wrap in (decide.metric, lambda m: decide.mix(0.3, m)):
        built_in, info = decide.bca(eta, wrap(name), 3, init="topk")
        own, own_info = decide.bca(eta, wrap(ref.PSI[name]), 3, n_jobs=2)
        assert (built_in.indices == own.indices).all()
        np.testing.assert_allclose(own_info.utilities, info.utilities, atol=1e-12)
        assert decide.expected_utility(eta, own, wrap(ref.PSI[name])) == pytest.approx(
            info.utility, abs=1e-12
        )


@pytest.mark.parametrize("other", ["precision", "macro-precision", "coverage"])
def test_mixtures(other):
    eta = random_proba(50, 8)
    mixed = decide.mix(0.4, "macro-f1", other)
    prediction, info = decide.bca(eta, mixed, 2, tolerance=0)

    def value(eta_, chosen, _name, k):
        return 0.4 * ref.utility(eta_, chosen, other, k) + 0.6 * ref.utility(eta_, chosen, "macro-f1", k)

    eta64, chosen = eta.astype(float), dense(prediction)
    assert info.utility == pytest.approx(value(eta64, chosen, None, 2), abs=1e-12)
    for i in range(0, 50, 7):
        assert info.utility >= ref.best_response(eta64, chosen, i, None, 2, value) - 1e-12
    assert (np.diff([info.start_utility, *info.utilities]) >= -1e-12).all()


def test_mixture_ends_are_its_parts():
    eta = random_proba(50, 8)
    for lambda_, part in ((0, "macro-f1"), (1, "precision")):
        mixed, _ = decide.bca(eta, decide.mix(lambda_, "macro-f1"), 2)
        alone, _ = decide.bca(eta, part, 2)
        assert (mixed.indices == alone.indices).all()
    assert decide.optimize(eta, metric_="macro-f1", k=2, mix_=0.25)[1].utility == pytest.approx(
        decide.bca(eta, decide.mix(0.25, "macro-f1"), 2)[1].utility
    )


def test_coverage_with_certain_labels():
    """eta = 1 makes the chance of a miss exactly 0, which must be undone again."""
    eta = np.array([[1, 0.5, 0.2], [1, 0.1, 0.1], [1, 0.3, 0.6], [0.9, 1, 0.1]], np.float32)
    prediction, info = decide.bca(eta, "coverage", 1, tolerance=0)
    eta64, chosen = eta.astype(float), dense(prediction)
    assert info.utility == pytest.approx(ref.utility(eta64, chosen, "coverage", 1), abs=1e-12)
    assert info.utility == pytest.approx(decide.expected_utility(eta, prediction, "coverage"), abs=1e-12)
    for i in range(4):
        assert info.utility >= ref.best_response(eta64, chosen, i, "coverage", 1) - 1e-12


def test_short_rows_are_filled_with_the_lowest_missing_labels():
    proba = sp.csr_matrix(
        np.array([[0, 0.5, 0, 0, 0.2], [0, 0, 0, 0, 0], [0.1, 0.2, 0.3, 0.4, 0.5]], np.float32)
    )
    chosen = decide.weighted_topk(proba, np.ones(5), 4)
    assert chosen.indices.reshape(3, 4).tolist() == [[1, 4, 0, 2], [0, 1, 2, 3], [4, 3, 2, 1]]
    for name in ("macro-f1", "coverage", "precision"):
        prediction, info = decide.bca(proba, name, 4)
        assert_k_best_first(prediction, 4)
        assert info.utility == pytest.approx(
            ref.utility(proba.toarray().astype(float), dense(prediction), name, 4), abs=1e-12
        )


@pytest.mark.parametrize("shape", [(0, 5), (1, 5), (3, 5), (1, 1)])
@pytest.mark.parametrize("name", BUILT_IN)
def test_small_shapes(shape, name):
    eta = random_proba(*shape)
    prediction, info = decide.bca(eta, name, 1)
    assert prediction.shape == shape
    assert prediction.nnz == shape[0]
    assert np.isfinite(info.utility)
    rule = decide.FrankWolfe(name, 1).fit(eta)
    assert rule.predict(eta).nnz == shape[0]


def test_weighted_topk_equals_numpy():
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
    rule = decide.FrankWolfe(psi, 2, max_iterations=300, tolerance=0, smoothing=0).fit(eta)
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
    built_in = decide.FrankWolfe(name, 2, max_iterations=5).fit(eta)
    own = decide.FrankWolfe(ref.PSI[name], 2, max_iterations=5).fit(eta)
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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: decide.bca([[0.5, 1.5]], "macro-f1", 1), r"\[0, 1\], got 1.5 at row 0, column 1"),
        (lambda: decide.bca([[0.5, -0.1]], "macro-f1", 1), "got -0.1"),
        (lambda: decide.bca([[0.5, 0.1], [np.nan, 0]], "macro-f1", 1), "got nan at row 1, column 0"),
        (lambda: decide.bca([0.5], "macro-f1", 1), "two-dimensional"),
        (lambda: decide.bca([["a"]], "macro-f1", 1), "numbers"),
        (lambda: decide.bca([[0.5, 0.1]], "macro-f1", 3), r"at most the number of labels \(2\), got 3"),
        (lambda: decide.bca([[0.5, 0.1]], "macro-f1", 0), "k must be a positive integer"),
        (lambda: decide.bca([[0.5, 0.1]], "macro-f1", 1.0), "k must be a positive integer"),
        (lambda: decide.bca([[0.5, 0.1]], "macro-ff", 1), "known: precision, psp, .*macro-f1.*coverage"),
        (lambda: decide.bca([[0.5, 0.1]], "macro-f1", 1, init="best"), "init must be one of relaxed, topk"),
        (
            lambda: decide.bca([[0.5, 0.1]], "macro-f1", 1, init=np.ones((1, 2))),
            "k = 1 labels in each row, got 2",
        ),
        (lambda: decide.bca([[0.5, 0.0]], "macro-f1", 1, init=sp.csr_matrix([[0, 1]])), "label 1 of row 0"),
        (lambda: decide.bca([[0.5, 0.1]], "macro-f1", 1, tolerance=-1), "tolerance"),
        (lambda: decide.bca([[0.5, 0.1]], "macro-f1", 1, random_state=-1), "random_state"),
        (lambda: decide.bca([[0.5, 0.1]], "psp", 1), "psp needs propensity="),
        (lambda: decide.bca([[0.5, 0.1]], decide.metric("psp", propensity=[1.0]), 1), "weights for 1 labels"),
        (lambda: decide.metric("psp", propensity=[0.0]), r"\(0, 1\]"),
        (lambda: decide.bca([[0.5, 0.1]], "precision", None), "macro metric"),
        (lambda: decide.bca([[0.5, 0.1]], lambda t, q, p, n: 1.0, 1), "must return an array of shape"),
        (lambda: decide.bca([[0.5, 0.1]], lambda t, q, p, n: t / q, 1), "finite"),
        (lambda: decide.mix(1.5, "macro-f1"), "lambda_"),
        (lambda: decide.weighted_topk([[0.5, 0.1]], [1.0], 1), "vector of 2 labels"),
        (lambda: decide.weighted_topk([[0.5, 0.1]], [1.0, np.inf], 1), "finite"),
        (lambda: decide.FrankWolfe("macro-f1", 1).fit([[0.5, 0.1]], [[1]]), "expected 2"),
        (lambda: decide.FrankWolfe("macro-f1", 1, shrinkage=-1).fit([[0.5, 0.1]]), "shrinkage"),
        (lambda: decide.FrankWolfe("macro-f1", 1).fit(np.eye(2)).predict(np.eye(3)), "the rule has 2"),
        (lambda: decide.FrankWolfe("macro-f1", 1).fit(np.eye(2)).predict(np.eye(2), method="x"), "method"),
        (lambda: decide.Thresholds("macro-f1").fit(np.eye(2)).predict(np.eye(3)), "are for 2"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_errors_of_own_metrics_reach_the_caller():
    def broken(t, q, p, n):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        decide.bca(np.eye(3), broken, 1)


def test_tradeoff_example(data_dir, tmp_path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    folder = data_dir("bibtex")
    script = Path(__file__).parents[1] / "bench" / "examples" / "tradeoff.py"
    command = [sys.executable, str(script), "--data", "bibtex", "--k", "3", "--write", str(tmp_path)]
    environment = {**os.environ, "XMC_CACHE": str(tmp_path / "cache"), "XMC_DATA": str(folder.parent)}
    out = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert out.returncode == 0, out.stderr
    assert (tmp_path / "img" / "tradeoff.png").stat().st_size > 1000
    assert (tmp_path / "experiments" / "tradeoff.md").read_text(encoding="utf-8") in out.stdout
    rows = {
        line.split("|")[1].strip(): [float(v) for v in line.split("|")[2:4]]
        for line in out.stdout.splitlines()
        if line.startswith("| mixture")
    }
    macro, top = rows["mixture, λ = 0"], rows["mixture, λ = 1"]
    assert macro[0] < top[0]
    assert macro[1] > top[1]
