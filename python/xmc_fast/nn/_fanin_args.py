"""What the fixed fan-in operators of every device share: dtypes, checks, the arguments of the fused loss."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

LOSSES = {"squared_hinge": 0, "bce": 1}
TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
INDEX_BITS = {torch.uint16: 16, torch.int32: 32}


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

    def wants_bias(self) -> bool:
        """Whether the gradient for the bias is asked for and exists."""
        return self.need_bias and self.bias is not None


def index_dtype(features: int) -> torch.dtype:
    """uint16 as long as it can name every feature, else int32."""
    return torch.uint16 if features <= 65536 else torch.int32


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
        raise ValueError(f"indices must be uint16 or int32, got {indices.dtype}")
    if fan_in > features:
        raise ValueError(f"fan_in {fan_in} exceeds the {features} features")
    if bias is not None and tuple(bias.shape) != (labels,):
        raise ValueError(f"bias must have shape {(labels,)}, got {tuple(bias.shape)}")


def check_rows(x: Tensor, name: str, columns: int | None = None) -> None:
    if x.dim() != 2 or (columns is not None and x.shape[1] != columns):
        wanted = "two dimensions" if columns is None else f"shape (batch, {columns})"
        raise ValueError(f"{name} must have {wanted}, got shape {tuple(x.shape)}")
