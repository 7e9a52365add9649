"""One timing per compiled stem, each checked against plain numpy first: ``pytest bench --benchmark-only``.

Small sizes, so that the whole suite runs in seconds; ``--benchmark-json FILE`` keeps the figures. The
comparisons with other packages are in the bench_<stem>.py scripts.
"""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from bench.speed import roofline
from xmc_fast import OneVsAll, SparseModel, _core, cluster, data, decide, knn, mach, metrics
from xmc_fast.text import TfidfVectorizer

pytest.importorskip("pytest_benchmark")


def test_roofline_is_plausible():
    measured = roofline.measure(1, 0.01, _core.simd_level())
    assert all(np.isfinite(x) and x > 0 for x in measured)


@pytest.fixture(scope="module")
def problem():
    return data.make_synthetic(2000, 5000, 500, random_state=0)


def test_read_xmc(benchmark, problem, tmp_path):
    path = tmp_path / "data.txt"
    data.write_xmc(path, problem.X, problem.Y)
    X, Y = benchmark(data.read_xmc, path, n_jobs=1)
    assert (X != problem.X).nnz == (Y != problem.Y).nnz == 0


def test_tfidf(benchmark):
    demo = data.load_demo()
    texts = [" ".join(demo.feature_names[j] for j in row.indices) for row in demo.X_train[:2000]]
    matrix = benchmark(TfidfVectorizer(n_jobs=1).fit_transform, texts)
    np.testing.assert_allclose(np.sqrt(matrix.multiply(matrix).sum(1))[matrix.getnnz(1) > 0], 1, rtol=1e-5)


@pytest.mark.parametrize(
    "options",
    [{}, {"solver": "newton"}, {"loss": "logistic"}, {"penalty": "l1"}],
    ids=["dual", "newton", "logistic", "l1"],
)
def test_train(benchmark, problem, options):
    estimator = OneVsAll(n_jobs=1, **options)
    model = benchmark.pedantic(lambda: estimator.fit(problem.X, problem.Y).model_, rounds=3)
    assert metrics.precision_at_k(problem.Y, model.predict(problem.X, 1), 1) > 0.85


def test_predict(benchmark, problem):
    weights = sp.random(500, 5000, 0.02, format="csr", dtype=np.float32, random_state=0)
    model = SparseModel(weights).prepare()
    top = benchmark(model.predict, problem.X, 5, n_jobs=1)
    expected = (problem.X @ weights.T).toarray()
    np.testing.assert_allclose(np.sort(expected, 1)[:, :-6:-1], top.data.reshape(-1, 5), rtol=1e-4, atol=1e-5)


def test_metrics_report(benchmark, problem):
    ids = np.argsort(-np.random.default_rng(0).random(problem.Y.shape), 1)[:, :5].astype(np.int32)
    report = benchmark(metrics.report, problem.Y, ids, n_jobs=1)
    hits = np.take_along_axis(problem.Y.toarray(), ids, 1)
    assert report["precision@5"] == pytest.approx(hits.mean())


def test_bca(benchmark):
    rng = np.random.default_rng(0)
    proba = sp.csr_matrix(rng.random((500, 100)) ** 4)
    chosen, info = benchmark(decide.bca, proba, "macro-f1", 3, n_jobs=1)
    assert (np.diff(chosen.indptr) == 3).all()
    assert info.utility >= decide.expected_utility(
        proba, decide.weighted_topk(proba, np.ones(100), 3), "macro-f1"
    )


def test_frank_wolfe(benchmark):
    proba = sp.csr_matrix(np.random.default_rng(0).random((500, 100)) ** 4)
    rule = benchmark(decide.FrankWolfe("macro-recall", 3, n_jobs=1).fit, proba)
    chosen = rule.predict(proba)
    top = decide.weighted_topk(proba, np.ones(100), 3)
    utilities = [decide.expected_utility(proba, c, "macro-recall") for c in (chosen, top)]
    assert utilities[0] > utilities[1]


def test_weighted_topk(benchmark):
    rng = np.random.default_rng(0)
    proba, gains = rng.random((500, 1000), np.float32), rng.random(1000).astype(np.float32)
    chosen = benchmark(decide.weighted_topk, sp.csr_matrix(proba), gains, 3, n_jobs=1)
    best = np.argsort(-(proba * gains), 1)[:, :3]
    assert (np.sort(chosen.indices.reshape(-1, 3), 1) == np.sort(best, 1)).all()


def test_label_tree(benchmark, problem):
    tree = benchmark(cluster.label_tree, problem.X, problem.Y, max_leaf=16, n_jobs=1)
    assert sorted(tree.order) == list(range(500))


def test_knn(benchmark):
    rng = np.random.default_rng(0)
    rows, queries = rng.standard_normal((20_000, 64), np.float32), rng.standard_normal((96, 64), np.float32)
    ids, _ = benchmark(knn.InnerProductIndex(rows).search, queries, 10, n_jobs=1)
    assert (ids[:, 0] == (queries @ rows.T).argmax(1)).all()


def test_recover_labels(benchmark, problem):
    rng = np.random.default_rng(0)
    ids, weights = rng.integers(2000, size=(256, 25), dtype=np.int32), rng.random((256, 25), np.float32)
    top = benchmark(knn.recover_labels, ids, weights, problem.Y, 5, n_jobs=1)
    expected = np.einsum("nq,nql->nl", weights, problem.Y.toarray()[ids])
    np.testing.assert_allclose(top.max(axis=1).toarray().ravel(), expected.max(1), rtol=1e-5)


def test_sparse_times_dense(benchmark, problem):
    dense = np.random.default_rng(0).standard_normal((5000, 64), np.float32)
    x = sp.csr_matrix(problem.X, dtype=np.float32)
    out = benchmark(_core.spmm, (x.indptr.astype(np.int64), x.indices, x.data, x.shape), dense, 1)
    np.testing.assert_allclose(out, x @ dense, rtol=1e-4, atol=1e-4)


def test_mach_hashing(benchmark, problem):
    matrices = benchmark(mach.bucket_matrices, problem.Y, 50, 4, n_jobs=1)
    table = mach.bucket_table(500, 50, 4)
    for matrix, buckets in zip(matrices, table, strict=True):
        expected = problem.Y.toarray() @ np.eye(50)[buckets] > 0
        assert (matrix.toarray() == expected).all()


def test_mach_aggregation(benchmark):
    rng = np.random.default_rng(0)
    table = mach.bucket_table(20_000, 500, 8)
    p = rng.random((8, 16, 500)).astype(np.float32)
    _, scores = benchmark(mach.aggregate_topk, p, table, 5, n_jobs=1)
    expected = np.mean([p[r][:, table[r]] for r in range(8)], 0)
    np.testing.assert_allclose(scores[:, 0], expected.max(1), rtol=1e-5)


def test_fan_in_forward(benchmark):
    torch = pytest.importorskip("torch")
    from xmc_fast.nn import FixedFanInLinear

    layer = FixedFanInLinear(768, 16_384, fan_in=32)
    x = torch.randn(32, 768)
    with torch.no_grad():
        out = benchmark(layer, x)
    expected = x[:, layer.indices.long()[5]] @ layer.weight[5].double().float() + layer.bias[5]
    torch.testing.assert_close(out[:, 5], expected)


@pytest.mark.parametrize("group", [1, 16])
def test_fan_in_backward(benchmark, group):
    torch = pytest.importorskip("torch")
    from xmc_fast.nn import GroupSharedLinear

    layer = GroupSharedLinear(768, 16_384, fan_in=32, group_size=group)
    x = torch.randn(32, 768, requires_grad=True)
    gradient = torch.randn(32, 16_384)
    out = layer(x)
    inputs = (x, layer.weight)
    of_x, of_weight = benchmark(torch.autograd.grad, out, inputs, gradient, retain_graph=True)
    index = layer.indices.long().repeat_interleave(group, 0)
    torch.testing.assert_close(of_weight[7], x.detach()[:, index[7]].T @ gradient[:, 7])
    expected = torch.zeros(768).index_add_(
        0, index.ravel(), (gradient[3, :, None] * layer.weight).detach().ravel()
    )
    torch.testing.assert_close(of_x[3], expected, rtol=1e-4, atol=1e-3)


def test_gather_dot(benchmark):
    torch = pytest.importorskip("torch")
    from xmc_fast.nn.gather_dot import gather_dot

    h, table = torch.randn(32, 256), torch.randn(20_000, 256)
    candidates = torch.randint(20_000, (32, 512))
    out = benchmark(gather_dot, h, table, candidates)
    torch.testing.assert_close(out[3], table[candidates[3]] @ h[3], rtol=1e-4, atol=1e-4)
