"""``xmc-fast merge``: parts made apart become one model, or one list of predictions."""

from __future__ import annotations

import argparse
from typing import Any

from xmc_fast.cli._common import Output, UsageError, add_threads, positive, size, thousands

HELP = "join models of label ranges into one model, or their predictions into the k best"
EXAMPLES = (
    "xmc-fast merge part-0/ part-1/ part-2/ model/        # of xmc-fast train --labels, in any order",
    "xmc-fast merge -k 5 --first-labels 0 50000 -- a.txt b.txt best.txt   # predictions of those models",
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", nargs="+", metavar="PART", help="model folders or prediction files, then OUT"
    )
    parser.add_argument("-k", type=positive, default=5, help="labels per point to keep (default 5)")
    parser.add_argument(
        "--first-labels", type=int, nargs="+", metavar="L", help="predictions: the first label of each part"
    )
    add_threads(parser)


def run(args: argparse.Namespace) -> Output:
    if len(args.paths) < 2:
        raise UsageError("give the parts and the output: xmc-fast merge PART... OUT")
    *parts, out = args.paths
    return merge_predictions(parts, out, args) if args.first_labels else merge_models(parts, out)


def merge_models(parts: list[str], out: str) -> Output:
    """Join model folders in the order of their label ranges."""
    from xmc_fast.model import SparseModel

    models = ordered([(part, SparseModel.load(part)) for part in parts])
    model = SparseModel.concat(models)
    model.params.pop("labels", None)
    model.save(out)
    facts = {"labels": model.n_labels, "weights": model.nnz, "bytes": model.nbytes, "model": out}
    text = f"{len(parts)} parts, {thousands(model.n_labels)} labels, {size(model.nbytes)} -> {out}"
    return Output(text, facts)


def ordered(parts: list[tuple[str, Any]]) -> list[Any]:
    """By the label ranges that the parts were trained on, which must fit together; as given if not known."""
    if any("labels" not in model.params for _, model in parts):
        return [model for _, model in parts]
    parts = sorted(parts, key=lambda part: part[1].params["labels"])
    end = parts[0][1].params["labels"][0]
    for path, model in parts:
        first, last = model.params["labels"]
        if first != end:
            raise ValueError(f"{path} has labels {first} to {last - 1}, expected a part that starts at {end}")
        end = last
    return [model for _, model in parts]


def merge_predictions(parts: list[str], out: str, args: argparse.Namespace) -> Output:
    """The k best of prediction files of the same points."""
    from xmc_fast.model import merge_topk, read_predictions, write_predictions

    if len(args.first_labels) != len(parts):
        raise ValueError(f"{len(parts)} prediction files, but {len(args.first_labels)} --first-labels")
    lists = [
        read_predictions(part, 2**31 - 1 - first)
        for part, first in zip(parts, args.first_labels, strict=True)
    ]
    best = merge_topk(lists, args.k, first_labels=args.first_labels, n_jobs=args.threads)
    write_predictions(out, best)
    return Output(f"{thousands(best.shape[0])} points -> {out}", {"points": best.shape[0], "output": out})
