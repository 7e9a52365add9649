"""``xmc-fast update``: new data into a text model."""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import time
from pathlib import Path

from xmc_fast._files import write_text
from xmc_fast._folder import MANIFEST, read_json
from xmc_fast.cli._common import Output, UsageError, add_model, add_threads, say, thousands
from xmc_fast.cli._inputs import add_input, labels_of, read
from xmc_fast.cli._models import open_model

HELP = "bring a text model to new data, from its old solution (it was trained with --keep-state)"
EXAMPLES = (
    "xmc-fast update model/ new.csv",
    "xmc-fast update model/ --remove-labels obsolete,test --remove-rows 17,18",
    "xmc-fast update model/ new.csv --refresh-idf --out newer/",
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument(
        "paths", nargs="*", metavar="DATA", help="new rows: a file, or two of texts and labels"
    )
    parser.add_argument("--out", metavar="FOLDER", help="write the new model there (default: replace MODEL)")
    parser.add_argument("--remove-labels", type=_names, default=[], metavar="A,B", help="labels to forget")
    parser.add_argument(
        "--remove-rows", type=_numbers, default=[], metavar="I,J", help="rows to forget, as given"
    )
    parser.add_argument("--refresh-idf", action="store_true", help="count the weight of words anew")
    parser.add_argument(
        "--checkpoint",
        metavar="PATH",
        help="where solved labels are kept (default: beside the model, until done)",
    )
    add_input(parser)
    add_threads(parser)


def run(args: argparse.Namespace) -> Output:
    from xmc_fast.texts import TextClassifier

    model = open_model(args.model, args.threads)
    if not isinstance(model, TextClassifier):
        raise UsageError(f"{args.model} is not a text model")
    if not (args.paths or args.remove_labels or args.remove_rows or args.refresh_idf):
        raise UsageError("nothing to do: give DATA, --remove-labels, --remove-rows or --refresh-idf")
    texts = labels = None
    if args.paths:
        data = read(args.paths, args, model)
        if data.texts is None or labels_of(data) is None:
            raise UsageError("the data must have texts and labels")
        say(args, data.describe())
        texts, labels = data.texts, labels_of(data)
    folder, out = Path(args.model), args.out or args.model
    work = Path(args.checkpoint) if args.checkpoint else folder.absolute().with_name(f".{folder.name}.update")
    start = time.perf_counter()
    history = model.model_.params.get("updates", [])
    if not args.checkpoint and already_done(work, args, history):
        done = history[-1]
        text = "this update was complete before it was stopped: nothing was done again"
    else:
        model.update(
            texts,
            labels,
            remove_rows=args.remove_rows,
            remove_labels=args.remove_labels,
            refresh_idf=args.refresh_idf,
            checkpoint=args.checkpoint or work / "solved",
        )
        model.save(out)
        done, text = model.update_, ""
    shutil.rmtree(work, ignore_errors=True)
    facts = done | {"seconds": time.perf_counter() - start, "model": out}
    return Output("\n".join(filter(None, [text, describe(facts)])), facts)


def already_done(work: Path, args: argparse.Namespace, history: list[dict[str, object]]) -> bool:
    """Whether a run of this command put its model in place and was stopped before it removed ``work``.

    ``work`` gets a note of the model that it starts from and of what is to be done; files of another command
    there are removed.
    """
    note = work / "request.json"
    here = {"model": _stamp(Path(args.model)), "history": history, "asked": _asked(args)}
    if note.is_file():
        found = read_json(note)
        if found == here:
            return False
        if history and found == {**here, "model": found.get("model"), "history": history[:-1]}:
            return True
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    write_text(note, json.dumps(here))
    return False


def _stamp(folder: Path) -> str:
    """Of a model folder; each update changes it, as a manifest has their history."""
    manifests = [folder / MANIFEST, folder / "model" / MANIFEST]
    return hashlib.sha256(b"".join(path.read_bytes() for path in manifests if path.is_file())).hexdigest()


def _asked(args: argparse.Namespace) -> str:
    """Of the data and what is removed."""
    told = hashlib.sha256(repr((args.remove_labels, args.remove_rows, args.refresh_idf)).encode())
    for path in args.paths:
        told.update(Path(path).read_bytes() if Path(path).is_file() else path.encode())
    return told.hexdigest()


def describe(facts: dict[str, object]) -> str:
    """What was done, for people."""

    def count(name: str) -> str:
        return thousands(int(str(facts[name])))

    lines = [
        f"rows: {count('rows_added')} added, {count('rows_held_out')} held out for probabilities,"
        f" {count('rows_removed')} removed",
        f"labels: {count('labels_added')} added, {count('labels_removed')} removed,"
        f" {count('labels_trained')} of {count('labels')} trained",
        f"words: {count('features_added')} added, idf {facts['idf']} (drift {float(str(facts['idf_drift'])):.2%})",
    ]
    if "advice" in facts:
        lines.append(f"note: {facts['advice']}")
    return "\n".join([*lines, f"updated in {float(str(facts['seconds'])):.1f} s -> {facts['model']}"])


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected whole numbers with commas, got {text!r}") from None
