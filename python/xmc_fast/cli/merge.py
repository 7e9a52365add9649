"""``xmc-fast merge``: parts made apart become one model, or one list of predictions."""

from __future__ import annotations

import argparse
from typing import Any

from xmc_fast.cli._common import (
    Output,
    add_paths,
    add_threads,
    positive,
    size,
    split_paths,
    stored,
    thousands,
)
from xmc_fast.cli._models import linear_part, open_model

HELP = "join models of label ranges into one model, or their predictions into the k best"
EXAMPLES = (
    "xmc-fast merge part-0/ part-1/ part-2/ model/        # of xmc-fast train --labels, in any order",
    "xmc-fast merge -k 5 --first-labels 0 50000 -- a.txt b.txt best.txt   # predictions of those models",
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_paths(parser, "PART", "model folders or prediction files, then OUT")
    parser.add_argument("-k", type=positive, default=5, help="labels per row to keep (default 5)")
    parser.add_argument(
        "--first-labels", type=int, nargs="+", metavar="L", help="predictions: the first label of each part"
    )
    add_threads(parser)


def run(args: argparse.Namespace) -> Output:
    parts, out = split_paths(args, "the parts and the output: xmc-fast merge PART... OUT")
    return merge_predictions(parts, out, args) if args.first_labels else merge_models(parts, out)


def merge_models(parts: list[str], out: str) -> Output:
    """Join model folders in the order of their label ranges; text models keep their vectorizer and names."""
    from xmc_fast.model import SparseModel

    opened = [(part, open_model(part)) for part in parts]
    for path, model in opened:
        if not isinstance(linear_part(model), SparseModel):
            raise ValueError(f"{path} is a {type(model).__name__}: only linear models are merged")
        if type(model) is not type(opened[0][1]):
            raise ValueError(f"{path} and {parts[0]} differ: one is a text model, the other takes features")
    models = ordered(opened)
    model = type(models[0]).concat(models)
    linear = linear_part(model)
    linear.params.pop("labels", None)
    model.save(out)
    linear = linear_part(open_model(out))
    facts = {
        "labels": linear.n_labels,
        "weights": linear.nnz,
        "bytes": linear.nbytes,
        "disk_bytes": stored(out),
        "model": out,
    }
    text = f"{len(parts)} parts, {thousands(linear.n_labels)} labels, {size(linear.nbytes)} -> {out}"
    return Output(text, facts)


def ordered(parts: list[tuple[str, Any]]) -> list[Any]:
    """By the label ranges that the parts were trained on, which must fit together; as given if not known."""
    ranges = [linear_part(model).params.get("labels") for _, model in parts]
    if None in ranges:
        return [model for _, model in parts]
    order = sorted(range(len(parts)), key=lambda i: ranges[i])
    end = ranges[order[0]][0]
    for i in order:
        first, last = ranges[i]
        if first != end:
            raise ValueError(
                f"{parts[i][0]} has labels {first} to {last - 1}, expected a part that starts at {end}"
            )
        end = last
    return [parts[i][1] for i in order]


def merge_predictions(parts: list[str], out: str, args: argparse.Namespace) -> Output:
    """The k best of prediction files of the same rows."""
    from xmc_fast.model import merge_topk, read_predictions, write_predictions

    if len(args.first_labels) != len(parts):
        raise ValueError(f"{len(parts)} prediction files, but {len(args.first_labels)} --first-labels")
    lists = [
        read_predictions(part, 2**31 - 1 - first)
        for part, first in zip(parts, args.first_labels, strict=True)
    ]
    best = merge_topk(lists, args.k, first_labels=args.first_labels, n_jobs=args.threads)
    write_predictions(out, best)
    return Output(f"{thousands(best.shape[0])} rows -> {out}", {"rows": best.shape[0], "output": out})
