"""Models of consecutive labels as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xmc_fast.model._storage import Block


def concat(models: Sequence[Any]) -> Any:
    """`SparseModel.concat`."""
    if not models:
        raise ValueError("models must hold at least one model, got none")
    first = models[0]
    blocks = []
    start = 0
    for position, model in enumerate(models):
        for name in ("n_features", "bias", "normalize"):
            if getattr(model, name) != getattr(first, name):
                raise ValueError(
                    f"models[{position}] has {name}={getattr(model, name)},"
                    f" models[0] has {getattr(first, name)}"
                )
        for b in model.blocks:
            blocks.append(Block(b.first_label + start, b.n_columns, b.indptr, b.indices, b.data))
        start += model.n_labels
    names = [model.label_names for model in models]
    known = [name for part in names if part is not None for name in part]
    return type(first)(
        blocks,
        bias=first.bias,
        normalize=first.normalize,
        params=first.params,
        feature_names=first.feature_names,
        label_names=known if None not in names else None,
    )
