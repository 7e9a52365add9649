"""What the fixed fan-in operators of every device share: dtypes, checks, the arguments of the longest ones."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

LOSSES = {"squared_hinge": 0, "bce": 1}
INDEX_BITS = {torch.int16: 16, torch.uint16: 16, torch.int32: 32}


class SparseCall(NamedTuple):
    """Arguments of ``fan_in_grad_sparse`` in the order of its schema; the gradient is CSR (batch, labels)."""

    x: Tensor
    weight: Tensor
    indices: Tensor
    group_size: int
    crow: Tensor
    col: Tensor
    values: Tensor


class LossCall(NamedTuple):
    """Arguments of ``fan_in_loss`` in the order of its schema."""

    x: Tensor
    weight: Tensor
    indices: Tensor
    bias: Tensor | None
    group_size: int
    crow: Tensor
    col: Tensor
    loss: int
    scale: float
    need_x: bool
    need_weight: bool
    need_bias: bool

    def bias_gradient(self) -> Tensor:
        """Room for the gradient of the bias; empty if there is none or it is not needed."""
        if self.bias is None or not self.need_bias:
            return self.weight.new_empty(0)
        return torch.empty_like(self.bias)


def index_dtype(features: int) -> torch.dtype:
    """int16 as long as 16 bits can name every feature, else int32.

    A 16-bit index is unsigned, although torch's type is signed: feature 40,000 is stored as 40,000 - 65,536. (torch has
    uint16, too, but cannot index with it, pickle it, or send it to other processes.)
    """
    return torch.int16 if features <= 65536 else torch.int32


def feature_ids(indices: Tensor) -> Tensor:
    """Index lists as int64.

    >>> feature_ids(torch.tensor([3, -1], dtype=torch.int16)).tolist()
    [3, 65535]
    """
    wide = indices.to(torch.int64)
    return wide & 0xFFFF if indices.dtype == torch.int16 else wide


def check_layer(features: int, weight: Tensor, indices: Tensor, bias: Tensor | None, group_size: int) -> None:
    if weight.dim() != 2:
        raise ValueError(f"weight must be (labels, fan_in), got shape {tuple(weight.shape)}")
    labels, fan_in = weight.shape
    if group_size < 1:
        raise ValueError(f"group_size must be >= 1, got {group_size}")
    groups = (labels + group_size - 1) // group_size
    if tuple(indices.shape) != (groups, fan_in):
        raise ValueError(f"indices must have shape {(groups, fan_in)}, got {tuple(indices.shape)}")
    if indices.dtype not in INDEX_BITS:
        raise ValueError(f"indices must be int16 or int32, got {indices.dtype}")
    if fan_in > features:
        raise ValueError(f"fan_in {fan_in} exceeds the {features} features")
    if bias is not None and tuple(bias.shape) != (labels,):
        raise ValueError(f"bias must have shape {(labels,)}, got {tuple(bias.shape)}")


def check_rows(x: Tensor, name: str, columns: int | None = None) -> None:
    if x.dim() != 2 or (columns is not None and x.shape[1] != columns):
        wanted = "two dimensions" if columns is None else f"shape (batch, {columns})"
        raise ValueError(f"{name} must have {wanted}, got shape {tuple(x.shape)}")


def check_topk(weight: Tensor, k: int) -> None:
    if not 0 <= k <= weight.shape[0]:
        raise ValueError(f"k must be in [0, {weight.shape[0]}], got {k}")
