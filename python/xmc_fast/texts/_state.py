"""What an update of a text classifier starts from.

The state of the linear model (`xmc_fast._state`), the rows held out for probabilities, and the number of each row as
it was given: the first text of ``fit`` is row 0, updates go on counting.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast._state import FOLDER, FitState
from xmc_fast._validate import to_scipy
from xmc_fast.model._tensors import read_tensors, write_tensors

_FILE = "texts.safetensors"


@dataclass
class TextState:
    """What `TextClassifier.update` starts from."""

    linear: FitState
    rows: npt.NDArray[np.int64]  # number of each training row
    held_rows: npt.NDArray[np.int64]  # of each row held out
    X_held: sp.csr_matrix
    Y_held: sp.csr_matrix
    n_rows: int  # rows given so far

    @property
    def nbytes(self) -> int:
        """Bytes in memory, and about those on disk."""
        return self.linear.nbytes + int(self.X_held.data.nbytes + self.X_held.indices.nbytes)

    def write(self, folder: Path) -> None:
        """Write it into the folder of a classifier."""
        self.linear.write(folder / FOLDER)
        tensors = {
            "rows": self.rows,
            "held_rows": self.held_rows,
            "n_rows": np.array([self.n_rows], np.int64),
        }
        for name in ("X_held", "Y_held"):
            matrix = getattr(self, name)
            tensors |= {f"{name}.{part}": getattr(matrix, part) for part in ("indptr", "indices", "data")}
            tensors[f"{name}.shape"] = np.array(matrix.shape, np.int64)
        write_tensors(folder / FOLDER / _FILE, tensors, {})

    @staticmethod
    def read(folder: Path) -> TextState | None:
        """What `write` wrote, if anything."""
        if not (folder / FOLDER / _FILE).is_file():
            return None
        found, _ = read_tensors(folder / FOLDER / _FILE, map_file=True, verify=False)

        def matrix(name: str) -> sp.csr_matrix:
            indptr, indices, data = (found[f"{name}.{part}"] for part in ("indptr", "indices", "data"))
            rows, columns = found[f"{name}.shape"].tolist()
            return to_scipy(indptr, indices, data, (rows, columns))

        linear = FitState.read(folder / FOLDER)
        return TextState(
            linear,
            found["rows"],
            found["held_rows"],
            matrix("X_held"),
            matrix("Y_held"),
            int(found["n_rows"][0]),
        )
