"""Why a label: what each feature of a row adds to a label's score, exact for a linear model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from xmc_fast.model._packed import as_summed
from xmc_fast.model._predict import one_row

if TYPE_CHECKING:
    from xmc_fast.model._sparse import SparseModel


class RowExplanation(NamedTuple):
    """A label's score for one row: ``score = bias + contributions.sum()``."""

    label: int
    score: float
    probability: float | None  # of a calibrated model
    bias: float
    columns: npt.NDArray[np.int32]  # features of the row
    values: npt.NDArray[np.float64]  # of the row, normalised if the model does
    weights: npt.NDArray[np.float64]  # of the label; 0 where it has none
    contributions: npt.NDArray[np.float64]  # values * weights


def explain_row(model: SparseModel, x: Any, label: int | None = None) -> RowExplanation:
    """What the features of a row (see `SparseModel.predict_one`) add to a label's score.

    ``label`` is by default the best one of the row.

    Examples
    --------
    >>> import numpy as np, scipy.sparse as sp
    >>> from xmc_fast.model import SparseModel
    >>> model = SparseModel(sp.csr_matrix(np.array([[1.0, 0.0], [0.5, 2.0]])))
    >>> explain_row(model, ([0, 1], [2.0, 1.0]), 1).contributions
    array([1., 2.])
    """
    row = one_row(x, model.n_features)
    if label is None:
        best = model.predict_one((row.indices, row.data), 1)[0]
        if not len(best):
            raise ValueError("the model suggests no label for this row: name one")
        label = int(best[0])
    if not 0 <= label < model.n_labels:
        raise ValueError(f"label must be from 0 to {model.n_labels - 1}, got {label}")
    return explain_columns(model, row.indices, row.data, label)


def explain_columns(model: SparseModel, columns: Any, data: Any, label: int) -> RowExplanation:
    """`explain_row` of a row and a label that are known to be right."""
    own, weights = label_weights(model, label)
    values = data.astype(np.float64)
    if model.normalize:
        values /= float(values @ values) ** 0.5 or 1.0
    if model.compressed:
        values = as_summed(values)
    bias = 0.0
    if model.bias is not None and len(own) and own[-1] == model.n_features:
        bias = float(model.bias) * float(weights[-1])
    weight = np.zeros(len(values))
    if len(own):
        at = own.searchsorted(columns)
        at[at == len(own)] = 0
        weight = np.where(own[at] == columns, weights[at], 0.0)
    parts = values * weight
    score = bias + float(parts.sum())
    return RowExplanation(
        label, score, label_probability(model, label, score), bias, columns, values, weight, parts
    )


def label_weights(model: SparseModel, label: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.float64]]:
    """Columns (ascending) and weights of one label."""
    block = next(b for b in model.blocks if b.first_label <= label < b.first_label + b.n_labels)
    at = label - block.first_label
    rows = slice(int(block.indptr[at]), int(block.indptr[at + 1]))
    return block.indices[rows], block.data[rows].astype(np.float64)


def label_probability(model: Any, label: int, score: float) -> float | None:
    """The calibrated probability of a score; None without a calibration."""
    if model.calibration is None:
        return None
    z = float(model.calibration.scale[label]) * score + float(model.calibration.shift[label])
    return float(1 / (1 + np.exp(-min(max(z, -80.0), 80.0))))
