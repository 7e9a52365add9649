"""End-to-end comparison of methods: training time, prediction time, P@k, model size and memory, one thread each.

    python -m bench.speed.peers [--sets eurlex-4k ...] [--methods ...] [--labels 24]

Runs every method that is installed here, each in a process of its own (so that peak memory is its own). Rows of
other sets and methods in results/peers.json (before that exists: docs/results/peers.json) are kept, with the machine
they were measured on: sets can be run one by one, and packages that exclude each other (liblinear-official and
liblinear-multicore share a module name) from several environments into one table.

One-vs-all peers that need minutes per hundred labels train `--labels` labels, spread from the most frequent to
the rarest; their seconds are projected to all labels ("projected"), their size and P@k are left out.
Trees and ours train in full. Seconds are CPU seconds; memory is the peak above the loaded data.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from bench import common
from bench.sets import load

COLUMNS = [
    "set",
    "method",
    "train_seconds",
    "projected",
    "predict_us",
    "P1",
    "P3",
    "P5",
    "model_mb",
    "memory_mb",
]
Predict = Callable[[sp.csr_matrix, int], np.ndarray]  # rows -> ids of the k best labels, n x k


def ours(X: sp.csr_matrix, Y: sp.csr_matrix, folder: Path, threads: int = 1) -> Predict:
    from xmc_fast import OneVsAll

    model = OneVsAll(n_jobs=threads).fit(X, Y).model_
    model.save(folder)
    return lambda X, k: model.predict(X, k, n_jobs=threads).indices.reshape(-1, k)


def ours_small(X: sp.csr_matrix, Y: sp.csr_matrix, folder: Path, threads: int = 1) -> Predict:
    from xmc_fast import OneVsAll

    model = OneVsAll(size="small", n_jobs=threads).fit(X, Y).model_
    model.save(folder)
    return lambda X, k: model.predict(X, k, n_jobs=threads).indices.reshape(-1, k)


def mach(X: sp.csr_matrix, Y: sp.csr_matrix, folder: Path, threads: int = 1) -> Predict:
    from xmc_fast import Mach

    model = Mach(250, 8, n_jobs=threads).fit(X, Y)
    model.save(folder)
    return lambda X, k: model.predict(X, k).indices.reshape(-1, k)


def pecos_linear() -> Any:
    """PECOS' linear model, made to work with numpy 2: its own way to build scipy matrices does not."""
    from pecos.utils import smat_util
    from pecos.xmc.xlinear.model import XLinearModel

    def build(parts, kind, shape=None, dtype=None, **_):
        values, indices, ends = parts
        return kind((values, indices.astype(np.int64), ends.astype(np.int64)), shape=shape, dtype=dtype)

    smat_util.cs_matrix = build
    return XLinearModel


def pecos(X: sp.csr_matrix, Y: sp.csr_matrix, folder: Path, threads: int = 1) -> Predict:
    from pecos.xmc import Indexer, LabelEmbeddingFactory

    linear = pecos_linear()
    X, Y = X.astype(np.float32), Y.astype(np.float32)
    clusters = Indexer.gen(LabelEmbeddingFactory.create(Y, X, method="pifa"), threads=threads)
    linear.train(X, Y, C=clusters, threads=threads).save(str(folder))
    model = linear.load(str(folder), is_predict_only=True)  # its fast layout
    return lambda X, k: ranked(model.predict(X.astype(np.float32), only_topk=k, threads=threads), k)


def omikuji_trees(X: sp.csr_matrix, Y: sp.csr_matrix, folder: Path, threads: int = 1) -> Predict:
    import omikuji

    from xmc_fast.data import write_xmc

    with tempfile.TemporaryDirectory() as scratch:
        write_xmc(Path(scratch) / "train.txt", X, Y)
        model = omikuji.Model.train_on_data(str(Path(scratch) / "train.txt"), n_threads=threads)
    model.save(str(folder))
    model = omikuji.Model.load(str(folder))

    def predict(X: sp.csr_matrix, k: int) -> np.ndarray:
        out = np.zeros((X.shape[0], k), np.int64)
        for i in range(X.shape[0]):
            row = slice(X.indptr[i], X.indptr[i + 1])
            pairs = list(zip(X.indices[row].tolist(), X.data[row].tolist(), strict=True))
            best = model.predict(pairs, top_k=k)
            out[i, : len(best)] = [label for label, _ in best]
        return out

    return predict


def napkin_plt(X: sp.csr_matrix, Y: sp.csr_matrix, folder: Path, threads: int = 1) -> Predict:
    from napkinxc.models import PLT

    model = PLT(str(folder), threads=threads, verbose=0)
    model.fit(X.astype(np.float32), Y)

    def predict(X: sp.csr_matrix, k: int) -> np.ndarray:
        out = np.zeros((X.shape[0], k), np.int64)
        for i, best in enumerate(model.predict(X.astype(np.float32), top_k=k)):
            out[i, : len(best)] = best
        return out

    return predict


def multilabel_tree(X: sp.csr_matrix, Y: sp.csr_matrix, folder: Path, threads: int = 1) -> Predict:
    import pickle

    from libmultilabel import linear

    present = np.flatnonzero(Y.getnnz(axis=0))  # its clustering refuses labels without a row
    Y = Y[:, present].astype(np.float64)
    model = linear.train_tree(Y, X.astype(np.float64), f"-s 1 -c 1 -e 0.01 -m {threads}")
    folder.mkdir()
    (folder / "model.pickle").write_bytes(pickle.dumps(model))
    return lambda X, k: present[ranked(sp.csr_matrix(linear.predict_values(model, X.astype(np.float64))), k)]


def liblinear(options: str) -> Callable[[sp.csr_matrix, np.ndarray], Callable[[], Any]]:
    def prepare(X: sp.csr_matrix, s: np.ndarray) -> Callable[[], Any]:
        from liblinear import liblinearutil

        problem = liblinearutil.problem(s, X)  # its own copy of X: not timed
        return lambda: liblinearutil.train(problem, f"{options} -c 1 -e 0.01 -q")

    return prepare


def linear_svc(X: sp.csr_matrix, s: np.ndarray) -> Callable[[], Any]:
    from sklearn.svm import LinearSVC

    return lambda: LinearSVC(C=1.0, tol=0.01, fit_intercept=False, max_iter=10_000).fit(X, s)


def multilabel_1vsrest(X: sp.csr_matrix, Y: sp.csr_matrix) -> None:
    from libmultilabel import linear

    linear.train_1vsrest(Y.astype(np.float64), X.astype(np.float64), "-s 1 -c 1 -e 0.01 -m 1")


# name -> (what must be installed, the function); FULL train all labels, ONE one label, SOME a few at a time
FULL: dict[str, tuple[str, Callable]] = {
    "xmc_fast OneVsAll, small form": ("xmc_fast", ours_small),
    "xmc_fast OneVsAll": ("xmc_fast", ours),
    "xmc_fast Mach 250 x 8": ("xmc_fast", mach),
    "PECOS XR-Linear": ("pecos", pecos),
    "omikuji (3 trees)": ("omikuji", omikuji_trees),
    "napkinXC PLT": ("napkinxc", napkin_plt),
    "LibMultiLabel tree": ("libmultilabel", multilabel_tree),
}
ONE: dict[str, tuple[str, Callable]] = {
    "LIBLINEAR -s 2": ("liblinear-official", liblinear("-s 2")),
    "LIBLINEAR -s 1": ("liblinear-official", liblinear("-s 1")),
    "liblinear-multicore -s 2": ("liblinear-multicore", liblinear("-s 2 -m 1")),
    "scikit-learn LinearSVC": ("sklearn", linear_svc),
}
SOME: dict[str, tuple[str, Callable]] = {"LibMultiLabel 1-vs-rest": ("libmultilabel", multilabel_1vsrest)}
METHODS = {**FULL, **ONE, **SOME}


def installed(package: str) -> bool:
    if "-" not in package:
        return find_spec(package) is not None
    from importlib.metadata import PackageNotFoundError, version

    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def ranked(scores: sp.csr_matrix, k: int) -> np.ndarray:
    """The k best stored columns of each row, best first (0 where there are fewer)."""
    out = np.zeros((scores.shape[0], k), np.int64)
    for i in range(scores.shape[0]):
        row = slice(scores.indptr[i], scores.indptr[i + 1])
        best = np.argsort(-scores.data[row], kind="stable")[:k]
        out[i, : len(best)] = scores.indices[row][best]
    return out


def cpu_seconds(run: Callable[[], Any]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def forget_peak() -> None:
    """What loading the data took at its peak is not the method's."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_mb() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def folder_mb(folder: Path) -> float:
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) / 2**20


def measure(method: str, name: str, labels: int) -> dict[str, Any]:
    """One row of the table; runs in its own process."""
    X, Y = load(name)
    X_test, Y_test = load(name, "test")
    X, X_test = normalized(X), normalized(X_test)
    run = METHODS[method][1]
    row: dict[str, Any] = {"set": name, "method": method}
    forget_peak()
    before = peak_mb()
    if method not in FULL:
        counts = np.asarray(Y.sum(axis=0)).ravel()
        order = np.argsort(-counts, kind="stable")[: int((counts > 0).sum())]
        sample = order[np.linspace(0, len(order) - 1, labels).astype(int)]
        X = X.astype(np.float64)
        columns = Y.tocsc()[:, sample]
        if method in SOME:
            seconds = cpu_seconds(lambda: run(X, columns.tocsr()))
        else:
            signs = (np.where(columns[:, [j]].toarray().ravel() > 0, 1.0, -1.0) for j in range(labels))
            seconds = sum(cpu_seconds(run(X, s)) for s in signs)
        seconds *= len(order) / labels
        return {**row, "train_seconds": seconds, "projected": "yes", "memory_mb": peak_mb() - before}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        start = time.process_time()
        predict = run(X, Y, folder)
        row |= {"train_seconds": time.process_time() - start, "projected": "", "model_mb": folder_mb(folder)}
        top = predict(X_test, 5)
        row["predict_us"] = 1e6 * cpu_seconds(lambda: predict(X_test, 5)) / X_test.shape[0]
    hits = np.asarray(Y_test.tocsr()[np.repeat(np.arange(X_test.shape[0]), 5), top.ravel()]).reshape(-1, 5)
    row |= {f"P{k}": round(100 * float(hits[:, :k].mean()), 2) for k in (1, 3, 5)}
    return {**row, "memory_mb": peak_mb() - before}


def normalized(X: sp.csr_matrix) -> sp.csr_matrix:
    from sklearn.preprocessing import normalize

    return normalize(X).astype(np.float32)


def save(row: dict[str, Any], info: dict[str, Any]) -> None:
    """The row into the saved table, in place of an older one: a run that is stopped keeps what it measured."""
    table = common.Table("peers", COLUMNS, info)
    table.rows = [row]
    table.keep_others("set", "method")
    order = list(METHODS)
    table.rows.sort(key=lambda r: (r["set"], order.index(r["method"])))
    table.save()


def main() -> None:
    parser = common.command_line(__doc__)
    parser.add_argument("--sets", nargs="+", default=["eurlex-4k"])
    parser.add_argument(
        "--methods", nargs="+", choices=list(METHODS), default=list(METHODS), metavar="METHOD"
    )
    parser.add_argument("--labels", type=int, default=24)
    parser.add_argument("--one", nargs=2, metavar=("METHOD", "SET"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(*args.one, args.labels)))
        return
    info = common.machine()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    for name in args.sets:
        load(name), load(name, "test")  # fills the cache
        for method in args.methods:
            if not installed(METHODS[method][0]):
                print(f"{method}: {METHODS[method][0]} is not installed, left out", flush=True)
                continue
            command = [
                sys.executable,
                "-m",
                __spec__.name,
                "--one",
                method,
                name,
                "--labels",
                str(args.labels),
            ]
            run = subprocess.run(command, capture_output=True, text=True, env=environment)
            if run.returncode:
                print(f"{method} on {name} failed: {run.stderr.strip().splitlines()[-1]}", flush=True)
                continue
            row = json.loads(run.stdout.strip().splitlines()[-1])
            print(row, flush=True)
            save(row, info)


if __name__ == "__main__":
    main()
