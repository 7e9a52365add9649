"""``xmc-fast evaluate``: the metric table of a model on a test set."""

from __future__ import annotations

import argparse
from typing import Any

from xmc_fast.cli._common import Output, UsageError, add_threads, positive
from xmc_fast.cli._load import add_format, add_propensity, guess, load, propensities
from xmc_fast.cli.predict import load_model, predict_loaded, takes_text

HELP = "predict a test set and print every metric"
EXAMPLES = (
    "xmc-fast evaluate model/ test.txt",
    "xmc-fast evaluate model/ test.txt --train train.txt --propensity wikipedia --bins",
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a model folder")
    parser.add_argument("paths", nargs="+", metavar="DATA", help="the test file (or two)")
    add_format(parser)
    parser.add_argument(
        "-k", type=positive, nargs="+", default=[1, 3, 5], metavar="K", help="cut-offs (default 1 3 5)"
    )
    add_propensity(parser)
    parser.add_argument(
        "--bins", action="store_true", help="also by label frequency: head, torso, tail (needs --train)"
    )
    parser.add_argument(
        "--bootstrap", type=int, default=0, metavar="N", help="confidence intervals from N resamples"
    )
    add_threads(parser)


def run(args: argparse.Namespace) -> Output:
    from xmc_fast import metrics

    if not args.train and (args.bins or args.propensity):
        what = "--bins" if args.bins else "--propensity"
        raise UsageError(f"{what} needs --train: label frequencies are those of the training set")
    model = load_model(args.model)
    if args.format == "auto" and takes_text(model) and guess(args.paths) in ("xmc", "libsvm"):
        raise UsageError("the model takes raw text: give the texts and the labels, MODEL TEXTS LABELS")
    loaded = load(args.paths, args.format, args.threads)
    options: dict[str, Any] = {}
    if args.train:
        train_labels = load(args.train, args.format, args.threads).Y
        options["propensity"] = propensities(train_labels, args.propensity)
        if args.bins:
            options["bins"] = metrics.frequency_bins(train_labels)
    prediction = predict_loaded(model, loaded, max(args.k), args.threads)
    report = metrics.report(
        loaded.Y, prediction, k=args.k, bootstrap=args.bootstrap, n_jobs=args.threads, **options
    )
    return Output(str(report), report.to_dict())
