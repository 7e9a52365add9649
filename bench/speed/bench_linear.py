"""One-vs-all training against LIBLINEAR at equal objective; quality, threads, scaling, projection.

``python -m bench.speed.bench_linear [peers quality threads ...] [--sets eurlex-4k ...]``

peers    CPU ms per label, one thread, ours on all labels of a block (ordering, base solution and pruning
         included) and LIBLINEAR's -s 2 and -s 1 (solver time only) on a sample from head to tail, interleaved.
         The sampled labels' summed objective must be within 0.1 % of LIBLINEAR -s 2's, or better.
quality  P@1/3/5 with the default parameters, and the whole model's training time.
threads  wall time with one and two threads, bit-identical models.
every    every label's objective and weights on EURLex-4K against LIBLINEAR's (linear_every.py).
scaling  seconds per label against rows, entries and the label's frequency (linear_scaling.py, plot in docs/img).
tibkat   the whole of tibkat-gnd, 41,218 labels; --blocks 2: projected from so many batches.
amazon   a synthetic problem of Amazon-670K's shape, projected to 670,091 labels from a sample of blocks.
dense    dense features against LIBLINEAR and scikit-learn (linear_dense.py).
related  rare labels on half a million short rows, with and without the search for rows (linear_related.py).

With --sets the tables of peers and quality keep the saved rows of the other sets. Data sets: sets.py.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from bench.common import Table, command_line, interleave, prepared_rows
from bench.sets import load
from bench.speed import linear_dense, linear_every, linear_related, linear_scaling
from bench.speed.liblinear import Liblinear
from xmc_fast import OneVsAll

SETS = ("eurlex-4k", "eurlex57k", "debdeps", "debtags", "tibkat-gnd")
ORDER = (*SETS, "bibtex")
# DiSMEC on the standard split (LightXML, table 3); for the others P@1 of the uncompressed network that DECLARE
# starts from (its table 1), on other features: there is no published linear figure on these splits.
PUBLISHED = {"eurlex-4k": (83.21, 70.39, 58.73), "bibtex": (62.86,), "eurlex57k": (86.65,)}


def block_of_labels(Y: sp.csr_matrix, count: int) -> sp.csr_matrix:
    """The first `count` labels that have a positive (a block of the whole fit, without its free labels)."""
    present = np.flatnonzero(np.asarray(Y.sum(axis=0)).ravel())
    return Y.tocsc()[:, present[:count]].tocsr()


def signs(Y: sp.csr_matrix, label: int) -> np.ndarray:
    return np.where(np.asarray(Y[:, [label]].todense()).ravel() > 0, 1.0, -1.0)


def peers(
    sets: tuple[str, ...] = SETS,
    labels: int = 1000,
    peer_labels: int = 12,
    rounds: int = 3,
    biases: tuple[float | None, ...] = (None, 1.0),
) -> Table:
    columns = ["set", "bias", "rows", "features", "labels", "ms_per_label", "s2_ms", "s1_ms", "s2_ratio"]
    table = Table("linear_peers", [*columns, "s1_ratio", "objective_ratio", "rounds", "active_rows"])
    for name in sets:
        X, Y = load(name)
        Y = block_of_labels(Y, labels)
        counts = np.asarray(Y.sum(axis=0)).ravel()
        order = np.argsort(-counts, kind="stable")
        sample = order[np.linspace(0, len(order) - 1, peer_labels).astype(int)]
        s = {k: signs(Y, k) for k in sample}
        for bias in biases:
            model = OneVsAll(bias=bias, n_jobs=1)
            Xd = prepared_rows(X, bias=bias)
            peer = Liblinear(s, Xd)

            def ours(model: OneVsAll = model, X: sp.csr_matrix = X, Y: sp.csr_matrix = Y) -> None:
                model.fit(X, Y)

            ours()
            ratio = peer.objective_ratio(model)
            cases = {"ours": ours, "s2": partial(peer.train, 2), "s1": partial(peer.train, 1)}
            t = interleave(cases, rounds=rounds, clock=time.process_time, warm_up=False, budget=90)
            mine = 1e3 * t["ours"] / Y.shape[1]
            s2, s1 = (1e3 * t[k] / peer_labels for k in ("s2", "s1"))
            table.add(
                set=name,
                bias=str(bias),
                rows=X.shape[0],
                features=X.shape[1],
                labels=Y.shape[1],
                ms_per_label=mine,
                s2_ms=s2,
                s1_ms=s1,
                s2_ratio=s2 / mine,
                s1_ratio=s1 / mine,
                objective_ratio=ratio,
                rounds=float(model.report_["outer_iterations"].mean()),
                active_rows=float(model.report_["active_rows"].mean()),
            )
            print(table.rows[-1], flush=True)
    table.keep_others("set")
    table.rows.sort(key=lambda row: ORDER.index(row["set"]))
    return table


def precision(model: OneVsAll, X: sp.csr_matrix, Y: sp.csr_matrix) -> list[float]:
    top = model.predict(X, k=5)
    hits = np.asarray(Y[np.repeat(np.arange(X.shape[0]), 5), top.indices]).reshape(-1, 5)
    return [round(100 * float(hits[:, :k].mean()), 2) for k in (1, 3, 5)]


def quality(sets: tuple[str, ...] = ("eurlex-4k", "bibtex", "eurlex57k"), n_jobs: int | None = None) -> Table:
    table = Table("linear_quality", ["set", "bias", "seconds", "cpu_seconds", "P1", "P3", "P5", "published"])
    for name in sets:
        X, Y = load(name)
        for bias in (1.0, None):
            wall, cpu = time.perf_counter(), time.process_time()
            model = OneVsAll(bias=bias, n_jobs=n_jobs).fit(X, Y)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            p = precision(model, *load(name, "test"))
            known = "/".join(map(str, PUBLISHED.get(name, ())))
            table.add(
                set=name,
                bias=str(bias),
                seconds=wall,
                cpu_seconds=cpu,
                P1=p[0],
                P3=p[1],
                P5=p[2],
                published=known,
            )
            print(table.rows[-1], flush=True)
    table.keep_others("set")
    table.rows.sort(key=lambda row: ORDER.index(row["set"]))
    return table


def threads(name: str = "eurlex-4k", labels: int = 2048, rounds: int = 3) -> Table:
    table = Table("linear_threads", ["set", "labels", "one", "two", "ratio"])
    X, Y = load(name)
    Y = block_of_labels(Y, labels)
    models = {jobs: OneVsAll(n_jobs=jobs).fit(X, Y).model_.to_csr() for jobs in (1, 2)}
    if not np.array_equal(models[1].data, models[2].data):
        raise RuntimeError("models differ between one and two threads")
    cases = {jobs: (lambda jobs=jobs: OneVsAll(n_jobs=jobs).fit(X, Y)) for jobs in (1, 2)}
    t = interleave({str(k): v for k, v in cases.items()}, rounds=rounds, warm_up=False)
    table.add(set=name, labels=Y.shape[1], one=t["1"], two=t["2"], ratio=t["1"] / t["2"])
    return table


def every(
    name: str = "eurlex-4k", cases: list[str] | None = None, peer_labels: int = 128, sample: int = 512
) -> Table:
    return linear_every.every(*load(name), cases, peer_labels, sample)


def scaling() -> Table:
    return linear_scaling.scaling(*load("eurlex-4k"))


def tibkat(blocks: int = 0, n_jobs: int = 2, keep: Path | None = None) -> Table:
    return linear_scaling.whole("tibkat-gnd", *load("tibkat-gnd"), blocks, n_jobs, keep)


def amazon() -> Table:
    return linear_scaling.amazon()


def dense() -> Table:
    return linear_dense.dense(*load("eurlex-4k"))


def related(labels: int = 1000) -> Table:
    return linear_related.related(labels)


def bias_of(text: str) -> float | None:
    return None if text == "none" else float(text)


def main() -> None:
    parser = command_line(__doc__)
    names = ["peers", "quality", "threads", "every", "scaling", "tibkat", "amazon", "dense", "related"]
    parser.add_argument("parts", nargs="*", default=["peers", "quality", "threads"], metavar="part")
    parser.add_argument("--sets", nargs="+", default=None)
    parser.add_argument("--labels", type=int, default=1000)
    parser.add_argument("--biases", nargs="+", type=bias_of, default=(None, 1.0), help="part peers")
    parser.add_argument("--rounds", type=int, default=3, help="part peers")
    parser.add_argument("--cases", nargs="+", choices=list(linear_every.CASES), default=None)
    parser.add_argument("--peer-labels", type=int, default=128, help="labels LIBLINEAR trains (part every)")
    parser.add_argument("--sample", type=int, default=512, help="labels of logistic and l1 (part every)")
    parser.add_argument("--blocks", type=int, default=0, help="batches to train (part tibkat; 0: all)")
    parser.add_argument("--keep", type=Path, help="folder for the model (part tibkat); resumed if there")
    args = parser.parse_args()
    for part in args.parts:
        if part not in names:
            parser.error(f"unknown part {part!r}, expected one of {', '.join(names)}")
        options: dict = {}
        if args.sets and part in ("peers", "quality"):
            options["sets"] = tuple(args.sets)
        if part == "peers":
            options |= {"labels": args.labels, "rounds": args.rounds, "biases": tuple(args.biases)}
        if part == "related":
            options["labels"] = args.labels
        if part == "tibkat":
            options |= {"blocks": args.blocks, "keep": args.keep}
        if part == "every":
            options |= {"cases": args.cases, "peer_labels": args.peer_labels, "sample": args.sample}
        table = globals()[part](**options)
        print(table)
        table.save()


if __name__ == "__main__":
    main()
