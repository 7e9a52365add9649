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


COSTS = {"training": "training, CPU s", "encoding": "encoding, CPU s", "MB": "MB"}


def points(name: str, command: str, keys: tuple[str, ...]) -> Part:
    """Hundredths of a point by set and by what else the rows are told by (keys), CPU seconds and MB."""

    def shown(row: Row, column: str) -> str:
        return f"{row[column]:.2f}" if isinstance(row.get(column), float) else ""

    def make(results: Results) -> Rows:
        rows = results.rows(name)
        measured = [c for c in rows[0] if c not in ("set", "machine", *COSTS, *keys)]
        return [
            {key: row[key] for key in ("set", *keys) if key in row}
            | {column: shown(row, column) for column in measured}
            | {title: f"{row[cost]:.3g}" for cost, title in COSTS.items() if cost in row}
            for row in rows
        ]

    return Part(name, f"python -m bench.experiments.{command}", make=make)


def changes(name: str, key: str, base: str, metrics: tuple[str, ...]) -> Part:
    """The mean change of each metric over the sets, by what a row is told by (key), against the base."""

    def make(results: Results) -> Rows:
        rows = {(row["set"], row[key]): row for row in results.rows(name)}
        sets = [name for name, title in rows if title == base]

        def line(title: str) -> Row:
            both = [(rows[s, title], rows[s, base]) for s in sets if (s, title) in rows]
            out = {m: f"{sum(new[m] - old[m] for new, old in both) / len(both):+.2f}" for m in metrics}
            costs = [new["training"] / old["training"] for new, old in both]
            return {key: title, "sets": len(both)} | out | {"training": f"{sum(costs) / len(costs):.1f}x"}

        return [line(title) for title in dict.fromkeys(title for _, title in rows) if title != base]

    return Part(name, make=make)


def blend() -> Part:
    """Hundredths of a point, two digits of seconds."""
    exact = {"set": "set", "model": "model"}
    points = {m: (lambda r, m=m: f"{r[m]:.2f}") for m in ("P@1", "P@3", "P@5", "nDCG@5", "macro-F1@5")}
    costs: dict[str, Column] = {"training, CPU s": "training", "µs a row": "us_per_row", "MB": "MB"}
    return Part("blend", "python -m bench.experiments.blend", {**exact, **points, **costs})


def gain(results: Results) -> str:
    """What the ensemble gains over one-vs-all, in the mean of the sets, and where P@1 falls."""
    rows = {(row["set"], row["model"]): row for row in results.rows("blend")}
    sets = list(dict.fromkeys(name for name, _ in rows))

    def gains(metric: str) -> list[float]:
        return [rows[name, "ensemble"][metric] - rows[name, "one-vs-all"][metric] for name in sets]

    means = ", ".join(f"{m} {sum(gains(m)) / len(sets):+.2f}" for m in ("P@1", "P@5", "nDCG@5", "macro-F1@5"))
    falls = [f"{name} {value:+.2f}" for name, value in zip(sets, gains("P@1"), strict=True) if value < 0]
    where = ", ".join(falls) or "none"
    return f"Gain over one-vs-all in points, mean of {len(sets)} sets: {means}. P@1 falls on {where}."


# NatLibFi's system on GermEval-2025 LLMs4Subjects, dev; trained on translated and synthetic documents besides.
PUBLISHED = {
    "Omikuji Bonsai (published)": (0.3401, 0.5985, 0.3229, 0.5701),
    "MLLM (published)": (0.2304, 0.4180),
    "XTransformer (published)": (0.3122, 0.5517),
    "Bonsai + MLLM (published)": (0.3445, 0.6101),
    "+ XTransformer (published)": (0.3479, 0.6162),
    "+ reranking by an LLM (published)": (0.3547, 0.6329),
}
SUBJECTS = ("F1@5 en", "nDCG en", "F1@5 de", "nDCG de")


def subjects(name: str, others: dict[str, tuple[float, ...]] | None = None) -> Part:
    """Figures of subject indexing with four digits; published ones below."""

    def line(row: Row) -> Row:
        out = {"model": row["model"]} | {m: f"{row[m]:.4f}" for m in SUBJECTS}
        out["recall@100 of new labels"] = f"{row['recall new']:.3f}"
        return out | {"training, CPU s": f"{row['training']:.0f}" if row.get("training") else ""}

    def make(results: Results) -> Rows:
        known = [
            {"model": title} | dict(zip(SUBJECTS, (f"{f:.4f}" for f in figures), strict=False))
            for title, figures in (others or {}).items()
        ]
        return [*map(line, results.rows(name)), *known]

    return Part(name, f"python -m bench.experiments.accuracy {name.removeprefix('accuracy_')}", make=make)


TAIL = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5", "macro-F1@5")
LISTS = ("P@1", "P@3", "P@5", "nDCG@5", "macro-F1@5", "PSP@5")
PARTS = {
    "accuracy-dev": subjects("accuracy_dev", PUBLISHED),
    "accuracy-trials": subjects("accuracy_trials"),
    "blend": blend(),
    "values-test": points("values_test", "values test", ("model",)),
    "values-trials": points("values_trials", "values trials", ("model",)),
    "values-confirm": points("values_confirm", "values confirm", ("model",)),
    "pairs-trials": points("pairs_trials", "pairs trials", ("model",)),
    "pairs-test": points("pairs_test", "pairs test", ("model",)),
    "pairs-confirm": points("pairs_confirm", "pairs confirm", ("model",)),
    "embed": points("embed", "embed", ("setting",)),
    "tail": points("tail", "tail", ("model",)),
    "tail-change": changes("tail", "model", "default", TAIL),
    "defaults": points("defaults", "defaults", ("setting",)),
    "defaults-change": changes("defaults", "setting", "as it was", LISTS),
    "blend-gain": Part("blend", make=gain),
    "lightxml_eurlex57k": lightxml("eurlex57k"),
    "lightxml_tibkat-gnd": lightxml("tibkat-gnd"),
    "lightxml_frozen": Part(
        "lightxml_frozen",
        "python -m bench.speed.bench_frozen --texts 128",
        {
            "trained": "way",
            "CPU s per 1,000 texts and epoch": lambda r: round(r["epoch_s"], 1),
            "whole encoder / this": lambda r: round(r["ratio"], 2),
            "frozen layers once, CPU s per 1,000 texts": lambda r: round(r["once_s"], 1),
        },
    ),
    "lm_head": Part(
        "lm_head",
        "python -m bench.speed.bench_lm_head",
        {
            "loss": lambda r: {"plain": "nn.Linear, cross_entropy", "fused": "fused_cross_entropy"}[r["way"]],
            "CPU s": lambda r: round(r["cpu_seconds"], 2),
            "s": lambda r: round(r["seconds"], 2),
            "MB": lambda r: round(r["peak_mb"]),
            "CPU time, plain / this": lambda r: round(r["cpu_ratio"], 2),
            "memory, plain / this": lambda r: round(r["memory_ratio"], 2),
        },
    ),
    "head_labels_1000": head_labels(1000),
    "head_labels_300": head_labels(300),
    **{
        name: hundredths(name)
        for name in ("tradeoff", "missing_training", "missing_testing", "missing_recall")
    },
}
