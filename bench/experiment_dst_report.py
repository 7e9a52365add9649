"""The page of experiment_dst.py from docs/results/dst.json: tables, claims checked against the numbers, pictures."""

from __future__ import annotations

import fnmatch
import re
import statistics
from pathlib import Path
from typing import Any

from experiment_dst_cells import CELLS, GRIDS

ROOT = Path(__file__).parents[1]
DOC = ROOT / "docs" / "experiments" / "dst.md"
IMG = ROOT / "docs" / "img"
Cell = dict[str, Any]
Results = dict[str, list[Cell]]  # method -> the results of its seeds

HEADS = {
    "fixed": (
        "Fixed dense features: EURLex-4K",
        "512 LSA dimensions of tf-idf, 15,539 training and 3,809 test rows, 3,993 labels, squared hinge, Adam. The"
        " units of an intermediate layer are learned, the features are not. A bottleneck has the bytes of the layer"
        ' named after "as" (intermediate layer included). "Unstructured" has as many connections, spread over the'
        " matrix as the rule likes: training holds the dense matrix and a mask, only what is stored afterwards is"
        " sparse.",
    ),
    "tfidf": (
        "Sparse features: EURLex-4K tf-idf",
        "5,000 tf-idf features into 512 (or 2,048) learned ReLU units (dropout 0.3), then the output layer.",
    ),
    "57k": (
        "More rows: EURLEX57K",
        "512 LSA dimensions of tf-idf, 45,000 training and 6,000 test rows, 4,271 labels, 4 epochs for all; rates as"
        " for EURLex-4K, not tuned again.",
    ),
    "tibkat": (
        "More labels: TIBKAT subjects",
        "512 LSA dimensions of tf-idf of German and English titles and abstracts, 10,000 random training rows, the"
        " first 10,000 rows of the development part, 41,218 labels (most of them rare), 4 epochs for all; rates as"
        " for EURLex-4K, not tuned again. Here the sparse layer outweighs the units before it, as in the papers.",
    ),
    "text": (
        "End to end: MiniLM on a part of EURLEX57K",
        "all-MiniLM-L6-v2 (22.7M parameters, 384 dimensions), its upper two layers trained, on 2,000 random"
        " training documents cut to 32 tokens, 5 epochs of batches of 32, bfloat16 autocast; 2,000 random test"
        " documents, all 4,271 labels. So small a part shows what the choices do, not what the model can reach. The"
        " meta-label head is dense, over clusters of at most 16 labels, with a weight that falls from 1 to 0 over the"
        " first half.",
    ),
    "frozen": (
        "The same texts, encoder not trained",
        "The output layers alone on MiniLM's features: what training the encoder brings is the difference to the"
        " table above.",
    ),
}
TIE = {"text": 1.0, "frozen": 1.0}  # points of P@1 below which a difference means nothing; others: 0.5


def current(cell: Cell) -> bool:
    """Whether a cell was made with the parameters that the command has now."""
    experiment = cell["experiment"]
    known = CELLS[experiment]() if experiment in CELLS else {}
    return cell["tune"] == (experiment in GRIDS) and known.get(cell["name"]) == cell["params"]


def grouped(cells: list[Cell]) -> dict[str, Results]:
    """experiment -> method -> the results of its seeds."""
    found: dict[str, Results] = {}
    for cell in cells:
        found.setdefault(cell["experiment"], {}).setdefault(cell["name"], []).append(cell)
    return found


def mean(results: list[dict[str, Any]], k: int = 0) -> float:
    return statistics.fmean(r["p"][k] for r in results)


def deviation(results: list[dict[str, Any]], k: int = 0) -> float:
    return statistics.stdev(r["p"][k] for r in results) if len(results) > 1 else 0.0


def before(memory: dict[str, int]) -> int:
    """Bytes of what is trained before the output layer."""
    return memory.get("hidden", memory.get("encoder", 0))


def table(results: Results) -> list[str]:
    lines = [
        "| output layer | P@1 | P@3 | P@5 | output MB | before it MB | CPU s/epoch | seeds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, runs in results.items():
        p = [
            f"{mean(runs, k):.2f}" + (f" ± {deviation(runs, k):.2f}" if len(runs) > 1 else "")
            for k in range(3)
        ]
        memory = runs[0]["memory"]
        output = f"{memory['output'] / 1e6:.2f}"
        if runs[0]["stored"] != memory["output"]:
            output += f" ({runs[0]['stored'] / 1e6:.2f} stored)"
        seconds = statistics.median(r["cpu_per_epoch"] for r in runs)
        lines.append(
            f"| {name} | {' | '.join(p)} | {output} | {before(memory) / 1e6:.1f} | {seconds:.1f} | {len(runs)} |"
        )
    return lines


# what the papers found, as (better, worse) in the experiments that have both
STATIC = "dynamic beats static"
UNITS = "an intermediate layer rescues fan-in 32"
NARROW = "sparse at least as good as a bottleneck of equal memory"
MASKED = "fixed fan-in at least as good as unstructured sparsity"
HELP = "an auxiliary loss or a dense head helps end to end"
CLAIMS = [
    *(
        (STATIC, f"fan-in {s}, {rule}", f"fan-in {s}, static")
        for s in (8, 32, 64, 128)
        for rule in ("SET", "RigL")
    ),
    *(
        (
            f"{STATIC} behind learned units",
            f"fan-in {s} + {h} units, {rule}",
            f"fan-in {s} + {h} units, static",
        )
        for s, h in ((8, 2048), (32, 1024), (32, 2048), (32, 16384))
        for rule in ("SET", "RigL")
    ),
    (f"{STATIC} behind learned units", "fan-in 32 of 2048 units, RigL", "fan-in 32 of 2048 units, static"),
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


SAID = """What to take from it:

- On features that do not adapt, moving the connections is what makes a small fan-in usable, and growing by
  gradient is far better than at random. Behind learned units (an intermediate layer, tf-idf) static connections are as
  good or better: here the published ordering fails. A likely reason is that the units adapt to the connections there
  are (not tested).
- With 4,000 labels the units weigh more than the sparse layer, so that a bottleneck of equal memory is wide and
  ties with the sparse layer; without units the bottleneck wins. The papers compare on 670,000 labels, where the
  units are free and the bottleneck is narrow; that has not been measured here.
"""
SAID_OF_UNSTRUCTURED = """\
- Unstructured sparsity that is moved by gradient, and so may give frequent labels more connections, is better than
  fixed fan-in with as many connections, but trains the dense matrix. Drawn once it is not better.
"""
SAID_OF_TEXTS = """\
- End to end a dense head of 200 labels helps, with more memory than the sparse layer alone; the auxiliary
  meta-label loss brings nothing in so short a training (315 steps, two layers trained; its weight was not
  tuned), and a bottleneck is better than both without a head. Few seeds and 2,000 test documents: read
  differences of 1 to 2 points there as hints.
"""


def findings(all_results: dict[str, Results]) -> str:
    """What the figures say, in words; only about what was run."""
    unstructured = SAID_OF_UNSTRUCTURED if "unstructured 32, RigL" in all_results.get("fixed", {}) else ""
    return SAID + unstructured + (SAID_OF_TEXTS if "text" in all_results else "")


TRIED = [
    "## Tried on held-out training rows",
    "",
    "EURLex-4K: 2,000 rows held out of the training set. Used: 5e-3 for sparse layers, 2e-3 behind units and for the",
    "dense layer, 3e-3 for bottlenecks; tf-idf and larger sets were not tuned.",
    "",
]


def claims(all_results: dict[str, Results]) -> list[str]:
    """The papers' orderings with their numbers and whether they hold here; only those whose cells are there."""
    lines = ["| published | where | better | P@1 | worse | P@1 | here |", "|---|---|---|---|---|---|---|"]
    for text, good, bad in CLAIMS:
        for experiment, have in all_results.items():
            other = next((n for n in have if fnmatch.fnmatchcase(n, bad)), bad)
            weak = experiment in ("tfidf", "text") and text == STATIC  # their features are learned
            said = f"{STATIC} behind learned features" if weak else text
            if (
                experiment in HEADS
                and good in have
                and other in have
                and (text != HELP or experiment == "text")
            ):
                a, b = mean(have[good]), mean(have[other])
                tie = abs(a - b) < TIE.get(experiment, 0.5)
                at_least = text in (NARROW, MASKED)
                here = ("yes (tie)" if at_least else "tie") if tie else "yes" if a > b else "**NO**"
                lines.append(f"| {said} | {experiment} | {good} | {a:.2f} | {other} | {b:.2f} | {here} |")
    return lines


def within(all_results: dict[str, Results]) -> list[str]:
    """Every sparse output layer within 1.5 points of P@1 of the dense one at 5 times less memory."""
    lines = [
        "| where | output layer | P@1 | dense | times less | with the units, times less | seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    for experiment, results in all_results.items():
        if experiment not in HEADS or "dense" not in results:
            continue
        dense = results["dense"]
        size = dense[0]["memory"]
        for name, runs in results.items():
            memory = runs[0]["memory"]
            less = size["output"] / memory["output"]
            if name.startswith("fan-in") and less >= 5 and mean(dense) - mean(runs) <= 1.5:
                whole = (size["output"] + before(size)) / (memory["output"] + before(memory))
                figures = f"{mean(runs):.2f} | {mean(dense):.2f} | {less:.1f} | {whole:.1f} | {len(runs)}"
                lines.append(f"| {experiment} | {name} | {figures} |")
    return lines


def pictures(cells: list[Cell]) -> None:
    """docs/img/dst_sparsity.png and dst_run.png."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    from xmc_fast.plots import accuracy_against_sparsity, plot_run

    IMG.mkdir(parents=True, exist_ok=True)
    fixed = grouped(cells).get("fixed", {})
    curves: dict[str, list[tuple[float, float, float]]] = {}
    for name, runs in fixed.items():
        match = re.fullmatch(r"fan-in (\d+), (static|SET|RigL)", name)
        if match:
            point = (1 - int(match[1]) / 512, mean(runs), deviation(runs))
            curves.setdefault(match[2], []).append(point)
    if curves:
        ax = accuracy_against_sparsity(curves, baseline=mean(fixed["dense"]) if "dense" in fixed else None)
        ax.set_title("EURLex-4K, 512 LSA features")
        ax.figure.savefig(IMG / "dst_sparsity.png", dpi=110)
        pyplot.close(ax.figure)
    run = fixed.get("fan-in 32, RigL")
    if run:
        ax = plot_run(run[0]["history"])
        ax.set_title("fan-in 32, RigL")
        ax.figure.savefig(IMG / "dst_run.png", dpi=110)
        pyplot.close(ax.figure)


def not_run(all_results: dict[str, Results]) -> list[str]:
    """What the command has but the file has not."""
    lines = []
    for experiment, cells in CELLS.items():
        missing = [name for name in cells() if name not in all_results.get(experiment, {})]
        if missing:
            tune = "--tune " if experiment in GRIDS else ""
            what = "all" if len(missing) == len(cells()) else "; ".join(missing)
            lines.append(f"- `python bench/experiment_dst.py {tune}--only {experiment}`: {what}")
    return (
        ["## Not run", "", "Cells that the command has but that were not run:", "", *lines, ""]
        if lines
        else []
    )


def page(cells: list[Cell]) -> str:
    """docs/experiments/dst.md from the cells that are there."""
    all_results = grouped(cells)
    machines = ", ".join(sorted({cell["cpu"] for cell in cells}))
    lines = [
        "# Dynamic sparse training against its baselines",
        "",
        "Made by `python bench/experiment_dst.py` (rates: `--tune --only grid,tfidf-grid,frozen-grid`); the page is"
        " written by `python bench/experiment_dst.py --report` from `docs/results/dst.json`, which has machine and"
        f" commit of every cell. One thread, CPU seconds, {machines}, the machine shared with other work.",
        "P@k in percent on the test set, mean ± standard deviation over seeds (of initial weights, connections,",
        "order of rows and rewiring). MB: weights, biases, indices and masks as they are during training; gradients",
        "and Adam's state come on top in the same proportion. What was not run is named at the end; one seed means no",
        "idea of the spread.",
        "",
        "## The published orderings",
        "",
        "A difference below 0.5 points of P@1 (texts: 1 point) counts as a tie: seeds differ by nearly as much.",
        "",
        *claims(all_results),
        "",
        findings(all_results),
        "## Close to the dense layer at a fifth of its memory",
        "",
        "All cells of the tables below whose output layer (weights, biases, indices) is at least 5 times smaller than",
        "the dense one and whose P@1 is at most 1.5 points lower. The column after counts the trained units before",
        "the output layer on both sides (texts: the trained layers of the encoder).",
        "",
        *within(all_results),
        "",
        "![accuracy against sparsity](../img/dst_sparsity.png)",
        "",
        "![a run](../img/dst_run.png)",
        "",
    ]
    for experiment, (title, text) in HEADS.items():
        if all_results.get(experiment):
            lines += [f"## {title}", "", text, "", *table(all_results[experiment]), ""]
    if all_results.get("scale"):
        lines += [
            "## Peak memory",
            "",
            "Three training steps (sparse: a rewiring by gradient after the first two), 64 rows, 131,072 labels,",
            "768 dense features: growth of the process's peak resident memory.",
            "",
            "| output layer | layer MB | peak MB | CPU s/step |",
            "|---|---|---|---|",
        ]
        for name, runs in all_results["scale"].items():
            r = runs[0]
            sizes = (
                f"{r['memory']['output'] / 1e6:.0f} | {r['peak_growth'] / 1e6:.0f} | {r['cpu_per_epoch']:.2f}"
            )
            lines.append(f"| {name} | {sizes} |")
        lines.append("")
    tried = {e: all_results[e] for e in GRIDS if e in all_results}
    if tried:
        lines += [*TRIED, "| experiment | choice | P@1 | P@3 | P@5 |", "|---|---|---|---|---|"]
        for experiment, results in tried.items():
            for name, runs in results.items():
                p = " | ".join(f"{mean(runs, k):.2f}" for k in range(3))
                lines.append(f"| {experiment.removesuffix('-grid')} | {name} | {p} |")
        lines.append("")
    return "\n".join([*lines, *not_run(all_results)])
