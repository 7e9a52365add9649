"""The smaller experiments on accuracy: LightXML, mixtures of metrics, missing labels, frequent labels only."""

from __future__ import annotations

from bench.experiments.lightxml import CELLS
from bench.report.tables import Column, Part, Results, Row, Rows

P = ("P@1", "P@3", "P@5")
SHOWN = [f"{which} @{k}" for which in ("all", "frequent") for k in (1, 3, 5)]


def lightxml(data: str) -> Part:
    def make(results: Results) -> Rows:
        return [
            {"model": CELLS[r["cell"]][0], **{p: f"{r[p]:.2f}" for p in P}}
            | {"CPU s": r["cpu s"], "seed": r["seed"], "commit": r["commit"]}
            for r in results.rows("lightxml_accuracy", data=data)
        ]

    return Part("lightxml_accuracy", make=make)


def head_labels(kept: int) -> Part:
    """The metrics of a model of all labels and of one of the `kept` most frequent labels, with the change."""

    def line(row: Row) -> Row:
        out = {"metric, %": row["metric"]} | {key: f"{row[key]:.2f}" for key in SHOWN}
        return out | {key: f"{out[key]} ({row[f'change {key[-2:]}']:+.1f} %)" for key in SHOWN[3:]}

    return Part(make=lambda results: [line(r) for r in results.rows("head_labels", **{"kept labels": kept})])


def hundredths(name: str) -> Part:
    """A saved table as it is, figures with two decimals."""
    return Part(
        name,
        make=lambda results: [
            {key: f"{v:.2f}" if isinstance(v, float) and key != "propensity" else v for key, v in row.items()}
            for row in results.rows(name)
        ],
    )


def blend() -> Part:
    """Hundredths of a point, two digits of seconds."""
    exact = {"set": "set", "model": "model"}
    points = {m: (lambda r, m=m: f"{r[m]:.2f}") for m in ("P@1", "P@3", "P@5", "nDCG@5", "macro-F1@5")}
    costs: dict[str, Column] = {"training, CPU s": "training", "µs a row": "us_per_row", "MB": "MB"}
    return Part("blend", "python -m bench.experiments.blend", {**exact, **points, **costs})


PARTS = {
    "blend": blend(),
    "lightxml_eurlex57k": lightxml("eurlex57k"),
    "lightxml_tibkat-gnd": lightxml("tibkat-gnd"),
    "head_labels_1000": head_labels(1000),
    "head_labels_300": head_labels(300),
    **{
        name: hundredths(name)
        for name in ("tradeoff", "missing_training", "missing_testing", "missing_recall")
    },
}
