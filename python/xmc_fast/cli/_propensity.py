"""Propensities on the command line: from the label counts of the training data."""

from __future__ import annotations

import argparse
from typing import Any

from xmc_fast.cli import _inputs


def add_propensity(parser: argparse.ArgumentParser) -> None:
    """The options ``--train`` and ``--propensity``."""
    parser.add_argument(
        "--train",
        nargs="+",
        metavar="DATA",
        help="the training data: its label counts give propensities and bins",
    )
    parser.add_argument(
        "--propensity",
        metavar="P",
        help="default, wikipedia, amazon, or A,B of the propensity model (needs --train)",
    )


def train_labels(args: argparse.Namespace, names: list[str]) -> Any:
    """Labels of the training data ``--train`` as a matrix with the columns of ``names``."""
    from xmc_fast.texts._labels import encode

    return encode(_inputs.labels_of(_inputs.read(args.train, args)), names).Y[:, : len(names)]


def propensities(Y: Any, choice: str | None) -> Any:
    """Propensities of the labels by a preset's name or by "A,B"."""
    from xmc_fast import propensity

    choice = choice or "default"
    if choice in propensity.PRESETS:
        return propensity.estimate(Y, choice)
    try:
        a, b = map(float, choice.split(","))
    except ValueError:
        presets = ", ".join(propensity.PRESETS)
        raise ValueError(
            f"--propensity must be one of {presets}, or A,B (two numbers), got {choice!r}"
        ) from None
    return propensity.estimate(Y, propensity.JPV(a, b))
