"""Draws docs/img/front.png, the README's picture, from docs/results/peers.json: `python docs/_tools/front_picture.py`.

The picture carries a digest of the figures it shows; `tests/test_docs.py` compares it with the results.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]
PICTURE = DOCS / "img" / "front.png"
SET, TITLE = "eurlex57k", "EURLEX57K (4,271 labels), one thread"
NAMES = {"xmc_fast OneVsAll": "xmc_fast"}
AXES = (("train_seconds", "training, CPU seconds"), ("predict_us", "prediction, µs per row"))


def shown() -> list[dict[str, Any]]:
    """The methods with a precision, the ones this picture compares."""
    rows = json.loads((DOCS / "results" / "peers.json").read_text("utf-8"))["rows"]
    rows = [row for row in rows if row["set"] == SET and row.get("P1") not in ("", None)]
    return [row for row in rows if not any(name in row["method"] for name in ("Mach", "small form"))]


def digest() -> str:
    figures = [[row["method"], row["P1"], *(row[name] for name, _ in AXES)] for row in shown()]
    return hashlib.sha256(json.dumps(figures).encode()).hexdigest()


def draw() -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import FuncFormatter, NullFormatter

    figure, axes = plt.subplots(1, 2, figsize=(9, 2.9), sharey=True, layout="constrained")
    rows = shown()
    for ax, (name, label) in zip(axes, AXES, strict=True):
        for row in rows:
            ours = row["method"] in NAMES
            style = {"marker": "*", "s": 130, "color": "tab:red"} if ours else {"s": 40, "color": "tab:blue"}
            ax.scatter(row[name], row["P1"], zorder=3, **style)
            text = NAMES.get(row["method"], row["method"])
            ax.annotate(text, (row[name], row["P1"]), (7, 4), textcoords="offset points", fontsize=9)
        values = [row[name] for row in rows]
        ax.set_xscale("log")
        room = (max(values) / min(values)) ** 0.45
        room = max(room, 2.6)
        ax.set_xlim(min(values) / 1.4, max(values) * room)
        ax.set_ylim(min(r["P1"] for r in rows) - 0.4, max(r["P1"] for r in rows) + 0.5)
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        ax.xaxis.set_minor_formatter(NullFormatter())
        if max(values) / min(values) < 20:
            ax.set_xticks([t for t in (20, 50, 100, 200, 500) if t < max(values) * room])
        ax.set_xlabel(label)
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("P@1, %")
    figure.suptitle(TITLE, fontsize=10)
    figure.savefig(PICTURE, dpi=110, metadata={"Software": None, "Source": digest()})


if __name__ == "__main__":
    draw()
