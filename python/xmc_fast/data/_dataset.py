"""What the readers return."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from xmc_fast.data._column import TextColumn

WITHOUT_TEXT = "rows without text"
WITHOUT_LABELS = "rows without labels"
REPEATED = "repeated labels"
EMPTY_LINES = "empty lines"

_TITLES = {
    "csv": "CSV",
    "jsonl": "JSON lines",
    "text": "text lines",
    "xmc": "the repository format",
    "libsvm": "libsvm",
    "libsvm1": "libsvm",
    "pair": "sparse text pairs",
    "npz": "npz matrices",
    "parquet": "parquet",
    "frame": "a frame",
}


class Matrices(NamedTuple):
    """Features and labels of the same rows: unpack as ``X, Y = ...``."""

    X: Any  # scipy CSR float32, rows x features
    Y: Any  # scipy CSR float32 of ones, rows x labels


@dataclasses.dataclass
class Dataset:
    """Rows with features or texts and, if known, their labels: what `read` returns.

    Attributes
    ----------
    X : scipy CSR float32 of shape (rows, features), or None for texts
    texts : TextColumn, or dict of column name to TextColumn if several were chosen, or None for features
        A `TextColumn` is a sequence of str. A missing value is the empty text.
    Y : scipy CSR float32 of ones of shape (rows, labels), or None
        Given if labels are ids; as many columns as the largest id needs, or as the file says.
    labels : list of lists of str, or None
        Given if labels are names. A row without labels has an empty list.
    n_rows : int
    skipped : dict of str to int
        What was missing or left out: "rows without text" and "rows without labels" (both are kept), "repeated
        labels" (merged), "empty lines". Only what occurred.
    format : str
        One of the names that `read` takes.
    files : list of str
    text_columns : list of str
        The columns that the texts are from, in order.
    label_column : str or None
    sep : str or None
        Where strings of labels were split.

    Examples
    --------
    >>> import pathlib, xmc_fast.data
    >>> _ = pathlib.Path("tea.csv").write_text("text,tags\\ngreen tea,tea|green\\n,tea\\n")
    >>> data = xmc_fast.data.read("tea.csv")
    >>> list(data.texts), data.labels
    (['green tea', ''], [['tea', 'green'], ['tea']])
    >>> data.describe()
    "read 2 rows of CSV (column text; labels tags split at '|') from tea.csv, 1 row without text"
    """

    X: Any = None
    texts: Any = None
    Y: Any = None
    labels: list[list[str]] | None = None
    n_rows: int = 0
    skipped: dict[str, int] = dataclasses.field(default_factory=dict)
    format: str = ""
    files: list[str] = dataclasses.field(default_factory=list)
    text_columns: list[str] = dataclasses.field(default_factory=list)
    label_column: str | None = None
    sep: str | None = None

    def __len__(self) -> int:
        return self.n_rows

    def __getitem__(self, rows: slice) -> Dataset:
        """Some consecutive rows; counts that are not of single rows go with the first of them."""
        start, stop, step = rows.indices(self.n_rows)
        if step != 1:
            raise ValueError(f"a slice with step 1 expected, got {rows}")
        part = slice(start, max(start, stop))
        texts = self.texts
        if texts is not None:
            texts = {k: v[part] for k, v in texts.items()} if isinstance(texts, dict) else texts[part]
        return dataclasses.replace(
            self,
            X=None if self.X is None else self.X[part],
            texts=texts,
            Y=None if self.Y is None else self.Y[part],
            labels=None if self.labels is None else self.labels[part],
            n_rows=part.stop - part.start,
            skipped=self.skipped if start == 0 else {},
        ).counted()

    def counted(self) -> Dataset:
        """Bring ``skipped`` up to date: rows without text and labels are counted."""
        found = {WITHOUT_TEXT: 0, WITHOUT_LABELS: 0, REPEATED: 0, EMPTY_LINES: 0} | self.skipped
        columns = [*self.texts.values()] if isinstance(self.texts, dict) else [self.texts]
        if self.texts is not None:
            found[WITHOUT_TEXT] = int(np.sum(~np.any([column.filled for column in columns], axis=0)))
        if self.labels is not None:
            found[WITHOUT_LABELS] = sum(not row for row in self.labels)
        elif self.Y is not None:
            found[WITHOUT_LABELS] = int(np.sum(np.diff(self.Y.indptr) == 0))
        self.skipped = {reason: n for reason, n in found.items() if n}
        return self

    def kind(self) -> str:
        """What the rows are: "CSV (column text; labels tags split at '|')"."""
        about = []
        if self.text_columns:
            about.append(f"column{'s' * (len(self.text_columns) > 1)} {', '.join(self.text_columns)}")
        if self.label_column is not None:
            about.append(f"labels {self.label_column}" + (f" split at {self.sep!r}" if self.sep else ""))
        elif self.sep and (self.labels is not None or self.Y is not None):
            about.append(f"labels split at {self.sep!r}")
        return _TITLES.get(self.format, self.format) + (f" ({'; '.join(about)})" if about else "")

    def describe(self) -> str:
        """One line: how many rows of what, from where, and what was missing."""
        line = f"read {_count(self.n_rows, 'rows')} of {self.kind()}"
        if self.files:
            shown = self.files if len(self.files) <= 3 else [*self.files[:2], f"{len(self.files) - 2} more"]
            line += f" from {', '.join(shown)}"
        return "".join([line, *(f", {_count(n, reason)}" for reason, n in self.skipped.items())])


def _count(n: int, plural: str) -> str:
    """``1 row without text``, ``2,000 rows without text``."""
    noun, _, rest = plural.partition(" ")
    if plural in (REPEATED, EMPTY_LINES):
        return f"{n:,} {plural.removesuffix('s') if n == 1 else plural}"
    return f"{n:,} {noun.removesuffix('s') if n == 1 else noun}" + (f" {rest}" if rest else "")


def concat(parts: Sequence[Dataset]) -> Dataset:
    """Consecutive parts of one data set."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    for part in parts[1:]:
        for name in ("X", "texts", "Y", "labels"):
            a, b = getattr(first, name), getattr(part, name)
            if (a is None) != (b is None):
                raise ValueError(
                    f"{_names(part)}: {'no ' if b is None else ''}{name} here, other than in {_names(first)}"
                )
    skipped: Counter[str] = Counter()
    for part in parts:
        skipped.update(part.skipped)
    texts = first.texts
    if isinstance(texts, dict):
        texts = {key: TextColumn.concat([part.texts[key] for part in parts]) for key in texts}
    elif texts is not None:
        texts = TextColumn.concat([part.texts for part in parts])
    return dataclasses.replace(
        first,
        X=None if first.X is None else stack([part.X for part in parts]),
        texts=texts,
        Y=None if first.Y is None else stack([part.Y for part in parts]),
        labels=None if first.labels is None else [row for part in parts for row in part.labels or ()],
        n_rows=sum(part.n_rows for part in parts),
        skipped=dict(skipped),
        files=list(dict.fromkeys(name for part in parts for name in part.files)),
        sep=next((part.sep for part in parts if part.sep), None),
    )


def _names(part: Dataset) -> str:
    return ", ".join(part.files) or "the data"


def stack(matrices: Sequence[Any]) -> Any:
    """Matrices one below the other, as wide as the widest."""
    width = max(m.shape[1] for m in matrices)
    wide = [m if m.shape[1] == width else _widen(m, width) for m in matrices]
    return sp.vstack(wide, format="csr") if len(wide) > 1 else wide[0]


def _widen(matrix: Any, columns: int) -> Any:
    return sp.csr_matrix((matrix.data, matrix.indices, matrix.indptr), (matrix.shape[0], columns))
