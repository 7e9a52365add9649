"""``xmc-fast compress``: a saved model in the small form."""

from __future__ import annotations

import argparse
from typing import Any

from xmc_fast.cli import _inputs, _models
from xmc_fast.cli._common import Output, UsageError, add_model, add_threads, note, positive, size, stored

HELP = "write a model in the small form: fewer weights, one byte each"
EXAMPLES = (
    "xmc-fast compress model/ small/",
    "xmc-fast compress model/ small/ --data heldout.txt --max-loss 0.1",
    "xmc-fast compress model/ small/ --max-bytes 5000000",
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("out", metavar="OUT", help="the folder to write")
    parser.add_argument(
        "--data", nargs="+", metavar="DATA", help="labelled rows that the model was not trained on"
    )
    parser.add_argument(
        "--max-loss",
        type=float,
        default=0.1,
        metavar="POINTS",
        help="points of P@1, of P@3 and of P@5 that may be lost on --data (default 0.1)",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--delta", type=float, metavar="D", help="drop weights below D (default 0.03)")
    how.add_argument("--max-bytes", type=positive, metavar="N", help="bytes that the weights may take")
    _inputs.add_input(parser)
    add_threads(parser)


def run(args: argparse.Namespace) -> Output:
    from xmc_fast.model import SparseModel

    if args.data and (args.delta is not None or args.max_bytes):
        raise UsageError("--data chooses by --max-loss: it goes without --delta and --max-bytes")
    model = _models.open_model(args.model, args.threads)
    linear = _models.linear_part(model)
    if not isinstance(linear, SparseModel):
        raise ValueError(f"{args.model} is a {type(linear).__name__}: only linear models are compressed")
    rows = held_out(model, args) if args.data else (None, None)
    choice = {"max_loss": args.max_loss, "delta": args.delta, "max_bytes": args.max_bytes}
    small = linear.compress(*rows, **choice, n_jobs=args.threads)
    if linear.calibration is not None and small.calibration is None:
        note("the small model has no calibrated probabilities: give --data to fit them anew")
    before = stored(args.model)
    if model is linear:
        small.save(args.out)
    else:
        model.model_ = small
        model.save(args.out)
    facts = {"weights": small.nnz, "bytes": small.nbytes, "disk_bytes": stored(args.out), "model": args.out}
    return Output(f"{size(before)} -> {size(facts['disk_bytes'])} -> {args.out}", facts)


def held_out(model: Any, args: argparse.Namespace) -> tuple[Any, Any]:
    """Features and labels of the rows of ``--data``, labels that the model does not know left out."""
    from xmc_fast.texts._labels import encode

    data = _inputs.read(args.data, args, model)
    _models.check_input(model, data)
    labels = _inputs.labels_of(data)
    if labels is None:
        raise ValueError("the data has no labels to compare with: give a labels file, or --label")
    Y = encode(labels, _models.names(model)).Y[:, : _models.n_labels(model)]
    return (data.X if data.texts is None else model.transform(data.texts)), Y
