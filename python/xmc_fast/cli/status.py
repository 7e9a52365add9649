"""``xmc-fast status``: how far a run has come, from its folder alone."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from xmc_fast.cli._common import Output, thousands

HELP = "blocks done, rate and time left of a run with --checkpoint"
EXAMPLES = ("xmc-fast status run/", "watch xmc-fast status run/")
WINDOW = 100  # the rate is that of the last so many blocks


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="the run's checkpoint folder")


def run(args: argparse.Namespace) -> Output:
    facts = status(Path(args.folder))
    unit, left = facts["unit"], facts["total"] - facts["done"]
    lines = [f"{thousands(facts['done'])} of {thousands(facts['total'])} {unit} done"]
    if facts["per_hour"] is not None:
        rate = facts["per_hour"]
        lines.append(f"{rate:,.0f} {unit} per hour" if rate >= 100 else f"{rate:.3g} {unit} per hour")
    if facts["seconds_since_last"] is not None:
        lines.append(f"last one {duration(facts['seconds_since_last'])} ago")
    if not left:
        lines.append(
            "finished" if facts["finished"] else "all there: run again to write the model's manifest"
        )
    elif facts["seconds_left"] is not None:
        lines.append(f"{duration(facts['seconds_left'])} left at that rate")
    return Output("\n".join(lines), facts)


def status(folder: Path, now: float | None = None) -> dict[str, Any]:
    """Counts and times of a run's folder (`OneVsAll`, `LabelTree` or `Mach`)."""
    unit, total, parts, finished = read_run(folder)
    times = sorted(part.stat().st_mtime for part in parts)[-WINDOW:]
    span = times[-1] - times[0] if times else 0.0
    per_second = (len(times) - 1) / span if span > 0 else None
    left = total - len(parts)
    return {
        "unit": unit,
        "total": total,
        "done": len(parts),
        "finished": finished,
        "per_hour": None if per_second is None else 3600 * per_second,
        "seconds_left": None if per_second is None else left / per_second,
        "seconds_since_last": max(0.0, (time.time() if now is None else now) - times[-1]) if times else None,
    }


def read_run(folder: Path) -> tuple[str, int, list[Path], bool]:
    """Unit, how many there will be, the finished ones, whether the model is complete."""
    from xmc_fast.model import is_model_folder

    if (folder / "fit.json").is_file():
        fit = json.loads((folder / "fit.json").read_text(encoding="utf-8"))
        if "n_trees" in fit:
            trees = sorted(folder.glob("tree-*.safetensors"))
            return "trees", fit["n_trees"], trees, is_model_folder(folder)
        (first, last), size = fit["labels"], fit["block_labels"]
        total = -(-last // size) - first // size
        return "blocks", total, sorted(folder.glob("block-*.safetensors")), is_model_folder(folder)
    if (folder / "mach.json").is_file():
        total = json.loads((folder / "mach.json").read_text(encoding="utf-8"))["n_repeats"]
        parts = sorted(path for path in folder.glob("repeat_*") if path.is_dir())
        return "repetitions", total, parts, len(parts) == total
    raise ValueError(f"{folder} is not the checkpoint of a run: it has neither fit.json nor mach.json")


def duration(seconds: float) -> str:
    """90061 -> "25 h 1 min"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
