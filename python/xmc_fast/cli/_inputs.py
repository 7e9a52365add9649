"""Reading what people name on the command line, whatever its format."""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xmc_fast.data import Dataset

FORMATS = ("auto", "csv", "tsv", "jsonl", "text", "xmc", "libsvm", "libsvm1", "pair", "npz", "parquet")
CHUNK = 4096  # rows in memory where data is read chunk by chunk


def add_input(parser: argparse.ArgumentParser) -> None:
    """The options of reading."""
    group = parser.add_argument_group(
        "reading",
        "DATA is a file (.gz, .xz, .zst too), a folder, a pattern like 'part-*.csv', or - for a pipe",
    )
    group.add_argument(
        "--format",
        choices=FORMATS,
        default="auto",
        help="of the data (default: by name and content). Two files are texts and labels (text), features and"
        " labels (npz, pair); libsvm1 counts from one",
    )
    group.add_argument(
        "--text",
        type=lambda text: text.split(","),
        metavar="A,B",
        help="columns or JSON fields that hold the text (default: the usual names)",
    )
    group.add_argument("--label", metavar="NAME", help="column or field that holds the labels")
    group.add_argument(
        "--sep", metavar="S", help="what separates labels in a cell or line (default: guessed)"
    )
    group.add_argument("--encoding", default="utf-8", metavar="NAME", help="of the text (default utf-8)")


def options(args: argparse.Namespace, model: Any = None) -> dict[str, Any]:
    """The options of reading; what is not given is read as the training data of ``model`` was."""
    known = getattr(model, "reading_", {})
    chosen = {name: getattr(args, name) or known.get(name) or None for name in ("text", "label", "sep")}
    return {"format": args.format, "encoding": args.encoding, "n_jobs": args.threads, **chosen}


def read(paths: Sequence[str], args: argparse.Namespace, model: Any = None) -> Dataset:
    """Read files in any format."""
    from xmc_fast import data

    with named_options():
        return as_trained(data.read(paths if len(paths) > 1 else paths[0], **options(args, model)), model)


def read_chunks(paths: Sequence[str], args: argparse.Namespace, model: Any = None) -> Iterator[Dataset]:
    """Read chunk by chunk, in memory that does not grow with the file; labels are not read."""
    from xmc_fast import data

    chosen = options(args, model) | {"label": False}
    with named_options():
        for chunk in data.read_chunks(paths if len(paths) > 1 else paths[0], CHUNK, **chosen):
            yield as_trained(chunk, model)


def as_trained(data: Dataset, model: Any) -> Dataset:
    """Text columns by the names that the model was trained with: those named otherwise take the place of its others,
    in order."""
    fields = getattr(getattr(model, "vectorizer_", None), "fields_", None)
    if not isinstance(data.texts, dict) or fields is None or len(fields) != len(data.texts):
        return data
    others = iter([name for name in fields if name not in data.texts])
    texts = {name if name in fields else next(others): column for name, column in data.texts.items()}
    return replace(data, texts=texts)


@contextlib.contextmanager
def named_options() -> Iterator[None]:
    """Errors name options of the command line, not arguments of Python."""
    try:
        yield
    except ValueError as error:
        said = re.sub(r"\b(text|label|sep|format|encoding)=", r"--\1", str(error))
        raise ValueError(said) from error


def labels_of(data: Dataset) -> Any:
    """Names per row, or a matrix of ids; None without labels."""
    return data.Y if data.labels is None else data.labels


def joined(data: Dataset) -> Any:
    """The text columns of each row as one text."""
    if not isinstance(data.texts, dict):
        return data.texts
    return [" ".join(filter(None, row)) for row in zip(*data.texts.values(), strict=True)]


def take(data: Dataset, rows: Any) -> Dataset:
    """Some of the rows."""

    def some(values: Any) -> Any:
        if values is None:
            return None
        if isinstance(values, dict):
            return {name: some(column) for name, column in values.items()}
        if isinstance(values, list):
            return [values[i] for i in rows]
        return values[rows] if hasattr(values, "indptr") else values.take(rows)

    parts = {name: some(getattr(data, name)) for name in ("X", "texts", "Y", "labels")}
    return replace(data, n_rows=len(rows), skipped={}, **parts)
