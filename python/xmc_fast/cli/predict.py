"""``xmc-fast predict``: a model and test data in, the k best labels per line out."""

from __future__ import annotations

import argparse
import time
from typing import Any

from xmc_fast.cli import _lightxml, _mach
from xmc_fast.cli._common import (
    Output,
    UsageError,
    add_engine,
    add_threads,
    check_output,
    open_engine,
    positive,
    thousands,
)
from xmc_fast.cli._load import Loaded, add_format, add_propensity, guess, load, propensities

HELP = "predict the k best labels of each point"
EXAMPLES = (
    "xmc-fast predict model/ test.txt out.txt -k 5",
    "xmc-fast predict text-model/ questions.txt out.txt        # one text per line",
    "xmc-fast predict model/ test.txt out.txt --optimize macro-f1 --mix 0.2",
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a model folder")
    parser.add_argument(
        "paths", nargs="+", metavar="DATA", help="the test file (or two), then the output file"
    )
    add_format(parser)
    parser.add_argument("-k", type=positive, default=5, help="labels per point (default 5)")
    parser.add_argument(
        "--proba", action="store_true", help="probabilities instead of scores (calibrated models)"
    )
    parser.add_argument(
        "--optimize", metavar="METRIC", help="choose the labels that maximise this metric, e.g. macro-f1"
    )
    parser.add_argument("--mix", type=float, metavar="X", help="share of P@k mixed into the metric, 0 to 1")
    parser.add_argument(
        "--candidates",
        type=positive,
        default=100,
        metavar="N",
        help="labels per point that --optimize chooses from (default 100)",
    )
    add_propensity(parser)
    add_engine(parser)
    add_threads(parser)


def run(args: argparse.Namespace) -> Output:
    if len(args.paths) < 2:
        raise UsageError("give the data and the output: xmc-fast predict MODEL DATA OUT")
    *inputs, out = args.paths
    check_output(out, inputs)
    if args.mix is not None and not args.optimize:
        raise UsageError("--mix needs --optimize")
    if args.mix is not None and not 0 <= args.mix <= 1:
        raise UsageError(f"--mix must be from 0 to 1, got {args.mix:g}")
    if args.propensity and not args.train:
        raise UsageError("--propensity needs --train: label frequencies are those of the training set")
    model = load_model(args.model)
    check_probabilities(model, args)
    start = time.perf_counter()
    rows = optimized(model, inputs, out, args) if args.optimize else streamed(model, inputs, out, args)
    seconds = time.perf_counter() - start
    facts = {"points": rows, "seconds": seconds, "output": out}
    return Output(f"{thousands(rows)} points in {seconds:.2f} s -> {out}", facts)


def load_model(folder: str) -> Any:
    """A saved model: of features, or of texts when it holds a vectorizer or a transformer."""
    from xmc_fast import pipeline
    from xmc_fast.model import is_model_folder

    if _mach.is_folder(folder):
        return _mach.load(folder)
    if not is_model_folder(folder):
        raise ValueError(f"{folder} is not a model folder (it has no manifest.json)")
    if _lightxml.is_folder(folder):
        return _lightxml.load(folder)
    return pipeline.load_model(folder)


def check_probabilities(model: Any, args: argparse.Namespace) -> None:
    """A metric must be known, and a linear model calibrated, before anything is read."""
    from xmc_fast import decide

    if args.optimize and args.optimize != "psp":
        decide.metric(args.optimize)
    linear = getattr(model, "model", model)  # of a text model
    if (args.proba or args.optimize) and getattr(linear, "calibration", linear) is None:
        option = "--optimize" if args.optimize else "--proba"
        raise ValueError(f"{option} needs a calibrated model: xmc-fast train ... --calibrate HELD_OUT_DATA")


def takes_text(model: Any) -> bool:
    """Whether a model takes texts; such models read files of lines themselves."""
    return hasattr(model, "predict_file")


def predict_loaded(model: Any, loaded: Loaded, k: int, threads: int | None, *, proba: bool = False) -> Any:
    """Predictions for data in memory."""
    wants_text = takes_text(model)
    if wants_text != (loaded.texts is not None):
        kinds = ("features", "raw text")
        raise ValueError(
            f"the model takes {kinds[wants_text]}, the data is {kinds[not wants_text]} (see --format)"
        )
    return model.predict(loaded.texts if wants_text else loaded.X, k, proba=proba, n_jobs=threads)


def streamed(model: Any, inputs: list[str], out: str, args: argparse.Namespace) -> int:
    """Predict a file piece by piece, in constant memory; other formats than xmc and text lines as a whole."""
    from xmc_fast import model as models

    options = {"proba": args.proba, "n_jobs": args.threads}
    if args.engine is not None:
        return distributed(model, inputs, out, args)
    if len(inputs) == 1 and takes_text(model) and args.format in ("auto", "text"):
        return int(model.predict_file(inputs[0], out, args.k, **options))
    form = guess(inputs) if args.format == "auto" else args.format
    if form == "xmc" and not takes_text(model):
        return int(models.predict_file(model, inputs[0], out, args.k, **options))
    loaded = load(inputs, form, args.threads)
    prediction = predict_loaded(model, loaded, args.k, args.threads, proba=args.proba)
    models.write_predictions(out, prediction)
    return int(prediction.shape[0])


def distributed(model: Any, inputs: list[str], out: str, args: argparse.Namespace) -> int:
    """Shards of the labels on the workers of an engine."""
    from xmc_fast.model import write_predictions

    if takes_text(model):
        raise ValueError("--engine is for models of features; this one takes texts")
    X = load(inputs, args.format, args.threads).X
    with open_engine(args) as engine:
        best = model.predict(X, args.k, proba=args.proba, n_jobs=args.threads, engine=engine)
    write_predictions(out, best)
    return int(best.shape[0])


def optimized(model: Any, inputs: list[str], out: str, args: argparse.Namespace) -> int:
    """Choose the labels of the whole file together, for the metric asked."""
    from xmc_fast import decide
    from xmc_fast.model import write_predictions

    loaded = load(inputs, args.format, args.threads)
    proba = predict_loaded(model, loaded, max(args.candidates, args.k), args.threads, proba=True)
    metric: Any = args.optimize
    if metric == "psp":
        if not args.train:
            raise ValueError("--optimize psp needs --train: propensities come from the training labels")
        train_labels = load(args.train, args.format, args.threads).Y
        metric = decide.metric("psp", propensity=propensities(train_labels, args.propensity))
    chosen, _ = decide.optimize(proba, metric_=metric, k=args.k, mix_=args.mix, n_jobs=args.threads)
    write_predictions(out, chosen)
    return int(chosen.shape[0])
