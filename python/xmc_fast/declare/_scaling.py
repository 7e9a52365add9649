"""Rows of a label matrix scaled before they are compressed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from xmc_fast._validate import Csr


def row_scales(y: Csr, label_scaling: str) -> npt.NDArray[np.float32]:
    """The factor of each row of binary labels, (n,): 1 ("none"), or what makes rows of length one ("length") or
    of sum one ("sum"). Rows without labels stay zero."""
    if label_scaling not in ("none", "length", "sum"):
        raise ValueError(f'label_scaling must be "none", "length" or "sum", got {label_scaling!r}')
    counts = np.maximum(np.diff(y.indptr), 1)
    power = {"none": 0.0, "length": -0.5, "sum": -1.0}[label_scaling]
    return (counts**power).astype(np.float32)


def scaled_labels(y: Csr, label_scaling: str) -> Csr:
    """Binary labels with rows scaled as `row_scales` says; "none" leaves them binary, without data."""
    scales = row_scales(y, label_scaling)
    if label_scaling == "none":
        return y
    return y._replace(data=np.repeat(scales, np.diff(y.indptr)))
