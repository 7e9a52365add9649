"""Writing predictions: lines of ``label:value``, JSON lines, CSV or TSV, by the name's ending."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

from xmc_fast._files import atomic_path
from xmc_fast._progress import progress

Row = list[tuple[str, float]]


def write(out: str, pieces: Iterable[Any], names: Sequence[str] | None) -> int:
    """Write predictions (CSR, best first) piece by piece; returns the number of rows.

    Without ``names`` labels are ids, and lines are ``id:value id:value ...`` (what `read_predictions` reads);
    with names they are separated by tabs. Values have as many digits as a float32 needs.
    """
    ending = out.rpartition(".")[2]
    form = {"jsonl": _json, "csv": _separated(","), "tsv": _separated("\t")}.get(ending, _lines(names))
    head = "row,rank,label,value\n".replace(",", "\t" if ending == "tsv" else ",")
    rows = 0
    bar = progress(None, unit="row", desc="predict")
    with atomic_path(out) as path, open(path, "w", encoding="utf-8", newline="") as file, bar:
        file.write(head if ending in ("csv", "tsv") else "")
        for top in pieces:
            labels = top.indices.tolist()
            shown = list(map(str, labels)) if names is None else [names[label] for label in labels]
            entries = list(zip(shown, top.data.tolist(), strict=True))
            for a, b in pairwise(top.indptr.tolist()):
                file.write(form(rows, entries[a:b]))
                rows += 1
            bar.update(top.shape[0])
    return rows


def _lines(names: Sequence[str] | None) -> Callable[[int, Row], str]:
    gap = " " if names is None else "\t"
    if names is None:
        return lambda _, row: gap.join([f"{label}:{value:.9g}" for label, value in row]) + "\n"
    return lambda _, row: gap.join([f"{' '.join(name.split())}:{value:.9g}" for name, value in row]) + "\n"


def _json(_: int, row: Row) -> str:
    return json.dumps([{"label": name, "value": value} for name, value in row], ensure_ascii=False) + "\n"


def _separated(sep: str) -> Callable[[int, Row], str]:
    def form(number: int, row: Row) -> str:
        text = io.StringIO()
        writer = csv.writer(text, delimiter=sep, lineterminator="\n")
        writer.writerows((number, rank, name, f"{value:.9g}") for rank, (name, value) in enumerate(row, 1))
        return text.getvalue()

    return form
