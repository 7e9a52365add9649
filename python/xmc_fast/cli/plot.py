"""``xmc-fast plot``: pictures of data, models and runs."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any

from xmc_fast.cli._common import Output, UsageError, add_threads
from xmc_fast.cli._load import add_format, load

HELP = "draw a picture (needs matplotlib: pip install 'xmc-fast[plots]')"
EXAMPLES = (
    "xmc-fast plot labels train.txt labels.png",
    "xmc-fast plot weights model/ weights.png",
    "xmc-fast plot pruning model/ test.txt pruning.png",
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=sorted(KINDS), help="what to draw")
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="what the kind needs (see examples), then the picture"
    )
    add_format(parser)
    add_threads(parser)


def run(args: argparse.Namespace) -> Output:
    if len(args.paths) < 2:
        raise UsageError("give the input and the picture: xmc-fast plot KIND IN PICTURE")
    *inputs, picture = args.paths
    ax = KINDS[args.kind](inputs, args)
    figure = ax.figure
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # tight layout of log axes
        figure.savefig(picture, dpi=150, bbox_inches="tight")
    return Output(picture, {"picture": picture})


def labels(inputs: list[str], args: argparse.Namespace) -> Any:
    from xmc_fast import plots

    return plots.label_distribution(load(inputs, args.format, args.threads).Y)


def weights(inputs: list[str], args: argparse.Namespace) -> Any:
    from xmc_fast import plots
    from xmc_fast.model import SparseModel

    return plots.weight_histogram(SparseModel.load(inputs[0]))


def pruning(inputs: list[str], args: argparse.Namespace) -> Any:
    from xmc_fast import plots
    from xmc_fast.model import SparseModel

    if len(inputs) < 2:
        raise UsageError(
            "give the model, the test data and the picture: xmc-fast plot pruning MODEL TEST PICTURE"
        )
    loaded = load(inputs[1:], args.format, args.threads)
    return plots.pruning_curve(SparseModel.load(inputs[0]), loaded.X, loaded.Y)


KINDS: dict[str, Callable[[list[str], argparse.Namespace], Any]] = {
    "labels": labels,
    "weights": weights,
    "pruning": pruning,
}
