"""The common bench harness: the machine line, interleaved timing, one table per question.

A bench asserts correctness first, then times ours and the peers interleaved (A B C A B C ...), so that a noisy
minute affects all of them, and reports medians, ratios and the share of the machine's limit measured in the
same run. `Table.save` writes CSV and JSON with the machine line into bench/results/ (not in git).
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from bench.speed import roofline
from reference.linear import prepared_rows as prepared_rows
from xmc_fast import __version__, cpu_features

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
RESULTS = Path(os.environ.get("XMC_RESULTS", ROOT / "bench" / "results"))
KEPT = DOCS / "results"
DATA = Path(os.environ.get("XMC_DATA", ROOT.parent / "shared" / "data"))
CACHE = Path(os.environ.get("XMC_CACHE", Path.home() / ".cache" / "xmc_fast"))


sys.path.append(str(ROOT / "tests"))  # the numpy references, imported as reference.<stem>


def command_line(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose --help prints the script's docstring as it is."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def arguments(doc: str | None, parts: Sequence[str] = ()) -> list[str]:
    """The parts that the command line names, all without one; --help prints the script's first words."""
    parser = command_line(doc)
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
    try:
        run = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
        return subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def machine(threads: int = 1, seconds: float = 0.3) -> dict[str, Any]:
    """CPU, threads, versions and the measured limits (FMA GFLOP/s, read and triad GB/s), NaN without a compiler."""
    simd = cpu_features()["simd"]
    try:
        fma, read, triad = roofline.measure(threads, seconds, simd)
    except FileNotFoundError:  # the probe is compiled on demand
        fma = read = triad = math.nan
    return {
        "cpu": cpu_name(),
        "simd": simd,
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


def interleave(
    cases: dict[str, Callable[[], Any]],
    *,
    rounds: int = 5,
    clock: Callable[[], float] = time.perf_counter,
    warm_up: bool = True,
    budget: float = 60.0,
) -> dict[str, float]:
    """Median seconds of each case, the runs of all cases interleaved. A case that used up its share of `budget` seconds
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
        own = [row for row in self.rows if "machine" not in row]  # the others were taken over before
        here = {tuple(row[key] for key in keys) for row in own}
        others = [row for row in saved["rows"] if tuple(row[key] for key in keys) not in here]
        self.rows = own + [{**row, "machine": row.get("machine", saved.get("machine"))} for row in others]

    def __str__(self) -> str:
        return f"{self.name}: {machine_line(self.info)}\n\n{markdown(self.rows, self.columns)}\n"

    def save(self, folder: Path = RESULTS) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / f"{self.name}.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [*self.columns, *(f"machine_{key}" for key in self.info)])
            writer.writeheader()
            line = {f"machine_{key}": value for key, value in self.info.items()}
            own = [{f"machine_{k}": v for k, v in r.get("machine", {}).items()} for r in self.rows]
            rows = [{c: r[c] for c in self.columns if c in r} for r in self.rows]
            writer.writerows({**r, **line, **o} for r, o in zip(rows, own, strict=True))
        text = json.dumps({"machine": self.info, "rows": self.rows}, indent=1, default=float)
        (folder / f"{self.name}.json").write_text(text + "\n", encoding="utf-8")


def cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def markdown(rows: list[dict[str, Any]], columns: Sequence[str] = ()) -> str:
    """Rows as a table, columns of numbers to the right; all columns of the rows if none are named."""
    columns = columns or list(dict.fromkeys(key for row in rows for key in row if key != "machine"))
    numeric = [all(row.get(c, "") == "" or isinstance(row[c], int | float) for row in rows) for c in columns]
    lines = [list(columns), ["---:" if n else "---" for n in numeric]]
    lines += [[cell(row.get(c, "")) for c in columns] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
