"""Output layers of a classifier with one interface: fixed fan-in and what it is compared with.

=============  ============================================================  ==================================
kind           layer                                                         weights
=============  ============================================================  ==================================
``fan_in``     `xmc_fast.nn.FixedFanInLinear`                        labels x fan_in (and the indices)
``head_tail``  dense for the most frequent labels, fixed fan-in for others   head x h + rest x fan_in
``dense``      ``nn.Linear``                                                 labels x h
``bottleneck`` two dense layers through ``rank`` units                       (h + labels) x rank
=============  ============================================================  ==================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from xmc_fast._validate import to_scipy
from xmc_fast.nn._fanin_torch import entry_rows, label_losses
from xmc_fast.nn._mining import mined_squared_hinge
from xmc_fast.nn.fanin import (
    DenseHeadSparseTail,
    FixedFanInLinear,
    sparse_bce,
    sparse_squared_hinge,
    target_positions,
)

LOSSES = ("squared_hinge", "bce")
_SHOW = 8  # one batch in so many reports its P@1


class Bottleneck(nn.Module):
    """Two linear layers through ``rank`` units: the dense way to save memory.

    >>> Bottleneck(64, 1000, rank=8)(torch.zeros(2, 64)).shape
    torch.Size([2, 1000])
    """

    def __init__(self, in_features: int, out_features: int, rank: int) -> None:
        super().__init__()
        if rank < 1:
            raise ValueError(f"rank must be at least 1, got {rank}")
        self.in_features, self.out_features = in_features, out_features
        self.down = nn.Linear(in_features, rank, bias=False)
        self.up = nn.Linear(rank, out_features)

    def forward(self, x: Tensor) -> Tensor:
        """x (batch, in_features) -> (batch, out_features)"""
        out: Tensor = self.up(self.down(x))
        return out


def _bottleneck(in_features: int, n_labels: int, fan_in: int, **how: Any) -> Bottleneck:
    """Without a rank, of as many bytes as a layer of fixed fan-in."""
    index_bytes = (2 if in_features <= 65536 else 4) / how["group_size"]
    equal = n_labels * fan_in * (4 + index_bytes) / (4 * (in_features + n_labels))
    return Bottleneck(in_features, n_labels, how["rank"] or max(1, round(equal)))


def _fan_in(in_features: int, n_labels: int, fan_in: int, **how: Any) -> FixedFanInLinear:
    options = {name: how[name] for name in ("group_size", "random_state", "dtype")}
    return FixedFanInLinear(in_features, n_labels, fan_in, **options)


def _head_tail(in_features: int, n_labels: int, fan_in: int, **how: Any) -> DenseHeadSparseTail:
    options = {name: how[name] for name in ("group_size", "random_state")}
    return DenseHeadSparseTail(in_features, n_labels, how["head"], fan_in, **options)


# Kind -> how to make the layer, and those of its parts that start at zero.
KINDS: dict[str, tuple[Callable[..., nn.Module], tuple[str, ...]]] = {
    "fan_in": (_fan_in, ("",)),
    "head_tail": (_head_tail, ("head", "tail")),
    "dense": (lambda in_features, n_labels, fan_in, **how: nn.Linear(in_features, n_labels), ("",)),
    "bottleneck": (_bottleneck, ("up",)),
}


def make_output(
    kind: str,
    in_features: int,
    n_labels: int,
    *,
    fan_in: int,
    group_size: int = 1,
    head: Sequence[int] | Tensor = (),
    rank: int | None = None,
    random_state: int = 0,
    dtype: torch.dtype = torch.float32,
) -> nn.Module:
    """An output layer whose labels all start as "no": weights 0 and bias -1, where no negative has a squared
    hinge loss. Random weights would make half of all negatives violate their margin; the ReLU units before the
    layer then stop reacting to any row.
    """
    if kind not in KINDS:
        raise ValueError(f"output must be one of {tuple(KINDS)}, got {kind!r}")
    if dtype != torch.float32 and kind != "fan_in":
        raise ValueError(f'dtype {dtype} needs output="fan_in", got {kind!r}')
    make, parts = KINDS[kind]
    how = {"group_size": group_size, "head": head, "rank": rank, "random_state": random_state, "dtype": dtype}
    layer = make(in_features, n_labels, fan_in, **how)
    for part in parts:
        linear: Any = layer.get_submodule(part)
        nn.init.constant_(linear.bias, -1.0)
        nn.init.zeros_(linear.weight)
    return layer


def output_loss(
    layer: nn.Module, x: Tensor, targets: Any, *, loss: str = "squared_hinge", gradient: str = "fused"
) -> Tensor:
    """Mean over the batch of the loss summed over all labels, y in {-1, +1}; see `make_output`.

    ``gradient="sparse"`` takes `xmc_fast.nn.mined_squared_hinge` for a fixed fan-in layer.
    """
    if isinstance(layer, FixedFanInLinear) and gradient == "sparse":
        return mined_squared_hinge(x, layer, targets)
    if isinstance(layer, FixedFanInLinear | DenseHeadSparseTail):
        fused = sparse_squared_hinge if loss == "squared_hinge" else sparse_bce
        return fused(x, layer, targets)
    z = layer(x)
    crow, col, scale = target_positions(x, z.shape[1], targets, "batchmean")
    return label_losses(loss, z, entry_rows(crow, z.device), col)[0].sum() * scale


def output_topk(layer: nn.Module, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Scores and ids of the k best labels of each row, best first, equal scores by lower id."""
    with torch.no_grad():
        if isinstance(layer, FixedFanInLinear | DenseHeadSparseTail):
            return layer.topk(x, k)
        scores, ids = torch.sort(layer(x), dim=1, descending=True, stable=True)
        return scores[:, :k], ids[:, :k]


def ranked_csr(
    scores: npt.NDArray[Any], ids: npt.NDArray[Any], n_labels: int, order: npt.NDArray[np.int64] | None
) -> sp.csr_matrix:
    """Scores and ids (n, k), best first, as CSR (n, n_labels); ``order`` gives the caller's label for an id."""
    n, k = ids.shape
    if order is not None:
        ids = order[ids].astype(np.int32)
        best = np.lexsort((ids, -scores), axis=1)  # equal scores by lower id
        scores, ids = np.take_along_axis(scores, best, 1), np.take_along_axis(ids, best, 1)
    indptr = np.arange(n + 1, dtype=np.int64) * k
    return to_scipy(indptr, ids.reshape(-1), scores.reshape(-1), (n, n_labels))


def show_batch(rows: npt.NDArray[np.int64]) -> bool:
    """Whether a batch reports its P@1: by its rows, so that a restarted run reports the same ones."""
    return bool(rows[0] % _SHOW == 0)


def top_precision(layer: nn.Module, x: Tensor, targets: sp.csr_matrix) -> float:
    """P@1 of a batch during training."""
    best = output_topk(layer, x.detach(), 1)[1][:, 0].cpu().numpy().copy()
    return float(targets[np.arange(len(best)), best].mean())
