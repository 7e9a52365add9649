"""One reader for every format."""

from __future__ import annotations

import glob
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from xmc_fast._threads import resolve_threads
from xmc_fast.data._choose import FORMATS, guess_format
from xmc_fast.data._column import TextColumn
from xmc_fast.data._dataset import REPEATED, Dataset, concat
from xmc_fast.data._frame import from_frame
from xmc_fast.data._io import (
    Path,
    Stream,
    check_encoding,
    encoding_hint,
    file_name,
    open_binary,
    open_stream,
    read_lines,
)
from xmc_fast.data._labels import Labels, from_lines
from xmc_fast.data._sparse import read_libsvm, read_pair, read_xmc
from xmc_fast.data._stream import iter_xmc
from xmc_fast.data._tables import Csv, Jsonl, Options, Tsv, line_parts
from xmc_fast.data._text import read_npz

_TABLES = {"csv": Csv, "tsv": Tsv, "jsonl": Jsonl}
_SEVERAL = ("text", "pair", "npz")  # formats of two files (or three)


def read(
    source: Path | Sequence[Path],
    *,
    format: str = "auto",
    text: str | Sequence[str] | None = None,
    label: str | bool | None = None,
    sep: str | None = None,
    encoding: str = "utf-8",
    n_jobs: int | None = None,
) -> Dataset:
    """Read rows with their labels from files of any supported format.

    Parameters
    ----------
    source : str, path, or sequence of them
        A file, "-" (standard input), a folder or a pattern such as ``"part-*.csv"`` (their files in the order of
        their names), or a list of files. Several files are read one after the other, but two files of texts,
        matrices or sparse text are rows and labels, three are texts, label ids and label names. Files may be
        compressed (``.gz``, ``.xz``, ``.zst``).
    format : str
        - "csv", "tsv": a table whose first row names the columns (RFC 4180; ``,``, ``;`` or tab).
        - "jsonl": one JSON object per line.
        - "text": one text per line; a second file has a line of labels per text.
        - "xmc", "libsvm", "libsvm1" (ids from 1), "pair", "npz": see `read_xmc`, `read_libsvm`,
          `read_pair`, `read_npz`.
        - "parquet": needs pyarrow.
        - "auto": by the ending of the name, else by how the file starts.
    text : str or sequence of str, optional
        The columns of texts (JSON: field names, ``"a.b"`` for nested ones). Default: the one column with a usual
        name (text, title, abstract, ...), else the only one with words.
    label : str or False, optional
        The column of labels. Default: the one with a usual name (labels, tags, subjects, ...), if any. False
        reads no labels.
    sep : str, optional
        Where a string of labels is split. Default: at the first of ``| ; tab ,`` that occurs in the first 4 MB
        of the table; in a file of label lines, of ``tab | ; , space``.
    encoding : str
        Of CSV, JSON and text files.
    n_jobs : int, optional
        Threads; the result does not depend on it.

    Returns
    -------
    Dataset
        Labels are names (``labels``) in tables and frames; they are ids (``Y``) if JSON gives integers, if
        every label in a file of label lines is a whole number, and in the sparse formats.

    Raises
    ------
    ValueError
        ``file:line: reason`` for the first error: a byte that is not of the encoding, a row with more or fewer
        fields than the header, broken JSON, and so on.

    Examples
    --------
    >>> from pathlib import Path
    >>> _ = Path("tea.csv").write_text('title,abstract,tags\\nTea,"green, hot",tea|green\\nPot,,\\n')
    >>> data = read("tea.csv", text=["title", "abstract"])
    >>> data.texts["abstract"][0], data.labels
    ('green, hot', [['tea', 'green'], []])
    >>> print(data.describe())
    read 2 rows of CSV (columns title, abstract; labels tags split at '|') from tea.csv, 1 row without labels
    """
    options = Options(text, label, sep, encoding, resolve_threads(n_jobs))
    return concat([*_parts(source, format, options, None)])


def read_chunks(
    source: Path | Sequence[Path],
    rows: int,
    *,
    format: str = "auto",
    text: str | Sequence[str] | None = None,
    label: str | bool | None = None,
    sep: str | None = None,
    encoding: str = "utf-8",
    n_jobs: int | None = None,
) -> Iterator[Dataset]:
    """Read rows as `read`, but some at a time, in memory that does not grow with the file.

    Files of label lines, npz and libsvm files are read as a whole.

    Parameters
    ----------
    source, format, text, label, sep, encoding, n_jobs
        As in `read`.
    rows : int
        Rows per chunk; the last one may have fewer.

    Yields
    ------
    Dataset
        Consecutive rows.

    Examples
    --------
    >>> from pathlib import Path
    >>> _ = Path("lines.txt").write_text("green tea\\nblack tea\\niron ore\\n")
    >>> [list(chunk.texts) for chunk in read_chunks("lines.txt", 2)]
    [['green tea', 'black tea'], ['iron ore']]
    """
    if rows < 1:
        raise ValueError(f"rows must be at least 1, got {rows}")
    options = Options(text, label, sep, encoding, resolve_threads(n_jobs))
    waiting: list[Dataset] = []
    for part in _parts(source, format, options, 4 << 20):
        waiting.append(part)
        if sum(map(len, waiting)) >= rows:
            whole = concat(waiting)
            end = len(whole) // rows * rows
            for first in range(0, end, rows):
                yield whole[first : first + rows]
            waiting = [whole[end:]] if end < len(whole) else []
    if any(map(len, waiting)):
        yield concat([part for part in waiting if len(part)])


def _parts(source: Any, form: str, options: Options, block: int | None) -> Iterator[Dataset]:
    if form not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {form!r}")
    files, listed = _files(source)
    if files == ["-"]:
        yield from _input_parts(form, options, block)
        return
    if form == "auto":
        form = _guess(files[0], options.encoding)
    if listed and len(files) > 1 and form in _SEVERAL:
        yield from _several(files, form, options, block)
        return
    if form in ("pair", "npz"):
        raise ValueError(f"format {form} takes two files (features and labels), got {file_name(files[0])}")
    for path in files:
        if form in (*_TABLES, "text"):
            with open_stream(path, options.encoding) as stream:
                yield from _stream_parts(stream, form, options, block)
        else:
            yield from _file_parts(path, form, options, block)


def _input_parts(form: str, options: Options, block: int | None) -> Iterator[Dataset]:
    """Standard input can be read only once: other formats than tables and texts go through a file."""
    with open_stream("-", options.encoding) as stream:
        form = guess_format("", stream.head) if form == "auto" else form
        if form in (*_TABLES, "text"):
            yield from _stream_parts(stream, form, options, block)
            return
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "input")
            with open(path, "wb") as file:
                for raw, begin, _ in stream.blocks(None):
                    file.write(raw[begin:])
            for part in _file_parts(path, form, options, block):
                part.files = [stream.name]
                yield part


def _files(source: Any) -> tuple[list[str], bool]:
    """The files a source stands for, and whether they were listed one by one."""
    if not isinstance(source, (str, os.PathLike)):
        files = [os.fspath(path) for path in source]
        if not files:
            raise ValueError("no files: the list is empty")
        return files, True
    path = os.fspath(source)
    if path == "-" or os.path.isfile(path):
        return [path], False
    if os.path.isdir(path):
        inside = sorted(entry.path for entry in os.scandir(path) if entry.is_file())
        files = [name for name in inside if not os.path.basename(name).startswith(".")]
        kinds = sorted({os.path.splitext(name)[1] for name in files})
        if len(kinds) > 1:
            raise ValueError(f"{path}: files of one kind expected, got {', '.join(kinds)}: name a pattern")
    else:
        files = sorted(glob.glob(path)) if glob.has_magic(path) else [path]
    if not files:
        raise ValueError(f"no files at {path}")
    return files, False


def _guess(path: str, encoding: str) -> str:
    check_encoding(encoding)
    with open_binary(path) as file:
        return guess_format(path, file.read(1 << 16).decode(encoding, "replace").encode(errors="replace"))


def _stream_parts(stream: Stream, form: str, options: Options, block: int | None) -> Iterator[Dataset]:
    """The parts of one table or file of text lines."""
    if not stream.head:
        raise ValueError(f"{stream.name}:1: the file is empty")
    with encoding_hint():
        if form != "text":
            yield from _TABLES[form](stream, options).parts(block)
            return
        for lines in line_parts(stream, options.threads, block):
            yield _text_part(lines, Labels(None, None), [stream.name])


def _file_parts(path: str, form: str, options: Options, block: int | None) -> Iterator[Dataset]:
    """The parts of one file of another format."""
    if form == "parquet":
        yield from _parquet(path, options)
    elif form == "xmc" and block is not None:
        for X, Y in iter_xmc(path, chunk_bytes=block, n_jobs=options.threads):
            yield _matrix_part(X, Y, form, [path])
    elif form == "xmc":
        yield _matrix_part(*read_xmc(path, n_jobs=options.threads), form, [path])
    else:
        matrices = read_libsvm(path, one_based=form == "libsvm1", n_jobs=options.threads)
        yield _matrix_part(*matrices, form, [path])


def _several(files: list[str], form: str, options: Options, block: int | None) -> Iterator[Dataset]:
    """Rows and labels in files of their own."""
    if len(files) > (3 if form == "text" else 2):
        raise ValueError(
            f"format {form}: at most {3 if form == 'text' else 2} files expected, got {len(files)}"
        )
    if form != "text":
        reader: Any = read_pair if form == "pair" else read_npz
        X, Y = reader(*files)
        yield _matrix_part(X, Y, form, files)
        return
    with open_stream(files[1], options.encoding) as stream, encoding_hint():
        column = TextColumn.concat([*line_parts(stream, options.threads, None)])
    labels = _named(from_lines(column, options.sep), files)
    n, at = len(column), 0
    with open_stream(files[0], options.encoding) as stream, encoding_hint():
        if not stream.head:
            raise ValueError(f"{stream.name}:1:1: the file is empty")
        for lines in line_parts(stream, options.threads, block):
            rows = slice(at, at + len(lines))
            own = Labels(
                None if labels.names is None else labels.names[rows],
                None if labels.Y is None else labels.Y[rows],
                labels.repeated if at == 0 else 0,
                labels.sep,
            )
            at += len(lines)
            if at <= n:
                yield _text_part(lines, own, [file_name(path) for path in files])
    if at != n:
        raise ValueError(
            f"{file_name(files[0])} has {at} lines, {file_name(files[1])} has {n}: expected the same"
        )


def _named(labels: Labels, files: list[str]) -> Labels:
    """With a third file, ids become its names."""
    if len(files) < 3:
        return labels
    names = read_lines(files[2])
    if labels.Y is None:
        raise ValueError(f"{files[1]} holds names already: {files[2]} goes with label ids only")
    if labels.Y.shape[1] > len(names):
        raise ValueError(
            f"{files[1]} has the label id {labels.Y.shape[1] - 1}, {files[2]} {len(names)} names"
        )
    flat = np.array(names, object)[labels.Y.indices].tolist()
    rows = [flat[a:b] for a, b in zip(labels.Y.indptr[:-1], labels.Y.indptr[1:], strict=True)]
    return Labels(rows, None, labels.repeated, None)


def _text_part(lines: TextColumn, labels: Labels, files: list[str]) -> Dataset:
    return Dataset(
        texts=lines,
        Y=labels.Y,
        labels=labels.names,
        n_rows=len(lines),
        skipped={REPEATED: labels.repeated},
        format="text",
        files=files,
        sep=labels.sep,
    ).counted()


def _matrix_part(X: Any, Y: Any, form: str, files: list[str]) -> Dataset:
    return Dataset(X=X, Y=Y, n_rows=X.shape[0], format=form, files=[*map(file_name, files)]).counted()


def _parquet(path: str, options: Options) -> Iterator[Dataset]:
    try:
        from pyarrow import Table, parquet  # type: ignore[import-untyped]
    except ImportError:
        raise ValueError(f"{path}: parquet needs the package pyarrow: pip install pyarrow") from None
    file = parquet.ParquetFile(path)
    # Each part is a row group; the columns are chosen by the first.
    for group in range(max(1, file.num_row_groups)):
        table: Any = (
            file.read_row_group(group) if file.num_row_groups else Table.from_batches([], file.schema_arrow)
        )
        part = from_frame(table, text=options.text, label=options.label, sep=options.sep)
        part.format, part.files = "parquet", [path]
        options.sep = options.sep or part.sep
        yield part
