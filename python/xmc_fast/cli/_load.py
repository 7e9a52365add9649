"""Reading what people name on the command line, whatever its format."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMATS = ("auto", "xmc", "libsvm", "libsvm1", "pair", "npz", "text", "jsonl")


@dataclass
class Loaded:
    """Features or texts, and labels: X is None for raw text, texts is None for features."""

    X: Any
    Y: Any
    texts: list[str] | None = None


def add_format(parser: argparse.ArgumentParser) -> None:
    """The option ``--format``."""
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="auto",
        help="auto goes by the file names: one file is xmc (.svm, .libsvm: libsvm; .jsonl: JSON lines), two are"
        " npz (.npz) or text lines and label lines; pair is the two-file form (X_Xf.txt X_Y.txt), libsvm1 counts"
        " from one. All may end in .gz or .xz",
    )


def add_propensity(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--train",
        nargs="+",
        metavar="DATA",
        help="the training file (or two): its label counts give propensities and bins",
    )
    parser.add_argument(
        "--propensity",
        metavar="P",
        help="default, wikipedia, amazon, or A,B of the propensity model (needs --train)",
    )


def propensities(train_labels: Any, choice: str | None) -> Any:
    """Propensities of the labels by a preset's name or by "A,B"."""
    from xmc_fast import propensity

    choice = choice or "default"
    if choice in propensity.PRESETS:
        return propensity.estimate(train_labels, choice)
    try:
        a, b = map(float, choice.split(","))
    except ValueError:
        presets = ", ".join(propensity.PRESETS)
        raise ValueError(
            f"--propensity must be one of {presets}, or A,B (two numbers), got {choice!r}"
        ) from None
    return propensity.estimate(train_labels, propensity.JPV(a, b))


def load(paths: Sequence[str], form: str, threads: int | None = None) -> Loaded:
    """Read one or two files as features (or texts) and labels."""
    from xmc_fast import data

    form = guess(paths) if form == "auto" else form
    expected = 2 if form in ("pair", "npz", "text") else 1
    if len(paths) != expected:
        raise ValueError(f"format {form} takes {expected} file(s), got {len(paths)}: {' '.join(paths)}")
    for path in paths:
        if Path(path).is_dir():
            raise ValueError(f"{path} is a folder, expected a data file")
    if form == "text":
        texts = data.read_text(*paths)
        return Loaded(None, texts.Y, list(texts.texts))
    if form == "jsonl":
        texts = data.read_jsonl(*paths)
        return Loaded(None, texts.Y, list(texts.texts))
    if form == "npz":
        X, Y = data.read_npz(*paths)
    elif form == "pair":
        X, Y = data.read_pair(*paths, n_jobs=threads)
    elif form == "xmc":
        X, Y = data.read_xmc(paths[0], n_jobs=threads)
    else:
        X, Y = data.read_libsvm(paths[0], one_based=form == "libsvm1", n_jobs=threads)
    return Loaded(X, Y)


def guess(paths: Sequence[str]) -> str:
    """The format that file names suggest."""
    name = paths[0].lower().removesuffix(".gz").removesuffix(".xz")
    if name.endswith(".npz"):
        return "npz"
    if len(paths) == 2:
        return "text"
    if name.endswith(".jsonl"):
        return "jsonl"
    return "libsvm" if name.endswith((".svm", ".libsvm")) else "xmc"
