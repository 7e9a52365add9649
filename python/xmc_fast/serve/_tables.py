"""An uploaded CSV table, given back with the suggestions of each row while they are computed."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator
from typing import Any

from fastapi.responses import StreamingResponse

from xmc_fast.serve._models import ServedModel, Text

ROWS = 200  # predicted and sent together
ADDED = ("suggestions", "probabilities")
csv.field_size_limit(2**31 - 1)  # a text may be a book; the body of the request has a limit


async def tag_table(
    model: ServedModel, body: bytes, text: str | None, k: int, threshold: float | None, timeout: float
) -> StreamingResponse:
    """The table with the columns `ADDED`; values are joined as those of the training were."""
    header, rows = read_table(body)
    places = text_places(model, header, text)
    separator = model.classifier.reading_.get("sep") or "|"
    return StreamingResponse(
        _tagged(model, header, rows, places, separator, k, threshold, timeout),
        media_type="text/csv; charset=utf-8",
        headers={"X-Rows": str(len(rows)), "Content-Disposition": 'attachment; filename="tagged.csv"'},
    )


def read_table(body: bytes) -> tuple[list[str], list[list[str]]]:
    """Column names and rows of a CSV file; the separator is the first of ``, ; tab`` that the header has."""
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"the table is not UTF-8: byte {error.start} is {body[error.start]:#04x}") from None
    head = text.partition("\n")[0]
    delimiter = next((character for character in ",;\t" if character in head), ",")
    try:
        lines = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    except csv.Error as error:
        raise ValueError(f"the table is not CSV: {error}") from None
    if not lines or not any(lines[0]):
        raise ValueError("the table is empty: its first line must name the columns")
    header, rows = lines[0], [line for line in lines[1:] if line]
    for number, row in enumerate(rows):
        if len(row) != len(header):
            raise ValueError(f"row {number + 1} of the table has {len(row)} values, the header {len(header)}")
    return header, rows


def text_places(model: ServedModel, header: list[str], text: str | None) -> dict[str, int]:
    """Text column of the model to column of the table: as required, as the model was trained, or the only one."""
    columns = model.classifier.text_columns_
    if text:
        asked = [name.strip() for name in text.split(",")]
        if len(asked) != len(columns):
            raise ValueError(f"the model has {len(columns)} text columns, {len(asked)} were given")
    else:
        read = model.classifier.reading_.get("text") or ["text"]
        asked = [name or read[0] for name in columns]
        if len(header) == 1:
            asked = header
    lacking = [name for name in asked if name not in header]
    if lacking:
        raise ValueError(f"the table has no column {lacking[0]!r} with the texts, it has {header}")
    return {column: header.index(name) for column, name in zip(columns, asked, strict=True)}


async def _tagged(
    model: ServedModel,
    header: list[str],
    rows: list[list[str]],
    places: dict[str, int],
    separator: str,
    k: int,
    threshold: float | None,
    timeout: float,
) -> AsyncIterator[bytes]:
    yield _lines([[*header, *ADDED]])
    for start in range(0, len(rows), ROWS):
        part = rows[start : start + ROWS]
        texts: list[Text] = [{name: row[at] for name, at in places.items()} for row in part]
        found = await model.suggest(texts, k, timeout)
        kept = [[s for s in row if threshold is None or s.probability >= threshold] for _, row in found]
        yield _lines(
            [
                [
                    *row,
                    separator.join(s.label for s in best),
                    separator.join(f"{s.probability:.4f}" for s in best),
                ]
                for row, best in zip(part, kept, strict=True)
            ]
        )


def _lines(rows: list[list[Any]]) -> bytes:
    file = io.StringIO(newline="")
    csv.writer(file).writerows(rows)
    return file.getvalue().encode()
