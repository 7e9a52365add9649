"""Frames (pandas, polars, pyarrow) and other Python objects as texts and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xmc_fast.data._choose import choose_columns
from xmc_fast.data._column import TextColumn
from xmc_fast.data._dataset import REPEATED, Dataset
from xmc_fast.data._labels import Labels, as_labels, is_missing


def from_frame(
    frame: Any,
    *,
    text: str | Sequence[str] | None = None,
    label: str | bool | None = None,
    sep: str | None = None,
) -> Dataset:
    """A data set from a pandas, polars or pyarrow frame (any that narwhals knows).

    Parameters
    ----------
    frame : DataFrame or Table
    text, label, sep
        As in `read`. Cells of the label column may be strings, lists of strings, ids or lists of ids.

    Returns
    -------
    Dataset

    Examples
    --------
    >>> import pandas
    >>> frame = pandas.DataFrame({"title": ["Tea", None], "tags": ["green;hot", "hot"]})
    >>> data = from_frame(frame)
    >>> list(data.texts), data.labels, data.skipped
    (['Tea', ''], [['green', 'hot'], ['hot']], {'rows without text': 1})
    """
    columns = _columns(frame)
    if columns is None:
        raise ValueError(f"a pandas, polars or pyarrow frame expected, got {type(frame).__name__}")

    def is_text(name: str) -> bool:
        return any(isinstance(value, str) for value in columns[name])

    texts, chosen = choose_columns([*columns], text, label, is_text, "the frame")
    for name in [*texts, *([chosen] if chosen else ())]:
        if name not in columns:
            raise ValueError(f"the frame has no column {name!r}, it has {', '.join(columns)}")
    labels = Labels(None, None) if chosen is None else as_labels(columns[chosen], sep=sep)
    made = {name: TextColumn.from_texts(_strings(columns[name], f"column {name!r}")[0]) for name in texts}
    return Dataset(
        texts=made if len(texts) > 1 else made[texts[0]],
        Y=labels.Y,
        labels=labels.names,
        n_rows=len(made[texts[0]]),
        skipped={REPEATED: labels.repeated},
        format="frame",
        text_columns=texts,
        label_column=chosen,
        sep=labels.sep,
    ).counted()


def as_texts(texts: Any) -> tuple[Any, int]:
    """Bring texts into the form that the vectorizer takes; missing values become empty texts.

    Parameters
    ----------
    texts : iterable of str or None, Series, array, TextColumn, dict of column name to texts, or frame
        All columns of a frame are taken as texts, in their order.

    Returns
    -------
    texts : list of str, TextColumn, or dict of name to them
        A frame with one column gives that column.
    missing : int
        How many values were missing (None, NaN).

    Examples
    --------
    >>> as_texts(["green tea", None])
    (['green tea', ''], 1)
    >>> import pandas
    >>> as_texts(pandas.DataFrame({"title": ["Tea"], "body": ["green"]}))
    ({'title': ['Tea'], 'body': ['green']}, 0)
    """
    if isinstance(texts, TextColumn):
        return texts, 0
    if isinstance(texts, (str, bytes)):
        raise ValueError(f"texts must be a sequence of str, got the single string {texts!r:.40}")
    columns = texts if isinstance(texts, Mapping) else _columns(texts)
    if columns is None:
        if isinstance(texts, np.ndarray) and texts.ndim != 1:
            raise ValueError(
                f"texts must have one dimension, got the shape {texts.shape}: use a frame or a dict"
            )
        return _strings(texts, "texts")
    if not columns:
        raise ValueError("texts has no column")
    made: dict[str, Any] = {}
    missing = 0
    for name, column in columns.items():
        if isinstance(column, TextColumn):
            made[name] = column
        else:
            made[name], n = _strings(column, f"column {name!r}")
            missing += n
    sizes = {name: len(column) for name, column in made.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"columns of texts must have the same length, got {sizes}")
    whole = isinstance(texts, Mapping) or len(made) > 1
    return (made if whole else next(iter(made.values()))), missing


def _columns(frame: Any) -> dict[str, list[Any]] | None:
    """The columns of a frame as lists; None for what is no frame."""
    if not hasattr(frame, "columns") and not hasattr(frame, "column_names"):
        return None
    import narwhals

    native = narwhals.from_native(frame, eager_only=True, pass_through=True)
    if native is frame:
        return None
    return {name: native[name].to_list() for name in native.columns}


def _strings(values: Any, name: str) -> tuple[list[str], int]:
    found = values.to_pylist() if hasattr(values, "to_pylist") else list(values)  # the former: pyarrow
    missing = 0
    for i, value in enumerate(found):
        if not isinstance(value, str):
            if not is_missing(value):
                raise ValueError(f"{name} must hold str, got {type(value).__name__} at position {i}")
            found[i] = ""
            missing += 1
    return found, missing
