"""The tables of LightXML on whole data sets."""

from __future__ import annotations

from bench.experiments.lightxml_cells import CELLS
from bench.report.tables import Part, Results, Row, Rows

CURVE_STEPS = 500  # from one line of a learning curve to the next


def model(row: Row) -> str:
    """The model of a row, or the two of a blend."""
    *first, last = row["model"].split(" + ")
    return " + ".join([*(CELLS[name][0] for name in first), CELLS[last][0]])


def whole(data: str) -> Part:
    """All models on one set, blends last."""

    def make(results: Results) -> Rows:
        return [
            {
                "model": model(r),
                "P@1 / 3 / 5": " / ".join(f"{r[f'P@{k}']:.2f}" for k in (1, 3, 5)),
                "PSP@1 / 5": f"{r['PSP@1']:.2f} / {r['PSP@5']:.2f}",
                "training, CPU s": r.get("cpu s", ""),
                "seed": r["seed"],
            }
            for r in results.rows("lightxml_whole", data=data)
            if "P@1" in r
        ]

    return Part("lightxml_whole", make=make)


def curves(data: str) -> Part:
    """P@1 on held-out texts as training goes on, a column for each model; the last step is the end."""

    def make(results: Results) -> Rows:
        rows = [r for r in results.rows("lightxml_whole", data=data, seed=0) if r.get("curve")]
        steps = sorted({c["step"] for r in rows for c in r["curve"]})
        shown = [s for s in steps if s % CURVE_STEPS == 0 or s == steps[-1] or s == steps[0]]
        found = {r["model"]: {c["step"]: c for c in r["curve"]} for r in rows}
        return [
            {"step": s}
            | {CELLS[name][0]: f"{at[s]['P@1']:.1f}" if s in at else "" for name, at in found.items()}
            for s in shown
        ]

    return Part("lightxml_whole", make=make)


PARTS: dict[str, Part] = {
    "lightxml-whole": whole("eurlex57k"),
    "lightxml-curves": curves("eurlex57k"),
}
