"""Truncated SVD of label matrices against scipy's svds and scikit-learn's randomized_svd, the sparse product behind
it against scipy, ridge regression against scikit-learn, the sparse input layer against torch's ways:

python -m bench.speed.bench_declare [svd] [product] [ridge] [layer]
"""

from __future__ import annotations

import time

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import svds
from sklearn.linear_model import Ridge
from sklearn.utils.extmath import randomized_svd
from threadpoolctl import threadpool_limits

from bench.common import Table, command_line, data_dir, interleave, machine
from xmc_fast import _core, data
from xmc_fast.declare import ridge, truncated_svd


def label_matrix(name: str) -> sp.csr_matrix:
    """The training labels of a data set."""
    folder = data_dir(name)
    if (folder / "train.txt.xz").is_file():
        return data.read_xmc(folder / "train.txt.xz").Y.astype(np.float32)
    n_labels = len(data.read_lines(folder / "label_names.txt.xz"))
    rows = [
        [int(label) for label in line.split()] for line in data.read_lines(folder / "train_labels.txt.xz")
    ]
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    indices = np.array([label for row in rows for label in row], np.int32)
    return sp.csr_matrix((np.ones(len(indices), np.float32), indices, indptr), shape=(len(rows), n_labels))


def bench_svd(name: str = "eurlex57k", c: int = 200) -> Table:
    """CPU seconds, and how far the right singular vectors are from those of svds."""
    Y = label_matrix(name)
    found = {}

    def exact():
        _, s, vt = svds(Y.astype(np.float64), c, random_state=0)
        order = np.argsort(-s)
        found["svds"] = s[order], vt[order].T

    def sklearn(n_iter):
        _, s, vt = randomized_svd(Y, c, n_iter=n_iter, random_state=0, flip_sign=False)
        found[f"randomized_svd, {n_iter} iterations"] = s, vt.T

    def ours():
        svd = truncated_svd(Y, c, n_jobs=1)
        found["xmc_fast"] = svd.singular_values, svd.V

    runs = {
        "xmc_fast": ours,
        "svds": exact,
        "randomized_svd, 7 iterations": lambda: sklearn(7),
        "randomized_svd, 15 iterations": lambda: sklearn(15),
    }
    table = Table(
        "declare_svd", ["data", "method", "CPU s", "ours is x faster", "sine", "energy missed"], machine()
    )
    times = interleave(runs, rounds=1, clock=time.process_time, warm_up=False)
    s_true, V_true = found["svds"]
    for method, seconds in times.items():
        V = found[method][1].astype(np.float64)
        cosine = np.linalg.svd(V_true.T @ V, compute_uv=False).min()
        missed = 1 - np.linalg.norm(Y @ V) ** 2 / (s_true**2).sum()
        row = {"CPU s": seconds, "ours is x faster": seconds / times["xmc_fast"]}
        row |= {"sine": float(np.sqrt(max(0, 1 - cosine**2))), "energy missed": float(max(missed, 0))}
        table.add(data=name, method=method, **row)
    assert table.rows[0]["sine"] < 0.02, "our subspace is not that of svds"
    return table


def bench_product(name: str = "eurlex57k", k: int = 208) -> Table:
    Y = label_matrix(name)
    B = np.random.default_rng(0).standard_normal((Y.shape[1], k), np.float32)
    indptr, indices, none = Y.indptr.astype(np.int64), Y.indices.astype(np.int32), np.empty(0, np.float32)
    runs = {"xmc_fast": lambda: _core.spmm((indptr, indices, none, Y.shape), B, 1), "scipy": lambda: Y @ B}
    np.testing.assert_allclose(runs["xmc_fast"](), runs["scipy"](), atol=1e-3)
    table = Table("declare_product", ["data", "method", "ms", "ours is x faster", "GFLOP/s"], machine())
    times = interleave(runs, rounds=7, clock=time.process_time)
    for method, t in times.items():
        row = {"ms": 1e3 * t, "ours is x faster": t / times["xmc_fast"], "GFLOP/s": 2 * Y.nnz * k / t / 1e9}
        table.add(data=name, method=method, **row)
    return table


def bench_ridge(name: str = "eurlex-4k", c: int = 64) -> Table:
    X, Y = data.read_xmc(data_dir(name) / "train.txt.xz")[:2]
    X = sp.csr_matrix(sp.diags(1 / np.sqrt(np.maximum(X.multiply(X).sum(1).A1, 1e-12))) @ X).astype(
        np.float32
    )
    Z = truncated_svd(Y, c).Z
    found = {}

    def peer():
        found["scikit-learn sparse_cg"] = Ridge(solver="sparse_cg", tol=1e-3).fit(X, Z).predict(X)

    def ours():
        W = ridge(X, Z, n_jobs=1)
        found["xmc_fast"] = X @ W[:-1] + W[-1]

    table = Table("declare_ridge", ["data", "method", "CPU s", "ours is x faster", "loss"], machine())
    times = interleave(
        {"xmc_fast": ours, "scikit-learn sparse_cg": peer}, rounds=1, clock=time.process_time, warm_up=False
    )
    for method, t in times.items():
        loss = float(((found[method] - Z) ** 2).mean())
        table.add(
            data=name, method=method, loss=loss, **{"CPU s": t, "ours is x faster": t / times["xmc_fast"]}
        )
    return table


def bench_layer(features: int = 80_000, hidden: int = 256, batch: int = 128) -> Table:
    """Forward and backward of the first layer, and a step of its optimizer."""
    import torch
    from torch.nn import functional as F

    from xmc_fast.nn import RowAdam, SparseInputLinear, csr_batches

    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    columns = np.minimum(rng.zipf(1.2, batch * 230) - 1, features - 1)
    rows = np.repeat(np.arange(batch), 230)
    X = sp.csr_matrix((rng.random(len(rows), np.float32), (rows, columns)), shape=(batch, features))
    x = next(iter(csr_batches(X, None, batch)))
    grad = torch.randn(batch, hidden)
    ours = SparseInputLinear(features, hidden, bias=False, sparse_grad=True)
    weight = ours.weight.detach().clone().requires_grad_()
    optimizers = {"RowAdam": RowAdam([ours.weight]), "SparseAdam": torch.optim.SparseAdam([ours.weight])}
    optimizers["Adam, fused"] = torch.optim.Adam([weight], fused=True)

    def bag(sparse):
        weight.grad = None
        out = F.embedding_bag(
            x.indices, weight, x.indptr, mode="sum", sparse=sparse, per_sample_weights=x.values,
            include_last_offset=True,
        )  # fmt: skip
        out.backward(grad)
        return out

    def layer():
        ours.weight.grad = None
        out = ours(x)
        out.backward(grad)
        return out

    torch.testing.assert_close(layer(), bag(False), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.weight.grad.to_dense(), weight.grad, rtol=1e-4, atol=1e-4)
    table = Table("declare_layer", ["task", "method", "ms", "ours is x faster"], machine())
    passes = {"xmc_fast": layer, "embedding_bag, sparse gradient": lambda: bag(True)}
    passes["embedding_bag, dense gradient"] = lambda: bag(False)
    steps = {name: optimizer.step for name, optimizer in optimizers.items()}
    for task, runs in (("forward + backward", passes), ("optimizer step", steps)):
        times = interleave(runs, rounds=7, clock=time.process_time)
        first = next(iter(times.values()))
        for method, t in times.items():
            table.add(task=task, method=method, ms=1e3 * t, **{"ours is x faster": t / first})
    return table


def main() -> None:
    benches = {"svd": bench_svd, "product": bench_product, "ridge": bench_ridge, "layer": bench_layer}
    parser = command_line(__doc__)
    parser.add_argument("names", nargs="*", default=[])
    with threadpool_limits(limits=1):
        for name in parser.parse_args().names or benches:
            table = benches[name]()
            print(table, flush=True)
            table.save()


if __name__ == "__main__":
    main()
