"""The marked tables of the pages that are written by hand, from docs/results.

A page has `<!-- NAME -->` and `<!-- end of NAME -->`; what stands between them is written by `python bench/report.py`:
the table, the command that makes it and the machine it was made on. A table that is not in docs/results is named
with its command, without figures.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import fanin_figures
from common import _cell, machines_line

Rows = list[dict[str, Any]]
Result = dict[str, Any]
MARK = re.compile(r"<!-- (\w+) -->\n.*?<!-- end of \1 -->", re.S)
NAMES = {"eurlex-4k": "EURLex-4K", "eurlex57k": "EURLEX57K", "bibtex": "Bibtex"}


@dataclass(frozen=True)
class Part:
    """A marked table: the file in docs/results, the command that makes it, how it is written."""

    table: str
    command: str
    write: Callable[[Result], str]


def markdown(rows: Rows) -> str:
    columns = list(dict.fromkeys(key for row in rows for key in row if key != "machine"))
    head = "| " + " | ".join(columns) + " |\n|" + "---|" * len(columns)
    return "\n".join([head, *("| " + " | ".join(_cell(r.get(c, "")) for c in columns) + " |" for r in rows)])


def over(value: Any) -> str:
    """A ratio near one, with the digits that tell it from one: 1.0009, 1.00000027."""
    if value in ("", None):
        return ""
    return f"{1 + float(f'{value - 1:.2g}'):.10f}".rstrip("0").rstrip(".")


def linear_peers(result: Result) -> str:
    def line(r: dict[str, Any]) -> dict[str, Any]:
        return {
            "set": NAMES.get(r["set"], r["set"]),
            "bias": r["bias"].lower(),
            "labels": r["labels"],
            "ms per label": r["ms_per_label"],
            "times as fast as -s 2": r["s2_ratio"],
            "as -s 1": r["s1_ratio"],
            "summed objective over -s 2's": over(r["objective_ratio"]),
            "rounds": r["rounds"],
        }

    return markdown([line(r) for r in result["rows"]])


def linear_every(result: Result) -> str:
    def line(r: dict[str, Any]) -> dict[str, Any]:
        proven = r["worst_over_minimum"] if not r["unproven"] else ""
        return {
            "case": r["case"],
            "LIBLINEAR": r["liblinear"],
            "eps": r["eps"],
            "labels": r["labels"],
            "worst f over the minimum": over(proven),
            "not settled": r["unproven"],
            "worst distance over norm of w": r.get("worst_distance", ""),
            "LIBLINEAR's labels": r["peer_labels"],
            "worst f over LIBLINEAR's": over(r["worst_over_peer"]),
        }

    return markdown([line(r) for r in result["rows"]])


def plain(result: Result) -> str:
    return markdown(result["rows"])


def predict(result: Result) -> str:
    """One line per set, the peers as times ours."""
    lines = []
    for name in dict.fromkeys(r["set"] for r in result["rows"]):
        here = {r["what"]: r for r in result["rows"] if r["set"] == name}
        ours = here.pop("xmc_fast")
        line = {"set": name, "stored weights": f"{ours['density']:.1%}", "µs per row": ours["us_per_row"]}
        lines.append(line | {f"{what}, times as long": r["times_ours"] for what, r in here.items()})
    return markdown(lines)


def precision(result: Result) -> str:
    keys = ("set", "what", "P@1", "P@3", "P@5")
    return markdown([{key: r[key] for key in keys} for r in result["rows"] if "P@1" in r])


LINEAR = "python bench/bench_linear.py"
TREES = "python bench/bench_predict.py --trees pecos omikuji"
FANIN = "python bench/bench_fanin.py"
NEWTON = "python bench/bench_newton.py --cases squared_hinge --peer-labels 12"
PARTS = {
    "linear_peers": Part("linear_peers", f"{LINEAR} peers", linear_peers),
    "linear_threads": Part("linear_threads", f"{LINEAR} threads", plain),
    "linear_every": Part("linear_every", f"{LINEAR} every", linear_every),
    "linear_scaling": Part("linear_scaling", f"{LINEAR} scaling", plain),
    "linear_quality": Part("linear_quality", f"{LINEAR} quality", plain),
    "linear_dense": Part("linear_dense", f"{LINEAR} dense", plain),
    "linear_whole": Part("linear_tibkat-gnd", f"{LINEAR} tibkat", plain),
    "linear_amazon": Part("linear_amazon", f"{LINEAR} amazon", plain),
    "newton": Part("newton", NEWTON, plain),
    "newton_preconditioner": Part(
        "newton_preconditioner", "python bench/newton_preconditioner.py --labels 8", plain
    ),
    "predict": Part("predict", TREES, predict),
    "predict_precision": Part("predict", TREES, precision),
    "predict_one": Part("predict_one", "python bench/bench_predict.py --one", plain),
    "predict_open": Part("predict_open", "python bench/bench_predict.py --open", plain),
    "fanin_limits": Part("fanin", FANIN, fanin_figures.limits),
    "fanin_goals": Part("fanin", FANIN, fanin_figures.goals),
    "fanin": Part("fanin", FANIN, plain),
}


def filled(page: str, load: Callable[[str], Result | None]) -> str:
    """The page with its marked tables written anew; `load` gives a file of docs/results by name."""

    def part(match: re.Match[str]) -> str:
        name = match[1]
        if name not in PARTS:
            raise KeyError(f"no table {name!r} in bench/report_pages.py")
        wanted = PARTS[name]
        result = load(wanted.table)
        text = f"Not in `docs/results`: `{wanted.command}` makes this table."
        if result:
            text = f"{wanted.write(result)}\n\n`{wanted.command}`: {machines_line(result)}"
        return f"<!-- {name} -->\n\n{text}\n\n<!-- end of {name} -->"

    return MARK.sub(part, page)
