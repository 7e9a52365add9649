"""``xmc-fast plot``: pictures of data and models."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any

from xmc_fast.cli._common import Output, UsageError, add_paths, add_threads, split_paths
from xmc_fast.cli._inputs import add_input, labels_of, read
from xmc_fast.cli._models import linear_part, names, open_model

HELP = "draw a picture (needs matplotlib: pip install 'xmc-fast[plots]')"
EXAMPLES = (
    "xmc-fast plot labels train.txt labels.png",
    "xmc-fast plot weights model/ weights.png",
    "xmc-fast plot pruning model/ test.txt pruning.png",
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=sorted(KINDS), help="what to draw")
    add_paths(parser, "PATH", "what the kind needs (see examples), then the picture")
    add_input(parser)
    add_threads(parser)


def run(args: argparse.Namespace) -> Output:
    inputs, picture = split_paths(args, "the input and the picture: xmc-fast plot KIND IN PICTURE")
    ax = KINDS[args.kind](inputs, args)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # tight layout of log axes
        ax.figure.savefig(picture, dpi=150, bbox_inches="tight")
    return Output(picture, {"picture": picture})


def labels(inputs: list[str], args: argparse.Namespace) -> Any:
    from xmc_fast import plots
    from xmc_fast.texts._labels import encode

    return plots.label_distribution(encode(labels_of(read(inputs, args))).Y)


def weights(inputs: list[str], args: argparse.Namespace) -> Any:
    from xmc_fast import plots

    return plots.weight_histogram(linear_part(open_model(inputs[0])))


def pruning(inputs: list[str], args: argparse.Namespace) -> Any:
    from xmc_fast import plots
    from xmc_fast.texts._labels import encode

    if len(inputs) < 2:
        raise UsageError(
            "give the model, the test data and the picture: xmc-fast plot pruning MODEL TEST PICTURE"
        )
    model = open_model(inputs[0], args.threads)
    data = read(inputs[1:], args)
    known = names(model)
    X = data.X if data.texts is None else model.transform(data.texts)
    return plots.pruning_curve(linear_part(model), X, encode(labels_of(data), known).Y[:, : len(known)])


KINDS: dict[str, Callable[[list[str], argparse.Namespace], Any]] = {
    "labels": labels,
    "weights": weights,
    "pruning": pruning,
}
