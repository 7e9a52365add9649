"""The l1-regularised squared hinge against plain numpy and LIBLINEAR -s 5."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import scipy.sparse as sp

from reference import l1 as reference
from reference.newton import costs
from test_newton import CONVERGED, LIMIT, REPORT, TRIVIAL, liblinear_weights, random_problem, read_xmc, signs
from test_newton import solve as newton_solve

solve = functools.partial(newton_solve, solver="l1")


@pytest.mark.parametrize("layout", ["sparse", "dense"])
def test_reaches_the_reference_optimum(layout):
    X, Y = random_problem(L=8)
    A = X.toarray().astype(float)
    W, report = solve(A.astype(np.float32) if layout == "dense" else X, Y, tol=1e-5)
    assert (report["status"] == CONVERGED).all()
    for w, s, f in zip(W, signs(Y), report["objective"], strict=True):
        c = costs(s, 1.0)
        best = reference.solve(A, s, c)
        assert f == pytest.approx(reference.objective(best, A, s, c), rel=1e-5)
        assert reference.objective(w.astype(float), A, s, c) == pytest.approx(f, rel=1e-5)
        assert np.abs(w - best).max() <= 1e-2 * np.abs(best).max()


def test_costs_per_label():
    X, Y = random_problem(L=6, seed=4)
    positive = np.random.default_rng(0).uniform(0.2, 5, 6).astype(np.float32)
    _, report = solve(X, Y, C=0.7, tol=1e-5, cost_positive=positive)
    A = X.toarray().astype(float)
    for label, s in enumerate(signs(Y)):
        c = costs(s, 0.7, positive[label])
        best = reference.objective(reference.solve(A, s, c), A, s, c)
        assert report["objective"][label] == pytest.approx(best, rel=1e-5)


def test_small_c_gives_zero():
    X, Y = random_problem(L=3)
    W, report = solve(X, Y, C=1e-5)
    assert not W.any()
    assert report["objective"] == pytest.approx(1e-5 * X.shape[0])


def test_bits_do_not_depend_on_threads_or_batches():
    X, Y = random_problem(n=200, L=40, seed=5)
    first = solve(X, Y)
    for threads, batch in ((1, 7), (2, 16), (4, 3)):
        again = solve(X, Y, block=batch, threads=threads)
        assert np.array_equal(first[0], again[0])
        assert all(np.array_equal(first[1][k], again[1][k]) for k in REPORT if k != "seconds")


def test_labels_without_positives_or_negatives():
    X, Y = random_problem(L=4)
    Y = Y.tolil()
    Y[:, 1], Y[:, 3] = 0, 1
    W, report = solve(X, Y.tocsr(), tol=1e-5)
    assert report["status"].tolist() == [CONVERGED, TRIVIAL, CONVERGED, TRIVIAL]
    A, s = X.toarray().astype(float), -np.ones(X.shape[0])
    best = reference.solve(A, s, costs(s, 1.0))
    assert report["objective"][1] == pytest.approx(reference.objective(best, A, s, costs(s, 1.0)), rel=1e-5)
    assert np.array_equal(W[3], -W[1])


@pytest.mark.parametrize("shape", [(0, 3), (4, 0)])
def test_no_rows_or_no_features(shape):
    W, report = solve(sp.csr_matrix(shape, dtype=np.float32), sp.csr_matrix((shape[0], 2), dtype=np.int8))
    assert W.shape == (2, shape[1])
    assert not W.any()
    assert (report["status"] == TRIVIAL).all()


def test_pruning_and_limit():
    X, Y = random_problem()
    full, _ = solve(X, Y)
    pruned, _ = solve(X, Y, threshold=0.1)
    assert np.array_equal(pruned, np.where(np.abs(full) >= np.float32(0.1), full, 0))
    top, _ = solve(X, Y, keep_top=2)
    assert ((top != 0).sum(1) <= 2).all()
    _, report = solve(X, Y, tol=1e-6, max_iter=2)
    assert (report["status"] == LIMIT).all()


@pytest.mark.parametrize("name", ["bibtex", "eurlex-4k"])
def test_liblinear_on_real_data(data_dir, name):
    X, Y = read_xmc(data_dir(name), 1500)
    counts = np.asarray(Y.sum(0)).ravel()
    Y = Y[:, np.argsort(-counts, kind="stable")[[0, 3, 20, 60, 100, 140]]]
    W, report = solve(X, Y, tol=0.01)
    assert (report["status"] == CONVERGED).all()
    for label, s in enumerate(signs(Y)):
        c = costs(s, 1.0)
        peer = reference.objective(liblinear_weights(X, s, "-s 5 -c 1 -e 0.01"), X, s, c)
        assert report["objective"][label] <= peer * (1 + 1e-3)
        assert reference.objective(W[label].astype(float), X, s, c) == pytest.approx(
            report["objective"][label], rel=1e-5
        )
