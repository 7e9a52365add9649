"""The metrics of suggestions, with what could not be compared counted beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast import metrics
from xmc_fast._validate import to_scipy
from xmc_fast.model import is_relevant
from xmc_fast.texts._labels import Encoded


@dataclass(frozen=True)
class Evaluation:
    """Metrics of a classifier on labelled texts; ``evaluation["precision@5"]`` gives one number."""

    report: metrics.Report
    rows: int  # compared
    unlabelled_rows: int  # left out
    rows_without_suggestion: int  # of the compared: no known term
    unknown_labels: int  # different labels that the model does not have
    unknown_assignments: int  # how often they occur: misses
    repeated_labels: int  # within a row, counted once
    suggestion: Any = None  # of `xmc_fast.metrics.suggest`: the best k and threshold for these rows
    reliability: list[tuple[float, float, int]] | None = None  # see `reliability`

    def __getitem__(self, name: str) -> Any:
        return self.report[name]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers: those of the report, and ``counts``."""
        counts = {name: value for name, value in vars(self).items() if isinstance(value, int)}
        advice = {} if self.suggestion is None else {"suggestion": self.suggestion._asdict()}
        return {**self.report.to_dict(), "counts": counts, **advice}

    def __str__(self) -> str:
        notes = [
            (self.unlabelled_rows, "row", "without labels left out"),
            (self.rows_without_suggestion, "row", "without a known term: no suggestion"),
            (
                self.unknown_assignments,
                "assignment",
                f"of {_count(self.unknown_labels, 'label')} that the model does not have: counted as misses",
            ),
            (self.repeated_labels, "repeated label", "within a row counted once"),
        ]
        lines = [f"{_count(count, noun)} {rest}" for count, noun, rest in notes if count]
        return "\n".join([_count(self.rows, "row"), *lines, "", str(self.report)])


def _count(n: int, noun: str) -> str:
    """``1 row``, ``2,000 rows``."""
    return f"{n:,} {noun}{'s' * (n != 1)}"


def evaluation(
    truth: Encoded,
    top: sp.csr_matrix,
    known: npt.NDArray[np.bool_],
    k: Sequence[int],
    *,
    suggest: bool = False,
    **options: Any,
) -> Evaluation:
    """Compare predictions (CSR, best first) with labels; ``known`` are the rows with a known term.

    ``suggest`` also looks for the best k and threshold, and how reliable probabilities are.
    """
    rows = np.flatnonzero(truth.labelled)
    if not len(rows):
        raise ValueError(f"none of the {truth.Y.shape[0]} rows has a label: nothing to compare")
    Y = truth.Y[rows]
    wide = top[rows] if len(rows) < top.shape[0] else top
    wide = to_scipy(wide.indptr, wide.indices, wide.data, Y.shape)
    return Evaluation(
        metrics.report(Y, wide, k=k, **options),
        rows=len(rows),
        unlabelled_rows=truth.Y.shape[0] - len(rows),
        rows_without_suggestion=int((~known[rows]).sum()),
        unknown_labels=len(truth.unknown),
        unknown_assignments=truth.unknown_count,
        repeated_labels=truth.repeated,
        suggestion=metrics.suggest(Y, wide) if suggest else None,
        reliability=reliability(wide, is_relevant(wide, Y)) if suggest else None,
    )


def reliability(
    top: sp.csr_matrix, relevant: npt.NDArray[np.bool_], bins: int = 10
) -> list[tuple[float, float, int]]:
    """(mean probability, share of relevant entries, entries) of bins of equal width; empty bins are left out."""
    bin_of = np.clip((top.data * bins).astype(int), 0, bins - 1)
    counts, given, right = (np.bincount(bin_of, w, bins) for w in (None, top.data, relevant))
    return [(float(g / n), float(r / n), int(n)) for n, g, r in zip(counts, given, right, strict=True) if n]
