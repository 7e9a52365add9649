"""``xmc-fast evaluate``: the metric table of a model on labelled data."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from xmc_fast.cli import _inputs, _models
from xmc_fast.cli._common import Output, UsageError, add_model, add_paths, add_threads, positive, say
from xmc_fast.cli._propensity import add_propensity, propensities, train_labels

if TYPE_CHECKING:
    from xmc_fast.data import Dataset

HELP = "predict labelled data and print every metric"
EXAMPLES = (
    "xmc-fast evaluate model/ test.txt",
    "xmc-fast evaluate text-model/ test.csv --text title,body --label tags --sep '|'",
    "xmc-fast evaluate model/ test.txt --train train.txt --propensity wikipedia --bins",
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_paths(parser, "DATA", "labelled data in any format")
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
    _inputs.add_input(parser)
    add_threads(parser)


def run(args: argparse.Namespace) -> Output:
    if not args.train and (args.bins or args.propensity):
        what = "--bins" if args.bins else "--propensity"
        raise UsageError(f"{what} needs --train: label frequencies are those of the training set")
    model = _models.open_model(args.model, args.threads)
    data = _inputs.read(args.paths, args, model)
    say(args, data.describe())
    found = evaluate(model, data, args.k, args.threads, args, bootstrap=args.bootstrap)
    return Output(str(found), found.to_dict())


def evaluate(
    model: Any,
    data: Dataset,
    k: list[int],
    threads: int | None,
    args: argparse.Namespace | None = None,
    *,
    depth: int = 0,
    **options: Any,
) -> Any:
    """The metrics of a model of any kind; labels are matched by name, or by number without names.

    ``args`` are the options of `add_propensity` and ``--bins``; at least ``depth`` labels a row are predicted.
    """
    import numpy as np

    from xmc_fast import metrics
    from xmc_fast.texts._evaluation import evaluation
    from xmc_fast.texts._labels import encode

    labels = _inputs.labels_of(data)
    if labels is None:
        raise ValueError("the data has no labels to compare with: give a labels file, or --label")
    truth = encode(labels, _models.names(model))
    if args is not None and args.train:
        Y = train_labels(args, truth.names)
        Y.resize((Y.shape[0], truth.Y.shape[1]))  # labels that the model does not know were never seen
        options["propensity"] = propensities(Y, args.propensity)
        if args.bins:
            options["bins"] = metrics.frequency_bins(Y)
    proba = _models.takes_text(model) and _models.calibrated(model)
    top = _models.predict(model, data, max(*k, depth), proba=proba, n_jobs=threads)
    return evaluation(truth, top, np.diff(top.indptr) > 0, k, n_jobs=threads, **options)
