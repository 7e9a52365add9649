"""How end-to-end times grow with rows, labels and threads.

    python -m bench.speed.peers_growth [--set eurlex-4k] [--methods ...] [--axes threads]

Rows and labels are left out at random (rows without a label then go, too); seconds are CPU seconds of one thread, on
the axis of threads wall seconds (keep the machine free). Prediction is the first one: ours then builds its layout.
Each measurement is a process of its own, and replaces the one that results/peers_growth.json (before that exists:
docs/results/peers_growth.json) has.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench import common
from bench.sets import load
from bench.speed.peers import FULL, installed, normalized

METHODS = ["xmc_fast OneVsAll", "PECOS XR-Linear", "omikuji (3 trees)", "napkinXC PLT"]
AXES = {"rows": (0.25, 0.5, 1.0), "labels": (0.25, 0.5, 1.0), "threads": (1.0, 2.0)}
KEY = ("set", "axis", "value", "method")


def measure(name: str, method: str, axis: str, value: float) -> dict[str, Any]:
    """One row of the table: `value` is a share of the rows or labels, or the number of threads."""
    (X, Y), (X_test, _) = load(name), load(name, "test")
    rng = np.random.default_rng(0)
    if axis == "rows":
        keep = np.sort(rng.permutation(X.shape[0])[: int(value * X.shape[0])])
        X, Y = X[keep], Y[keep]
    elif axis == "labels":
        Y = Y[:, np.sort(rng.permutation(Y.shape[1])[: int(value * Y.shape[1])])]
        keep = np.flatnonzero(np.diff(Y.indptr))
        X, Y = X[keep], Y[keep]
    X, X_test = normalized(X), normalized(X_test)
    threads = int(value) if axis == "threads" else 1
    clock = time.perf_counter if axis == "threads" else time.process_time
    with tempfile.TemporaryDirectory() as folder:
        start = clock()
        predict = FULL[method][1](X, Y, Path(folder) / "model", threads)
        trained = clock()
        predict(X_test, 5)
        predicted = clock()
    return {
        "set": name, "axis": axis, "value": value, "rows": X.shape[0], "labels": Y.shape[1], "method": method,
        "train_seconds": trained - start, "predict_us": 1e6 * (predicted - trained) / X_test.shape[0],
    }  # fmt: skip


def main() -> None:
    parser = common.command_line(__doc__)
    parser.add_argument("--set", default="eurlex-4k")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS, metavar="METHOD")
    parser.add_argument("--axes", nargs="+", choices=AXES, default=AXES, metavar="AXIS")
    parser.add_argument("--one", nargs=3, metavar=("METHOD", "AXIS", "VALUE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        method, axis, value = args.one
        print(json.dumps(measure(args.set, method, axis, float(value))))
        return
    load(args.set), load(args.set, "test")  # fills the cache
    points = [(axis, value) for axis in args.axes for value in AXES[axis]]
    table = common.Table(
        "peers_growth", [*KEY[:3], "rows", "labels", "method", "train_seconds", "predict_us"]
    )
    for axis, value in points:
        threads = str(int(value)) if axis == "threads" else "1"
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
        for method in args.methods:
            if not installed(FULL[method][0]):
                continue
            command = [
                sys.executable,
                "-m",
                __spec__.name,
                "--set",
                args.set,
                "--one",
                method,
                axis,
                str(value),
            ]
            run = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
            table.rows.append(json.loads(run.stdout.strip().splitlines()[-1]))
    table.keep_others(*KEY)
    table.rows.sort(key=lambda row: (row["set"], list(AXES).index(row["axis"]), row["value"]))
    print(table)
    table.save()


if __name__ == "__main__":
    main()
