"""The tables of nearly exact prediction."""

from __future__ import annotations

from bench.report.tables import Part, Results, Rows

BENCH = "python -m bench.speed.bench_near"


def models(results: Results) -> Rows:
    """The models, and what their indexes cost."""
    return [
        {
            "data": r["set"],
            "weights": r["weights"],
            "training, CPU s": "" if r["train_seconds"] is None else round(r["train_seconds"]),
            "model, MB": round(r["model_mb"]),
            "index, MB": round(r["index_mb"]),
            "building, measuring and saving, CPU s": round(r["build_seconds"], 1),
        }
        for r in results.rows("near", recall=1.0)
    ]


PARTS: dict[str, Part] = {
    "near": Part(
        "near",
        BENCH,
        {
            "data": "set",
            "labels": "labels",
            "recall asked": "recall",
            "on held-out rows": lambda r: f"{r['held_out']:.4f}",
            "recall@5": lambda r: f"{r['recall_5']:.4f}",
            "recall@1": lambda r: f"{r['recall_1']:.4f}",
            "µs per row": lambda r: round(r["us_per_row"], 1),
            "exact takes, x": "times_faster",
            "P@1 / 3 / 5": lambda r: " / ".join(f"{r[key]:.2f}" for key in ("P1", "P3", "P5")),
        },
    ),
    "near_model": Part("near", BENCH, make=models),
}
