"""The common bench harness: the machine line, interleaved timing, one table per question.

A bench asserts correctness first, then times ours and the peers in turns (A B C A B C ...), so that a noisy
minute hits all of them, and reports medians, ratios and the share of the machine's own limit measured in the
same run. `Table.save` writes CSV and JSON with the machine line into bench/results/ (not in git).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xmc_fast import __version__, _core, cpu_features

RESULTS = Path(__file__).parent / "results"
KEPT = Path(__file__).parents[1] / "docs" / "results"
DATA = Path(os.environ.get("XMC_DATA", Path(__file__).parents[2] / "shared" / "data"))
CACHE = Path(os.environ.get("XMC_CACHE", Path.home() / ".cache" / "xmc_fast"))


def arguments(doc: str | None, parts: Sequence[str] = ()) -> list[str]:
    """The parts that the command line names, all without one; --help prints the script's first words."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if parts:
        parser.add_argument("parts", nargs="*", metavar="part", help=f"{', '.join(parts)} (all without one)")
    chosen: list[str] = getattr(parser.parse_args(), "parts", [])
    for part in chosen:
        if part not in parts:
            parser.error(f"unknown part {part!r}, expected one of {', '.join(parts)}")
    return chosen or list(parts)


def data_dir(name: str) -> Path:
    """The folder of a real data set, or SystemExit with a message."""
    folder = DATA / name
    if not folder.is_dir():
        raise SystemExit(f"data set {name!r} not found in {DATA}: set XMC_DATA")
    return folder


def cpu_name() -> str:
    """The processor's name as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def commit() -> str:
    """The commit this tree stands at, "+" if changed, "" outside git."""
    here = Path(__file__).parent
    try:
        run = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
        return subprocess.run(run, cwd=here, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def machine(threads: int = 1, seconds: float = 0.3) -> dict[str, Any]:
    """CPU, threads, versions and the measured limits (fp32 FMA GFLOP/s, read and triad GB/s)."""
    fma, read, triad = _core.measure_roofline(threads, seconds)
    return {
        "cpu": cpu_name(),
        "simd": cpu_features()["simd"],
        "threads": threads,
        "fma_gflops": round(fma, 1),
        "read_gbs": round(read, 1),
        "triad_gbs": round(triad, 1),
        "commit": commit(),
        "version": __version__,
    }


def machine_line(info: dict[str, Any]) -> str:
    """One line for the top of a report."""
    return (
        f"{info['cpu']}, {info['simd']}, {info['threads']} thread(s): {info['fma_gflops']} GFLOP/s FMA, "
        f"{info['read_gbs']} GB/s read, {info['triad_gbs']} GB/s triad"
        f" (xmc_fast {info['version']} {info['commit']})"
    )


def machines_line(result: dict[str, Any]) -> str:
    """The machine line of a saved table; where rows have machines of their own, each line with the rows it is of."""
    lines: dict[str, list[list[str]]] = {}
    for row in result["rows"]:
        line = machine_line(row.get("machine", result["machine"]))
        lines.setdefault(line, []).append([str(value) for value in row.values()][:2])
    if len(lines) < 2:
        return machine_line(result["machine"]) if not lines else next(iter(lines))
    firsts = [first for rows in lines.values() for first in {first for first, _ in rows}]
    depth = (
        1 if len(firsts) == len(set(firsts)) else 2
    )  # columns that tell the rows of one line from another's
    names = {line: dict.fromkeys(" ".join(row[:depth]) for row in rows) for line, rows in lines.items()}
    return "; ".join(f"{', '.join(rows)}: {line}" for line, rows in names.items())


def interleave(
    cases: dict[str, Callable[[], Any]],
    *,
    rounds: int = 5,
    clock: Callable[[], float] = time.perf_counter,
    warm_up: bool = True,
    budget: float = 60.0,
) -> dict[str, float]:
    """Median seconds of each case, all cases run in turns. A case that used up its share of `budget` seconds
    is not run again; its median is over the rounds it had (at least one).

    Use ``clock=time.process_time`` for single-threaded code on a shared machine.
    """
    if warm_up:
        for run in cases.values():
            run()
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, run in cases.items():
            if times[name] and sum(times[name]) > budget / len(cases):
                continue
            start = clock()
            run()
            times[name].append(clock() - start)
    return {name: statistics.median(t) for name, t in times.items()}


@dataclass
class Table:
    """Rows of a bench: printed as Markdown, saved as CSV and JSON."""

    name: str
    columns: Sequence[str]
    info: dict[str, Any] = field(default_factory=machine)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, **row: Any) -> None:
        unknown = set(row) - set(self.columns)
        if unknown:
            raise ValueError(f"unknown columns {sorted(unknown)}, the table has {list(self.columns)}")
        self.rows.append(row)

    def keep_others(self, *keys: str) -> None:
        """Adds the saved rows whose `keys` the table does not have, each with the machine it was measured on:
        a long run can be made in parts."""
        path = next((p for p in (f / f"{self.name}.json" for f in (RESULTS, KEPT)) if p.exists()), None)
        if path is None:
            return
        saved = json.loads(path.read_text("utf-8"))
        here = {tuple(row[key] for key in keys) for row in self.rows}
        others = [row for row in saved["rows"] if tuple(row[key] for key in keys) not in here]
        self.rows += [{**row, "machine": row.get("machine", saved["machine"])} for row in others]

    def __str__(self) -> str:
        head = "| " + " | ".join(self.columns) + " |\n|" + "---|" * len(self.columns)
        body = ["| " + " | ".join(_cell(r.get(c, "")) for c in self.columns) + " |" for r in self.rows]
        return "\n".join([f"{self.name}: {machine_line(self.info)}", "", head, *body, ""])

    def save(self, folder: Path = RESULTS) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / f"{self.name}.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [*self.columns, *(f"machine_{key}" for key in self.info)])
            writer.writeheader()
            line = {f"machine_{key}": value for key, value in self.info.items()}
            own = [{f"machine_{k}": v for k, v in r.get("machine", {}).items()} for r in self.rows]
            rows = [{c: r[c] for c in self.columns if c in r} for r in self.rows]
            writer.writerows({**r, **line, **o} for r, o in zip(rows, own, strict=True))
        self.save_json(folder)

    def save_json(self, folder: Path) -> None:
        text = json.dumps({"machine": self.info, "rows": self.rows}, indent=1, default=float)
        (folder / f"{self.name}.json").write_text(text + "\n", encoding="utf-8")


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
