"""``xmc-fast train``: data in, model folder out."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from xmc_fast.cli import _lightxml, _mach
from xmc_fast.cli._common import (
    Output,
    UsageError,
    add_engine,
    add_threads,
    open_engine,
    size,
    stored,
    thousands,
)
from xmc_fast.cli._load import add_format, load

HELP = "train a model and save it"
EXAMPLES = (
    "xmc-fast train train.txt model/",
    "xmc-fast train --C 2 --prune 0.02 --checkpoint run/ train.txt.gz model/",
    "xmc-fast train train.txt model/ --calibrate valid.txt",
    "xmc-fast train train.txt model/ --checkpoint /shared/run --engine dask --address tcp://head:8786",
    "xmc-fast train train.txt part-3/ --labels 30000:40000      # a part of the labels; join with merge",
    "xmc-fast train texts.txt labels.txt model/     # raw text: tf-idf is fitted and saved with the model",
    "xmc-fast train --model mach --buckets 500 --repeats 8 train.txt model/     # hashed labels",
    "xmc-fast train --model lightxml --encoder DIR texts.txt labels.txt model/     # fine-tune a transformer",
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", nargs="+", metavar="DATA", help="the data file (or two), then the MODEL folder"
    )
    add_format(parser)
    parser.add_argument(
        "--model",
        choices=("linear", "mach", "lightxml"),
        default="linear",
        help="one-vs-all linear models (default), MACH: linear models of hashed labels, or LightXML: a transformer"
        " on raw text",
    )
    _mach.add_options(parser)
    _lightxml.add_options(parser)
    parser.add_argument("--C", type=float, default=1.0, help="weight of the loss (default 1)")
    parser.add_argument("--loss", choices=("squared_hinge", "logistic"), default="squared_hinge")
    parser.add_argument("--penalty", choices=("l2", "l1"), default="l2")
    parser.add_argument(
        "--eps", type=float, default=0.01, help="tolerance of the stopping rule (default 0.01)"
    )
    parser.add_argument(
        "--bias", type=float, default=1.0, help="value of the constant feature; 0 for none (default 1)"
    )
    parser.add_argument("--no-normalize", action="store_true", help="leave rows at their length")
    parser.add_argument("--prune", type=float, default=0.01, help="drop weights below this (default 0.01)")
    parser.add_argument(
        "--keep-top", type=int, default=None, metavar="K", help="keep the K largest weights per label"
    )
    parser.add_argument(
        "--block-labels", type=int, default=1000, help="labels per block of the model (default 1000)"
    )
    parser.add_argument(
        "--calibrate",
        nargs="+",
        metavar="DATA",
        help="held-out data to fit probabilities on (for predict --proba, --optimize)",
    )
    parser.add_argument(
        "--min-df", type=int, default=2, help="text: terms in fewer texts are left out (default 2)"
    )
    parser.add_argument(
        "--ngrams", type=int, default=1, help="text: longest run of words that is a term (default 1)"
    )
    parser.add_argument(
        "--checkpoint", metavar="PATH", help="save the state of the training there and resume from it"
    )
    parser.add_argument(
        "--labels", type=label_range, metavar="A:B", help="train labels A to B-1 only (see xmc-fast merge)"
    )
    add_engine(parser)
    parser.add_argument("--seed", type=int, default=0)
    add_threads(parser)


def run(args: argparse.Namespace) -> Output:
    if len(args.paths) < 2:
        raise UsageError("give the data and the model folder: xmc-fast train DATA MODEL")
    *inputs, folder = args.paths
    if args.checkpoint is None or Path(args.checkpoint).resolve() != Path(folder).resolve():
        check_target(folder, args.model)
    loaded = load(inputs, args.format, args.threads)
    if args.model == "lightxml":
        return _lightxml.train(args, loaded, folder)
    estimator = make_estimator(args)
    if args.model == "mach":
        return _mach.train(args, loaded, folder, estimator)
    start = time.perf_counter()
    vectorizer = None
    if loaded.texts is not None:
        vectorizer = make_vectorizer(args)
        loaded.X = vectorizer.fit_transform(loaded.texts)
    with open_engine(args) as engine:
        estimator.fit(loaded.X, loaded.Y, checkpoint=args.checkpoint, labels=args.labels, engine=engine)
    weights = estimator.model_
    if args.labels:
        weights.params["labels"] = list(args.labels)
    if args.calibrate:
        held_out = load(args.calibrate, args.format, args.threads)
        X = held_out.X if vectorizer is None else vectorizer.transform(held_out.texts)
        weights.calibrate(X, held_out.Y, n_jobs=args.threads)
    save(folder, weights, vectorizer)
    seconds = time.perf_counter() - start
    facts = {
        "labels": weights.n_labels,
        "features": weights.n_features,
        "weights": weights.nnz,
        "bytes": weights.nbytes,
        "seconds": seconds,
        "not_converged": int((estimator.report_["status"] == 1).sum()),
        "model": folder,
    }
    text = (
        f"{thousands(weights.n_labels)} labels in {seconds:.1f} s"
        f" ({1e3 * seconds / max(weights.n_labels, 1):.2f} ms per label), {thousands(weights.nnz)} weights,"
        f" {size(stored(folder))} -> {folder}"
    )
    if facts["not_converged"]:
        text += f"\n{thousands(facts['not_converged'])} labels stopped at the iteration limit"
    return Output(text, facts)


def check_target(folder: str, model: str) -> None:
    """An error before the training, not after it, where the model could not be saved."""
    from xmc_fast.model.storage import MANIFEST, check_replaceable

    check_replaceable(Path(folder), "mach.json" if model == "mach" else MANIFEST)


def label_range(text: str) -> tuple[int, int]:
    """ "100:200" -> (100, 200)."""
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal()):
        raise argparse.ArgumentTypeError(f"expected A:B, two label ids, got {text!r}")
    return int(first), int(last)


def save(folder: str, weights: Any, vectorizer: Any) -> None:
    """Save the model, with the vectorizer when it was trained on text."""
    from xmc_fast.pipeline import TextModel

    (weights if vectorizer is None else TextModel(vectorizer, weights)).save(folder)


def make_vectorizer(args: argparse.Namespace) -> Any:
    """The tf-idf of the papers: sublinear counts, terms of at least two texts, rows of length one."""
    from xmc_fast.text import TfidfVectorizer

    return TfidfVectorizer(
        sublinear_tf=True, min_df=args.min_df, ngram_range=(1, args.ngrams), n_jobs=args.threads
    )


def make_estimator(args: argparse.Namespace) -> Any:
    """A OneVsAll with the options of the command line."""
    from xmc_fast.linear import OneVsAll

    return OneVsAll(
        C=args.C,
        loss=args.loss,
        penalty=args.penalty,
        eps=args.eps,
        bias=args.bias or None,
        normalize=not args.no_normalize,
        prune=args.prune,
        keep_top=args.keep_top,
        block_labels=args.block_labels,
        n_jobs=args.threads,
        random_state=args.seed,
    )
