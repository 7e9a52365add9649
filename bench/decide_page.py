"""docs/experiments/decide.md from the tables of bench_decide.py."""

from __future__ import annotations

import json
from pathlib import Path

from common import RESULTS, Table

PAGE_HEAD = """# Decisions: how good, how fast

What block coordinate ascent and Frank–Wolfe reach and cost, and how far the choices made for them hold on data that
they were not made on. The tables against xcolumns (utility and CPU time per metric and k), with two threads and
against the size of the problem are on the [performance page](../performance.md); what the decisions cost in P@k is in
[precision against macro-F1](tradeoff.md). Probabilities: the 100 most probable labels of each test instance, one-vs-all
trained on nine tenths of the training set, calibrated on the rest.

Times are CPU times of one thread, ours and the peer's in turns, on a machine that had other work to do. The table with
two threads needs a quiet machine: each parallel step waits for its second thread to start, so that on a machine
whose processors are all busy two threads are slower than one (`n_jobs=1` is the choice there)."""

PAGE_PARTS = (
    (
        "gap",
        "Distance to the global optimum",
        "Tiny random problems (4 instances, 5 labels), all predictions tried: how many the ascent solves, and the"
        " relative distance of the others. Linear metrics are solved exactly.",
    ),
    (
        "thresholds",
        "Thresholds: any number of labels",
        "`k=None`, macro-F1 on the half of the instances that the thresholds were not fitted on. Cuts fitted to the"
        " labels alone overfit the rare ones; shrinking counts towards the probabilities (the default) repairs it.",
    ),
    (
        "starts",
        "Starts of the ascent",
        "Utility by start, the mean of three orders of the instances. `relaxed`, the default, its eight rounds and the"
        " way to macro-precision were chosen on EURLex-4K, EURLEX57K and tibkat-gnd; the sets below had no"
        " part in it.",
    ),
    (
        "rules",
        "Smoothing and shrinkage of Frank–Wolfe",
        "Rules fitted on a random half of the test instances with their labels, measured with the labels of the other"
        " half; the mean of three splits. The defaults (smoothing 1, shrinkage 5) were chosen on EURLex-4K, EURLEX57K"
        " and tibkat-gnd; the sets below had no part in it. xcolumns: the better of its two starts.",
    ),
)


def write_page(folder: Path) -> None:
    """docs/experiments/decide.md from the tables in docs/results and the newer ones in bench/results."""
    tables = {
        path.stem.removeprefix("decide_"): json.loads(path.read_text("utf-8"))
        for place in (folder / "results", RESULTS)
        for path in place.glob("decide_*.json")
    }
    missing = [title for key, title, _ in PAGE_PARTS if key not in tables]
    if missing:
        raise SystemExit(f"the page would lose {', '.join(missing)}: run all tables first")
    page = [PAGE_HEAD]
    for key, title, text in PAGE_PARTS:
        table, rows = tables[key], tables[key]["rows"]
        shown = Table(f"decide_{key}", list(rows[0]), table["machine"], rows)
        command = (
            f"python bench/bench_decide.py {' '.join(dict.fromkeys(r['data'] for r in rows if 'data' in r))}"
        )
        page += [
            f"## {title}",
            text,
            str(shown).strip(),
            f"Made by `{command.strip()} --tables {key}`, seed 0.",
        ]
    (folder / "experiments").mkdir(parents=True, exist_ok=True)
    (folder / "experiments" / "decide.md").write_text("\n\n".join(page) + "\n", encoding="utf-8")
