"""How many labels a text gets: the rule that `TextClassifier.fit` stores and `predict` follows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast._validate import labels as labels_of
from xmc_fast.decide import Thresholds
from xmc_fast.model import is_relevant
from xmc_fast.model._tensors import read_tensors, write_tensors
from xmc_fast.texts._labels import keep_entries

CANDIDATES = 100  # labels of a row that thresholds are compared with
_FILE = "thresholds.safetensors"


@dataclass(frozen=True)
class Decision:
    """At most ``k`` labels, those whose probability reaches their threshold."""

    rule: str
    k: int
    thresholds: npt.NDArray[np.float32]  # one per label, or one for all; empty: none

    def keep(self, top: sp.csr_matrix) -> sp.csr_matrix:
        """The labels of a prediction (probabilities) that the rule accepts."""
        if not len(self.thresholds):
            return top
        limits = self.thresholds[top.indices] if len(self.thresholds) > 1 else self.thresholds
        return keep_entries(top, top.data >= limits)

    def write(self, folder: Path) -> None:
        """Into the folder of a classifier."""
        write_tensors(folder / _FILE, {"thresholds": self.thresholds}, {"rule": self.rule, "k": str(self.k)})

    @staticmethod
    def read(folder: Path) -> Decision | None:
        """What `write` wrote, if anything."""
        if not (folder / _FILE).is_file():
            return None
        found, metadata = read_tensors(folder / _FILE, map_file=False, verify=True)
        return Decision(metadata["rule"], int(metadata["k"]), found["thresholds"])


def check_rule(rule: Any) -> None:
    """An error unless ``rule`` is a number of labels or one of the names."""
    number = isinstance(rule, int) and not isinstance(rule, bool) and rule >= 1
    if number or rule in ("macro-f1", "micro-f1") or _precision(rule) is not None:
        return
    raise ValueError(
        f"decide must be 'macro-f1', 'micro-f1', 'precision>=0.8' or a number of labels, got {rule!r}"
    )


def fit_decision(rule: Any, top: sp.csr_matrix | None, Y: sp.csr_matrix) -> Decision:
    """From the probabilities of held-out rows (their best labels) and their labels."""
    if isinstance(rule, int):
        return Decision(str(rule), rule, np.empty(0, np.float32))
    if top is None or not top.nnz:
        raise ValueError(f"decide={rule!r} needs probabilities: train with calibrate above 0 and enough rows")
    if rule == "macro-f1":
        limits = Thresholds("macro-f1").fit(top, Y).thresholds_
        return Decision(rule, CANDIDATES, np.minimum(limits, 2).astype(np.float32))
    order = np.argsort(-top.data, kind="stable")
    right = np.cumsum(is_relevant(top, labels_of(Y))[order])
    asked = np.arange(1, len(order) + 1)
    ends = np.append(np.diff(top.data[order]) < 0, True)  # all of equal probability, or none
    if rule == "micro-f1":
        value = np.where(ends, 2 * right / (asked + Y.nnz), -1.0)
        best = int(np.argmax(value))
    else:
        enough = np.flatnonzero(ends & (right / asked >= (_precision(rule) or 0)))
        best = int(enough[-1]) if len(enough) else -1
    limit = 2.0 if best < 0 else float(top.data[order[best]])
    return Decision(rule, CANDIDATES, np.array([limit], np.float32))


def _precision(rule: Any) -> float | None:
    """0.8 of "precision>=0.8"."""
    name, _, share = str(rule).partition(">=")
    try:
        value = float(share)
    except ValueError:
        return None
    return value if name.strip() == "precision" and 0 < value <= 1 else None
