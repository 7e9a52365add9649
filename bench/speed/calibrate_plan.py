"""Measure what a label costs, and write the numbers `xmc_fast.plan` computes with: python -m bench.speed.calibrate_plan

Synthetic data sets of several sizes; in each the head, the middle and the tail of the labels are trained on one
thread. CPU seconds of a label with p positives are fitted by (a · nnz(X) + c · d + e) · (1 + s · log(1 + p / 3)) with
coefficients of at least 0; the weights w it keeps by -d · log(1 - w/d) = f · (p · nnz(X)/n)^g, which saturates at d;
the cost of starting a task by a multiple of nnz(X). The result goes to python/xmc_fast/plan.json with the machine it
was measured on.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from bench.common import Table, command_line, machine
from xmc_fast import OneVsAll
from xmc_fast.data import make_synthetic

TARGET = Path(__file__).parents[2] / "python" / "xmc_fast" / "plan.json"
SETS = [  # n, d, labels, features per point, labels per point
    (10_000, 10_000, 3_000, 50, 5),
    (20_000, 5_000, 3_000, 120, 3),
    (40_000, 60_000, 10_000, 75, 5),
    (90_000, 150_000, 30_000, 60, 5),
]
STRATA = {"head": (0.0, 0.01), "middle": (0.05, 0.1), "tail": (0.5, 1.0)}  # ranks, as shares of the labels


def seconds(X: Any, Y: Any) -> tuple[float, OneVsAll]:
    start = time.process_time()
    model = OneVsAll(n_jobs=1, block_labels=10_000).fit(X, Y)
    return time.process_time() - start, model


def measure(sample: int) -> list[dict[str, float]]:
    """One row per data set and stratum."""
    rows = []
    for n, d, labels, words, per_point in SETS:
        X, Y = make_synthetic(
            n, d, labels, features_per_point=words, labels_per_point=per_point, random_state=1
        )
        counts = np.diff(Y.tocsc().indptr)
        order = np.argsort(-counts, kind="stable")
        order = order[counts[order] > 0]
        fixed, _ = seconds(X, Y[:, order[-1:]])
        for stratum, (low, high) in STRATA.items():
            ranks = np.unique(np.linspace(low * len(order), high * len(order) - 1, sample).astype(int))
            chosen = order[ranks]
            total, model = seconds(X, Y[:, chosen])
            rows.append(
                {
                    "n": n, "d": d, "nnz": int(X.nnz), "stratum": stratum, "labels": len(chosen),
                    "positives": float(counts[chosen].mean()),
                    "ms_per_label": 1e3 * max(total - fixed, 0.0) / len(chosen),
                    "weights_per_label": model.model_.nnz / len(chosen), "task_seconds": fixed,
                }
            )  # fmt: skip
            print(rows[-1], flush=True)
    return rows


def fit(rows: list[dict[str, float]]) -> dict[str, float]:
    """The coefficients. Residuals are relative: a factor of two counts the same for cheap and dear labels."""
    column = {name: np.array([row[name] for row in rows]) for name in rows[0] if name != "stratum"}
    cost = column["ms_per_label"] / 1e3
    base = np.stack([column["nnz"], column["d"], np.ones(len(rows))], axis=1)

    def try_slope(slope: float) -> tuple[float, float, list[float]]:
        growth = 1 + slope * np.log1p(column["positives"] / 3)
        coefficients, residual = nnls(base * (growth / cost)[:, None], np.ones(len(rows)))
        return residual, slope, [float(c) for c in coefficients]

    _, slope, (a, c, e) = min(try_slope(slope) for slope in np.linspace(0, 1, 101))
    predicted = (base @ [a, c, e]) * (1 + slope * np.log1p(column["positives"] / 3))
    touched = column["positives"] * column["nnz"] / column["n"]
    share = np.minimum(column["weights_per_label"] / column["d"], 0.99)
    power, log_factor = np.polyfit(np.log(touched), np.log(-column["d"] * np.log1p(-share)), 1)
    return {
        "per_nnz": a,
        "per_feature": c,
        "per_label": e,
        "positives_slope": float(slope),
        "weights_factor": float(np.exp(log_factor)),
        "weights_power": float(power),
        "task_per_nnz": float(np.median(column["task_seconds"] / column["nnz"])),
        "largest_error": float(np.exp(np.abs(np.log(predicted / cost)).max())),
    }


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--labels", type=int, default=200, help="labels per stratum (default 200)")
    parser.add_argument("--out", type=Path, default=TARGET)
    parser.add_argument(
        "--refit", action="store_true", help="fit the rows of the file again, measure nothing"
    )
    args = parser.parse_args()
    old = json.loads(args.out.read_text(encoding="utf-8")) if args.refit else {}
    info = old.get("machine") or machine()
    rows = old.get("measured") or measure(args.labels)
    coefficients = fit(rows)
    table = Table("calibrate_plan", list(rows[0]), info)
    for row in rows:
        table.add(**row)
    print(table)
    print(json.dumps(coefficients, indent=1))
    result = {"machine": info, "seconds": coefficients, "measured": rows}
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
