"""``xmc-fast explain``: what a text model has learned about a label."""

from __future__ import annotations

import argparse

from xmc_fast.cli._common import Output, UsageError, add_model, positive
from xmc_fast.cli._models import open_model

HELP = "the strongest words for and against a label, its frequency, and the labels most like it"
EXAMPLES = ("xmc-fast explain model/ eggs", "xmc-fast explain model/ eggs baking --top 20 --json")


def configure(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("labels", nargs="+", metavar="LABEL", help="names of labels")
    parser.add_argument("--top", type=positive, default=10, metavar="N", help="words to show (default 10)")


def run(args: argparse.Namespace) -> Output:
    from xmc_fast.texts import TextClassifier

    model = open_model(args.model)
    if not isinstance(model, TextClassifier):
        raise UsageError(f"{args.model} is not a text model: only those know words")
    found = [model.describe_label(label, args.top) for label in args.labels]
    return Output("\n\n".join(map(str, found)), [label.to_dict() for label in found])
