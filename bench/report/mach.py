"""The parts of docs/experiments/mach.md, from docs/results/mach_accuracy.json."""

from __future__ import annotations

from bench.experiments.mach import DOCUMENTED
from bench.report.tables import Part, Results, Row, Rows

FILE = "mach_accuracy"


def cells(results: Results, network: bool = False) -> Rows:
    """The cells of the linear base with mean probabilities, or all cells of the network base."""
    if network:
        return [c for c in results.rows(FILE) if c["base"] != "linear"]
    return [c for c in results.rows(FILE, base="linear") if c["outputs"] != "logit"]


def pick(rows: Rows, **where: object) -> Row | None:
    return next((c for c in rows if all(c[key] == value for key, value in where.items())), None)


def chosen(results: Results) -> list[tuple[str, Row, Row]]:
    """Set, the documented setting and the default one-vs-all model, of the sets that have both."""
    rows = cells(results)
    pairs = [
        (name, pick(rows, data=name, B=B, R=R, keep=keep), pick(rows, data=name, B=0, keep=None))
        for name, (B, R, keep) in DOCUMENTED.items()
    ]
    return [(name, cell, one) for name, cell, one in pairs if cell and one]


def vectors(cell: Row) -> float:
    return float(cell["B"] * cell["R"] / cell["labels"]) if cell["B"] else 1.0


def sets(results: Results) -> Rows:
    return [
        {"data": name, "labels": one["labels"], "training rows": one["train_rows"], "test rows": one["rows"]}
        for name, _, one in chosen(results)
    ]


def settings(results: Results) -> Rows:
    """One line per set: the documented setting, the default one-vs-all model, one-vs-all pruned to its size."""
    lines = []
    for name, cell, one in chosen(results):
        back = pick(results[FILE]["oracle"], data=name, B=cell["B"], R=cell["R"])
        smaller = [c for c in cells(results) if c["data"] == name and c["B"] == 0 and c["mb"] <= cell["mb"]]
        pruned = max(smaller, key=lambda c: c["mb"], default=None)
        lines.append({
            "data": name, "B x R, kept": f"{cell['B']} x {cell['R']}, {cell['keep']}", "MB": f"{cell['mb']:.1f}",
            "one-vs-all, MB": f"{one['mb']:.1f}", "memory": f"{cell['mb'] / one['mb']:.2f}",
            "vectors": f"{vectors(cell):.2f}", "P@1": f"{cell['p1']:.2f}", "one-vs-all, P@1": f"{one['p1']:.2f}",
            "difference": f"{cell['p1'] - one['p1']:+.2f}", "oracle, %": f"{back['share']:.2f}" if back else "",
            "pruned one-vs-all: MB, P@1": f"{pruned['mb']:.1f}, {pruned['p1']:.2f}" if pruned else "none",
        })  # fmt: skip
    return lines


def confirmed(results: Results) -> str:
    """A line per set whose documented setting was chosen on the test rows of the table."""
    return "\n\n".join(
        f"The setting of {c['data']} was chosen on those test rows. On the {c['rows']:,} rows after them "
        f"(`python -m bench.experiments.mach confirm {c['data']} --rows {c['rows']}`): P@1 {c['p1']:.2f} against "
        f"{c['whole_p1']:.2f}, {c['p1'] - c['whole_p1']:+.2f}."
        for c in results[FILE].get("confirm", [])
    )


def table(network: bool) -> Part:
    def make(results: Results) -> Rows:
        lines = []
        for c in cells(results, network):
            model = f"{c['B']} x {c['R']}" if c["B"] else "one-vs-all"
            model += ", hashed features" * (c["base"] == "hashed") + ", logits" * (c["outputs"] == "logit")
            line = {"data": c["data"], "model": model}
            line["weights kept"] = "all, float32" if c["keep"] is None else f"{c['keep']}, float16"
            line |= {f"P@{k}": f"{c[f'p{k}']:.2f}" for k in (1, 3, 5)}
            lines.append(
                line | {"MB": f"{c['mb']:.1f}", "vectors": f"{vectors(c):.2f}", "CPU s": round(c["cpu_s"])}
            )
        return lines

    return Part(FILE, make=make)


def logits(results: Results) -> str:
    """What the mean of the scores would give instead of the mean of their sigmoids."""
    key = ("data", "base", "B", "R", "keep")
    other = {tuple(c[k] for k in key): c["p1"] for c in results.rows(FILE, outputs="logit")}
    gains: dict[str, list[float]] = {}
    for c in results.rows(FILE, base="linear", outputs="probability"):
        if tuple(c[k] for k in key) in other:
            gains.setdefault(c["data"], []).append(other[tuple(c[k] for k in key)] - c["p1"])
    parts = [f"{min(g):+.1f} to {max(g):+.1f} on {name}" for name, g in gains.items()]
    return 'With `outputs="logit"` (the mean of the scores) P@1 changes by ' + ", ".join(parts) + " points."


def limits(results: Results) -> str:
    """How near aggregation comes to the machine's limits."""
    ours = results.rows("mach_aggregate", what="xmc_fast")
    best = min(r["ratio"] for r in results.rows("mach_aggregate") if r["what"] != "xmc_fast")
    shares = {key: [r[key] for r in ours] for key in ("of_l2_floats", "of_adds", "of_byte_lines")}
    parts = [f"`{key}` {min(s):.2f} to {max(s):.2f}" for key, s in shares.items()]
    return f"At least {best:.1f} times as fast as numpy and torch. Shares of the limits: {', '.join(parts)}."


def said(results: Results) -> str:
    return "\n".join(
        f"- {name}: memory falls to {cell['mb'] / one['mb']:.2f} of the default one-vs-all model, P@1 by "
        f"{one['p1'] - cell['p1']:.2f} points."
        for name, cell, one in chosen(results)
    )


def against_pruned(results: Results) -> str:
    """Pruned MACH cells against the best pruned one-vs-all model that is not larger, in words."""
    rows, gaps = cells(results), {1: [], 5: []}
    for cell in rows:
        same = [c for c in rows if c["data"] == cell["data"] and not c["B"] and c["mb"] <= cell["mb"]]
        if cell["B"] and cell["keep"] and same:
            for k, values in gaps.items():
                values.append(cell[f"p{k}"] - max(c[f"p{k}"] for c in same))
    parts = []
    for k, values in gaps.items():
        won = [v for v in values if v > 0]
        most = f", by at most {max(won):.2f} points" if won else ""
        parts.append(f"in P@{k} in {len(values) - len(won)} of {len(values)} (MACH in {len(won)}{most})")
    return f"Of the pruned cells above, one-vs-all that is not larger is at least as good {', '.join(parts)}."


PARTS = {
    "mach_sets": Part(FILE, make=sets),
    "mach_settings": Part(FILE, make=settings),
    "mach_confirmed": Part(make=confirmed),
    "mach_linear": table(network=False),
    "mach_network": table(network=True),
    "mach_logits": Part(make=logits),
    "mach_limits": Part(make=limits),
    "mach_said": Part(make=said),
    "mach_against_pruned": Part(make=against_pruned),
}
