"""Exact top-k prediction against scipy, torch and the trees of PECOS and omikuji: ``python bench/bench_predict.py``.

Models are one-vs-all squared-hinge models pruned at 0.01, trained once with `OneVsAll` and kept in XMC_CACHE.
``--trees pecos omikuji`` also trains those peers (minutes) and compares speed and P@k; ``--sets`` picks data
sets; ``--one`` and ``--pruning`` print the latency of single rows and texts, and what pruning costs.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from sklearn.preprocessing import normalize
from threadpoolctl import threadpool_limits

from common import CACHE, Table, data_dir, interleave, machine
from xmc_fast.data import read_text, read_xmc, write_xmc
from xmc_fast.metrics import precision_at_k
from xmc_fast.model import SparseModel
from xmc_fast.pipeline import TextModel
from xmc_fast.text import TfidfVectorizer

K = 5
TEXT_SETS = {"eurlex57k": "test", "tibkat-gnd": "dev"}


def load(name):
    """Train and test features and labels, and the vectorizer with the test texts for text sets."""
    folder = data_dir(name)
    if name not in TEXT_SETS:
        parts = [read_xmc(folder / f"{part}.txt.xz") for part in ("train", "test")]
        return [normalize(parts[0].X), parts[0].Y, normalize(parts[1].X), parts[1].Y], None, None
    test = TEXT_SETS[name]
    train, other = (
        read_text(folder / f"{p}_texts.txt.xz", folder / f"{p}_labels.txt.xz") for p in ("train", test)
    )
    labels = max(train.Y.shape[1], other.Y.shape[1])
    for Y in (train.Y, other.Y):
        Y.resize(Y.shape[0], labels)
    vectorizer = TfidfVectorizer(sublinear_tf=True, min_df=2).fit(train.texts)
    features = [vectorizer.transform(part.texts) for part in (train, other)]
    for X in features:
        X.sort_indices()
    return [features[0], train.Y, features[1], other.Y], vectorizer, list(other.texts)


def trained(name, X, Y, prune):
    """The one-vs-all model of a data set, from the cache or trained now."""
    folder = CACHE / "predict" / f"{name}-{prune}"
    if not (folder / "manifest.json").is_file():
        from xmc_fast.linear import OneVsAll

        folder.parent.mkdir(parents=True, exist_ok=True)
        OneVsAll(bias=None, normalize=False, prune=prune).fit(X, Y).model_.save(folder)
    return SparseModel.load(folder, mmap=False)


def top_of_dense(scores):
    """Ids of the K best of each row by argpartition, sorted."""
    ids = np.argpartition(-scores, K - 1, axis=1)[:, :K]
    best = np.take_along_axis(scores, ids, 1)
    return np.take_along_axis(ids, np.argsort(-best, axis=1, kind="stable"), 1)


def flat_cases(model, X):
    """Ours, scipy and torch on the same rows, each giving n x K ids."""
    W = model.to_csr()
    W_sparse = W.T.tocsr()
    cases = {
        "xmc_fast": lambda: model.predict(X, K, n_jobs=1).indices.reshape(-1, K),
        "scipy sparse@sparse": lambda: top_of_dense((X[:500] @ W_sparse).toarray()),
    }
    rows = {"scipy sparse@sparse": min(500, X.shape[0])}
    dense_bytes = 4 * W.shape[0] * W.shape[1]
    if dense_bytes < 6e9:
        W_dense = np.ascontiguousarray(W.T.toarray())
        cases["scipy sparse@dense"] = lambda: top_of_dense(X[:1000] @ W_dense)
        rows["scipy sparse@dense"] = min(1000, X.shape[0])
        try:
            import torch

            torch.set_num_threads(1)
            warnings.filterwarnings("ignore", message="Sparse")
            part = X[:1000]
            T = torch.sparse_csr_tensor(
                torch.from_numpy(part.indptr.astype(np.int64)),
                torch.from_numpy(part.indices.astype(np.int64)),
                torch.from_numpy(part.data),
                size=part.shape,
            )
            D = torch.from_numpy(W_dense)
            cases["torch CSR@dense"] = lambda: torch.topk(T @ D, K, dim=1).indices.numpy()
            rows["torch CSR@dense"] = part.shape[0]
        except ImportError:
            print("torch is not installed: left out")
    return cases, rows


def check_exact(model, X):
    """The same top K as scipy in float64, up to ties, on every row."""
    W = model.to_csr().astype(np.float64).T.tocsr()
    top = model.predict(X, K)
    for start in range(0, X.shape[0], 500):
        S = (X[start : start + 500].astype(np.float64) @ W).toarray()
        ids = top.indices.reshape(-1, K)[start : start + 500]
        best = -np.sort(-S, axis=1)[:, :K]
        got = np.take_along_axis(S, ids, 1)
        if not np.allclose(got, best, rtol=0, atol=1e-5):
            raise AssertionError(f"rows from {start}: the top {K} differ from float64")


def tree_case(kind, X, Y, Xt):
    """A tree peer trained on the data: a function that predicts all test rows, and their number."""
    if kind == "pecos":
        from pecos.xmc import Indexer, LabelEmbeddingFactory
        from pecos.xmc.xlinear.model import XLinearModel

        embedding = LabelEmbeddingFactory.create(Y, X, method="pifa")
        with tempfile.TemporaryDirectory() as folder:
            XLinearModel.train(X, Y, C=Indexer.gen(embedding), threads=1).save(folder)
            tree = XLinearModel.load(folder, is_predict_only=True)  # its fast layout
        run = lambda: tree.predict(Xt, only_topk=K, beam_size=10, threads=1)  # noqa: E731
        return run, Xt.shape[0], run()
    import omikuji

    with tempfile.TemporaryDirectory() as folder:
        write_xmc(Path(folder) / "train.txt", X, Y)
        model = omikuji.Model.train_on_data(str(Path(folder) / "train.txt"))
    rows = [
        list(zip(Xt.indices[a:b].tolist(), Xt.data[a:b].tolist(), strict=True))
        for a, b in pairwise(Xt.indptr)
    ]
    some = rows[:1000]
    best = [model.predict(row, beam_size=10, top_k=K) for row in rows]
    ids = [label for row in best for label, _ in row]
    scores = [score for row in best for _, score in row]
    ends = np.cumsum([0] + [len(row) for row in best])
    top = sp.csr_matrix((scores, ids, ends), shape=(Xt.shape[0], Y.shape[1]))
    return (lambda: [model.predict(row, beam_size=10, top_k=K) for row in some]), len(some), top


def precision(Y, top):
    return {f"P@{k}": 100 * float(precision_at_k(Y, top, k)) for k in (1, 3, 5)}


def bench_set(name, trees, rounds, table):
    (X, Y, Xt, Yt), _, _ = load(name)
    model = trained(name, X, Y, 0.01).prepare()
    check_exact(model, Xt)
    cases, rows = flat_cases(model, Xt)
    quality = {"xmc_fast": precision(Yt, model.predict(Xt, K))}
    for kind in trees:
        cases[kind], rows[kind], top = tree_case(kind, X, Y, Xt)
        quality[kind] = precision(Yt, sp.csr_matrix(top))
    with threadpool_limits(1):
        times = interleave(cases, rounds=rounds, clock=time.process_time, budget=60)
    ours = times["xmc_fast"] / Xt.shape[0]
    column_nnz = np.diff(model.to_csr().tocsc().indptr).astype(np.int64)
    work = 2 * float(column_nnz[Xt.indices].sum()) / Xt.shape[0]  # flops of a row, stored weights only
    for case, seconds in times.items():
        each = seconds / rows.get(case, Xt.shape[0])
        of_limit = work / ours / 1e9 / table.info["fma_gflops"] if case == "xmc_fast" else ""
        table.add(
            set=name,
            density=model.density,
            what=case,
            us_per_row=1e6 * each,
            times_ours=each / ours,
            of_fma_limit=of_limit,
            **quality.get(case, {}),
        )
    wall = interleave(
        {n: (lambda n=n: model.predict(Xt, K, n_jobs=n)) for n in (1, 2)}, rounds=rounds, warm_up=True
    )
    table.add(
        set=name,
        density=model.density,
        what="xmc_fast, 2 threads (wall)",
        us_per_row=1e6 * wall[2] / Xt.shape[0],
        times_ours=wall[2] / wall[1],
    )


def bench_one(name, table):
    """Latency of single rows, and of single texts through the saved pipeline."""
    (X, Y, Xt, _), vectorizer, texts = load(name)
    model = trained(name, X, Y, 0.01).prepare()
    n = min(1000, Xt.shape[0])
    ends = Xt.indptr
    calls = {
        "row (columns, values)": (
            model.predict_one,
            [(Xt.indices[a:b], Xt.data[a:b]) for a, b in pairwise(ends[: n + 1])],
        ),
        "row, 1 x D matrix through predict": (
            lambda x, k: model.predict(x, k, n_jobs=1),
            [Xt[i] for i in range(n)],
        ),
    }
    if vectorizer is not None:
        calls["text"] = (TextModel(vectorizer, model).predict_one, texts[:n])
    for what, (call, inputs) in calls.items():
        spent = []
        for _ in range(2):
            for x in inputs:
                start = time.perf_counter()
                call(x, K)
                spent.append(time.perf_counter() - start)
        p50, p99 = np.quantile(spent[len(inputs) :], [0.5, 0.99]) * 1e6
        table.add(set=name, what=what, p50_us=p50, p99_us=p99)


def bench_pruning(name, table):
    """P@k and size against the pruning threshold."""
    (X, Y, Xt, Yt), _, _ = load(name)
    model = trained(name, X, Y, 0.0)
    first = precision(Yt, model.predict(Xt, K))
    for delta in (0, 0.003, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3):
        pruned = model.prune(delta)
        values = precision(Yt, pruned.predict(Xt, K))
        with tempfile.TemporaryDirectory() as folder:
            pruned.save(Path(folder) / "m")
            size = sum(file.stat().st_size for file in (Path(folder) / "m").iterdir())
        if delta == 0.01 and max(first[key] - values[key] for key in first) >= 0.3:
            raise AssertionError(f"pruning at 0.01 costs too much: {first} -> {values}")
        table.add(set=name, delta=delta, density=pruned.density, MB_on_disk=size / 1e6, **values)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", nargs="*", default=["eurlex-4k", "eurlex57k", "tibkat-gnd"])
    parser.add_argument("--trees", nargs="*", default=[], choices=["pecos", "omikuji"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", action="store_true", help="latency of single rows and texts only")
    parser.add_argument("--pruning", action="store_true", help="P@k and size against delta only (eurlex-4k)")
    args = parser.parse_args()
    info = machine()
    if args.one:
        table = Table("predict_one", ["set", "what", "p50_us", "p99_us"], info)
        for name in args.sets:
            bench_one(name, table)
    elif args.pruning:
        columns = ["set", "delta", "density", "MB_on_disk", "P@1", "P@3", "P@5"]
        table = Table("predict_pruning", columns, info)
        bench_pruning("eurlex-4k", table)
    else:
        columns = ["set", "density", "what", "us_per_row", "times_ours", "of_fma_limit", "P@1", "P@3", "P@5"]
        table = Table("predict", columns, info)
        for name in args.sets:
            bench_set(name, args.trees, args.rounds, table)
    print(table)
    table.save()


if __name__ == "__main__":
    main()
