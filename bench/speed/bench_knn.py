"""Exact neighbours against faiss, numpy and torch; recovery end to end: ``python -m bench.speed.bench_knn``.

GFLOP/s counts all rows x features x queries x 2. Ours drops most rows in a first pass on bytes, whose products the
rate of float32 multiply-adds does not limit, so that its share of that peak may be above 100%.
"""

from __future__ import annotations

import time

import numpy as np
import scipy.sparse as sp
from threadpoolctl import threadpool_limits

from bench.common import Table, command_line, interleave, machine
from xmc_fast.knn import InnerProductIndex, recover_labels

Q = 25


def numpy_search(rows, queries):
    scores = queries @ rows.T
    ids = np.argpartition(scores, -Q, axis=1)[:, -Q:]
    best = np.take_along_axis(scores, ids, 1)
    order = np.argsort(-best, axis=1, kind="stable")
    return np.take_along_axis(ids, order, 1), np.take_along_axis(best, order, 1)


def scipy_recovery(rows, queries, Y, k):
    ids, similarity = numpy_search(rows, queries)
    m = len(queries)
    S = sp.csr_matrix((similarity.ravel(), ids.ravel(), np.arange(0, m * Q + 1, Q)), shape=(m, len(rows)))
    scores = (S @ Y).tocsr()
    out = []
    for i in range(m):
        row = slice(scores.indptr[i], scores.indptr[i + 1])
        labels, values = scores.indices[row], scores.data[row]
        out.append(labels[np.lexsort((labels, -values.astype(np.float32)))[:k]])
    return out


def cases(rows, queries, threads):
    index = InnerProductIndex(rows)
    runs = {
        "xmc_fast": lambda: index.search(queries, Q, n_jobs=threads),
        "numpy": lambda: numpy_search(rows, queries),
    }
    try:
        import faiss

        faiss.omp_set_num_threads(threads)
        flat = faiss.IndexFlatIP(rows.shape[1])
        flat.add(rows)
        runs["faiss"] = lambda: flat.search(queries, Q)[::-1]
    except ImportError:
        print("faiss is not installed: left out")
    try:
        import torch

        torch.set_num_threads(threads)
        t_rows, t_queries = torch.from_numpy(rows), torch.from_numpy(queries)
        runs["torch"] = lambda: [x.numpy() for x in (t_queries @ t_rows.T).topk(Q)][::-1]
    except ImportError:
        print("torch is not installed: left out")
    return runs


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--features", type=int, default=200)
    parser.add_argument("--batch", type=int, default=128)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((args.rows, args.features), np.float32)
    queries = rng.standard_normal((args.batch, args.features), np.float32)
    table = Table(
        "knn", ["task", "method", "ms", "ours is x faster", "GFLOP/s", "of peak FMA"], machine(args.threads)
    )
    with threadpool_limits(limits=args.threads):
        runs = cases(rows, queries, args.threads)
        expected = runs["numpy"]()[0]
        for name, run in runs.items():
            assert (run()[0] == expected).mean() > 0.999, f"{name} finds other neighbours"
        clock = time.process_time if args.threads == 1 else time.perf_counter
        times = interleave(runs, rounds=3, clock=clock, warm_up=False)  # warmed up above
        flops = 2.0 * args.rows * args.features * args.batch
        for name, t in times.items():
            rate = flops / t / 1e9
            share = f"{rate / table.info['fma_gflops']:.0%}"
            row = {
                "ms": 1e3 * t,
                "ours is x faster": t / times["xmc_fast"],
                "GFLOP/s": rate,
                "of peak FMA": share,
            }
            table.add(task="search", method=name, **row)

        Y = sp.random(args.rows, 4000, 5 / 4000, format="csr", random_state=0)
        Y.data[:] = 1
        index = InnerProductIndex(rows)

        def ours():
            return recover_labels(*index.search(queries, Q, n_jobs=args.threads), Y, 5, n_jobs=args.threads)

        got = ours()
        plain = scipy_recovery(rows, queries, Y, 5)
        same = [set(got.indices[got.indptr[i] : got.indptr[i + 1]]) == set(p) for i, p in enumerate(plain)]
        assert np.mean(same) > 0.99
        both = interleave(
            {"xmc_fast": ours, "numpy + scipy": lambda: scipy_recovery(rows, queries, Y, 5)},
            rounds=3,
            clock=clock,
            warm_up=False,
        )
        for name, t in both.items():
            table.add(task="recovery", method=name, ms=1e3 * t, **{"ours is x faster": t / both["xmc_fast"]})
    print(table)
    table.save()


if __name__ == "__main__":
    main()
