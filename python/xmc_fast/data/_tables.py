"""CSV, JSON lines and lines of text as parts of a data set (csrc/data/table.h splits them)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xmc_fast import _core
from xmc_fast.data._choose import choose_columns, guess_separator
from xmc_fast.data._column import TextColumn
from xmc_fast.data._dataset import EMPTY_LINES, REPEATED, Dataset
from xmc_fast.data._io import Stream
from xmc_fast.data._labels import (
    FIELD_SEPARATORS,
    Labels,
    from_column,
    from_written_lists,
    guess_sep,
    id_matrix,
    written_lists,
)

CHUNK = 1 << 20  # bytes that a thread splits at a time


@dataclass
class Options:
    """What the caller of `read` chose."""

    text: str | Sequence[str] | None
    label: str | bool | None
    sep: str | None
    encoding: str
    threads: int


class _Table:
    """The parts of one CSV or JSON lines file."""

    form = ""

    def __init__(self, stream: Stream, options: Options) -> None:
        self.stream, self.options, self.sep = stream, options, options.sep
        self.begin = self._open(stream.head)
        self.columns = [*self.texts, *([] if self.label is None else [self.label])]
        self.written = False  # label cells are written lists
        if self.label is not None and self.sep is None:
            self._look_at_labels(stream.head)

    texts: list[str]
    label: str | None

    def _open(self, head: bytes) -> int:
        """Choose ``texts`` and ``label``; return where the rows begin."""
        raise NotImplementedError

    def _split(self, text: Any, begin: int, end: int, line: int, names: list[str], final: bool) -> Any:
        """(rows, blank, consumed, lines, columns), see csrc/data/table.h."""
        raise NotImplementedError

    def _look_at_labels(self, head: bytes) -> None:
        """Guess where strings of labels are split, from the head of the file."""
        final = len(head) < Stream.HEAD
        split = self._split(head, self.begin, len(head), 1 + self.head_lines, self.columns, final)
        data, offsets, _, _, lists, integers = split[4][-1]
        if not lists and not integers:
            self.written = written_lists(TextColumn(data, offsets)[:100].tolist())
            self.sep = None if self.written else guess_sep(data.tobytes(), FIELD_SEPARATORS)

    head_lines = 0  # lines before the rows

    def parts(self, block: int | None) -> Iterator[Dataset]:
        """The rows, in parts of about ``block`` bytes; at least one part."""
        pending, line, first = b"", 1 + self.head_lines, True
        for raw, start, final in self.stream.blocks(block):
            text, begin = (pending + raw, 0) if pending else (raw, start)
            if first:
                begin, first = begin + self.begin, False
            rows, blank, consumed, lines, columns = self._split(
                text, begin, len(text), line, self.columns, final
            )
            line += lines
            if not final:
                pending = text[begin + consumed :]
            yield self._part(rows, blank, columns)

    def _part(self, rows: int, blank: int, columns: list[Any]) -> Dataset:
        texts = [TextColumn(data, offsets) for data, offsets, *_ in columns[: len(self.texts)]]
        labels = Labels(None, None) if self.label is None else self._labels(columns[-1])
        return Dataset(
            texts=texts[0] if len(texts) == 1 else dict(zip(self.texts, texts, strict=True)),
            Y=labels.Y,
            labels=labels.names,
            n_rows=rows,
            skipped={EMPTY_LINES: blank, REPEATED: labels.repeated},
            format=self.form,
            files=[self.stream.name],
            text_columns=self.texts,
            label_column=self.label,
            sep=self.sep,
        ).counted()

    def _labels(self, column: Any) -> Labels:
        data, offsets, rows, _, lists, integers = column
        cells = TextColumn(data, offsets)
        if integers:
            if integers != len(cells):
                raise ValueError(f"{self.stream.name}: the field {self.label!r} holds integers and strings")
            ids = np.array(cells.tolist(), np.int64)
            return Labels(None, *id_matrix(np.diff(rows), ids))
        if self.written:
            return from_written_lists(cells, f"{self.stream.name}: {self.label}")
        return from_column(cells, rows, None if lists else self.sep)


class Csv(_Table):
    """A CSV or TSV file: the first row names the columns."""

    form = "csv"
    tabs = False

    def _open(self, head: bytes) -> int:
        name = self.stream.name
        line = head[: head.find(b"\n") + 1] or head
        self.separator = "\t" if self.tabs else guess_separator(line.decode("utf-8", "replace"))
        raw, size = _core.first_record(head, 0, len(head), name, self.separator)
        try:
            self.header = [field.decode() for field in raw]
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{name}:1: UTF-8 text expected, got {error.object[error.start :][:8]!r}"
            ) from None
        if len(set(self.header)) < len(self.header):
            twice = next(field for field in self.header if self.header.count(field) > 1)
            raise ValueError(f"{name}:1: the header names the column {twice!r} twice")
        self.head_lines = head[:size].count(b"\n")
        sample = head[size : size + (1 << 18)]

        def is_text(column: str) -> bool:
            final = len(head) <= size + (1 << 18) and len(head) < Stream.HEAD
            split = self._split(sample, 0, len(sample), 1 + self.head_lines, [column], final)
            return _has_words(TextColumn(*split[4][0][:2])[:100])

        options = self.options
        self.texts, self.label = choose_columns(self.header, options.text, options.label, is_text, name)
        return int(size)

    def _split(self, text: Any, begin: int, end: int, line: int, names: list[str], final: bool) -> Any:
        positions = [self.header.index(name) for name in names]
        return _core.split_csv(
            text,
            begin,
            end,
            self.stream.name,
            line,
            self.separator,
            len(self.header),
            positions,
            names,
            final,
            CHUNK,
            self.options.threads,
        )


class Tsv(Csv):
    """A CSV file with tabs."""

    tabs = True


class Jsonl(_Table):
    """JSON lines."""

    form = "jsonl"

    def _open(self, head: bytes) -> int:
        name, values = self.stream.name, {}  # type: tuple[str, dict[str, list[Any]]]
        if head.lstrip()[:1] == b"[":
            raise ValueError(f"{name}:1: a JSON array: one object per line is expected (JSON lines)")
        for line in itertools.islice(head.split(b"\n"), 200):
            try:
                record = json.loads(line)
            except ValueError:
                continue  # blank, cut, or wrong: then the reader says where
            for key, value in record.items() if isinstance(record, dict) else ():
                values.setdefault(key, []).append(value)
        options, columns = self.options, [*values]
        if not columns:
            columns = [options.text] if isinstance(options.text, str) else [*(options.text or ("text",))]
            columns += [options.label] if isinstance(options.label, str) else []

        def is_text(column: str) -> bool:
            return any(isinstance(value, str) for value in values.get(column, ()))

        self.texts, self.label = choose_columns(columns, options.text, options.label, is_text, name)
        return 0

    def _split(self, text: Any, begin: int, end: int, line: int, names: list[str], final: bool) -> Any:
        labels = [name == self.label for name in names]
        return _core.split_json(
            text, begin, end, self.stream.name, line, names, labels, final, CHUNK, self.options.threads
        )


def _has_words(texts: TextColumn) -> bool:
    for text in texts:
        try:
            float(text or 0)
        except ValueError:
            return True
    return False


def line_parts(stream: Stream, threads: int, block: int | None) -> Iterator[TextColumn]:
    """The lines of a file, in parts of about ``block`` bytes."""
    pending, line = b"", 1
    for raw, start, final in stream.blocks(block):
        text, begin = (pending + raw, 0) if pending else (raw, start)
        end = len(text) if final else text.rfind(b"\n") + 1
        if not final:
            pending = text[end:]
        column = TextColumn(*_core.split_lines(text, begin, end, stream.name, line, threads)[:2])
        line += len(column)
        yield column
