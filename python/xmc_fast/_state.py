"""What a fit leaves for a later update: its rows, and where each label's dual solution is not zero.

For the squared hinge the weights are w = Σ_i α_i s_i x_i, and α is above 0 only for rows inside the margin: a few
hundred a label, 8 bytes each. Unpruned weights would tell the same with a number for every feature of those rows.

``state/rows.safetensors``         X (CSR or dense, as given to fit) and Y
``state/multipliers.safetensors``  α as CSR labels x rows; per label the bias's weight, the objective, its gap
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast._folder import ModelFormatError, replace_folder
from xmc_fast._folder import write_manifest as write_json
from xmc_fast._validate import to_scipy
from xmc_fast.model._tensors import Tensors, read_tensors, write_tensors

FOLDER, KIND = "state", "fit_state"
MULTIPLIERS = ("alpha_indptr", "alpha_rows", "alpha", "bias_weight")


@dataclass
class FitState:
    """The rows of a fit and its dual solutions (see the module)."""

    X: Any  # scipy CSR float32 or array, n x features, as given to fit
    Y: sp.csr_matrix  # n x labels
    alpha: sp.csr_matrix  # labels x n; empty where the solver has none
    bias_weight: npt.NDArray[np.float32]  # labels; NaN: no multipliers
    objective: npt.NDArray[np.float64]  # labels: f(w)
    gap: npt.NDArray[np.float64]  # labels: f(w) - min f is at most so much
    settings: dict[str, Any]  # of the fit

    @property
    def nbytes(self) -> int:
        """Bytes in memory, and about those on disk."""
        arrays = [*_parts(self.Y), *_parts(self.alpha), self.bias_weight, self.objective, self.gap]
        arrays += _parts(self.X) if sp.issparse(self.X) else [self.X]
        return int(sum(array.nbytes for array in arrays))

    def write(self, folder: Path) -> None:
        """Write the state as a folder of its own."""
        with replace_folder(folder) as new:
            rows: Tensors = {"y_indptr": self.Y.indptr, "y_indices": self.Y.indices}
            if sp.issparse(self.X):
                rows |= {"x_indptr": self.X.indptr, "x_indices": self.X.indices, "x_data": self.X.data}
            else:
                rows["x_dense"] = self.X
            shape = {"n_features": str(self.X.shape[1]), "n_labels": str(self.Y.shape[1])}
            write_tensors(new / "rows.safetensors", rows, shape)
            write_tensors(
                new / "multipliers.safetensors",
                {
                    "indptr": self.alpha.indptr,
                    "rows": self.alpha.indices,
                    "alpha": self.alpha.data,
                    "bias_weight": self.bias_weight,
                    "objective": self.objective,
                    "gap": self.gap,
                },
                {"settings": json.dumps(self.settings, sort_keys=True)},
            )
            write_json(new, KIND, {})

    @staticmethod
    def read(folder: str | os.PathLike[str]) -> FitState:
        """What `write` wrote."""
        path = Path(folder)
        rows, shape = read_tensors(path / "rows.safetensors", map_file=True, verify=False)
        found, metadata = read_tensors(path / "multipliers.safetensors", map_file=True, verify=False)
        try:
            n_features, n_labels = int(shape["n_features"]), int(shape["n_labels"])
            n = len(rows["y_indptr"]) - 1
            if "x_dense" in rows:
                X: Any = rows["x_dense"]
            else:
                X = to_scipy(rows["x_indptr"], rows["x_indices"], rows["x_data"], (n, n_features))
            ones = np.ones(len(rows["y_indices"]), np.float32)
            return FitState(
                X,
                to_scipy(rows["y_indptr"], rows["y_indices"], ones, (n, n_labels)),
                to_scipy(found["indptr"], found["rows"], found["alpha"], (n_labels, n)),
                found["bias_weight"],
                found["objective"],
                found["gap"],
                json.loads(metadata["settings"]),
            )
        except (KeyError, ValueError) as error:
            raise ModelFormatError(f"{path}: damaged, {error}") from None


def state_of(X: Any, Y: sp.csr_matrix, reports: list[dict[str, Any]], settings: dict[str, Any]) -> FitState:
    """The state of a fit from the reports of its blocks, in order."""
    objective, gap = (np.concatenate([report[name] for report in reports]) for name in ("objective", "gap"))
    if "alpha" in reports[0]:
        starts = np.cumsum([0] + [len(report["alpha"]) for report in reports])
        indptr = [r["alpha_indptr"][:-1] + start for r, start in zip(reports, starts, strict=False)]
        alpha = to_scipy(
            np.concatenate([*indptr, starts[-1:]]),
            np.concatenate([report["alpha_rows"] for report in reports]),
            np.concatenate([report["alpha"] for report in reports]),
            (len(gap), X.shape[0]),
        )
        bias = np.concatenate([report["bias_weight"] for report in reports])
    else:  # Newton and l1 have none
        alpha = sp.csr_matrix((len(gap), X.shape[0]), dtype=np.float32)
        bias = np.full(len(gap), np.nan, np.float32)
    return FitState(X, Y, alpha, bias, objective, gap, settings)


def _parts(matrix: Any) -> list[npt.NDArray[Any]]:
    return [matrix.indptr, matrix.indices, matrix.data]
