"""The lists of two models as one: ranked as by an `xmc_fast.Ensemble`, but the backend trains and stores the two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast._validate import to_scipy
from xmc_fast.ensemble import _fit_weights, _pairs, _ranked
from xmc_fast.model._calibrate import sigmoid
from xmc_fast.model._tensors import read_tensors, write_tensors


@dataclass
class Blend:
    """The weights of `xmc_fast.ensemble` and the training rows of each label."""

    weights: npt.NDArray[np.float32]
    counts: npt.NDArray[np.int64]

    @classmethod
    def fit(
        cls, lists: Sequence[sp.csr_matrix], truth: sp.csr_matrix, counts: npt.NDArray[np.int64]
    ) -> Blend:
        """Learn from the models' lists (rows x labels, best first) of rows that neither has seen."""
        return cls(_fit_weights(_pairs(lists, counts), truth.astype(bool)), counts)

    def best(self, lists: Sequence[sp.csr_matrix], k: int) -> sp.csr_matrix:
        """The k most probable labels of each row and their probabilities, best first."""
        sizes, ids, values = _ranked(lists, self.counts, self.weights, k)
        indptr = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        return to_scipy(indptr, ids, sigmoid(values), lists[0].shape)

    def save(self, path: Path) -> None:
        """Write a file of tensors."""
        write_tensors(path, {"weights": self.weights, "counts": self.counts}, {"kind": "blend"})

    @classmethod
    def load(cls, path: Path) -> Blend:
        """Read what `save` wrote."""
        found, _ = read_tensors(path, map_file=False, verify=True)
        return cls(found["weights"], found["counts"])
