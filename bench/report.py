"""Write docs/performance.md, the README's table and the marked tables of other pages from the results of the benches.

    python bench/report.py              # take over what bench/results has, then write
    python bench/report.py --check      # only tell whether the pages agree with docs/results

The tables named below are copied from bench/results (where the benches put them, not in git) to docs/results (in
git); every number of the pages is taken from those files, and each table names the command that makes it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ahead import Rivals, ahead, said
from common import KEPT, RESULTS, machines_line
from pictures import draw
from report_pages import PARTS, filled, markdown

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
MARKED = [ROOT / "docs" / "experiments" / f"{name}.md" for name in ("linear", "prediction", "fanin")]
README = ROOT / "README.md"
MARKS = ("<!-- performance: written by bench/report.py -->", "<!-- end of performance -->")
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Section:
    """One question: the table that answers it, its command, what to read first, a picture, how peers compare."""

    table: str
    title: str
    command: str
    text: str
    headline: Callable[[Rows], str] | None = None
    picture: bool = False
    rivals: Rivals | None = None


def spread(rows: Rows, key: str, **where: Any) -> str:
    """ "3.1 to 7.9" over the rows with these values."""
    values = [
        float(r[key])
        for r in rows
        if all(r.get(k) == v for k, v in where.items()) and r.get(key) not in ("", None)
    ]
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"


def whole_methods(rows: Rows) -> str:
    parts = []
    for name in sorted({r["set"] for r in rows}):
        here = {r["method"]: r for r in rows if r["set"] == name}
        mine = here["xmc_fast OneVsAll"]
        trees = [r for m, r in here.items() if "P1" in r and not m.startswith("xmc_fast")]
        exact = [r for r in here.values() if r.get("projected") == "yes"]
        text = f"{name}: {mine['train_seconds']:.0f} s of training"
        if exact:
            ratio = min(r["train_seconds"] for r in exact) / mine["train_seconds"]
            text += f" ({ratio:.0f}x less than the fastest exact peer)"
        text += f", P@1 {mine['P1']:.1f}"
        if trees:
            text += f" (trees: {max(r['P1'] for r in trees):.1f} at best)"
        parts.append(f"{text}, {mine['predict_us']:.0f} µs per row")
    return "; ".join(parts)


def prediction(rows: Rows) -> str:
    parts = []
    for name in dict.fromkeys(r["set"] for r in rows):
        here = [r for r in rows if r["set"] == name]
        ours = next(r for r in here if r["what"] == "xmc_fast")
        flat = [r for r in here if r["what"].startswith(("scipy", "torch"))]
        parts.append(
            f"{name}: {ours['us_per_row']:.0f} µs per row, flat peers {spread(flat, 'times_ours')} times as long"
        )
    return "; ".join(parts)


SECTIONS = (
    Section(
        "peers",
        "Whole methods",
        "python bench/peers.py",
        "One thread, CPU seconds. Peers marked *projected* trained a sample of labels; their figure is scaled to all.",
        whole_methods,
        picture=True,
        rivals=Rivals(
            "method", ("set",), ("train_seconds", "model_mb", "predict_us", "memory_mb"), ("P1", "P3", "P5")
        ),
    ),
    Section(
        "peers_growth",
        "How whole methods grow",
        "python bench/peers_growth.py",
        "`value` is the share of the rows or labels, or the number of threads; CPU seconds, with threads wall seconds;"
        " prediction is the first one, in which ours builds its layout.",
        picture=True,
        rivals=Rivals("method", ("set", "axis", "value"), ("train_seconds", "predict_us")),
    ),
    Section(
        "linear_peers",
        "Training at equal objective",
        "python bench/bench_linear.py peers",
        "CPU ms per label of `OneVsAll` (label order, start and pruning included) and of LIBLINEAR's primal (-s 2) and"
        " dual (-s 1) solver at the same stopping rule; our summed objective is"
        " at most 0.1 % above theirs (the bench fails otherwise).",
        lambda rows: (
            f"{spread(rows, 's2_ratio')}x LIBLINEAR -s 2, {spread(rows, 's1_ratio')}x its dual solver"
        ),
        picture=True,
        rivals=Rivals(ratios=("s2_ratio", "s1_ratio")),
    ),
    Section(
        "linear_threads",
        "Training with two threads",
        "python bench/bench_linear.py threads",
        "Wall seconds, equal bits.",
    ),
    Section(
        "linear_scaling",
        "Training time against the size of the data",
        "python bench/bench_linear.py scaling",
        "Rows, or entries of each row, are left out at random; one thread; by the label's positives.",
        picture=True,
    ),
    Section(
        "linear_every",
        "The same optimum, label by label",
        "python bench/bench_linear.py every",
        "EURLex-4K with a bias, in float64: the worst label's objective over the proven minimum, its proven relative"
        " distance from the optimum, and LIBLINEAR itself on some labels.",
    ),
    Section(
        "linear_amazon",
        "A problem of Amazon-670K's shape",
        "python bench/bench_linear.py amazon",
        "Synthetic; blocks of labels are measured and projected to 670,091 labels.",
    ),
    Section(
        "predict",
        "Prediction",
        "python bench/bench_predict.py --trees pecos omikuji",
        "One thread, the five best labels of every test row.",
        prediction,
        picture=True,
        rivals=Rivals("what", ("set",), ("us_per_row",), ("P@1", "P@3", "P@5")),
    ),
    Section(
        "predict_one", "Prediction of one row or text", "python bench/bench_predict.py --one", "Latency."
    ),
    Section(
        "predict_open",
        "Opening a model of 1 GB",
        "python bench/bench_predict.py --open",
        "Two processes at once, memory-mapped: what they own is not shared.",
        lambda rows: f"{1e3 * max(r['open_seconds'] for r in rows):.1f} ms, pages shared between processes",
    ),
    Section("predict_pruning", "What pruning costs", "python bench/bench_predict.py --pruning", ""),
    Section(
        "decide_bca",
        "Decisions: block coordinate ascent",
        "python bench/bench_decide.py --tables bca",
        "Against xcolumns without its compile time, CPU time of one thread; `ratio` from the same start (top-k) with"
        " the same tolerance, `default_ratio` from our default start. Utilities are at both sides' defaults.",
        lambda rows: (
            f"{spread(rows, 'ratio')}x xcolumns from the same start, never a lower utility"
            if all(r["higher"] for r in rows)
            else f"{spread(rows, 'ratio')}x xcolumns from the same start"
        ),
        picture=True,
        rivals=Rivals(ratios=("ratio", "default_ratio"), flags=("higher",)),
    ),
    Section(
        "decide_frank_wolfe",
        "Decisions: Frank–Wolfe",
        "python bench/bench_decide.py --tables frank_wolfe",
        "Against xcolumns, one thread, CPU time of whole fits from the same start with the same number of iterations:"
        " the peer's, with the last one, whose line search finds nothing and ends it (where `iterations` is 1 it"
        " stops at once). Fitted on half of the test instances with their labels; `ours` and `xcolumns` (the better"
        " of its two starts) are the metric on the other half, `expected` that of the mean weights without a draw."
        " `fit_ms` is our fit at its own defaults.",
        lambda rows: (
            f"{spread(rows, 'ratio')}x xcolumns at equal iterations, never a lower held-out utility"
            if all(r["higher"] for r in rows)
            else f"{spread(rows, 'ratio')}x xcolumns at equal iterations"
        ),
        picture=True,
        rivals=Rivals(ratios=("ratio",), flags=("higher",)),
    ),
    Section(
        "decide_threads",
        "Decisions with two threads",
        "python bench/bench_decide.py --tables threads",
        "Wall ms of block coordinate ascent from the default start; equal bits, utility never decreasing.",
    ),
    Section(
        "decide_scaling",
        "Decisions: cost against size",
        "python bench/bench_decide.py --tables scaling",
        "CPU ms, one thread, synthetic probabilities of 20,000 labels, macro-F1@5: five passes of the ascent, five"
        " iterations of Frank–Wolfe; `ns` is per entry and pass. A row has a cost of its own beside that of its"
        " candidates, so the time against the candidates is a line that does not go through 0.",
        picture=True,
    ),
    Section(
        "fanin",
        "Fixed fan-in layers",
        "python bench/bench_fanin.py",
        "One thread, fp32, output included.",
        rivals=Rivals(ratios=("times best peer", "times best in rows")),
    ),
    Section(
        "knn",
        "Exact neighbours",
        "python bench/bench_knn.py",
        "200,000 rows of 200 features, 128 queries, the best 25 of each, one thread. GFLOP/s counts every product of a"
        " query and a row. Ours bounds them with bytes first and scores only rows that may be among the best in"
        " float32: the peak of float32 multiply-adds is not its limit.",
        rivals=Rivals("method", ("task",), ("ms",)),
    ),
    Section(
        "mach_aggregate",
        "MACH: aggregation and top-5",
        "python bench/bench_mach.py aggregate",
        "670,091 labels, R = 32, batch 128, one thread. Of the machine's limits, measured in the same run: one float32"
        " per label and repetition from L2 (`of_l2_floats`) or added (`of_adds`), which bounds of a byte can pass; a"
        " line per label, repetition and 64 instances (`of_byte_lines`), which they cannot.",
        lambda rows: (
            f"{spread(rows, 'ratio', what='torch')}x torch, {spread(rows, 'ratio', what='numpy')}x numpy"
        ),
        rivals=Rivals("what", ("outputs",), ("ms_per_instance",)),
    ),
    Section(
        "mach_hash",
        "MACH: hashing",
        "python bench/bench_mach.py hash",
        "",
        rivals=Rivals("package", ("what",), ("ms",)),
    ),
    Section(
        "mach_memory", "MACH: ten million labels", "python bench/bench_mach.py memory", "Peak of the process."
    ),
    Section(
        "lightxml_step",
        "LightXML: candidates and ranking of a step",
        "python bench/bench_lightxml.py step",
        "CPU ms, one thread, against a loop-style implementation.",
        lambda rows: f"{spread(rows, 'ratio', what='loops')}x a loop-style step",
        rivals=Rivals("what", ("labels",), ("cpu_ms",), left_out=("generator (both)",)),
    ),
    Section(
        "lightxml_one", "LightXML: one text beyond the encoder", "python bench/bench_lightxml.py one", ""
    ),
    Section(
        "cluster_tibkat",
        "Label tree",
        "python bench/bench_cluster.py tibkat",
        "tibkat-gnd, leaves of at most 64 labels; cohesion is the mean cosine of a label to its leaf's centre.",
        lambda rows: (
            f"{spread(rows, 'cpu_ratio', what='scikit-learn')}x scikit-learn, "
            f"{spread(rows, 'cpu_ratio', what='numpy, tuned')}x tuned numpy"
        ),
        rivals=Rivals("what", (), ("cpu_s",), ("cohesion",)),
    ),
    Section(
        "cluster_synthetic",
        "Label tree in the shape of Amazon-670K",
        "python bench/bench_cluster.py synthetic",
        "Synthetic, 490,449 rows, 135,909 features, 670,091 labels.",
    ),
    Section(
        "engine",
        "Two workers on one machine",
        "python bench/bench_engine.py",
        "Local clusters of processes, one thread each; the bytes of X that each worker opened.",
        lambda rows: f"{spread(rows, 'speedup', workers=2)}x one worker",
    ),
    Section(
        "metrics",
        "Metrics",
        "python bench/bench_metrics.py",
        "100,000 x 670,091 predictions, top 5.",
        rivals=Rivals(ratios=("times_faster",)),
    ),
    Section(
        "data_read",
        "Reading text files",
        "python bench/bench_data.py",
        "",
        rivals=Rivals("reader", ("threads", "clock"), ("seconds",)),
    ),
    Section(
        "data_tfidf",
        "Tf-idf",
        "python bench/bench_data.py",
        "",
        rivals=Rivals("vectorizer", ("texts", "step", "threads", "clock"), ("seconds",)),
    ),
    Section("roofline", "The machine", "python bench/roofline.py", "What the kernels are compared with."),
)


DECIDE = [
    f"decide_{key}" for key in ("gap", "thresholds", "starts", "rules")
]  # bench_decide.py writes their page
TABLES = list(dict.fromkeys([*(s.table for s in SECTIONS), *(p.table for p in PARTS.values()), *DECIDE]))


def load(folder: Path = KEPT) -> dict[str, dict[str, Any]]:
    """The kept tables by name."""
    paths = {name: folder / f"{name}.json" for name in TABLES}
    return {name: json.loads(path.read_text("utf-8")) for name, path in paths.items() if path.exists()}


def page(tables: dict[str, dict[str, Any]]) -> str:
    """The text of docs/performance.md."""
    out = [
        "# Performance",
        "",
        "Measured, not promised: ours and the peers run in turns in one process (or one after the other in processes of"
        " their own), after their results were found equal. Ratios carry over to other machines, seconds do not."
        " Below each table stands where a peer is ahead. GPU speed is unmeasured.",
        "",
        "Written by `python bench/report.py` from `docs/results/`; how to run the benches: `bench/README.md`.",
    ]
    for s in SECTIONS:
        if s.table not in tables:
            continue
        table = tables[s.table]
        out += ["", f"## {s.title}", ""]
        if s.headline:
            out += [f"**{s.headline(table['rows'])}.**", ""]
        if s.text:
            out += [s.text, ""]
        out += [markdown(table["rows"]), ""]
        if s.rivals:
            out += [said(table["rows"], s.rivals), ""]
        if s.picture:
            out += [f"![{s.title}](img/perf_{s.table}.png)", ""]
        out += [f"`{s.command}`: {machines_line(table)}"]
    out += ["", "## Kernels against the machine", "", "![Share of the FMA peak](img/perf_limits.png)", ""]
    out += [
        "Drawn by `python bench/report.py` from the tables above; sparse kernels are bound by loads, not FMAs."
    ]
    return "\n".join(out) + "\n"


def readme_table(tables: dict[str, dict[str, Any]]) -> str:
    """The README's few lines: the headlines."""
    lines = ["| question | measured | command |", "|---|---|---|"]
    for s in SECTIONS:
        if s.headline and s.table in tables:
            rows = tables[s.table]["rows"]
            behind = ahead(rows, s.rivals) if s.rivals else []
            text = s.headline(rows) + (f"; **a peer is ahead** in {'; '.join(behind)}" if behind else "")
            lines.append(f"| {s.title} | {text} | `{s.command}` |")
    return "\n".join(lines)


def with_table(readme: str, table: str) -> str:
    """The README with its marked part replaced."""
    before, rest = readme.split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    return f"{before}{MARKS[0]}\n\n{table}\n\n{MARKS[1]}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    if not args.check:
        KEPT.mkdir(parents=True, exist_ok=True)
        for name in TABLES:
            if (RESULTS / f"{name}.json").exists():
                shutil.copy(RESULTS / f"{name}.json", KEPT / f"{name}.json")
    tables = load()
    wanted = {path: filled(path.read_text("utf-8"), tables.get) for path in MARKED}
    wanted |= {PAGE: page(tables), README: with_table(README.read_text("utf-8"), readme_table(tables))}
    if args.check:
        stale = [str(p.relative_to(ROOT)) for p, text in wanted.items() if p.read_text("utf-8") != text]
        print(
            f"stale: {', '.join(stale)}: run python bench/report.py"
            if stale
            else "the pages agree with docs/results"
        )
        return bool(stale)
    for path, text in wanted.items():
        path.write_text(text, encoding="utf-8")
    draw(tables, ROOT / "docs" / "img")
    return 0


if __name__ == "__main__":
    sys.exit(main())
