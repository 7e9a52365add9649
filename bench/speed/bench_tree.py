"""Label trees: training, size, prediction and precision, with PECOS, omikuji and one-vs-all in the same run.

    python -m bench.speed.bench_tree [--sets related tibkat-gnd synthetic-670091 ...] [--methods ...] [--plan]

Set `related` is made by a script (`XMC_CACHE/related`: train_texts.txt, test_texts.txt, Y_train.npz, Y_test.npz);
`synthetic-L` has L labels, 0.73 rows a label and texts of Amazon-670K's shape, `titles-L` 15 words a text, `rare-L` the
same texts and one for three labels; the others are those of bench.sets.
Rows have length 1. Every method runs in a process of its own, one thread, CPU seconds; a prediction is the best of
three passes over the test rows (one if it takes long), top 5. ``memory_mb`` is what a process takes beside the data,
``peak_mb`` all of it. Rows of other sets and methods in results/tree.json are kept, so that a long run can be made in
parts and from several environments. ``--plan`` fits what `xmc_fast.plan` says of trees to the rows of LabelTree, in
python/xmc_fast/plan_tree.json.
"""

from __future__ import annotations

import argparse
import functools
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
from bench.sets import load as load_set
from bench.speed.peers import napkin_plt, normalized, omikuji_trees, pecos_linear
from xmc_fast.data import make_synthetic
from xmc_fast.text import TfidfVectorizer

COLUMNS = [
    *("set", "method", "train_seconds", "predict_us", "model_mb", "memory_mb", "peak_mb"),
    *("P1", "P3", "P5", "PSP1", "PSP5", "macro_f1_5", "rows", "features", "labels", "nnz", "positives"),
]
Predict = Callable[[sp.csr_matrix], sp.csr_matrix]
PLAN = Path(__file__).parents[2] / "python" / "xmc_fast" / "plan_tree.json"


AMAZON = 490_449 / 670_091  # rows a label of Amazon-670K
SYNTHETIC = {
    "synthetic-": (75, AMAZON),
    "titles-": (15, AMAZON),
    "rare-": (15, 1 / 3),
}  # words a row, rows a label
FEATURES, TESTED = 135_909, 20_000  # of Amazon-670K; test rows


@functools.cache
def synthetic(n_labels: int, words: int, rows_per_label: float) -> tuple[sp.csr_matrix, sp.csr_matrix]:
    """Rows to train on, then TESTED ones."""
    rows = round(rows_per_label * n_labels) + TESTED
    of_labels = {"labels_per_point": 5.45, "signal": 0.3 if words > 50 else 0.6}
    return make_synthetic(rows, FEATURES, n_labels, features_per_point=words, random_state=0, **of_labels)


def load(name: str, part: str) -> tuple[sp.csr_matrix, sp.csr_matrix]:
    """Features and labels."""
    for prefix, (words, rows_per_label) in SYNTHETIC.items():
        if name.startswith(prefix):
            X, Y = synthetic(int(name.removeprefix(prefix)), words, rows_per_label)
            rows = slice(None, -TESTED) if part == "train" else slice(-TESTED, None)
            return X[rows], Y[rows]
    if name != "related":
        X, Y = load_set(name, part)
        return normalized(X), Y
    folder = common.CACHE / name
    if not (folder / "X_test.npz").exists():
        texts = {
            p: (folder / f"{p}_texts.txt").read_text("utf-8").split("\n")[:-1] for p in ("train", "test")
        }
        vectorizer = TfidfVectorizer(sublinear_tf=True, min_df=2).fit(texts["train"])
        for p, lines in texts.items():
            sp.save_npz(folder / f"X_{p}.npz", vectorizer.transform(lines), compressed=False)
    X, Y = (sp.load_npz(folder / f"{which}_{part}.npz").tocsr() for which in "XY")
    return normalized(X), Y.astype(np.float32)


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

        linear = pecos_linear()
        clusters = Indexer.gen(LabelEmbeddingFactory.create(Y, X, method="pifa"), threads=1)
        linear.train(X, Y, C=clusters, threads=1).save(str(folder))
        model = linear.load(str(folder), is_predict_only=True)
        return lambda X: model.predict(X, only_topk=5, beam_size=beam, threads=1)

    return fit


def listed(train: Callable[..., Any]) -> Callable[..., Predict]:
    """A peer whose predictions are arrays of ids (bench/speed/peers.py)."""

    def fit(X: sp.csr_matrix, Y: sp.csr_matrix, folder: Path) -> Predict:
        predict = train(X, Y, folder)

        def found(X: sp.csr_matrix) -> sp.csr_matrix:
            ids = predict(X, 5)
            ends = np.arange(0, ids.size + 1, 5)
            scores = np.tile(np.arange(5, 0, -1.0), len(ids))
            return sp.csr_matrix((scores, ids.ravel(), ends), (len(ids), Y.shape[1]))

        return found

    return fit


METHODS: dict[str, Callable[..., Predict]] = {
    "xmc_fast LabelTree": tree(),
    "xmc_fast LabelTree, beam 20": tree(beam=20),
    "xmc_fast LabelTree, 3 trees": tree(n_trees=3),
    "xmc_fast OneVsAll": exact,
    "PECOS XR-Linear": pecos(10),
    "PECOS XR-Linear, beam 50": pecos(50),
    "omikuji (3 trees)": listed(omikuji_trees),
    "napkinXC PLT": listed(napkin_plt),
}
DEFAULT = [name for name in METHODS if name != "xmc_fast OneVsAll"]  # that one takes an hour on `related`


def one(name: str, method: str) -> dict[str, Any]:
    """A row of the table."""
    import resource

    from xmc_fast import metrics, propensity

    X, Y = load(name, "train")
    X_test, Y_test = load(name, "test")
    synthetic.cache_clear()
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
        while len(times) < (3 if sum(times) < 10 else 1):
            start = time.process_time()
            top = predict(X_test)
            times.append(time.process_time() - start)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    top = top.tocsr()
    p = metrics.precision_at_k(Y_test, top, k=(1, 3, 5))
    scored = metrics.psp_at_k(Y_test, top, propensity.estimate(Y), k=(1, 5))
    return {
        "set": name, "method": method, "train_seconds": train, "predict_us": 1e6 * min(times) / X_test.shape[0],
        "model_mb": size / 1e6, "memory_mb": memory / 1e3, "peak_mb": peak / 1e3,
        "rows": X.shape[0], "features": X.shape[1], "labels": Y.shape[1], "nnz": X.nnz, "positives": Y.nnz,
        "macro_f1_5": 100 * float(metrics.macro_f1_at_k(Y_test, top, k=5)),
        **{f"P{k}": 100 * float(value) for k, value in zip((1, 3, 5), p, strict=True)},
        **{f"PSP{k}": 100 * float(value) for k, value in zip((1, 5), scored, strict=True)},
    }  # fmt: skip


def fit_plan(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What `xmc_fast.plan` says of trees, fitted to measured ones in logarithms, and how far it is from them."""
    from scipy.optimize import lsq_linear

    from xmc_fast import plan, planner

    rows = [row for row in rows if row["method"] == "xmc_fast LabelTree"]
    sizes = [(r["rows"], r["features"], r["labels"], r["nnz"], r["positives"]) for r in rows]
    grows = [planner.tree_sizes(*size) for size in sizes]
    A = np.column_stack([np.ones(len(rows)), np.log([[*g.values()] for g in grows])])

    def powers(values: list[float]) -> dict[str, float]:
        found = lsq_linear(A, np.log(values), ([-np.inf] + [0.01] * len(grows[0]), np.inf)).x
        return {"scale": float(np.exp(found[0])), **dict(zip(grows[0], map(float, found[1:]), strict=True))}

    process = 1e6 * min(r["peak_mb"] for r in rows)
    data = {
        "seconds": powers([r["train_seconds"] for r in rows]),
        "bytes": powers([1e6 * r["model_mb"] for r in rows]),
        "memory": {"process": process, "copies": 0.0},
    }

    def compare(copies: float) -> list[dict[str, Any]]:
        data["memory"]["copies"] = copies
        PLAN.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        planner._coefficients.cache_clear()
        measured = []
        for row, (n, d, labels, nnz, positives) in zip(rows, sizes, strict=True):
            guess = plan(n, d, labels, nnz, cores=1, labels_per_row=positives / n).tree
            measured.append(
                {
                    "set": row["set"], "seconds": row["train_seconds"], "forecast": 3600 * guess.cpu_hours,
                    "model_mb": row["model_mb"], "forecast_mb": guess.model_bytes / 1e6,
                    "peak_mb": row["peak_mb"], "forecast_peak_mb": guess.memory / 1e6,
                }
            )  # fmt: skip
        return measured

    def error(measured: list[dict[str, Any]], value: str, forecast: str) -> float:
        return float(np.exp(max(abs(np.log(r[value] / r[forecast])) for r in measured)))

    best = min(np.linspace(0.5, 6, 23), key=lambda c: error(compare(c), "peak_mb", "forecast_peak_mb"))
    measured = compare(float(best))
    data |= {
        "measured": measured, "machine": common.machine(),
        "largest_error": error(measured, "seconds", "forecast"),
        "largest_error_size": error(measured, "model_mb", "forecast_mb"),
        "largest_error_memory": error(measured, "peak_mb", "forecast_peak_mb"),
    }  # fmt: skip
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
            table.save()
    table.keep_others("set", "method")
    if args.plan:
        print(json.dumps(fit_plan(table.rows), indent=1))
        return
    table.save()
    print(table)


if __name__ == "__main__":
    main()
