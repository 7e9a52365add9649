"""Label trees: training, size, prediction and precision, with PECOS, omikuji and one-vs-all in the same run.

    python -m bench.speed.bench_tree [--sets related tibkat-gnd ...] [--methods ...] [--plan]

Set `related` is made by a script (`XMC_CACHE/related`: X_train.npz, Y_train.npz, X_test.npz, Y_test.npz); the others
are those of bench.sets. Every method runs in a process of its own, one thread, CPU seconds; a prediction is the best of
three passes over the test rows, top 5. Rows of other sets and methods in results/tree.json are kept, so that packages
that exclude each other (PECOS needs numpy 1) can be run from several environments into one table. ``--plan`` sets the
forecasts of `xmc_fast.plan` beside the rows of LabelTree, in python/xmc_fast/plan_tree.json; its coefficients stay.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from bench import common

COLUMNS = [
    *("set", "method", "train_seconds", "predict_us", "model_mb", "memory_mb"),
    *("P1", "P3", "P5", "PSP1", "PSP5", "rows", "labels"),
]
Predict = Callable[[sp.csr_matrix], sp.csr_matrix]
PLAN = Path(__file__).parents[2] / "python" / "xmc_fast" / "plan_tree.json"


def load(name: str, part: str) -> tuple[sp.csr_matrix, sp.csr_matrix]:
    """Features and labels."""
    if name != "related":
        from bench.sets import load as load_set

        return load_set(name, part)
    X, Y = (sp.load_npz(common.CACHE / name / f"{which}_{part}.npz").tocsr() for which in "XY")
    return X.astype(np.float32), Y.astype(np.float32)


def tree(**options: Any) -> Callable[..., Predict]:
    def fit(X: sp.csr_matrix, Y: sp.csr_matrix, folder: Path) -> Predict:
        from xmc_fast import LabelTree

        beam = options.pop("beam", None)
        model = LabelTree(n_jobs=1, **options).fit(X, Y)
        model.save(folder)
        return lambda X: model.predict(X, 5, beam=beam)

    return fit


def exact(X: sp.csr_matrix, Y: sp.csr_matrix, folder: Path) -> Predict:
    from xmc_fast import OneVsAll

    model = OneVsAll(n_jobs=1).fit(X, Y)
    model.save(folder)
    return lambda X: model.predict(X, 5)


def pecos(beam: int) -> Callable[..., Predict]:
    def fit(X: sp.csr_matrix, Y: sp.csr_matrix, folder: Path) -> Predict:
        from pecos.xmc import Indexer, LabelEmbeddingFactory

        from bench.speed.peers import pecos_linear

        linear = pecos_linear()
        clusters = Indexer.gen(LabelEmbeddingFactory.create(Y, X, method="pifa"), threads=1)
        linear.train(X, Y, C=clusters, threads=1).save(str(folder))
        model = linear.load(str(folder), is_predict_only=True)
        return lambda X: model.predict(X, only_topk=5, beam_size=beam, threads=1)

    return fit


def omikuji(X: sp.csr_matrix, Y: sp.csr_matrix, folder: Path) -> Predict:
    from bench.speed.peers import omikuji_trees

    predict = omikuji_trees(X, Y, folder)

    def found(X: sp.csr_matrix) -> sp.csr_matrix:
        ids = predict(X, 5)
        ends = np.arange(0, ids.size + 1, 5)
        return sp.csr_matrix(
            (np.tile(np.arange(5, 0, -1.0), len(ids)), ids.ravel(), ends), (len(ids), Y.shape[1])
        )

    return found


METHODS: dict[str, Callable[..., Predict]] = {
    "xmc_fast LabelTree": tree(),
    "xmc_fast LabelTree, beam 30": tree(beam=30),
    "xmc_fast LabelTree, 2 trees": tree(n_trees=2),
    "xmc_fast OneVsAll": exact,
    "PECOS XR-Linear": pecos(10),
    "PECOS XR-Linear, beam 50": pecos(50),
    "omikuji (3 trees)": omikuji,
}
DEFAULT = [name for name in METHODS if name != "xmc_fast OneVsAll"]  # that one takes an hour on `related`


def one(name: str, method: str) -> dict[str, Any]:
    """A row of the table."""
    import resource

    from xmc_fast import metrics, propensity

    X, Y = load(name, "train")
    X_test, Y_test = load(name, "test")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        start = time.process_time()
        predict = METHODS[method](X, Y, folder)
        train = time.process_time() - start
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        files = [folder] if folder.is_file() else [path for path in folder.rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files)
        times = []
        for _ in range(3):
            start = time.process_time()
            top = predict(X_test)
            times.append(time.process_time() - start)
    top = top.tocsr()
    p = metrics.precision_at_k(Y_test, top, k=(1, 3, 5))
    scored = metrics.psp_at_k(Y_test, top, propensity.estimate(Y), k=(1, 5))
    return {
        "set": name, "method": method, "train_seconds": train, "predict_us": 1e6 * min(times) / X_test.shape[0],
        "model_mb": size / 1e6, "memory_mb": memory / 1e3, "rows": X.shape[0], "labels": Y.shape[1],
        **{f"P{k}": 100 * float(value) for k, value in zip((1, 3, 5), p, strict=True)},
        **{f"PSP{k}": 100 * float(value) for k, value in zip((1, 5), scored, strict=True)},
    }  # fmt: skip


def compare_plan(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How far the forecasts of `xmc_fast.plan` are from measured trees: written beside its coefficients."""
    from xmc_fast import plan

    data = json.loads(PLAN.read_text("utf-8"))
    measured = []
    for row in rows:
        if row["method"] != "xmc_fast LabelTree":
            continue
        X, Y = load(row["set"], "train")
        guess = plan(X.shape[0], X.shape[1], Y.shape[1], X.nnz, labels_per_row=Y.nnz / Y.shape[0]).tree
        measured.append(
            {
                "set": row["set"], "seconds": row["train_seconds"], "forecast": 3600 * guess.cpu_hours,
                "model_mb": row["model_mb"], "forecast_mb": guess.model_bytes / 1e6,
            }
        )  # fmt: skip
    ratios = [max(r["seconds"] / r["forecast"], r["forecast"] / r["seconds"]) for r in measured]
    data |= {"measured": measured, "largest_error": max(ratios, default=1.0)}
    PLAN.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return data


def main() -> None:
    parser = common.command_line(__doc__)
    parser.add_argument("--sets", nargs="+", default=["related", "tibkat-gnd", "eurlex57k"])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=DEFAULT)
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one(*args.one)))
        return
    table = common.Table("tree", COLUMNS)
    for name in [] if args.plan else args.sets:
        for method in args.methods:
            command = [sys.executable, "-m", "bench.speed.bench_tree", "--one", name, method]
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            if run.returncode:
                print(f"{name}, {method}: left out ({run.stderr.strip().splitlines()[-1]})", file=sys.stderr)
                continue
            table.add(**json.loads(run.stdout.splitlines()[-1]))
            print(table.rows[-1], flush=True)
    table.keep_others("set", "method")
    if args.plan:
        print(json.dumps(compare_plan(table.rows), indent=1))
        return
    table.save()
    print(table)


if __name__ == "__main__":
    main()
