"""Exact top-k prediction against scipy, torch and the trees of PECOS and omikuji.

    python -m bench.speed.bench_predict [--trees pecos omikuji] [--one] [--pruning] [--open] [--checks]

Models are one-vs-all models trained with `OneVsAll`'s defaults and pruned at 0.01 (bench/models.py), kept in
XMC_CACHE. ``--trees pecos omikuji`` also trains those peers (minutes) and compares speed and P@k; ``--sets``
picks data sets (the table keeps its rows of the others), ``--delta 0.05`` prunes the models further; ``--one``
prints the latency of single rows and texts, ``--pruning`` what pruning costs, ``--open`` how fast a large model opens
and whether processes share its pages, ``--checks`` what checking it on opening costs (predict_open.py).
"""

from __future__ import annotations

import time
import warnings
from itertools import pairwise

import numpy as np
import scipy.sparse as sp
from sklearn.preprocessing import normalize
from threadpoolctl import threadpool_limits

from bench.common import Table, command_line, interleave, machine
from bench.models import DELTA, SETS, K, folder_of, matrices, model_of, pruned_predictions, unpruned_labels
from bench.sets import TEXT, read_texts, vectorizer_of
from bench.speed.peers import pecos_linear
from bench.speed.predict_open import cost_of_checks, open_large
from xmc_fast._folder import replace_folder
from xmc_fast.data import write_xmc
from xmc_fast.metrics import precision_at_k
from xmc_fast.texts import TextClassifier


def top_of_dense(scores):
    """Ids of the K best of each row by argpartition, sorted."""
    ids = np.argpartition(-scores, K - 1, axis=1)[:, :K]
    best = np.take_along_axis(scores, ids, 1)
    return np.take_along_axis(ids, np.argsort(-best, axis=1, kind="stable"), 1)


def as_columns(model, X):
    """Rows as the peers need them: normalised, with the bias as the last column."""
    if model.normalize:
        norms = np.sqrt(np.asarray(X.multiply(X).sum(axis=1)).ravel())
        X = sp.diags(1 / np.where(norms > 0, norms, 1)) @ X
    if model.bias is not None:
        X = sp.hstack([X, np.full((X.shape[0], 1), model.bias)])
    X = sp.csr_matrix(X, dtype=np.float32)
    X.sort_indices()
    return X


def flat_cases(model, rows_in):
    """Ours, scipy and torch on the same rows, each giving n x K ids."""
    X = as_columns(model, rows_in)
    W = model.to_csr()
    W_sparse = W.T.tocsr()
    cases = {
        "xmc_fast": lambda: model.predict(rows_in, K, n_jobs=1).indices.reshape(-1, K),
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
    X = as_columns(model, X)
    for start in range(0, X.shape[0], 500):
        S = (X[start : start + 500].astype(np.float64) @ W).toarray()
        ids = top.indices.reshape(-1, K)[start : start + 500]
        best = -np.sort(-np.partition(S, -K, axis=1)[:, -K:], axis=1)
        got = np.take_along_axis(S, ids, 1)
        if not np.allclose(got, best, rtol=0, atol=1e-5):
            raise AssertionError(f"rows from {start}: the top {K} differ from float64")


def tree_folder(kind, name, X, Y):
    """A tree peer trained on rows of length one, kept beside the model."""
    folder = folder_of(name) / kind
    if folder.exists():
        return folder
    X = normalize(X)
    with replace_folder(folder) as new:
        if kind == "pecos":
            linear = pecos_linear()
            from pecos.xmc import Indexer, LabelEmbeddingFactory

            embedding = LabelEmbeddingFactory.create(Y, X, method="pifa")
            linear.train(X, Y, C=Indexer.gen(embedding), threads=1).save(str(new))
        else:
            import omikuji

            write_xmc(new / "train.txt", X, Y)
            omikuji.Model.train_on_data(str(new / "train.txt"), n_threads=1).save(str(new / "model"))
            (new / "train.txt").unlink()
    return folder


def tree_case(kind, folder, Xt, n_labels):
    """A function that predicts test rows with a trained tree peer, their number, and all predictions."""
    Xt = normalize(Xt)
    if kind == "pecos":
        tree = pecos_linear().load(str(folder), is_predict_only=True)  # its fast layout
        run = lambda: tree.predict(Xt, only_topk=K, beam_size=10, threads=1)  # noqa: E731
        return run, Xt.shape[0], run()
    import omikuji

    model = omikuji.Model.load(str(folder / "model"))
    rows = [
        list(zip(Xt.indices[a:b].tolist(), Xt.data[a:b].tolist(), strict=True))
        for a, b in pairwise(Xt.indptr)
    ]
    some = rows[:1000]
    best = [model.predict(row, beam_size=10, top_k=K) for row in rows]
    ids = [label for row in best for label, _ in row]
    scores = [score for row in best for _, score in row]
    ends = np.cumsum([0] + [len(row) for row in best])
    top = sp.csr_matrix((scores, ids, ends), shape=(Xt.shape[0], n_labels))
    return (lambda: [model.predict(row, beam_size=10, top_k=K) for row in some]), len(some), top


def precision(Y, top):
    return {f"P@{k}": 100 * float(precision_at_k(Y, top, k)) for k in (1, 3, 5)}


def case_name(name, delta):
    return name if delta == DELTA else f"{name} at {delta:g}"


def bench_set(name, delta, trees, rounds, table):
    X, Y, Xt, Yt = matrices(name)
    model = model_of(name)
    model = (model if delta == DELTA else model.prune(delta)).prepare()
    check_exact(model, Xt)
    cases, rows = flat_cases(model, Xt)
    quality = {"xmc_fast": precision(Yt, model.predict(Xt, K))}
    for kind in trees:
        folder = tree_folder(kind, name, X, Y)
        cases[kind], rows[kind], top = tree_case(kind, folder, Xt, Y.shape[1])
        quality[kind] = precision(Yt, sp.csr_matrix(top))
    with threadpool_limits(1):
        times = interleave(cases, rounds=rounds, clock=time.process_time, budget=60)
    ours = times["xmc_fast"] / Xt.shape[0]
    column_nnz = np.diff(model.to_csr().tocsc().indptr).astype(np.int64)
    work = (
        2 * float(column_nnz[as_columns(model, Xt).indices].sum()) / Xt.shape[0]
    )  # flops of a row, stored weights only
    for case, seconds in times.items():
        each = seconds / rows.get(case, Xt.shape[0])
        of_limit = work / ours / 1e9 / table.info["fma_gflops"] if case == "xmc_fast" else ""
        table.add(
            set=case_name(name, delta),
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
        set=case_name(name, delta),
        density=model.density,
        what="xmc_fast, 2 threads (wall)",
        us_per_row=1e6 * wall[2] / Xt.shape[0],
        times_ours=wall[2] / wall[1],
    )


def bench_one(name, table):
    """Latency of single rows, and of single texts through the saved model."""
    _, _, Xt, _ = matrices(name)
    model = model_of(name).prepare()
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
    if name in TEXT:
        texts = read_texts(name, "test")[0]
        calls["text"] = (TextClassifier.from_parts(vectorizer_of(name), model).predict_one, texts[:n])
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
    """P@k and size against the pruning threshold; a weight takes four bytes and its column two or four."""
    X, Y, Xt, Yt = matrices(name)
    Yt = Yt[:, : unpruned_labels(X, Y)]
    first = None
    for delta, nnz, top in pruned_predictions(name):
        values = precision(Yt, top)
        first = first or values
        if delta == DELTA and max(first[key] - values[key] for key in first) >= 0.3:
            raise AssertionError(f"pruning at {DELTA} costs too much: {first} -> {values}")
        columns = Xt.shape[1] + 1
        width = 6 if columns <= 1 << 16 else 8
        density = nnz / (Yt.shape[1] * columns)
        table.add(set=name, labels=Yt.shape[1], delta=delta, density=density, MB=width * nnz / 1e6, **values)


def main():
    parser = command_line(__doc__)
    parser.add_argument("--sets", nargs="*", default=SETS)
    parser.add_argument("--delta", type=float, default=DELTA, help="weights below are pruned")
    parser.add_argument("--trees", nargs="*", default=[], choices=["pecos", "omikuji"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", action="store_true", help="latency of single rows and texts only")
    parser.add_argument("--open", action="store_true", help="opening a model of 1 GB only")
    parser.add_argument("--checks", action="store_true", help="what the checks on opening cost, only")
    parser.add_argument("--pruning", action="store_true", help="P@k and size against delta only")
    args = parser.parse_args()
    info = machine()
    if args.one:
        table = Table("predict_one", ["set", "what", "p50_us", "p99_us"], info)
        for name in args.sets:
            bench_one(name, table)
    elif args.open:
        columns = ["process", "GB", "open_seconds", "resident_MB", "owned_MB"]
        table = Table("predict_open", columns, info)
        open_large(table)
    elif args.checks:
        times = [f"{name}_{unit}" for unit in ("ms", "cpu_ms") for name in ("unchecked", "open", "again")]
        columns = ["what", "GB", *times, "predict_unchecked_us", "predict_us"]
        table = Table("predict_checks", columns, info)
        cost_of_checks(table)
    elif args.pruning:
        columns = ["set", "labels", "delta", "density", "MB", "P@1", "P@3", "P@5"]
        table = Table("predict_pruning", columns, info)
        for name in args.sets:
            bench_pruning(name, table)
    else:
        columns = ["set", "density", "what", "us_per_row", "times_ours", "of_fma_limit", "P@1", "P@3", "P@5"]
        table = Table("predict", columns, info)
        for name in args.sets:
            case = case_name(name, args.delta)
            table.rows = [row for row in table.rows if row["set"] != case]
            bench_set(name, args.delta, args.trees, args.rounds, table)
            table.keep_others("set")
            table.rows.sort(key=lambda row: (SETS.index(row["set"].split(" at ")[0]), row["set"]))
            table.save()
    print(table)
    table.save()


if __name__ == "__main__":
    main()
