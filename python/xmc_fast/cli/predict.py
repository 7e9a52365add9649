"""``xmc-fast predict``: a model and data in, the k best labels per row out."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any

from xmc_fast.cli import _inputs, _models, _output
from xmc_fast.cli._common import (
    Output,
    UsageError,
    add_engine,
    add_model,
    add_paths,
    add_threads,
    aside,
    counted,
    note,
    open_engine,
    positive,
    split_paths,
)
from xmc_fast.cli._propensity import add_propensity, propensities, train_labels

HELP = "predict the k best labels of each row"
EXAMPLES = (
    "xmc-fast predict model/ test.txt out.txt -k 5",
    "xmc-fast predict text-model/ questions.csv tags.csv --text title,body --threshold 0.3",
    "cat lines.txt | xmc-fast predict text-model/ - - --format text",
    "xmc-fast predict model/ test.txt out.txt --optimize macro-f1 --mix 0.2",
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_paths(
        parser, "DATA", "the data, then the output: .jsonl, .csv, .tsv, else label:value lines; - is a pipe"
    )
    parser.add_argument("-k", type=positive, default=5, help="most labels per row (default 5)")
    parser.add_argument("--threshold", type=float, metavar="P", help="leave out labels of a lower value")
    parser.add_argument("--ids", action="store_true", help="label ids also where the model has names")
    values = parser.add_mutually_exclusive_group()
    values.add_argument(
        "--proba", action="store_true", help="probabilities (default for text models that have them)"
    )
    values.add_argument("--scores", action="store_true", help="raw scores")
    parser.add_argument(
        "--optimize", metavar="METRIC", help="choose the labels that maximise this metric, e.g. macro-f1"
    )
    parser.add_argument("--mix", type=float, metavar="X", help="share of P@k mixed into the metric, 0 to 1")
    parser.add_argument(
        "--candidates",
        type=positive,
        default=100,
        metavar="N",
        help="labels per row that --optimize chooses from (default 100)",
    )
    parser.add_argument(
        "--gains", action="store_true", help="with --optimize: what each label adds to the metric"
    )
    add_propensity(parser)
    _inputs.add_input(parser)
    add_engine(parser)
    add_threads(parser)


def run(args: argparse.Namespace) -> Output:
    inputs, out = split_paths(args, "the data and the output: xmc-fast predict MODEL DATA OUT")
    check_options(args)
    model = _models.open_model(args.model, args.threads)
    check_probabilities(model, args)
    args.proba = args.proba or (_models.takes_text(model) and _models.calibrated(model) and not args.scores)
    names = None if args.ids or not _models.takes_text(model) else _models.label_names(model)
    start = time.perf_counter()
    about: list[str] = []  # what was read
    with open_engine(args) as engine:
        pieces = (
            optimized(model, inputs, args, about)
            if args.optimize
            else best(model, inputs, args, engine, about)
        )
        rows = _output.write(out, pieces, names)
    seconds = time.perf_counter() - start
    facts = {"rows": rows, "seconds": seconds, "output": out}
    text = f"{counted(rows, 'row')}{''.join(about)} in {seconds:.2f} s -> {out}"
    if aside(out):
        note(text)
        return Output("", None)
    return Output(text, facts)


def check_options(args: argparse.Namespace) -> None:
    """Errors of options that do not go together."""
    for option in ("mix", "gains"):
        if getattr(args, option) not in (None, False) and not args.optimize:
            raise UsageError(f"--{option} needs --optimize")
    if args.mix is not None and not 0 <= args.mix <= 1:
        raise UsageError(f"--mix must be from 0 to 1, got {args.mix:g}")
    if args.propensity and not args.train:
        raise UsageError("--propensity needs --train: label frequencies are those of the training set")


def check_probabilities(model: Any, args: argparse.Namespace) -> None:
    """A metric must be known, and a linear model calibrated, before anything is read."""
    from xmc_fast import decide

    if args.optimize and args.optimize != "psp":
        decide.metric(args.optimize)
    linear = _models.linear_part(model)
    if (args.proba or args.optimize) and getattr(linear, "calibration", linear) is None:
        option = "--optimize" if args.optimize else "--proba"
        raise ValueError(f"{option} needs a calibrated model: xmc-fast train ... --calibrate HELD_OUT_DATA")


def best(
    model: Any, inputs: list[str], args: argparse.Namespace, engine: Any, about: list[str]
) -> Iterator[Any]:
    """The best labels, chunk by chunk of the data; ``about`` gets what the data is."""
    from xmc_fast.texts._labels import keep_entries

    options = {"n_jobs": args.threads} | ({} if engine is None else {"engine": engine})
    for data in _inputs.read_chunks(inputs, args, model):
        about[:] = [f" of {data.kind()}"]
        top = _models.predict(model, data, args.k, proba=args.proba, **options)
        yield top if args.threshold is None else keep_entries(top, top.data >= args.threshold)


def optimized(model: Any, inputs: list[str], args: argparse.Namespace, about: list[str]) -> Iterator[Any]:
    """Labels of the whole data, chosen together for a metric."""
    from xmc_fast import decide

    data = _inputs.read(inputs, args, model)
    about[:] = [f" of {data.kind()}"]
    candidates = max(args.candidates, args.k)
    proba = _models.predict(model, data, candidates, proba=True, n_jobs=args.threads)
    metric: Any = args.optimize
    if metric == "psp":
        if not args.train:
            raise ValueError("--optimize psp needs --train: propensities come from the training labels")
        Y = train_labels(args, _models.names(model))
        metric = decide.metric("psp", propensity=propensities(Y, args.propensity))
    chosen, _ = decide.optimize(proba, metric=metric, k=args.k, mix=args.mix, n_jobs=args.threads)
    yield chosen if args.gains else with_probabilities(chosen, proba)


def with_probabilities(chosen: Any, proba: Any) -> Any:
    """The chosen labels with their probabilities instead of their gains, best first."""
    import numpy as np

    from xmc_fast._validate import to_scipy

    width = proba.shape[1]

    def keys(matrix: Any) -> Any:
        return np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr)) * width + matrix.indices

    place = np.argsort(keys(proba), kind="stable")
    found = np.searchsorted(keys(proba)[place], keys(chosen))
    values = proba.data[place][np.minimum(found, len(place) - 1)]
    values[keys(proba)[place][np.minimum(found, len(place) - 1)] != keys(chosen)] = 0
    rows = keys(chosen) // width
    order = np.lexsort((chosen.indices, -values, rows))
    return to_scipy(chosen.indptr, chosen.indices[order], values[order], chosen.shape)
