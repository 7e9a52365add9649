"""What the commands share."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class UsageError(ValueError):
    """Options or arguments that do not go together: exit code 2."""


@dataclass
class Output:
    """What a command has to say: for people, and with ``--json`` for programs."""

    text: str
    data: Any = field(default_factory=dict)


def positive(text: str) -> int:
    """A whole number from 1 on, as argparse's ``type``."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on, got {text!r}")
    return int(text)


def add_model(parser: argparse.ArgumentParser) -> None:
    """The argument MODEL."""
    parser.add_argument("model", metavar="MODEL", help="a model folder of any kind")


def add_paths(parser: argparse.ArgumentParser, metavar: str, help: str) -> None:
    """Input files, then what is written."""
    parser.add_argument("paths", nargs="+", metavar=metavar, help=help)


def add_threads(parser: argparse.ArgumentParser) -> None:
    """The option ``--threads``, the same everywhere."""
    parser.add_argument(
        "--threads",
        type=int,
        default=None,
        metavar="N",
        help="threads (default: the CPUs, or OMP_NUM_THREADS)",
    )


def add_engine(parser: argparse.ArgumentParser) -> None:
    """The options ``--engine`` and ``--address``."""
    parser.add_argument(
        "--engine",
        metavar="NAME",
        help="dask, ray or a joblib backend: label blocks go to its workers (--threads is then per task)",
    )
    parser.add_argument(
        "--address", metavar="ADDR", help="of the cluster: tcp://host:8786 (dask), host:6379 or auto (ray)"
    )


@contextlib.contextmanager
def open_engine(args: argparse.Namespace) -> Iterator[Any]:
    """What ``--engine`` and ``--address`` mean, connected, as an estimator's ``engine``."""
    if args.engine is None:
        if args.address is not None:
            raise UsageError("--address needs --engine")
        yield None
        return
    from xmc_fast import engine

    with engine.connect(args.engine, args.address) as connected:
        yield connected


def split_paths(args: argparse.Namespace, usage: str) -> tuple[list[str], str]:
    """The inputs and, last, the output of ``args.paths``; the output must not replace an input."""
    if len(args.paths) < 2:
        raise UsageError(f"give {usage}")
    *inputs, out = args.paths
    if out != "-" and any(Path(out).resolve() == Path(path).resolve() for path in inputs):
        raise UsageError(f"the output {out} is also an input: give another name")
    return inputs, "/dev/stdout" if out == "-" else out


def say(args: argparse.Namespace, text: str) -> None:
    """Tell people what is happening; nothing with ``--json``. Standard output may be the result's: see `aside`."""
    if not args.json:
        print(text, flush=True)


def aside(out: str) -> bool:
    """Whether a command's result goes to standard output, so that its own words must not."""
    return out in ("/dev/stdout", "/dev/fd/1")


def note(text: str) -> None:
    """One line on stderr."""
    print(f"xmc-fast: note: {' '.join(text.split())}", file=sys.stderr)


def thousands(n: int) -> str:
    """1234567 -> "1,234,567"."""
    return f"{n:,}"


def counted(n: int, what: str) -> str:
    """(1, "row left out") -> "1 row left out"; (2, "row left out") -> "2 rows left out"."""
    noun, gap, rest = what.partition(" ")
    return f"{thousands(n)} {noun}{'s' * (n != 1)}{gap}{rest}"


def stored(folder: str | Path) -> int:
    """Bytes of the files of a folder."""
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


def size(n: float) -> str:
    """Bytes for people: 1536 -> "1.5 kB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000 or unit == "GB":
            return f"{n:.0f} B" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    raise AssertionError


def table(rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns, the first to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    )
