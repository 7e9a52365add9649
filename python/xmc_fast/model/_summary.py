"""What is in a model: sizes, density, how large the weights are."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from xmc_fast.model._sparse import SparseModel


@dataclass(frozen=True)
class ModelDescription:
    """Figures of a model; ``str()`` gives a table, `to_dict` plain numbers."""

    n_labels: int
    n_features: int
    n_blocks: int
    nnz: int
    density: float
    nbytes: int
    dtype: str
    bias: float | None
    normalize: bool
    calibrated: bool
    empty_labels: int
    weights_per_label: dict[str, float]  # min, median, mean, max
    histogram: dict[str, list[float]]  # edges of |w| (ascending, n + 1) and counts (n)
    params: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON-ready types."""
        return asdict(self)

    def __str__(self) -> str:
        per = self.weights_per_label
        lines = [
            f"labels      {self.n_labels:,} in {self.n_blocks} block(s), {self.empty_labels:,} without weights",
            f"features    {self.n_features:,}",
            f"weights     {self.nnz:,} {self.dtype} ({self.density:.3%} of all)",
            f"per label   min {per['min']:,.0f}, median {per['median']:,.0f}, mean {per['mean']:,.1f},"
            f" max {per['max']:,.0f}",
            f"size        {self.nbytes / 1e6:,.1f} MB",
            f"bias        {self.bias}, rows normalised: {'yes' if self.normalize else 'no'},"
            f" calibrated: {'yes' if self.calibrated else 'no'}",
            "|weight|",
        ]
        edges, counts = self.histogram["edges"], self.histogram["counts"]
        top = max([*counts, 1])
        for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True):
            bar = "#" * round(40 * count / top)
            lines.append(f"  {low:<8.3g} to {high:<8.3g} {count:>14,.0f} {bar}".rstrip())
        if self.params:
            lines += ["trained with", *(f"  {key:<16} {value}" for key, value in self.params.items())]
        return "\n".join(lines)


# Powers of ten and their halves; the first bin has everything smaller, the last everything larger.
EDGES = np.array([0, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, np.inf])


def weight_counts(model: SparseModel, edges: npt.ArrayLike = EDGES) -> npt.NDArray[np.int64]:
    """How many weights have an absolute value in [edges[i], edges[i + 1])."""
    limits = np.asarray(edges, np.float32)
    counts = np.zeros(len(limits) - 1, np.int64)
    for block in model.blocks:
        for start in range(0, block.nnz, 1 << 22):
            size = np.abs(block.data[start : start + (1 << 22)].astype(np.float32))
            below = np.searchsorted(np.sort(size), limits, side="left")
            counts += np.diff(below)
    return counts


def describe_model(model: SparseModel) -> ModelDescription:
    """Sizes, density and the histogram of the weights.

    Examples
    --------
    >>> import numpy as np, scipy.sparse as sp
    >>> facts = describe_model(SparseModel(sp.csr_matrix(np.array([[0.5, 0.0], [0.02, 2.0]]))))
    >>> facts.nnz, facts.density
    (3, 0.75)
    """
    per_label = np.concatenate([np.diff(block.indptr) for block in model.blocks])
    some = per_label if len(per_label) else np.zeros(1)
    return ModelDescription(
        n_labels=model.n_labels,
        n_features=model.n_features,
        n_blocks=len(model.blocks),
        nnz=model.nnz,
        density=model.density,
        nbytes=model.nbytes,
        dtype=str(model.dtype),
        bias=model.bias,
        normalize=model.normalize,
        calibrated=model.calibration is not None,
        empty_labels=int((per_label == 0).sum()),
        weights_per_label={
            "min": float(some.min()),
            "median": float(np.median(some)),
            "mean": float(some.mean()),
            "max": float(some.max()),
        },
        histogram={
            "edges": [float(edge) for edge in EDGES],
            "counts": [float(count) for count in weight_counts(model)],
        },
        params=model.params,
    )
