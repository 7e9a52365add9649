"""Texts in the form that the vectorizer takes: one column, or several with names."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from xmc_fast.data import TextColumn, as_texts


class Columns(NamedTuple):
    """Text columns of the same rows; missing values are empty texts."""

    columns: dict[str, Any]  # name ("" if there is one without) -> list of str or TextColumn
    missing: int  # values that were None or NaN

    @property
    def names(self) -> list[str]:
        return list(self.columns)

    @property
    def given(self) -> Any:
        """What a vectorizer takes."""
        return self.columns[""] if self.names == [""] else self.columns

    @property
    def n_rows(self) -> int:
        return len(next(iter(self.columns.values())))

    @property
    def filled(self) -> npt.NDArray[np.bool_]:
        """Which rows have any text but white space."""
        found = np.zeros(self.n_rows, bool)
        for column in self.columns.values():
            if isinstance(column, TextColumn):
                found |= column.filled
            else:
                found |= np.array([bool(text) and not text.isspace() for text in column], bool)
        return found

    def take(self, rows: npt.NDArray[np.intp]) -> Columns:
        """Some of the rows."""

        def some(column: Any) -> Any:
            return column.take(rows) if isinstance(column, TextColumn) else [column[i] for i in rows]

        return Columns({name: some(column) for name, column in self.columns.items()}, 0)

    def select(self, names: list[str]) -> Columns:
        """The columns of these names, in this order; texts without a name are the last one, the others empty."""
        if len(self.columns) == 1 and (len(names) == 1 or "" in self.columns):
            (only,) = self.columns.values()
            empty = [""] * len(only)
            return Columns({**{name: empty for name in names[:-1]}, names[-1]: only}, self.missing)
        lacking = [name for name in names if name not in self.columns]
        if lacking:
            raise ValueError(f"the text column {lacking[0]!r} is missing, got {self.names}")
        return Columns({name: self.columns[name] for name in names}, self.missing)


def text_columns(texts: Any) -> Columns:
    """Read what ``fit`` and ``predict`` are given."""
    if isinstance(texts, str):
        raise ValueError("texts must be a list of texts, got a single string: see predict_one")
    column = hasattr(texts, "to_pylist") and not hasattr(texts, "column_names")  # of pyarrow
    found, missing = as_texts(texts.to_pylist() if column else texts)
    return Columns(found if isinstance(found, dict) else {"": found}, missing)


def one_row(classifier: Any, text: Any) -> tuple[Any, Any]:
    """Columns and values of one text (a str, or a dict of text columns): ``transform`` with little overhead."""
    direct = hasattr(getattr(classifier, "vectorizer_", None), "transform_one")
    if isinstance(text, str) and direct and not classifier.embedding_size_:
        *others, last = classifier.text_columns_
        given = text if last == "" else {**dict.fromkeys(others, ""), last: text}
        indices, values = classifier.vectorizer_.transform_one(given)
        return indices, values
    row = classifier.transform(
        {name: [value] for name, value in text.items()} if isinstance(text, dict) else [text]
    )
    return row.indices, row.data
