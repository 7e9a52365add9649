"""One timing per compiled stem, each checked against plain numpy first: ``pytest bench --benchmark-only``.

Small sizes, so that the whole suite runs in seconds; ``--benchmark-json FILE`` keeps the figures. The
comparisons with other packages are in the bench_<stem>.py scripts.
"""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from xmc_fast import OneVsAll, SparseModel, cluster, data, decide, knn, mach, metrics
from xmc_fast.text import TfidfVectorizer

pytest.importorskip("pytest_benchmark")


@pytest.fixture(scope="module")
def problem():
    return data.make_synthetic(2000, 5000, 500, seed=0)


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


def test_train_dual(benchmark, problem):
    model = benchmark.pedantic(lambda: OneVsAll(n_jobs=1).fit(problem.X, problem.Y).model_, rounds=3)
    assert metrics.precision_at_k(problem.Y, model.predict(problem.X, 1), 1) > 0.9


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


def test_label_tree(benchmark, problem):
    tree = benchmark(cluster.label_tree, problem.X, problem.Y, max_leaf=16, n_jobs=1)
    assert sorted(tree.order) == list(range(500))


def test_knn(benchmark):
    rng = np.random.default_rng(0)
    rows, queries = rng.standard_normal((20_000, 64), np.float32), rng.standard_normal((96, 64), np.float32)
    ids, _ = benchmark(knn.InnerProductIndex(rows).search, queries, 10, n_jobs=1)
    assert (ids[:, 0] == (queries @ rows.T).argmax(1)).all()


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
