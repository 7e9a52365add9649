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
from reference.decide_data import assert_k_best_first, dense, random_proba, short_lists
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
        prediction, _ = decide.bca(eta, name, k, init="topk", max_iter=1, random_state=trial)
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
        prediction, info = decide.bca(eta.astype(np.float32), name, k, tol=0)
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
    ascent, ascent_info = decide.bca(eta, metric, 3, init=start, tol=0)
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
    dt, dq = _core.decide_gradient((term, np.empty(0), p, None, 0.0), 50, 1, t, q)
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
    dt, dq = _core.decide_gradient((terms, np.empty(0), p * one, None, 0.0), int(n), 1, t * one, q * one)
    assert dt[0] == pytest.approx(G11 + G00 - G01 - G10, abs=1e-8)
    assert dq[0] == pytest.approx(G01 - G00, abs=1e-8)


def test_short_and_long_rows_on_each_path(simd):
    """Rows around the width of the kernels; k above it takes the path without them."""
    for size in (1, 15, 16, 17, 33, 100):
        proba = short_lists(40, 400, size, seed=size)
        eta = proba.toarray().astype(float)
        for k in {1, min(3, size), min(16, size), min(17, size)}:
            for name in ("macro-precision", "coverage", "macro-f1", "macro-jaccard"):
                prediction, info = decide.bca(proba, name, k)
                assert_k_best_first(prediction, k)
                expected = ref.utility(eta, dense(prediction), name, k)
                assert info.utility == pytest.approx(expected, abs=1e-12)
                assert (np.diff([info.start_utility, *info.utilities]) >= -1e-12).all()
                again, _ = decide.bca(proba, name, k, init=prediction)
                assert (dense(again) == dense(prediction)).all(), "a converged prediction moved"


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
        assert own_info.utility == pytest.approx(info.utility, abs=1e-12)
        assert decide.expected_utility(eta, own, wrap(ref.PSI[name])) == pytest.approx(
            info.utility, abs=1e-12
        )


@pytest.mark.parametrize("other", ["precision", "macro-precision", "coverage"])
def test_mixtures(other):
    eta = random_proba(50, 8)
    mixed = decide.mix(0.4, "macro-f1", other)
    prediction, info = decide.bca(eta, mixed, 2, tol=0)

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
    assert decide.optimize(eta, metric="macro-f1", k=2, mix=0.25)[1].utility == pytest.approx(
        decide.bca(eta, decide.mix(0.25, "macro-f1"), 2)[1].utility
    )


def test_coverage_with_certain_labels():
    """eta = 1 makes the chance of a miss exactly 0, which must be undone again."""
    eta = np.array([[1, 0.5, 0.2], [1, 0.1, 0.1], [1, 0.3, 0.6], [0.9, 1, 0.1]], np.float32)
    prediction, info = decide.bca(eta, "coverage", 1, tol=0)
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
        (lambda: decide.bca([[0.5, 0.1]], "macro-f1", 1, tol=-1), "tol must"),
        (lambda: decide.bca([[0.5, 0.1]], "macro-f1", 1, random_state=-1), "random_state"),
        (lambda: decide.bca([[0.5, 0.1]], "psp", 1), "psp needs propensity="),
        (lambda: decide.bca([[0.5, 0.1]], decide.metric("psp", propensity=[1.0]), 1), "weights for 1 labels"),
        (lambda: decide.metric("psp", propensity=[0.0]), r"\(0, 1\]"),
        (lambda: decide.bca([[0.5, 0.1]], "precision", None), "macro metric"),
        (lambda: decide.bca([[0.5, 0.1]], lambda t, q, p, n: 1.0, 1), "must return an array of shape"),
        (lambda: decide.bca([[0.5, 0.1]], lambda t, q, p, n: t / q, 1), "finite"),
        (lambda: decide.mix(1.5, "macro-f1"), "lambda_"),
        (lambda: decide.weighted_topk([[0.5, 0.1]], [1.0], 1), "gains a has 1 entries, expected 2"),
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
    pytest.importorskip("sklearn")
    folder, root = data_dir("bibtex"), Path(__file__).parents[1]
    command = [sys.executable, "-m", "bench.experiments.tradeoff", "--data", "bibtex", "--k", "3"]
    environment = {
        **os.environ,
        "XMC_CACHE": str(tmp_path),
        "XMC_RESULTS": str(tmp_path),
        "XMC_DATA": str(folder.parent),
    }
    out = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, cwd=root)
    assert out.returncode == 0, out.stderr
    assert (tmp_path / "tradeoff.json").exists()
    rows = {
        line.split("|")[1].strip(): [float(v) for v in line.split("|")[2:4]]
        for line in out.stdout.splitlines()
        if line.startswith("| mixture")
    }
    macro, top = rows["mixture, λ = 0"], rows["mixture, λ = 1"]
    assert macro[0] < top[0]
    assert macro[1] > top[1]
