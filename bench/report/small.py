"""Tables of small models and of what fits take of memory."""

from __future__ import annotations

from bench.report.speed import same, set_name
from bench.report.tables import Part

PARTS = {
    "small_form": Part(
        "small_form", "python -m bench.experiments.small_form",
        {"data": set_name, "model": "form", "Δ": "delta", "chosen": lambda r: "yes" if r["chosen"] else "",
         "MB": "MB", **same("P@1", "P@3", "P@5"), "µs per row": "us_per_row", "one row, µs": "one_us",
         "opened in, ms": "open_ms", "first call / later ones": "first_over_later"},
    ),
    "small_form_default": Part(
        "small_form_default", "python -m bench.experiments.small_form --default",
        {"data": set_name, "labels": "labels", "form": "form", "exact, MB": "exact MB", "by default, MB": "default MB",
         "exact, P@1": "exact P@1", "by default, P@1": "default P@1", "exact, P@3": "exact P@3",
         "by default, P@3": "default P@3", "exact, P@5": "exact P@5", "by default, P@5": "default P@5",
         "most lost": "most_lost"},
    ),
    "small_form_held_out": Part(
        "small_form_held_out", "python -m bench.experiments.small_form --held-out",
        {"data": set_name, "labels": "labels", "tenths": "tenths", "rows": "rows", "exact, MB": "exact MB",
         "rounding alone": "0", **same("0.01", "0.015", "0.02", "0.025", "0.03", "0.04", "0.05"),
         "standard error at 0.03": "error"},
    ),
    "fit_memory": Part(
        "fit_memory", "python -m bench.speed.fit_memory",
        {"data": set_name, "fit": "fit", "X and Y, MB": "data_mb", "beside them, MB": "peak_mb",
         "model, MB": "model_mb", "training, CPU s": "cpu_seconds"},
    ),
}  # fmt: skip
