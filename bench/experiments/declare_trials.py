"""Held-out trials of how the rows of Y are scaled before DECLARE's SVD: cells of bench/experiments/declare.py.

A trial is a data set, a scaling of the rows of Y, the length of the rows of X and a seed. After each epoch the
network is judged on held-out data by both similarities (inner product, cosine), with neighbours voting by binary
labels or by the scaled ones. The test part is not looked at.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from xmc_fast import knn, metrics
from xmc_fast.declare import LabelRecovery, truncated_svd

SCALINGS = {"none": "as they are", "length": "of length one", "sum": "of sum one"}
WAYS = ("inner", "inner, scaled vote", "cosine", "cosine, scaled vote")
# data set, scaling, length of the rows of X, epochs, seeds
TRIALS = (
    *(("bibtex", scaling, 1.0, 40, (0, 1, 2)) for scaling in SCALINGS),
    ("bibtex", "length", 4.0, 40, (0,)),
    ("eurlex57k", "length", 4.0, 16, (0,)),
    ("eurlex57k", "sum", 4.0, 3, (0,)),
    ("eurlex57k", "none", 4.0, 3, (0,)),
)


def trial_name(scaling: str, length: float) -> str:
    return f"trial {scaling} x{length:g}"


def row_factors(Y: sp.csr_matrix, scaling: str) -> np.ndarray:
    power = {"none": 0.0, "length": -0.5, "sum": -1.0}[scaling]
    return (np.maximum(np.diff(Y.indptr), 1) ** power).astype(np.float32)


def judge(
    Z: np.ndarray, z: np.ndarray, Y: sp.csr_matrix, scaling: str, truth: sp.csr_matrix
) -> dict[str, list[float]]:
    """P@1 and P@5 of the predictions z for rows with these true labels, for each of WAYS."""
    factors, found = row_factors(Y, scaling), {}
    for similarity in ("inner", "cosine"):
        ids, s = LabelRecovery(Z, Y, similarity=similarity).index.search(z, 25)
        for way, votes in ((similarity, s), (f"{similarity}, scaled vote", s * factors[ids])):
            p = metrics.precision_at_k(truth, knn.recover_labels(ids, votes, Y, 5), k=(1, 5))
            found[way] = [round(100 * float(value), 3) for value in p]
    return found


def run_trial(
    parts: dict[str, sp.csr_matrix], c: int, scaling: str, epochs: int, seed: int
) -> dict[str, Any]:
    """Trains on X, Y and judges on Xd, Yd after each epoch, and with the compressed true labels for predictions."""
    import torch

    from xmc_fast.nn import Declare
    from xmc_fast.nn.sparse_input import csr_batches

    X, Y, Xd, Yd = (parts[key] for key in ("X", "Y", "Xd", "Yd"))
    curve = []

    class Judged(Declare):
        def _figures(self, *_: Any) -> dict[str, float]:
            self.network_.eval()
            with torch.no_grad():
                z = np.concatenate([self._outputs(x).numpy() for x in csr_batches(Xd, None, 1024)])
            curve.append(judge(self.recovery_.Z, z, Y, scaling, Yd))
            return {}

    svd = truncated_svd(Y, c, label_scaling=scaling, random_state=seed)
    known = (sp.diags(row_factors(Yd, scaling)) @ Yd.astype(np.float32)) @ svd.V
    model = Judged(c, label_scaling=scaling, epochs=epochs, random_state=seed, device="cpu")
    model.fit(X, Y, validation=(Xd, Yd))
    return {"curve": curve, "known": judge(svd.Z, np.asarray(known), Y, scaling, Yd)}
