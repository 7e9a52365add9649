"""The tables of the page on updates, tuning and explanations."""

from __future__ import annotations

import json

from bench.report.tables import Part, Row


def _precision(key: str) -> object:
    return lambda row: " / ".join(f"{value:.2f}" for value in row.get(key) or [])


def _both(metric: str) -> object:
    return lambda row: f"{row[f'default {metric}']:.2f} → {row[f'tuned {metric}']:.2f}"


def _best(row: Row) -> str:
    return ", ".join(f"{name}={value}" for name, value in json.loads(row["best"]).items()) or "the default"


PARTS = {
    "update": Part(
        "update",
        "python -m bench.speed.bench_update debtags --checked 128 --other-seed`, "
        "`python -m bench.speed.bench_update eurlex57k --checked 128`, "
        "`python -m bench.speed.bench_update tibkat-gnd --labels 6000 --checked 128` and "
        "`python -m bench.speed.bench_update tibkat-gnd --new-labels 1000 --only labels",
        {
            "set": "set",
            "update": "case",
            "labels": "labels",
            "trained": "labels_trained",
            "fit, s": "full_seconds",
            "update, s": "update_seconds",
            "share, %": lambda row: round(100 * row["share"], 1),
            "same bytes": lambda row: {True: "yes", False: "no"}.get(row.get("same_bytes"), ""),
            "worst label over its minimum": lambda row: (
                f"{row['worst_over_minimum']:.5f}" if "worst_over_minimum" in row else ""
            ),
            "P@1/3/5 after the update": _precision("p_update"),
            "after the fit": _precision("p_full"),
            "state, MB": "state_mb",
            "model, MB": "model_mb",
        },
    ),
    "tune": Part(
        "tune",
        "python -m bench.speed.bench_tune debtags eurlex57k` and "
        "`python -m bench.speed.bench_tune tibkat-gnd --labels 1000",
        {
            "set": "set",
            "labels": lambda row: str(row.get("labels", "all")),
            "tuned for": "metric",
            "settings": "settings",
            "budget, fits": "budget",
            "fit, s": "fit_seconds",
            "tune, s": "tune_seconds",
            "tune, fits": "share",
            "chosen": _best,
            "P@1": _both("precision@1"),
            "nDCG@5": _both("ndcg@5"),
            "macro-F1@5": _both("macro_f1@5"),
        },
    ),
    "explain": Part(
        "explain",
        "python -m bench.speed.bench_explain",
        {
            "set": "set",
            "rows": "rows",
            "labels": "labels",
            "pairs": "pairs",
            "largest error": lambda row: f"{row['largest_error']:.1e}",
            "against `predict` (32 bits)": lambda row: f"{row['largest_error_suggested']:.1e}",
            "predict_one, µs": "predict_one_us",
            "explain, µs": "explain_us",
            "explain / predict_one": "share",
            "places of the terms, µs": "places_us",
        },
    ),
}
