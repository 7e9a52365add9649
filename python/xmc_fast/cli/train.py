"""``xmc-fast train``: data in, model folder out."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xmc_fast._files import write_text
from xmc_fast._folder import check_replaceable
from xmc_fast.cli import _lightxml
from xmc_fast.cli._common import (
    Output,
    UsageError,
    add_engine,
    add_paths,
    add_threads,
    counted,
    open_engine,
    say,
    size,
    split_paths,
    stored,
    table,
    thousands,
)
from xmc_fast.cli._inputs import add_input, labels_of, read, take
from xmc_fast.cli._models import calibrated, open_model, sizes
from xmc_fast.cli._parameters import add_parameters, given
from xmc_fast.cli.evaluate import evaluate

if TYPE_CHECKING:
    from xmc_fast.data import Dataset

HELP = "train a model and save it"
EXAMPLES = (
    "xmc-fast train posts.csv model/ --text title,body --label tags --sep '|' --valid 0.1",
    "xmc-fast train texts.txt labels.txt model/        # one text per line, its labels on the same line",
    "xmc-fast train train.txt model/ --C 2 --prune 0.02 --checkpoint run/",
    "xmc-fast train train.txt model/ --calibrate valid.txt",
    "xmc-fast train train.txt model/ --checkpoint /shared/run --engine dask --address tcp://head:8786",
    "xmc-fast train train.txt part-3/ --labels 30000:40000      # a part of the labels; join with merge",
    "xmc-fast train --model tree posts.csv model/     # a label tree: for 100,000 labels and more",
    "xmc-fast train --model mach --buckets 500 --repeats 8 train.txt model/     # hashed labels",
    "xmc-fast train --model lightxml --encoder DIR texts.txt labels.txt model/     # fine-tune a transformer",
)
LINEAR, MACH, TEXT = "linear.OneVsAll", "mach.Mach", "texts.TextClassifier"
TREE = "tree.LabelTree"
CANDIDATES = 20  # labels per validation row from which a k and a threshold are chosen
SHOWN = {"precision": "P", "ndcg": "nDCG", "micro_f1": "micro-F1", "macro_f1": "macro-F1"}


def configure(parser: argparse.ArgumentParser) -> None:
    add_paths(parser, "DATA", "the data (one file or two), then the MODEL folder")
    parser.add_argument(
        "--model",
        choices=("linear", "tree", "ensemble", "mach", "lightxml"),
        default="linear",
        help="one-vs-all linear models (default), tree: the same in a label tree, ensemble: linear models and the"
        " labels of similar rows (better lists, several times slower), MACH: linear models of hashed labels, or"
        " LightXML: a transformer on raw text",
    )
    parser.add_argument(
        "--valid",
        metavar="X",
        help="share of the rows (0.1) or a file that the model is measured on at the end",
    )
    parser.add_argument(
        "--calibrate",
        dest="calibrate_on",
        nargs="+",
        metavar="X",
        help="share of the rows or held-out data to fit probabilities on (default: 0.1 for texts, else none)",
    )
    parser.add_argument(
        "--checkpoint", metavar="PATH", help="save the state of the training there and resume from it"
    )
    parser.add_argument(
        "--decide",
        type=lambda text: int(text) if text.isdecimal() else text,
        metavar="RULE",
        help="how many labels a text gets: macro-f1, micro-f1, precision>=0.8 or a number (texts only)",
    )
    parser.add_argument(
        "--keep-state",
        action="store_true",
        help="keep what xmc-fast update needs beside the model (texts only)",
    )
    parser.add_argument(
        "--labels", type=label_range, metavar="A:B", help="train labels A to B-1 only (see xmc-fast merge)"
    )
    add_input(parser)
    names = ("analyzer", "ngram_range", "min_df", "stop_words", "strip_accents", "sublinear_tf", "hashing")
    texts = parser.add_argument_group("features of texts")
    texts.add_argument(
        "--ngram-range",
        "--ngrams",
        dest="ngram_range",
        type=ngram_range,
        default=argparse.SUPPRESS,
        metavar="A:B",
        help="fewest and most words (or characters) of a term; B alone means 1:B (default 1:1)",
    )
    texts.add_argument(
        "--weights",
        type=weights,
        default=argparse.SUPPRESS,
        metavar="A=X,B=Y",
        help="weights of text columns, e.g. title=2 (default 1 each)",
    )
    add_parameters(texts, TEXT, *names)
    linear = parser.add_argument_group("linear models, also of a tree's nodes and of MACH's buckets")
    options = (
        "C",
        "loss",
        "penalty",
        "tol",
        "bias",
        "normalize",
        "prune",
        "keep_top",
        "size",
        "block_labels",
        "solver",
    )
    size_help = {
        "size": "small: one byte a weight, exact: all weights, auto: small if exact may take more than 4,000,000"
        " bytes, or bytes for the weights; auto without any option of this group, --labels, --checkpoint and"
        " --keep-state, else"
    }
    add_parameters(linear, LINEAR, *options, "max_iter", text=size_help)
    tree = parser.add_argument_group("label trees (--model tree; there --prune is 0.1 by default)")
    add_parameters(
        tree,
        TREE,
        "max_leaf",
        "branching",
        "max_first",
        "beam",
        "slack",
        "power",
        "decay",
        "matched",
        n_trees="--trees",
    )
    hashed = parser.add_argument_group("MACH (--model mach)")
    add_parameters(hashed, MACH, "aggregate", n_buckets="--buckets", n_repeats="--repeats")
    _lightxml.add_options(parser)
    seed = {"random_state": "seed of everything random"}
    add_parameters(parser, LINEAR, "random_state", text=seed)
    add_engine(parser)
    add_threads(parser)


def run(args: argparse.Namespace) -> Output:
    inputs, folder = split_paths(args, "the data and the model folder: xmc-fast train DATA MODEL")
    if args.checkpoint is None or Path(args.checkpoint).resolve() != Path(folder).resolve():
        check_replaceable(Path(folder))
    data = read(inputs, args)
    if labels_of(data) is None:
        raise UsageError("the data has no labels: give a labels file, or --label")
    say(args, data.describe())
    data, valid = split_valid(data, args)
    start = time.perf_counter()
    if args.model == "lightxml":
        model, facts = _lightxml.train(args, data, folder)
    elif data.texts is not None:
        model, facts = train_texts(args, data, folder)
    else:
        model, facts = train_features(args, data, folder)
    seconds = time.perf_counter() - start
    if args.model != "lightxml":
        model = open_model(folder, args.threads)
        facts = sizes(model) | facts
    facts |= {"seconds": seconds, "disk_bytes": stored(folder), "model": folder}
    lines = [describe(facts, folder)]
    if valid is not None:
        found = evaluate(model, valid, [1, 3, 5], args.threads, depth=CANDIDATES, suggest=True)
        facts |= {"valid": found.to_dict()}
        keep_validation(folder, found, calibrated(model))
        lines.append(validation(found))
    return Output("\n".join(lines), facts)


def train_texts(args: argparse.Namespace, data: Dataset, folder: str) -> tuple[Any, dict[str, Any]]:
    """A `TextClassifier` of one-vs-all, a label tree, an ensemble or MACH."""
    from xmc_fast.texts import TextClassifier

    options = given(args, TEXT) | {"model": make_estimator(args), "n_jobs": args.threads}
    share = None if args.calibrate_on is None else as_share(args.calibrate_on[0])
    if args.calibrate_on is not None:
        options["calibrate"] = 0.0 if share is None else share
    if args.model == "mach":
        options["calibrate"] = 0.0
    model = TextClassifier(**options)
    parts = {"label_range": args.labels, "checkpoint": args.checkpoint, "keep_state": args.keep_state}
    parts["decide"] = args.decide
    with open_engine(args) as engine:
        model.fit(data.texts, labels_of(data), engine=engine, **parts)
    model.reading_ = {"text": data.text_columns, "label": data.label_column, "sep": data.sep}
    linear = model.model_
    if args.labels:
        linear.params["labels"] = list(args.labels)
    model.save(folder)
    if args.calibrate_on is not None and share is None:
        held_out = read(args.calibrate_on, args, model)
        known = len(model.label_names_)
        linear.calibrate(model.transform(held_out.texts), model.encode(labels_of(held_out)).Y[:, :known])
        model.save(folder)
    return model, {"fit_report": model.fit_report_}


def train_features(args: argparse.Namespace, data: Dataset, folder: str) -> tuple[Any, dict[str, Any]]:
    """A `OneVsAll`, a `LabelTree`, an `Ensemble` or a `Mach` on features."""
    from xmc_fast.texts._labels import encode

    estimator = make_estimator(args)
    held_out = None
    share = None if args.calibrate_on is None else as_share(args.calibrate_on[0])
    if share is not None:
        data, held_out = split_rows(data, share, args)
    options: dict[str, Any] = {} if args.labels is None else {"labels": args.labels}
    with open_engine(args) as engine:
        parts = {"checkpoint": args.checkpoint, "engine": engine}
        options |= {name: value for name, value in parts.items() if value is not None}
        estimator.fit(data.X, data.Y, **options)
    if args.model in ("mach", "ensemble"):
        estimator.save(folder)
        return estimator, {}
    model = estimator if args.model == "tree" else estimator.model_
    if args.labels:
        model.params["labels"] = list(args.labels)
    model.save(folder)
    if args.calibrate_on is not None:  # after saving: a failure here does not cost the training
        held_out = held_out or read(args.calibrate_on, args)
        names = [str(i) for i in range(data.Y.shape[1])]
        first, last = args.labels or (0, len(names))
        truth = encode(labels_of(held_out), names).Y[:, first:last]
        model.calibrate(held_out.X, truth, n_jobs=args.threads)
        model.save(folder)
    if args.model == "tree":
        return model, {}
    unfinished = int((estimator.report_["status"] == 1).sum())
    return model, {"not_converged": unfinished}


def make_estimator(args: argparse.Namespace) -> Any:
    """The estimator of ``--model`` with the options given."""
    from xmc_fast.linear import OneVsAll

    if args.labels and args.model != "linear":
        raise ValueError("--labels is for --model linear")
    options = given(args, TREE if args.model == "tree" else LINEAR)
    if args.model == "linear" and not (options.keys() - {"random_state"} or needs_all_weights(args)):
        options["size"] = "auto"  # costs no accuracy with the other parameters at their defaults
    options["n_jobs"] = args.threads
    if options.get("bias") == 0:
        options["bias"] = None
    if args.model == "tree":
        from xmc_fast.tree import LabelTree

        return LabelTree(**options)
    base = OneVsAll(**options)
    if args.model == "ensemble":
        return make_ensemble(args, base)
    if args.model != "mach":
        return base
    from xmc_fast.mach import Mach

    if args.calibrate_on:
        raise ValueError("--calibrate is for --model linear and --model tree")
    return Mach(**given(args, MACH), base=base, n_jobs=args.threads)


def needs_all_weights(args: argparse.Namespace) -> bool:
    """Whether what is trained is a part of something else, or what an update starts from."""
    return bool(args.labels or args.checkpoint or getattr(args, "keep_state", False))


def make_ensemble(args: argparse.Namespace, base: Any) -> Any:
    """The linear model and neighbours; what an ensemble cannot do is refused before anything is trained."""
    from xmc_fast.ensemble import Ensemble
    from xmc_fast.neighbours import Neighbours

    for option in ("checkpoint", "engine", "calibrate_on", "keep_state"):
        if getattr(args, option, None):
            name = {"calibrate_on": "calibrate", "keep_state": "keep-state"}.get(option, option)
            raise ValueError(f"--{name} is not for --model ensemble")
    return Ensemble([base, Neighbours(n_jobs=args.threads)], random_state=base.random_state)


def describe(facts: dict[str, Any], folder: str) -> str:
    """What was trained, for people."""
    report = facts.get("fit_report", {})
    left_out = {
        "empty_texts": "row without text left out",
        "unlabelled_rows": "row without labels left out",
        "repeated_labels": "label repeated within a row counted once",
        "held_out": "row held out to fit probabilities",
        "labels_without_rows": "label not learned: without a row outside of these",
    }
    lines = [f"  {counted(report[name], what)}" for name, what in left_out.items() if report.get(name)]
    if facts.get("not_converged"):
        lines.append(f"  {thousands(facts['not_converged'])} labels stopped at the iteration limit")
    if report.get("held_out") and not report["calibrated"]:
        lines.append("  too few held-out rows for probabilities: the model gives scores")
    extra = f"{thousands(facts['weights'])} weights, " if "weights" in facts else ""
    extra += f"{facts['repeats']} x {thousands(facts['buckets'])} buckets, " if "buckets" in facts else ""
    extra += f"loss {facts['loss']:.4g}, " if "loss" in facts else ""
    memory = f"{size(facts['bytes'])} in memory, " if "bytes" in facts else ""
    seconds, labels = facts["seconds"], facts["labels"]
    lines.append(
        f"trained {counted(labels, 'label')} in {seconds:.1f} s ({1e3 * seconds / max(labels, 1):.2f} ms per"
        f" label): {extra}{memory}{size(facts['disk_bytes'])} on disk -> {folder}"
    )
    return "\n".join(lines)


def keep_validation(folder: str, found: Any, probabilities: bool) -> None:
    """Write the measures beside the model, where ``xmc-fast serve`` shows them."""
    report = found.to_dict()
    kept = {
        "rows": found.rows,
        "k": list(found.report.ks),
        "metrics": {name: list(by_k.values()) for name, by_k in report["metrics"].items()},
        "reliability": found.reliability if probabilities else None,
        "suggestion": report.get("suggestion"),
    }
    write_text(Path(folder) / "validation.json", json.dumps(kept, indent=1) + "\n")


def validation(found: Any) -> str:
    """The few metrics of the validation rows that matter most, and what could not be compared."""
    rows = [["%", *(f"@{k}" for k in found.report.ks)]]
    for name, title in SHOWN.items():
        if name in found.report.values:
            rows.append([title, *(f"{100 * value:.2f}" for value in found.report[name])])
    unknown = (
        f", {counted(found.unknown_labels, 'label')} not seen in training" if found.unknown_labels else ""
    )
    text = f"on {thousands(found.rows)} validation rows{unknown}:\n{table(rows)}"
    if (best := found.suggestion) is not None:
        text += (
            f"\nbest for these rows: -k {best.k} (micro-F1 {100 * best.micro_f1_at_k:.2f} %), or all labels with"
            f" --threshold {best.threshold:.2g} (micro-F1 {100 * best.micro_f1_at_threshold:.2f} %)"
        )
    return text


def split_valid(data: Dataset, args: argparse.Namespace) -> tuple[Dataset, Dataset | None]:
    """Rows to train on and rows to measure on."""
    if args.valid is None:
        return data, None
    share = as_share(args.valid)
    return (data, read([args.valid], args)) if share is None else split_rows(data, share, args)


def split_rows(data: Dataset, share: float, args: argparse.Namespace) -> tuple[Dataset, Dataset]:
    """A random share of the rows apart, the same for the same random state."""
    import numpy as np

    order = np.random.default_rng(getattr(args, "random_state", None) or 0).permutation(data.n_rows)
    held = np.sort(order[: round(share * data.n_rows)])
    return take(data, np.setdiff1d(np.arange(data.n_rows), held)), take(data, held)


def as_share(text: str) -> float | None:
    """0.1 -> 0.1; None for the name of a file."""
    try:
        share = float(text)
    except ValueError:
        return None
    if not 0 <= share < 1:
        raise UsageError(f"a share of the rows must be from 0 to below 1, got {text}")
    return share


def label_range(text: str) -> tuple[int, int]:
    """ "100:200" -> (100, 200)."""
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal()):
        raise argparse.ArgumentTypeError(f"expected A:B, two label ids, got {text!r}")
    return int(first), int(last)


def ngram_range(text: str) -> tuple[int, int]:
    """ "2" -> (1, 2), "3:5" -> (3, 5)."""
    return label_range(text if ":" in text else f"1:{text}")


def weights(text: str) -> dict[str, float]:
    """ "title=2,body=1" -> {"title": 2.0, "body": 1.0}."""
    try:
        pairs = [part.rsplit("=", 1) for part in text.split(",")]
        return {name: float(value) for name, value in pairs}
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected NAME=NUMBER, got {text!r}") from None
