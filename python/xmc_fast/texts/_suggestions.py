"""Predictions with names instead of numbers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp


class Suggestion(NamedTuple):
    """One label of one text. ``probability`` is the raw score when scores were requested."""

    label: str
    probability: float


def suggestions(top: sp.csr_matrix, names: list[str]) -> list[list[Suggestion]]:
    """The entries of each row (CSR, best first)."""
    pairs = zip(top.indices.tolist(), top.data.tolist(), strict=True)
    flat = [Suggestion(names[label], value) for label, value in pairs]
    return [flat[a:b] for a, b in pairwise(top.indptr.tolist())]


def frame(top: sp.csr_matrix, names: list[str]) -> Any:
    """One line per suggestion: a pandas frame, or a dict of lists where pandas is not installed."""
    sizes = np.diff(top.indptr)
    columns: dict[str, Any] = {
        "row": np.repeat(np.arange(top.shape[0]), sizes),
        "rank": np.arange(len(top.indices)) - np.repeat(top.indptr[:-1], sizes) + 1,
        "label": [names[label] for label in top.indices],
        "probability": top.data,
    }
    try:
        import pandas  # type: ignore[import-untyped]
    except ImportError:
        return {name: list(values) for name, values in columns.items()}
    return pandas.DataFrame(columns)
