"""Truncated Newton in label blocks against plain numpy and LIBLINEAR."""

from __future__ import annotations

import ctypes
import lzma

import numpy as np
import pytest
import scipy.sparse as sp

from reference import l1 as l1_reference
from reference import newton as reference
from xmc_fast import OneVsAll, _checkpoint, _core, _validate

LOSSES = ["squared_hinge", "logistic"]
INITS = ["zero", "mean", "multi-positive", "bias", "warm"]
SOLVERS = ["dual", "newton", "l1"]
REPORT = [
    "status",
    "outer_iterations",
    "inner_iterations",
    "active_rows",
    "objective",
    "gradient_norm",
    "seconds",
]
CONVERGED, LIMIT, TRIVIAL = 0, 1, 2


def solve(X, Y, *, solver="newton", loss="squared_hinge", init="mean", C=1.0, tol=0.01, warm=None,
          cost_positive=(), max_iter=1000, threshold=0.0, keep_top=0, block=1000, threads=1):  # fmt: skip
    """Weights (dense, labels x features) and a dict of report columns, in label order."""
    y = _validate.transpose(_validate.labels(Y))
    dense = isinstance(X, np.ndarray)
    x = _validate.features(sp.csr_matrix((0, X.shape[1])) if dense else X)
    start = _validate.features(sp.csr_matrix((0, X.shape[1])) if warm is None else warm)
    L = Y.shape[1]
    blocks = [(first, min(first + block, L)) for first in range(0, L, block)]
    parts = {}
    _core.linear_train(
        x_indptr=x.indptr,
        x_indices=x.indices,
        x_data=x.data,
        n_features=X.shape[1],
        x_dense=np.ascontiguousarray(X, np.float32) if dense else np.empty((0, 0), np.float32),
        normalize=False,
        bias=None,
        y_indptr=y.indptr,
        y_indices=y.indices,
        cost_positive=np.asarray(cost_positive, np.float32),
        warm_indptr=start.indptr,
        warm_indices=start.indices,
        warm_data=start.data,
        **_checkpoint._NO_START,
        old_rows=0,
        keep_multipliers=False,
        blocks=np.array(blocks, np.int64).ravel(),
        solver=SOLVERS.index(solver),
        loss=LOSSES.index(loss),
        init=INITS.index(init),
        C=C,
        tol=tol,
        max_iter=max_iter,
        seed=0,
        threshold=threshold,
        keep_top=keep_top,
        bias_threshold=threshold,
        threads=threads,
        on_block=lambda block, *solved: parts.update({block: solved}),
    )
    W = [
        _validate.to_scipy(*parts[b][:3], (last - first, X.shape[1])).toarray()
        for b, (first, last) in enumerate(blocks)
    ]
    columns = [parts[b][3] for b in range(len(blocks))]
    report = {name: np.concatenate([c[name] for c in columns] or [np.empty(0)]) for name in REPORT}
    return np.vstack([np.empty((0, X.shape[1]), np.float32), *W]), report


def signs(Y):
    """Labels x rows of +1 and -1."""
    return np.where(sp.csr_matrix(Y).toarray().T > 0, 1.0, -1.0)


def random_problem(n=120, D=40, L=21, density=0.2, seed=0):
    rng = np.random.default_rng(seed)
    X = sp.random(n, D, density, format="csr", random_state=rng, dtype=np.float32)
    X.data = rng.normal(size=X.nnz).astype(np.float32)
    Y = rng.random((n, L)) < rng.uniform(0.02, 0.4, L)
    Y[0], Y[1] = True, False  # no label is trivial
    return X, sp.csr_matrix(Y.astype(np.int8))


def read_xmc(folder, rows, split="train"):
    """The first rows of a data set, l2-normalised."""
    with lzma.open(folder / f"{split}.txt.xz", "rt") as f:
        _, D, L = map(int, f.readline().split())
        lines = [next(f).rstrip("\n").partition(" ") for _ in range(rows)]
    X, Y = sp.lil_matrix((rows, D), dtype=np.float32), sp.lil_matrix((rows, L), dtype=np.int8)
    for i, (labels, _, features) in enumerate(lines):
        for label in labels.split(",") if labels else []:
            Y[i, int(label)] = 1
        for item in features.split():
            j, _, v = item.partition(":")
            X[i, int(j)] = float(v)
    X = X.tocsr()
    norms = np.sqrt(X.multiply(X).sum(1)).A1
    return sp.csr_matrix(X.multiply(1 / np.where(norms > 0, norms, 1)[:, None]), dtype=np.float32), Y.tocsr()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("layout", ["sparse", "dense"])
def test_reaches_the_reference_optimum(simd, loss, layout):
    X, Y = random_problem()
    A = X.toarray().astype(float)
    W, report = solve(A.astype(np.float32) if layout == "dense" else X, Y, loss=loss, tol=1e-5)
    assert (report["status"] == CONVERGED).all()
    for w, s, f in zip(W, signs(Y), report["objective"], strict=True):
        c = reference.costs(s, 1.0)
        best = reference.solve(loss, A, s, c)
        assert np.abs(w - best).max() <= 1e-4 * np.abs(best).max()
        assert f == pytest.approx(reference.objective(loss, best, A, s, c), rel=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_stops_by_liblinear_s_rule(simd, loss):
    X, Y = random_problem()
    W, report = solve(X, Y, loss=loss, tol=0.1)
    for w, s, g in zip(W.astype(float), signs(Y), report["gradient_norm"], strict=True):
        c = reference.costs(s, 1.0)
        assert np.linalg.norm(reference.gradient(loss, w, X, s, c)) == pytest.approx(g, rel=1e-3, abs=3e-5)
        assert g <= reference.stopping_norm(loss, X, s, c, 0.1)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loose_rule_still_ends_near_the_minimum(loss):
    X, Y = random_problem(n=400, D=30, L=6)
    _, report = solve(X, Y, loss=loss, tol=10.0, init="zero")
    _, exact = solve(X, Y, loss=loss, tol=1e-4)
    assert (report["objective"] <= exact["objective"] * (1 + 5e-4)).all()
    assert (report["gradient_norm"] > exact["gradient_norm"]).all(), "and no further than needed"


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("init", INITS)
def test_every_start_ends_at_the_same_optimum(loss, init):
    X, Y = random_problem(seed=1)
    warm = sp.random(Y.shape[1], X.shape[1], 0.3, format="csr", random_state=3) if init == "warm" else None
    W, report = solve(X, Y, loss=loss, init=init, tol=1e-5, warm=warm)
    expected, _ = solve(X, Y, loss=loss, init="zero", tol=1e-5)
    assert (report["status"] == CONVERGED).all()
    assert np.abs(W - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("init", ["zero", "mean", "multi-positive", "warm"])
def test_start_weights(init):
    X, Y = random_problem(seed=2)
    warm = sp.random(Y.shape[1], X.shape[1], 0.3, format="csr", random_state=3, dtype=np.float32)
    W, report = solve(X, Y, init=init, max_iter=0, warm=warm if init == "warm" else None)
    assert (report["status"] == LIMIT).all()
    A = X.toarray().astype(float)
    for label, s in enumerate(signs(Y)):
        if init == "zero":
            expected = np.zeros(X.shape[1])
        elif init == "warm":
            expected = warm[label].toarray()[0]
        elif init == "mean" or (s > 0).sum() > 20:
            expected = reference.mean_start(A, s)
        else:
            expected = reference.multi_positive_start(A, s)
        assert np.abs(W[label] - expected).max() <= 1e-4 * max(np.abs(expected).max(), 1)


def test_warm_start_at_the_optimum_takes_no_step():
    X, Y = random_problem()
    W, _ = solve(X, Y, tol=1e-4)
    _, report = solve(X, Y, tol=1e-3, init="warm", warm=sp.csr_matrix(W))
    assert report["outer_iterations"].max() == 0


@pytest.mark.parametrize("loss", LOSSES)
def test_costs_per_label(loss):
    X, Y = random_problem(L=18, seed=4)
    rng = np.random.default_rng(0)
    positive = rng.uniform(0.2, 5, 18).astype(np.float32)
    W, report = solve(X, Y, loss=loss, C=0.7, tol=1e-5, cost_positive=positive)
    A = X.toarray().astype(float)
    for label, s in enumerate(signs(Y)):
        c = reference.costs(s, 0.7, positive[label])
        best = reference.solve(loss, A, s, c)
        assert np.abs(W[label] - best).max() <= 1e-4 * np.abs(best).max()
        assert report["objective"][label] == pytest.approx(reference.objective(loss, best, A, s, c), rel=1e-6)


@pytest.mark.parametrize("init", ["mean", "bias"])
def test_bits_do_not_depend_on_threads(init):
    X, Y = random_problem(n=200, L=70, seed=5)
    first = solve(X, Y, block=16, threads=1, init=init)
    for threads in (2, 4):
        again = solve(X, Y, block=16, threads=threads, init=init)
        assert np.array_equal(first[0], again[0])
        assert all(np.array_equal(first[1][k], again[1][k]) for k in REPORT if k != "seconds")


@pytest.mark.parametrize("labels", [0, 1, 15, 16, 17, 33])
def test_label_counts_around_the_lanes(labels):
    X, Y = random_problem(L=33, seed=6)
    W, _ = solve(X, Y[:, :labels], tol=1e-4)
    expected, _ = solve(X, Y, tol=1e-4)
    assert W.shape == (labels, X.shape[1])
    assert np.abs(W - expected[:labels]).max(initial=0) <= 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize("layout", ["sparse", "dense"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 9])
def test_few_rows(simd, n, layout):
    X, Y = random_problem(n=9, D=5, L=3, density=0.9)
    X, Y = X[:n], Y[:n]
    W, _ = solve(X.toarray() if layout == "dense" else X, Y, tol=1e-5)
    for w, s in zip(W, signs(Y), strict=True):
        A = X.toarray().astype(float)
        best = reference.solve("squared_hinge", A, s, reference.costs(s, 1.0))
        assert np.abs(w - best).max() <= 1e-4


def test_labels_without_positives_or_negatives():
    X, Y = random_problem(L=5)
    Y = Y.tolil()
    Y[:, 1], Y[:, 3] = 0, 1
    W, report = solve(X, Y.tocsr(), tol=1e-5)
    assert report["status"].tolist() == [CONVERGED, TRIVIAL, CONVERGED, TRIVIAL, CONVERGED]
    assert report["seconds"][1] == 0
    A, s = X.toarray().astype(float), -np.ones(X.shape[0])
    best = reference.solve("squared_hinge", A, s, reference.costs(s, 1.0))
    assert np.abs(W[1] - best).max() <= 1e-4 * np.abs(best).max()
    assert np.array_equal(W[3], -W[1])
    assert report["objective"][1] == pytest.approx(
        reference.objective("squared_hinge", best, A, s, reference.costs(s, 1.0)), rel=1e-6
    )


def test_empty_rows_and_columns():
    X, Y = random_problem()
    wide = sp.csr_matrix((X.data, X.indices * 3, np.r_[X.indptr, [X.nnz] * 4]), shape=(X.shape[0] + 4, 500))
    tall = sp.vstack([Y, sp.csr_matrix((4, Y.shape[1]), dtype=np.int8)]).tocsr()
    W, report = solve(wide, tall, tol=1e-5)  # few entries, many features: the compacted path
    expected, _ = solve(X, Y, tol=1e-5)
    assert np.abs(W[:, : 3 * X.shape[1] : 3] - expected).max() <= 1e-4 * np.abs(expected).max()
    assert np.abs(W).sum() == pytest.approx(np.abs(W[:, : 3 * X.shape[1] : 3]).sum())
    assert (report["status"] == CONVERGED).all()


@pytest.mark.parametrize("shape", [(0, 3), (4, 0)])
def test_no_rows_or_no_features(shape):
    Y = sp.csr_matrix((shape[0], 2), dtype=np.int8)
    W, report = solve(sp.csr_matrix(shape, dtype=np.float32), Y)
    assert W.shape == (2, shape[1])
    assert not W.any()
    assert (report["status"] == TRIVIAL).all()


def test_pruning():
    X, Y = random_problem()
    full, report = solve(X, Y)
    pruned, same = solve(X, Y, threshold=0.1)
    assert np.array_equal(pruned, np.where(np.abs(full) >= np.float32(0.1), full, 0))
    assert np.array_equal(report["objective"], same["objective"]), "the report is about the unpruned weights"
    top, _ = solve(X, Y, keep_top=3)
    assert ((top != 0).sum(1) == 3).all()
    for row, weights in zip(top, full, strict=True):
        kept = np.sort(np.argsort(-np.abs(weights), kind="stable")[:3])
        assert np.array_equal(np.flatnonzero(row), kept)
        assert np.array_equal(row[kept], weights[kept])


def test_iteration_limit_is_reported():
    X, Y = random_problem()
    _, report = solve(X, Y, tol=1e-6, max_iter=2, init="zero")
    assert (report["status"] == LIMIT).any()
    assert report["outer_iterations"].max() <= 2


def test_impossible_precision_ends():
    X, Y = random_problem(L=3)
    _, report = solve(X, Y, tol=1e-14)
    assert (report["status"] == LIMIT).all()
    assert report["outer_iterations"].max() < 100


def liblinear_weights(X, y, options):
    linear = pytest.importorskip("liblinear.liblinearutil")
    ctypes.CDLL(None).srand(1)  # it shuffles by C's rand(), whatever was called before
    model = linear.train(linear.problem(y, X.astype(np.float64)), options + " -q")
    w = np.array(model.w[: X.shape[1]])
    return w if model.label[0] == 1 else -w


@pytest.mark.parametrize(("loss", "solver"), [("squared_hinge", 2), ("logistic", 0), ("logistic", 7)])
@pytest.mark.parametrize("name", ["bibtex", "eurlex-4k"])
def test_liblinear_on_real_data(data_dir, name, loss, solver):
    X, Y = read_xmc(data_dir(name), 1500)
    counts = np.asarray(Y.sum(0)).ravel()
    chosen = np.argsort(-counts, kind="stable")[[0, 3, 20, 60, 100, 140]]
    Y = Y[:, chosen]
    fine, _ = solve(X, Y, loss=loss, tol=1e-4)
    coarse, report = solve(X, Y, loss=loss, tol=0.01)
    for label, s in enumerate(signs(Y)):
        c = reference.costs(s, 1.0)
        peer = liblinear_weights(X, s, f"-s {solver} -c 1 -e 0.01")
        limit = reference.objective(loss, peer, X, s, c) * (1 + 1e-3)
        assert report["objective"][label] <= limit
        assert reference.objective(loss, coarse[label].astype(float), X, s, c) <= limit
        exact = liblinear_weights(X, s, f"-s {solver} -c 1 -e {'1e-4' if solver != 7 else '1e-6'}")
        assert np.linalg.norm(fine[label] - exact) <= 1e-3 * np.linalg.norm(exact)


def fit(X, Y, **options):
    return OneVsAll(
        **{"normalize": False, "bias": None, "prune": 0, "tol": 1e-5, "n_jobs": 1, **options}
    ).fit(X, Y)


@pytest.mark.parametrize("layout", ["sparse", "dense"])
@pytest.mark.parametrize(
    "options",
    [{"solver": "newton"}, {"loss": "logistic"}, {"penalty": "l1", "tol": 1e-7}, {"solver": "dual"}],
    ids=lambda o: next(iter(o.values())),
)
def test_estimator_reaches_the_reference_optimum(options, layout):
    X, Y = random_problem(L=9)
    A = X.toarray().astype(float)
    model = fit(A if layout == "dense" else X, Y, **options)
    W = model.model_.to_csr().toarray().astype(float)
    loss = options.get("loss", "squared_hinge")
    for w, s, f in zip(W, signs(Y), model.report_["objective"], strict=True):
        c = reference.costs(s, 1.0)
        if "penalty" in options:
            best = l1_reference.objective(l1_reference.solve(A, s, c), A, s, c)
            assert f == pytest.approx(best, rel=1e-5)
            assert l1_reference.objective(w, A, s, c) == pytest.approx(f, rel=1e-5)
        else:
            best = reference.solve(loss, A, s, c)
            assert np.abs(w - best).max() <= 1e-3 * np.abs(best).max()
            assert f == pytest.approx(reference.objective(loss, best, A, s, c), rel=1e-5)


@pytest.mark.parametrize("init", ["zero", "mean", "multi-positive", "bias"])
def test_estimator_starts(init):
    X, Y = random_problem(L=9)
    W = fit(X, Y, solver="newton", init=init).model_.to_csr().toarray()
    expected = fit(X, Y, solver="newton", init="zero").model_.to_csr().toarray()
    assert np.abs(W - expected).max() <= 1e-4 * np.abs(expected).max()


def test_estimator_starts_from_a_model():
    X, Y = random_problem(L=9)
    model = fit(X, Y, solver="newton").model_
    again = fit(X, Y, init=model, tol=1e-3)
    assert again.report_["outer_iterations"].max() == 0, "a model as init makes 'auto' the Newton solver"
    part = OneVsAll(init=model, tol=1e-3, normalize=False, bias=None, prune=0)
    for labels, start in (((3, 7), model), ((3, 7), fit(X, Y[:, 3:7], solver="newton").model_)):
        part.set_params(init=start).fit(X, Y, labels=labels)
        assert part.report_["outer_iterations"].max() == 0
        assert np.abs(part.model_.to_csr().toarray() - model.to_csr()[3:7].toarray()).max() < 1e-3
    with pytest.raises(ValueError, match="init has 9 labels, expected 8"):
        fit(X, Y[:, :8], init=model)
    with pytest.raises(ValueError, match="init has 40 columns, expected 41"):
        fit(X, Y, init=model, bias=1.0)


@pytest.mark.parametrize("options", [{"solver": "newton"}, {"loss": "logistic"}, {"penalty": "l1"}])
def test_estimator_bits_do_not_depend_on_threads(options):
    X, Y = random_problem(L=50)
    models = [fit(X, Y, block_labels=16, n_jobs=n, tol=0.01, **options).model_.to_csr() for n in (1, 2, 4)]
    for other in models[1:]:
        assert np.array_equal(models[0].indptr, other.indptr)
        assert np.array_equal(models[0].indices, other.indices)
        assert np.array_equal(models[0].data, other.data)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"penalty": "l1", "loss": "logistic"}, "loss must be 'squared_hinge' with penalty='l1'"),
        ({"penalty": "l1", "solver": "newton"}, "solver must be one of 'auto' with loss='squared_hinge'"),
        (
            {"loss": "logistic", "solver": "dual"},
            "solver must be one of 'auto', 'newton' with loss='logistic'",
        ),
        ({"init": "middle"}, "init must be one of 'zero', 'mean', 'multi-positive', 'bias' or a SparseModel"),
        ({"init": 3}, "init must be a name or a SparseModel, got 3"),
    ],
)
def test_estimator_refuses_what_no_solver_can(options, message):
    X, Y = random_problem(L=2)
    with pytest.raises(ValueError, match=message):
        fit(X, Y, **options)


def test_estimator_reports_the_placement():
    X, Y = random_problem(L=4)
    placement = fit(X, Y, n_jobs=2).report_["placement"]
    assert placement["threads"] == 2
    nodes = _core.numa_machine()[:2]
    assert [(p["node"], p["cpus"]) for p in placement["nodes"]] == nodes
    copied = [p["replica_bytes"] for p in fit(X, Y, solver="newton", n_jobs=2).report_["placement"]["nodes"]]
    assert all(copied), "every node has its own layout of X"


def test_estimator_start_is_part_of_the_checkpoint(tmp_path):
    X, Y = random_problem(L=4)
    options = {"solver": "newton", "normalize": False, "bias": None}
    OneVsAll(**options).fit(X, Y, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="init is 'mean' there, 'zero' here"):
        OneVsAll(**options, init="zero").fit(X, Y, checkpoint=tmp_path)
