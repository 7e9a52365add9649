"""Squared hinge with implicit negative mining: a gradient that has entries only where the margin is violated.

    loss = sum_l max(0, 1 - y_l z_l)^2,   dloss/dz_l = -2 y_l max(0, 1 - y_l z_l)

After some steps most negatives have z <= -1 and exactly no gradient: the rest are the hard negatives, found
without a search. The logits exist for a chunk of labels at a time; what is kept are the entries of the gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from xmc_fast.nn import ops
from xmc_fast.nn._recording import label_range, seen_loss
from xmc_fast.nn.fanin import FixedFanInLinear, target_positions

_CHUNK = 1 << 22  # logits in memory at a time


def mined_squared_hinge(
    x: Tensor, layer: FixedFanInLinear, targets: Any, *, reduction: str = "batchmean", chunk: int = _CHUNK
) -> Tensor:
    """The value of `xmc_fast.nn.sparse_squared_hinge`, with sparse gradients for weight and bias.

    ``layer.weight.grad`` is a sparse tensor over the labels of the batch that have any gradient, for
    `xmc_fast.nn.optim.SparseAwareAdam`, torch's SparseAdam or SGD. Backward costs what the entries cost.

    Parameters
    ----------
    x : Tensor of shape (batch, in_features)
    layer : FixedFanInLinear
    targets : scipy sparse or torch sparse CSR matrix of shape (batch, out_features), binary
    reduction : {"batchmean", "sum", "mean"}
    chunk : logits that are in memory at a time

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> layer = FixedFanInLinear(8, 50, fan_in=4)
    >>> _ = torch.nn.init.constant_(layer.bias, -30.0)
    >>> targets = sp.csr_matrix(([1, 1], ([0, 1], [3, 40])), shape=(2, 50))
    >>> mined_squared_hinge(torch.randn(2, 8), layer, targets).backward()
    >>> layer.weight.grad.is_sparse, layer.weight.grad.coalesce().indices()[0].tolist()
    (True, [3, 40])
    """
    crow, col, scale = target_positions(x, layer.out_features, targets, reduction)
    if layer.record is not None and torch.is_grad_enabled():
        layer.record.append(seen_loss("squared_hinge", x.detach(), layer, crow, col, scale))
    return _apply(x, layer.weight, layer.bias, layer, crow, col, scale, chunk)


class _Mined(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        layer: FixedFanInLinear,
        crow: Tensor,
        col: Tensor,
        scale: float,
        chunk: int,
    ) -> Tensor:
        group = layer.group_size
        step = max(1, chunk // max(len(x), 1) // group) * group
        total = 0.0
        entries: list[tuple[Tensor, Tensor, Tensor]] = []  # row, label, value
        for first in range(0, layer.out_features, step):
            last = min(first + step, layer.out_features)
            z, positive = label_range(layer, x, crow, col, first, last)
            margin = (z + 1).clamp_(min=0)  # of a negative
            margin[positive] = (z[positive] - 1).clamp_(max=0)  # of a positive, with the sign of its slope
            total += float(margin.square().sum(dtype=torch.float64))
            rows, labels = margin.nonzero(as_tuple=True)
            entries.append((rows, labels + first, 2 * scale * margin[rows, labels]))
        if not entries:
            entries = [(col[:0], col[:0], x.new_empty(0))]
        rows, labels, values = (torch.cat(part) for part in zip(*entries, strict=True))
        rows, order = torch.sort(rows, stable=True)  # labels stay ascending within a row
        counts = torch.bincount(rows, minlength=len(x))
        offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        gx, occur, gw, gb = ops.ops.fan_in_grad_sparse(
            x, weight, layer.indices, group, offsets, labels[order], values[order].to(torch.float32)
        )
        ctx.save_for_backward(gx, occur, gw, gb)
        ctx.shapes = weight.shape, None if bias is None else bias.shape
        return x.new_tensor(scale * total, dtype=torch.float32)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        gx, occur, gw, gb = ctx.saved_tensors
        sparse = [
            None
            if shape is None
            else torch.sparse_coo_tensor(
                occur[None], g * grad.to(g.dtype), shape, is_coalesced=True, check_invariants=False
            )
            for shape, g in zip(ctx.shapes, (gw, gb), strict=True)
        ]
        return gx * grad.to(gx.dtype), *sparse, None, None, None, None, None


_apply: Callable[..., Tensor] = _Mined.apply
