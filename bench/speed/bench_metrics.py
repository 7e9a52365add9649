"""Metrics of 100,000 x 670,091 top-5 predictions: ours, plain numpy/scipy, napkinXC, xcolumns; one thread."""

from __future__ import annotations

import time
import warnings

import numpy as np
import scipy.sparse as sp

from bench.common import Table, arguments, interleave
from xmc_fast import metrics, propensity

N, L, K = 100_000, 670_091, (1, 3, 5)


def problem(n=N, n_labels=L, seed=0):
    """Long-tailed truth with 5.45 labels per row on average; predictions right about four times in ten."""
    rng = np.random.default_rng(seed)
    weights = np.arange(1, n_labels + 1) ** -0.7
    cumulative = np.cumsum(weights / weights.sum())
    name = rng.permutation(n_labels)  # frequency is not the id's order

    def draw(size):
        return name[np.minimum(np.searchsorted(cumulative, rng.random(size)), n_labels - 1)]

    rows = np.repeat(np.arange(n), rng.poisson(5.45, n))
    Y = sp.csr_matrix((np.ones(len(rows), np.float32), (rows, draw(len(rows)))), shape=(n, n_labels))
    Y.sum_duplicates()
    Y.data[:] = 1
    ids = np.empty((n, K[-1]), np.int64)
    noise = draw((n, 12))
    for i in range(n):
        row = dict.fromkeys([*Y.indices[Y.indptr[i] : Y.indptr[i + 1]][:2].tolist(), *noise[i].tolist()])
        ids[i] = list(row)[: K[-1]]
    return Y, ids


def numpy_precision_ndcg(Y, ids):
    """All (row, label) pairs as sorted keys, hits by binary search, then cumulative sums."""
    n, n_labels = Y.shape
    rows = np.repeat(np.arange(n), np.diff(Y.indptr))
    keys = rows * n_labels + Y.indices
    wanted = np.arange(n)[:, None] * n_labels + ids
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    hits = (keys[at] == wanted).astype(np.float64)
    gain = 1 / np.log2(np.arange(2, K[-1] + 2))
    ideal = np.concatenate(([np.inf], np.cumsum(gain)))
    size = np.diff(Y.indptr)
    precision = [hits[:, :k].sum() / (n * k) for k in K]
    ndcg = [((hits[:, :k] @ gain[:k]) / ideal[np.minimum(size, k)]).mean() for k in K]
    return np.array(precision), np.array(ndcg)


def scipy_macro_f1(Y, ids, k=K[-1]):
    """tp, predictions and positives as column sums of sparse matrices."""
    n, n_labels = Y.shape
    columns = np.sort(ids[:, :k], axis=1).ravel()
    P = sp.csr_matrix((np.ones(n * k, np.float32), columns, np.arange(0, n * k + 1, k)), shape=Y.shape)
    tp = np.bincount(P.multiply(Y).tocsr().indices, minlength=n_labels)
    total = np.bincount(columns, minlength=n_labels) + np.bincount(Y.indices, minlength=n_labels)
    return float(np.mean(2 * tp / np.maximum(total, 1)))


def main() -> None:
    arguments(__doc__)
    warnings.simplefilter("ignore", propensity.PropensityWarning)  # JPV does not fit made-up labels
    Y, ids = problem()
    p = propensity.estimate(Y, "amazon")
    r = metrics.report(Y, ids, K, propensity=p, n_jobs=1)
    precision, ndcg = numpy_precision_ndcg(Y, ids)
    np.testing.assert_allclose([r["precision"], r["ndcg"]], [precision, ndcg], atol=1e-9)
    np.testing.assert_allclose(r["macro_f1@5"], scipy_macro_f1(Y, ids), atol=1e-9)

    ours = {
        "full report (17 metrics, 3 k)": lambda: metrics.report(Y, ids, K, propensity=p, n_jobs=1),
        "P, nDCG": lambda: (
            metrics.precision_at_k(Y, ids, K, n_jobs=1),
            metrics.ndcg_at_k(Y, ids, K, n_jobs=1),
        ),
        "PSP": lambda: metrics.psp_at_k(Y, ids, p, K, n_jobs=1),
        "macro-F1@5": lambda: metrics.macro_f1_at_k(Y, ids, 5, n_jobs=1),
        "macro-F1@1,3,5": lambda: metrics.macro_f1_at_k(Y, ids, K, n_jobs=1),
    }
    peers = {
        "numpy P, nDCG": lambda: numpy_precision_ndcg(Y, ids),
        "scipy macro-F1@5": lambda: scipy_macro_f1(Y, ids),
    }
    compared = {"P, nDCG": "numpy P, nDCG", "macro-F1@5": "scipy macro-F1@5"}
    try:
        from xcolumns import metrics as xcolumns

        n = len(ids)
        columns = np.sort(ids, axis=1).ravel().astype(np.int32)
        P = sp.csr_matrix((np.ones(n * 5), columns, np.arange(0, n * 5 + 1, 5)), shape=Y.shape)
        theirs = Y.astype(np.float64)
        assert abs(xcolumns.macro_f1_score(theirs, P, epsilon=1e-300) - r["macro_f1@5"]) < 1e-9
        peers["xcolumns macro-F1@5"] = lambda: xcolumns.macro_f1_score(theirs, P, epsilon=1e-300)
    except ImportError:
        print("xcolumns is not installed: left out")
    try:
        from napkinxc import metrics as napkinxc

        truth = [Y.indices[a:b].tolist() for a, b in zip(Y.indptr[:-1], Y.indptr[1:], strict=True)]
        lists, q = ids.tolist(), 1 / p
        at = [k - 1 for k in K]
        for name, values in {
            "precision": napkinxc.precision_at_k(truth, lists, 5),
            "ndcg": napkinxc.ndcg_at_k(truth, lists, 5),
            "psp": napkinxc.psprecision_at_k(truth, lists, q, 5),
        }.items():
            np.testing.assert_allclose(r[name], values[at], atol=1e-9)
        theirs_f1 = napkinxc.macro_f1_measure(truth, lists)  # divides by the largest id it saw
        seen = max(Y.indices.max(), ids.max()) + 1
        np.testing.assert_allclose(r["macro_f1@5"] * Y.shape[1], theirs_f1 * seen, rtol=1e-9)
        peers["napkinXC P, nDCG, PSP, macro-F1@5"] = lambda: (
            napkinxc.precision_at_k(truth, lists, 5),
            napkinxc.ndcg_at_k(truth, lists, 5),
            napkinxc.psprecision_at_k(truth, lists, q, 5),
            napkinxc.macro_f1_measure(truth, lists),
        )
        compared["full report (17 metrics, 3 k)"] = "napkinXC P, nDCG, PSP, macro-F1@5"
    except ImportError:
        print("napkinxc is not installed: left out")

    times = interleave(ours | peers, rounds=9, clock=time.process_time)
    table = Table("metrics", ["what", "cpu_ms", "peer", "peer_cpu_ms", "times_faster"])
    for what in ours:
        peer = compared.get(what)
        row = {"what": what, "cpu_ms": 1e3 * times[what]}
        if peer:
            row |= {"peer": peer, "peer_cpu_ms": 1e3 * times[peer], "times_faster": times[peer] / times[what]}
        table.add(**row)
    for what in peers:
        table.add(what=what, cpu_ms=1e3 * times[what])
    print(table)
    table.save()


if __name__ == "__main__":
    main()
