"""What tuning costs and gains: CPU seconds of one thread against a default fit, metrics on rows it never saw.

    python -m bench.speed.bench_tune [debtags eurlex57k tibkat-gnd] [--metrics ndcg@5 macro_f1@5] [--budget 4]
        [--labels N]

`tune` gets the training rows only; the default and the chosen setting are then trained on all of them and measured on
the test rows.
"""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np

import xmc_fast
from bench.common import Table, command_line
from bench.sets import load
from xmc_fast import OneVsAll, metrics

SHOWN = ("precision@1", "ndcg@5", "macro_f1@5")
COLUMNS = ["set", "metric", "labels", "settings", "trials", "budget", "fit_seconds", "tune_seconds", "share"]
COLUMNS += ["best", "best_fit_seconds", *(f"{name} {m}" for m in SHOWN for name in ("default", "tuned"))]


def timed(fn: Any) -> tuple[float, Any]:
    start = time.process_time()
    out = fn()
    return time.process_time() - start, out


def measured(model: Any, X: Any, Y: Any) -> dict[str, float]:
    report = metrics.report(Y, model.predict(X, 5), k=[1, 5])
    return {name: round(100 * float(report[name]), 2) for name in SHOWN}


def measure(name: str, labels: int | None, chosen: list[str], budget: float, table: Table) -> None:
    X, Y = load(name)
    X_test, Y_test = load(name, "test")
    present = np.flatnonzero(np.asarray(Y.sum(axis=0)).ravel())[:labels]
    Y, Y_test = Y[:, present].tocsr(), Y_test[:, present].tocsr()
    fit_seconds, default = timed(lambda: OneVsAll(n_jobs=1).fit(X, Y))
    before = measured(default, X_test, Y_test)
    del default
    for metric in chosen:
        seconds, found = timed(
            lambda metric=metric: xmc_fast.tune(X, Y, metric=metric, budget=budget, n_jobs=1)
        )
        print(found, flush=True)
        best_seconds, best = fit_seconds, None
        after = before
        if found.best:
            best_seconds, best = timed(lambda found=found: found.make(n_jobs=1).fit(X, Y))
            after = measured(best, X_test, Y_test)
        table.add(
            set=name,
            metric=metric,
            labels=Y.shape[1],
            settings=len(found.last),
            trials=len(found.trials),
            budget=budget,
            fit_seconds=fit_seconds,
            tune_seconds=seconds,
            share=seconds / fit_seconds,
            best=json.dumps(found.best),
            best_fit_seconds=best_seconds,
            **{f"default {m}": before[m] for m in SHOWN},
            **{f"tuned {m}": after[m] for m in SHOWN},
        )
        print(table.rows[-1], flush=True)
        table.keep_others("set", "metric")
        table.save()


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("sets", nargs="*", default=["debtags", "eurlex57k"])
    parser.add_argument("--metrics", nargs="+", default=["ndcg@5", "macro_f1@5"])
    parser.add_argument("--budget", type=float, default=4.0)
    parser.add_argument("--labels", type=int, help="only so many labels")
    arguments = parser.parse_args()
    table = Table("tune", COLUMNS)
    for name in arguments.sets:
        measure(name, arguments.labels, arguments.metrics, arguments.budget, table)


if __name__ == "__main__":
    main()
