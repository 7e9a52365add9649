"""The tables of the guide on label trees, and the picture of their growth with the labels."""

from __future__ import annotations

import json
from typing import Any

from bench.common import ROOT, markdown
from bench.report.drawing import OURS, PEER, grid, plain
from bench.report.tables import Column, Part, Results, Rows

PLAN = ROOT / "python" / "xmc_fast" / "plan_tree.json"
BENCH = "python -m bench.speed.bench_tree"
SETS = {
    "related": "related",
    "tibkat-gnd": "tibkat-gnd",
    "debdeps": "debdeps",
    "eurlex57k": "EURLEX57K",
    "eurlex-4k": "EURLex-4K",
}
TIMES: dict[str, Column] = {
    "training, CPU s": lambda r: round(r["train_seconds"], 1),
    "µs per row": lambda r: round(r["predict_us"], 1),
    "model, MB": lambda r: round(r["model_mb"], 1),
}
PRECISION: dict[str, Column] = {
    "P@1 / 3 / 5": lambda r: " / ".join(f"{r[key]:.2f}" for key in ("P1", "P3", "P5")),
}


def method(name: str) -> str:
    return name.removeprefix("xmc_fast ").replace("(3 trees)", "3 trees")


def real(results: Results) -> Rows:
    """The sets of real data, ours first."""
    rows = []
    for name, title in SETS.items():
        for r in sorted(results.rows("tree", set=name), key=lambda r: not r["method"].startswith("xmc_fast")):
            line = {"data": title, "labels": r["labels"], "method": method(r["method"])}
            line |= {column: make(r) for column, make in (TIMES | PRECISION).items() if callable(make)}
            line["PSP@1 / 5"] = f"{r['PSP1']:.2f} / {r['PSP5']:.2f}"
            rows.append(line | {"macro-F1@5": f"{r['macro_f1_5']:.2f}" if "macro_f1_5" in r else ""})
    return rows


def synthetic(results: Results, *kinds: str) -> Rows:
    """The synthetic sets by their labels."""
    rows = [r for r in results.rows("tree") if r["set"].startswith(kinds)]
    return sorted(rows, key=lambda r: (r["labels"], not r["method"].startswith("xmc_fast"), r["method"]))


def growing(results: Results) -> Rows:
    rows = []
    for r in synthetic(results, "titles-", "rare-", "synthetic-"):
        line = {"labels": r["labels"], "rows": r["rows"], "values a row": f"{r['nnz'] / r['rows']:.0f}"}
        line |= {"method": method(r["method"])}
        line |= {column: make(r) for column, make in TIMES.items() if callable(make)}
        line["memory in all, GB"] = f"{r['peak_mb'] / 1e3:.2f}"
        rows.append(line | {column: make(r) for column, make in PRECISION.items() if callable(make)})
    return rows


def picture(results: Results) -> Any:
    """Seconds, memory and µs per row against the labels."""
    rows = synthetic(results, "titles-", "rare-")
    figure, axes = grid(1, 3, 3.2)
    keys = {"train_seconds": "training, CPU s", "peak_mb": "memory in all, GB", "predict_us": "µs per row"}
    methods = dict(zip(dict.fromkeys(r["method"] for r in rows), (OURS, PEER, "tab:green"), strict=False))
    for ax, (key, title) in zip(axes[0], keys.items(), strict=True):
        for name, colour in methods.items():
            line = [r for r in rows if r["method"] == name]
            scale = 1e-3 if key == "peak_mb" else 1
            values = [scale * r[key] for r in line]
            ax.loglog([r["labels"] for r in line], values, "o-", color=colour, label=method(name))
        ax.set(xlabel="labels", title=title)
        low, high = ax.get_ylim()
        plain(ax.yaxis, [v for v in (0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500) if low < v < high])
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


def forecasts(_: Results) -> str:
    """What `xmc_fast.plan` says of the trees it was fitted to."""
    data = json.loads(PLAN.read_text("utf-8"))
    rows = [
        {
            "data": r["set"],
            "training, CPU s": round(r["seconds"], 1),
            "forecast, s": round(r["forecast"], 1),
            "model, MB": round(r["model_mb"], 1),
            "forecast, MB": round(r["forecast_mb"], 1),
            "memory, GB": f"{r['peak_mb'] / 1e3:.2f}",
            "forecast, GB": f"{r['forecast_peak_mb'] / 1e3:.2f}",
        }
        for r in data["measured"]
    ]
    errors = [data[f"largest_error{of}"] for of in ("", "_size", "_memory")]
    said = (
        "The forecasts of time, size and memory are wrong by a factor of {:.1f}, {:.1f} and {:.1f} at most."
    )
    return f"{markdown(rows)}\n\n{said.format(*errors)}\n\n`{BENCH} --plan`"


PARTS = {
    "tree_plan": Part(make=forecasts),
    "tree": Part("tree", BENCH, make=real),
    "tree_growth": Part("tree", f"{BENCH} --sets titles-100000 rare-3000000", make=growing),
}
