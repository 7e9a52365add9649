"""Cost of one-vs-all training against the size of the problem: parts of bench_linear.py."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from bench.common import Table
from xmc_fast import OneVsAll, data

SHARES = (0.125, 0.25, 0.5, 1.0)
POSITIVES = (1, 4, 16, 64, 256)


def thinned(X: sp.csr_matrix, share: float, rng: np.random.Generator) -> sp.csr_matrix:
    """A random share of the entries."""
    keep = rng.random(X.nnz) < share
    rows = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))[keep]
    return sp.csr_matrix((X.data[keep], (rows, X.indices[keep])), shape=X.shape)


def scaling(X: sp.csr_matrix, Y: sp.csr_matrix, labels: int = 256) -> Table:
    """CPU ms per label with fewer rows, with fewer entries per row, and by the label's positives (there the
    median of the solver's own clock, which shares a block's time among its labels)."""
    table = Table("linear_scaling", ["varied", "rows", "nnz", "positives", "ms_per_label", "ns_per_nnz"])
    present = np.flatnonzero(np.asarray(Y.sum(axis=0)).ravel())
    Y = Y.tocsc()[:, present[:labels]].tocsr()
    rng = np.random.default_rng(0)
    for varied in ("rows", "entries"):
        for share in SHARES:
            rows = np.arange(X.shape[0])
            if varied == "rows":
                rows = np.sort(rng.permutation(X.shape[0])[: int(share * X.shape[0])])
            part = X[rows] if varied == "rows" else thinned(X, share, rng)
            cpu = time.process_time()
            model = OneVsAll(n_jobs=1).fit(part, Y[rows])
            ms = 1e3 * (time.process_time() - cpu) / Y.shape[1]
            row = {"varied": varied, "rows": len(rows), "nnz": part.nnz}
            table.add(**row, ms_per_label=ms, ns_per_nnz=1e6 * ms / part.nnz)
            print(table.rows[-1], flush=True)
    counts, ms = np.asarray(Y.sum(axis=0)).ravel(), 1e3 * model.report_["seconds"]
    for low, high in zip(POSITIVES, (*POSITIVES[1:], X.shape[0] + 1), strict=True):
        some = (counts >= low) & (counts < high)
        if some.any():
            span = f"{low} to {min(high, int(counts.max()) + 1) - 1}"
            row = {"varied": "positives", "rows": X.shape[0], "nnz": X.nnz, "positives": span}
            middle = float(np.median(ms[some]))
            table.add(**row, ms_per_label=middle, ns_per_nnz=1e6 * middle / X.nnz)
    return table


def whole(
    name: str, X: sp.csr_matrix, Y: sp.csr_matrix, blocks: int, n_jobs: int, keep: Path | None = None
) -> Table:
    """The whole data set, its model kept in `keep`, or (blocks > 0) so many evenly spread batches of 1,000
    labels, projected."""
    columns = ["set", "rows", "features", "labels", "trained", "threads", "seconds", "cpu_seconds"]
    table = Table(f"linear_{name}", [*columns, "projected_cpu_seconds"])
    starts = np.arange(0, Y.shape[1], 1000)
    chosen = starts[np.linspace(0, len(starts) - 1, blocks).astype(int)] if blocks else [0]
    wall = cpu = labels = 0.0
    for first in chosen:
        last = min(first + 1000, Y.shape[1]) if blocks else Y.shape[1]
        clocks = time.perf_counter(), time.process_time()
        OneVsAll(n_jobs=n_jobs).fit(X, Y, labels=(first, last), checkpoint=None if blocks else keep)
        wall += time.perf_counter() - clocks[0]
        cpu += time.process_time() - clocks[1]
        labels += last - first
        print(f"labels {first} to {last}: {cpu:.1f} s of CPU so far", flush=True)
    table.add(
        set=name,
        rows=X.shape[0],
        features=X.shape[1],
        labels=Y.shape[1],
        trained=int(labels),
        threads=n_jobs,
        seconds=wall,
        cpu_seconds=cpu,
        projected_cpu_seconds=cpu * Y.shape[1] / labels,
    )
    return table


def amazon(labels: int = 100_000, few: int = 32, many: int = 160) -> Table:
    """n = 490,449, D = 135,909, 75 entries per row; labels spread over the range, most frequent to rarest. The
    CPU time of a fit of `many` labels less that of `few` is the cost of the labels without the set-up."""
    columns = ["rows", "features", "nnz", "labels", "trained", "set_up_seconds", "ms_per_label"]
    table = Table("linear_amazon", [*columns, "core_hours_100k", "core_hours_670k"])
    X, Y = data.make_synthetic(490_449, 135_909, labels, features_per_point=75.0, labels_per_point=5.45)[:2]
    order = np.argsort(-np.asarray(Y.sum(axis=0)).ravel(), kind="stable")
    present = int(np.sum(np.asarray(Y.sum(axis=0)).ravel() > 0))
    Y = Y.tocsc()
    seconds = []
    for count in (few, many):
        chosen = order[np.linspace(0, present - 1, count).astype(int)]
        cpu = time.process_time()
        OneVsAll(n_jobs=1).fit(X, Y[:, chosen].tocsr())
        seconds.append(time.process_time() - cpu)
    ms = 1e3 * (seconds[1] - seconds[0]) / (many - few)
    table.add(
        rows=X.shape[0],
        features=X.shape[1],
        nnz=X.nnz,
        labels=labels,
        trained=many,
        set_up_seconds=seconds[0] - 1e-3 * ms * few,
        ms_per_label=ms,
        core_hours_100k=ms * labels / 3.6e6,
        core_hours_670k=ms * 670_091 / 3.6e6,
    )
    return table
