"""The parts of docs/experiments/dst.md, from docs/results/dst.json: tables, and claims checked against the numbers."""

from __future__ import annotations

import fnmatch
import statistics

from bench.experiments.dst_cells import CELLS, GRIDS
from bench.report.tables import Part, Results, Row, Rows

SHOWN = [e for e in CELLS if e not in GRIDS and e != "scale"]
TIE = {"text": 1.0, "frozen": 1.0}  # points of P@1 below which a difference means nothing; others: 0.5
Runs = dict[str, Rows]  # method -> the results of its seeds

# what the papers found, as (better, worse) in the experiments that have both
STATIC = "dynamic beats static"
BEHIND = f"{STATIC} behind learned units"
UNITS = "an intermediate layer rescues fan-in 32"
NARROW = "sparse at least as good as a bottleneck of equal memory"
MASKED = "fixed fan-in at least as good as unstructured sparsity"
HELP = "an auxiliary loss or a dense head helps end to end"
CLAIMS = [
    *((STATIC, f"fan-in {s}, {r}", f"fan-in {s}, static") for s in (8, 32, 64, 128) for r in ("SET", "RigL")),
    *(
        (BEHIND, f"fan-in {s} + {h} units, {rule}", f"fan-in {s} + {h} units, static")
        for s, h in ((8, 2048), (32, 1024), (32, 2048), (32, 16384))
        for rule in ("SET", "RigL")
    ),
    (BEHIND, "fan-in 32 of 2048 units, RigL", "fan-in 32 of 2048 units, static"),
    (UNITS, "fan-in 32 + 2048 units, RigL", "fan-in 32, RigL"),
    (UNITS, "fan-in 32 + 2048 units, static", "fan-in 32, static"),
    (NARROW, "fan-in 32, RigL", "bottleneck *, as 32"),
    (NARROW, "fan-in 32 + 1024 units, RigL", "bottleneck *, as 32 + 1024"),
    (NARROW, "fan-in 32 + 2048 units, RigL", "bottleneck *, as 32 + 2048"),
    (NARROW, "fan-in 32, RigL, meta-labels", "bottleneck *, as 32"),
    (MASKED, "fan-in 32, RigL", "unstructured 32, RigL"),
    (MASKED, "fan-in 32, static", "unstructured 32, static"),
    (HELP, "fan-in 32, RigL, meta-labels", "fan-in 32, RigL"),
    (HELP, "fan-in 32, RigL, dense head of 200", "fan-in 32, RigL"),
]


def of(results: Results, experiment: str) -> Runs:
    found: Runs = {}
    for cell in results.rows("dst", experiment=experiment):
        found.setdefault(cell["name"], []).append(cell)
    if not found:
        raise LookupError(experiment)
    return found


def done(results: Results) -> dict[str, Runs]:
    here = {cell["experiment"] for cell in results.rows("dst")}
    return {e: of(results, e) for e in SHOWN if e in here}


def mean(runs: Rows, k: int = 0) -> float:
    return statistics.fmean(r["p"][k] for r in runs)


def deviation(runs: Rows, k: int = 0) -> float:
    return statistics.stdev(r["p"][k] for r in runs) if len(runs) > 1 else 0.0


def before(memory: dict[str, int]) -> int:
    """Bytes of what is trained before the output layer."""
    return memory.get("hidden", memory.get("encoder", 0))


def line(name: str, runs: Rows) -> Row:
    spread = [f" ± {deviation(runs, k):.2f}" * (len(runs) > 1) for k in range(3)]
    memory, stored = runs[0]["memory"], runs[0]["stored"]
    also = f" ({stored / 1e6:.2f} stored)" * (stored != memory["output"])
    return {
        "output layer": name,
        **{f"P@{p}": f"{mean(runs, k):.2f}{spread[k]}" for k, p in enumerate((1, 3, 5))},
        "output, MB": f"{memory['output'] / 1e6:.2f}{also}",
        "before it, MB": f"{before(memory) / 1e6:.1f}",
        "CPU s per epoch": f"{statistics.median(r['cpu_per_epoch'] for r in runs):.1f}",
        "seeds": len(runs),
    }


def claims(results: Results) -> Rows:
    """The papers' orderings with their numbers and whether they hold here; only those whose cells are there."""
    lines = []
    for claim, good, bad in CLAIMS:
        for experiment, have in done(results).items():
            other = next((n for n in have if fnmatch.fnmatchcase(n, bad)), bad)
            if good not in have or other not in have or (claim == HELP and experiment != "text"):
                continue
            learned = experiment in ("tfidf", "text") and claim == STATIC
            a, b = mean(have[good]), mean(have[other])
            tie = "yes (tie)" if claim in (NARROW, MASKED) else "tie"
            here = tie if abs(a - b) < TIE.get(experiment, 0.5) else "yes" if a > b else "**no**"
            lines.append({
                "published": f"{STATIC} behind learned features" if learned else claim, "experiment": experiment,
                "better": good, "P@1": f"{a:.2f}", "worse": other, "its P@1": f"{b:.2f}", "here": here,
            })  # fmt: skip
    return lines


def within(results: Results) -> Rows:
    """Every sparse output layer within 1.5 points of P@1 of the dense one at 5 times less memory."""
    lines = []
    for experiment, have in done(results).items():
        size = have["dense"][0]["memory"]
        for name, runs in have.items():
            memory, lost = runs[0]["memory"], mean(have["dense"]) - mean(runs)
            less = size["output"] / memory["output"]
            if name.startswith("fan-in") and less >= 5 and lost <= 1.5:
                whole = (size["output"] + before(size)) / (memory["output"] + before(memory))
                lines.append({
                    "experiment": experiment, "output layer": name, "P@1": f"{mean(runs):.2f}",
                    "dense, P@1": f"{mean(have['dense']):.2f}", "times smaller": f"{less:.1f}",
                    "with the units": f"{whole:.1f}", "seeds": len(runs),
                })  # fmt: skip
    return lines


def scale(results: Results) -> Rows:
    return [
        {
            "output layer": name,
            "layer, MB": f"{runs[0]['memory']['output'] / 1e6:.0f}",
            "peak, MB": f"{runs[0]['peak_growth'] / 1e6:.0f}",
            "CPU s per step": f"{runs[0]['cpu_per_epoch']:.2f}",
        }
        for name, runs in of(results, "scale").items()
    ]


def not_run(results: Results) -> str:
    """What the command has but the file has not."""
    have = {(cell["experiment"], cell["name"]) for cell in results.rows("dst")}
    lines = []
    for experiment, cells in CELLS.items():
        missing = [name for name in cells() if (experiment, name) not in have]
        if missing:
            tune = "--tune " if experiment in GRIDS else ""
            what = "all" if len(missing) == len(cells()) else "; ".join(missing)
            lines.append(f"- `python -m bench.experiments.dst {tune}--only {experiment}`: {what}")
    return "\n".join(lines) or "None."


def table(experiment: str) -> Part:
    make = lambda results: [line(name, runs) for name, runs in of(results, experiment).items()]  # noqa: E731
    return Part("dst", make=make)


PARTS = {
    "dst_claims": Part("dst", make=claims),
    "dst_within": Part("dst", make=within),
    "dst_not_run": Part(make=not_run),
    **{f"dst_{experiment}": table(experiment) for experiment in CELLS},
    "dst_scale": Part("dst", make=scale),
}
