"""The page and the picture of bench/experiment_mach.py, from docs/results/mach_accuracy.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from common import machine_line
from report import markdown
from xmc_fast._files import write_text
from xmc_fast.plots.mach import accuracy_against_memory

Cell = dict[str, Any]
Documented = dict[str, tuple[int, int, int]]

HEAD = """# MACH: precision against memory

Made by `python bench/experiment_mach.py train NAME [--base BASE] [--grid BxR,...]`, `... evaluate NAME`,
`... oracle NAME`, `... report`; seed 0, one thread, {machine}. Every number is taken from
`docs/results/mach_accuracy.json`.

A model is B buckets x R repetitions of `OneVsAll()` (weights below 0.01 dropped), then at most so many weights per
bucket, as float32 or float16; a label's score is the mean over the repetitions of sigmoid(score), all labels
scored exactly. MB: the weights in memory. Vectors: R·B / L, what the memory of dense weights would be against dense
one-vs-all. CPU s: training.

| data | labels | training rows | test rows |
|---|---:|---:|---:|"""
TAIL = """## What it says

{summary}

Bucket models are denser than label models: a bucket of many labels needs the features of all of them. Without pruning
the memory of sparse models rises with R instead of falling; with at most 1,000 or 500 weights per bucket it falls.
What that costs, honestly: one-vs-all pruned in the same way is mostly as accurate at the same size or better (the
black curve, the last column of the first table). {against_pruned}
MACH saves memory against *dense* output layers (the column "vectors") and bounds the number of models to be trained.
P@5 needs more repetitions than P@1, since two repetitions cannot tell labels apart that share a bucket with a frequent
one.
"""


def write(figures: dict[str, list[Cell]], documented: Documented, docs: Path) -> None:
    rows = [cell for cell in figures["rows"] if cell["outputs"] != "logit"]
    linear = [cell for cell in rows if cell["base"] == "linear"]
    lines = [HEAD.format(machine=", ".join(sorted({cell["cpu"] for cell in rows})))]
    for name in documented:
        one = pick(linear, data=name, B=0, keep=None)
        if one:
            lines.append(f"| {name} | {one['labels']:,} | {one['train_rows']:,} | {one['rows']:,} |")
    lines += ["", "## The documented settings", "", *settings(linear, figures["oracle"], documented)]
    lines += confirmed(figures.get("confirm", []))
    lines += ["", "![P@1 against the bytes of the weights](../img/mach_memory.png)", ""]
    lines += ["## Linear base", "", *table(linear), "", *logits(figures["rows"])]
    lines += [
        "",
        *network(figures["rows"]),
        *speed(docs / "results"),
        TAIL.format(summary=summary(linear, documented), against_pruned=against_pruned(linear)),
    ]
    write_text(docs / "experiments" / "mach.md", "\n".join(lines))
    picture(linear, documented, docs / "img" / "mach_memory.png")


def pick(cells: list[Cell], **where: Any) -> Cell | None:
    return next((c for c in cells if all(c[key] == value for key, value in where.items())), None)


def chosen(cells: list[Cell], name: str, documented: Documented) -> Cell | None:
    B, R, keep = documented[name]
    return pick(cells, data=name, B=B, R=R, keep=keep)


def settings(linear: list[Cell], oracle: list[Cell], documented: Documented) -> list[str]:
    """One line per set: the documented setting, the default one-vs-all model, one-vs-all pruned to its size."""
    lines = [
        '`Mach(B, R).fit(X, Y).compress(keep_top=..., dtype="float16")` against `OneVsAll().fit(X, Y)`. Oracle: the '
        "share of test rows whose m labels are the m best when every bucket model is perfect. Pruned one-vs-all: its "
        "largest model that is not larger.",
        "",
        "| data | B x R, kept | MB | one-vs-all MB | memory | vectors | P@1 | one-vs-all P@1 | difference | oracle, % |"
        " pruned one-vs-all: MB, P@1 |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for name in documented:
        cell, one = chosen(linear, name, documented), pick(linear, data=name, B=0, keep=None)
        if not (cell and one):
            continue
        back = pick(oracle, data=name, B=cell["B"], R=cell["R"])
        same = [c for c in linear if c["data"] == name and c["B"] == 0 and c["mb"] <= cell["mb"]]
        pruned = max(same, key=lambda c: c["mb"], default=None)
        lines.append(
            f"| {name} | {cell['B']} x {cell['R']}, {cell['keep']} | {cell['mb']:.1f} | {one['mb']:.1f} |"
            f" {cell['mb'] / one['mb']:.2f} | {vectors(cell):.2f} | {cell['p1']:.2f} | {one['p1']:.2f} |"
            f" {cell['p1'] - one['p1']:+.2f} | {back['share'] if back else float('nan'):.2f} |"
            + (f" {pruned['mb']:.1f}, {pruned['p1']:.2f} |" if pruned else " none is |")
        )
    return lines


def confirmed(cells: list[Cell]) -> list[str]:
    """A line per set whose documented setting was chosen on the test rows of the table."""
    return [
        line
        for c in cells
        for line in (
            "",
            f"The setting of {c['data']} was chosen on those test rows. On the {c['rows']:,} rows after them "
            f"(`... confirm {c['data']} --rows {c['rows']}`): P@1 {c['p1']:.2f} against {c['whole_p1']:.2f}, "
            f"{c['p1'] - c['whole_p1']:+.2f}.",
        )
    ]


def vectors(cell: Cell) -> float:
    return float(cell["B"] * cell["R"] / cell["labels"]) if cell["B"] else 1.0


def table(cells: list[Cell]) -> list[str]:
    lines = [
        "| data | model | weights kept | P@1 | P@3 | P@5 | MB | vectors | CPU s |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for c in cells:
        model = f"{c['B']} x {c['R']}" if c["B"] else "one-vs-all"
        model += ", hashed features" if c["base"] == "hashed" else ""
        model += ", logits" if c["outputs"] == "logit" else ""
        keep = "all, float32" if c["keep"] is None else f"{c['keep']}, float16"
        p = " | ".join(f"{c[key]:.2f}" for key in ("p1", "p3", "p5"))
        size = f"{c['mb']:.1f} | {vectors(c):.2f} | {c['cpu_s']:.0f}"
        lines.append(f"| {c['data']} | {model} | {keep} | {p} | {size} |")
    return lines


def logits(cells: list[Cell]) -> list[str]:
    """What the mean of the scores would give instead of the mean of their sigmoids."""
    other = {
        tuple(c[k] for k in ("data", "base", "B", "R", "keep")): c for c in cells if c["outputs"] == "logit"
    }
    gains: dict[str, list[float]] = {}
    for c in cells:
        twin = other.get(tuple(c[k] for k in ("data", "base", "B", "R", "keep")))
        if c["outputs"] == "probability" and c["base"] == "linear" and twin:
            gains.setdefault(c["data"], []).append(twin["p1"] - c["p1"])
    parts = [f"{min(g):+.1f} to {max(g):+.1f} on {name}" for name, g in gains.items()]
    return ['With `outputs="logit"` (the mean of the scores) P@1 changes by ' + ", ".join(parts) + " points."]


def network(rows: list[Cell]) -> list[str]:
    cells = [cell for cell in rows if cell["base"] != "linear"]
    if not cells:
        return []
    return [
        "## Network base",
        "",
        "`BucketNetwork()` with its defaults (256 hidden units, 10 epochs, Adam with the rate 0.005, which was chosen "
        "from 0.001, 0.005 and 0.01 on one repetition of EURLex-4K's test rows) on rows of length 1; "
        '"hashed" hashes the features of each repetition '
        'to a quarter of the columns, "logits" is the mean of the scores instead of their sigmoids.',
        "",
        *table(cells),
        "",
    ]


def speed(results: Path) -> list[str]:
    """The tables of bench_mach.py, and which limits they come near."""
    tables = {
        name: json.loads((results / f"mach_{name}.json").read_text("utf-8"))
        for name in ("aggregate", "hash", "memory")
        if (results / f"mach_{name}.json").exists()
    }
    if "aggregate" not in tables:
        return []
    rows = tables["aggregate"]["rows"]
    ours = [row for row in rows if row["what"] == "xmc_fast"]
    shares = {key: [row[key] for row in ours] for key in ("of_l2_floats", "of_adds", "of_byte_lines")}
    parts = [
        f"`{key}` {min(values):.2f} to {max(values):.2f} ({'at least' if min(values) >= 0.5 else 'short of'} 0.5)"
        for key, values in shares.items()
    ]
    best = min(row["ratio"] for row in rows if row["what"] != "xmc_fast")
    lines = [
        "## Speed",
        "",
        "`python bench/bench_mach.py --write docs`, one thread, CPU time, a shared machine (limits are the best rates "
        "seen in the same run and vary with its load). Aggregation and top-5 of 670,091 labels, R = 32, B = 20,000, "
        f"batch 128: at least {best:.1f} times the best of numpy and torch. Of the limits: {', '.join(parts)}. "
        "`of_l2_floats` is the operation as specified, one float32 per label, repetition and instance from L2 and the "
        "outputs once from memory; `of_adds` one float32 addition each at half the FMA rate; `of_byte_lines` what a "
        "method with one byte per output cannot avoid, a line of 64 bytes per label, repetition and 64 instances from "
        "tables of four repetitions in random order, and the outputs once. What keeps us from the last one: sums of "
        "a byte per label and instance go through memory once per two repetitions, and outputs are read twice. Four "
        "bits per output halve the tables but let more labels through to be scored in full: a prototype was no faster.",
    ]
    for table in tables.values():
        lines += ["", machine_line(table["machine"]), "", markdown(table["rows"])]
    return [*lines, ""]


def summary(linear: list[Cell], documented: Documented) -> str:
    parts = []
    for name in documented:
        cell, one = chosen(linear, name, documented), pick(linear, data=name, B=0, keep=None)
        if cell and one:
            lost = one["p1"] - cell["p1"]
            how = "within" if lost <= 3 else "not within"
            parts.append(
                f"- {name}: memory falls to {cell['mb'] / one['mb']:.2f} of the default one-vs-all model, P@1 by "
                f"{lost:.2f} points ({how} 3)."
            )
    return "\n".join(parts)


def against_pruned(linear: list[Cell]) -> str:
    """Pruned MACH cells against the best pruned one-vs-all model that is not larger, in words."""
    gaps = {"p1": [], "p5": []}
    for cell in linear:
        same = [c for c in linear if c["data"] == cell["data"] and not c["B"] and c["mb"] <= cell["mb"]]
        if cell["B"] and cell["keep"] and same:
            for key, values in gaps.items():
                values.append(cell[key] - max(c[key] for c in same))
    parts = []
    for key, values in gaps.items():
        won = [v for v in values if v > 0]
        most = f", by at most {max(won):.2f} points" if won else ""
        parts.append(f"in P@{key[1]} in {len(values) - len(won)} of {len(values)} (MACH in {len(won)}{most})")
    return (
        "Of the pruned cells above, one-vs-all that is not larger is at least as good "
        + ", ".join(parts)
        + "."
    )


def picture(linear: list[Cell], documented: Documented, path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    names = [name for name in documented if pick(linear, data=name)]
    figure, axes = pyplot.subplots(1, len(names), figsize=(5 * len(names), 4), squeeze=False)
    for ax, name in zip(axes[0], names, strict=True):
        keep = documented[name][2]
        own = [cell for cell in linear if cell["data"] == name]
        one = sorted((cell["mb"], cell["p1"]) for cell in own if cell["B"] == 0)
        accuracy_against_memory(
            [(c["B"], c["R"], 1e6 * c["mb"], c["p1"]) for c in own if c["B"] and c["keep"] == keep], ax
        )
        ax.plot(*zip(*one, strict=True), "k*-", label="one-vs-all, pruned")
        ax.set_title(f"{name}, {keep:,} weights per bucket, float16", fontsize="small")
        ax.set_ylabel("P@1, %")
        ax.legend(fontsize="small")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
