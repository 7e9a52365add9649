"""DECLARE against the uncompressed and the pruned network: docs/experiments/declare.md.

python -m bench.experiments.declare            runs what is not yet in the cache
python -m bench.experiments.declare --seconds 300   the same, but starts no new cell after so many seconds
python -m bench.experiments.declare --missing  leaves out the cells that docs/results/declare.json has

A cell is one data set, model and seed, or a trial on held-out data (declare_trials.py); its result is kept as JSON in
XMC_CACHE/declare, so the command can be stopped and started again. The cells are taken over into
docs/results/declare.json, from which `python -m bench.report.pages` writes the page.
"""

from __future__ import annotations

import json
import time
from typing import Any

from bench.common import KEPT, command_line, commit, cpu_name
from bench.experiments.declare_cells import CELLS, SETS, order, run
from xmc_fast import __version__, cpu_features

FILE = KEPT / "declare.json"


def stored() -> dict[str, Any]:
    """docs/results/declare.json: the cells, and the machine of those that do not say theirs."""
    found: dict[str, Any] = {"machine": "", "cells": {}}
    return json.loads(FILE.read_text("utf-8")) if FILE.is_file() else found


def take_over() -> None:
    """The cells of the cache into docs/results/declare.json, in place of those there."""
    kept = stored()
    new = {path.stem: json.loads(path.read_text("utf-8")) for path in CELLS.glob("*.json")}
    for cell in new.values():
        used = ("p@1", "inner p@1", "cpu")
        shown = [{"epoch": h["epoch"]} | {k: h[k] for k in used if k in h} for h in cell.get("history", [])]
        cell |= {"history": shown} if shown else {}
    cells = dict(sorted({**kept["cells"], **new}.items()))
    if cells != kept["cells"]:
        lines = [f"{json.dumps(key)}: {json.dumps(cell)}" for key, cell in cells.items()]
        body = ",\n".join(lines)
        FILE.write_text(
            f'{{"machine": {json.dumps(kept["machine"])},\n"cells": {{\n{body}\n}}}}\n', encoding="utf-8"
        )


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--missing", action="store_true")
    parser.add_argument("--models", nargs="*", help="only these, for instance: uncompressed pruned")
    parser.add_argument("--sets", nargs="*", default=list(SETS))
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.seconds
    done = set(stored()["cells"]) if arguments.missing else set()
    for name, kind, seed in order():
        path = CELLS / f"{name}-{kind.replace(' ', '-')}-{seed}.json"
        if time.monotonic() > end or path.is_file() or path.stem in done:
            continue
        if name not in arguments.sets or kind not in (arguments.models or [kind]):
            continue
        at = f"{cpu_name()}, {cpu_features()['simd']} (xmc_fast {__version__} {commit()})"
        result = run(name, kind, seed) | {"machine": at}
        CELLS.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(name, kind, seed, [round(p, 2) for p in result.get("p", [])], flush=True)
    take_over()


if __name__ == "__main__":
    main()
