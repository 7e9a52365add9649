"""PECOS XR-Linear as the benches use it."""

from __future__ import annotations

from typing import Any

import numpy as np


def pecos_linear() -> Any:
    """PECOS' linear model, made to work with numpy 2: its own way to build scipy matrices does not."""
    from pecos.utils import smat_util
    from pecos.xmc.xlinear.model import XLinearModel

    def build(parts, kind, shape=None, dtype=None, **_):
        values, indices, ends = parts
        return kind((values, indices.astype(np.int64), ends.astype(np.int64)), shape=shape, dtype=dtype)

    smat_util.cs_matrix = build
    return XLinearModel
