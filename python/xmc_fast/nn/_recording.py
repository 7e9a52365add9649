"""What a sparse layer records of a batch, and the gradients of missing connections made of it.

A layer whose ``record`` is a list leaves a `Seen` there for every batch; rewiring by gradient
(`xmc_fast.nn.rewire`) reads them after the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from xmc_fast.nn import ops
from xmc_fast.nn._fanin_torch import entry_rows, label_losses

if TYPE_CHECKING:
    from xmc_fast.nn.fanin import FixedFanInLinear


class Seen(NamedTuple):
    """A batch that went through a layer: its input, and the loss's gradient for a range of the outputs."""

    x: Tensor  # (batch, in_features), detached
    gradient: Callable[[int, int], Tensor]  # first, last -> (batch, last - first); after the backward pass


def seen_output(x: Tensor, out: Tensor) -> Seen:
    """What a layer that makes ``out`` (batch, outputs) from x records: backward brings the gradient."""
    kept: list[Tensor] = []
    out.register_hook(lambda grad: kept.append(grad.detach()))  # type: ignore[no-untyped-call]

    def gradient(first: int, last: int) -> Tensor:
        if not kept:  # the loss did not depend on this output
            return x.new_zeros(x.shape[0], last - first)
        return kept[-1][:, first:last]

    return Seen(x.detach(), gradient)


def label_range(
    layer: FixedFanInLinear, x: Tensor, crow: Tensor, col: Tensor, first: int, last: int
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Logits (batch, last - first) of a range of labels that starts with a group, and where its targets are."""
    lists = slice(first // layer.group_size, -(-last // layer.group_size))
    bias = None if layer.bias is None else layer.bias.detach()[first:last]
    z: Tensor = ops.ops.fan_in_linear(
        x, layer.weight.detach()[first:last], layer.indices[lists], bias, layer.group_size
    )
    inside = (col >= first) & (col < last)
    rows = entry_rows(crow, col.device)
    return z, (rows[inside].to(z.device), col[inside].to(z.device, torch.int64) - first)


def seen_loss(name: str, x: Tensor, layer: FixedFanInLinear, crow: Tensor, col: Tensor, scale: float) -> Seen:
    """What a fused loss records: the logits of a range of labels are computed again when they are needed."""

    def gradient(first: int, last: int) -> Tensor:
        z, positive = label_range(layer, x, crow, col, first, last)
        return scale * label_losses(name, z, *positive)[1]

    return Seen(x, gradient)


def missing_connections(layer: FixedFanInLinear, seen: Sequence[Seen], count: int, chunk: int) -> Tensor:
    """The ``count`` features of largest |gradient| that each index list does not hold, best first.

    The gradient of the whole matrix, g^T x, is made for so many labels at a time that no buffer has more than
    ``chunk`` elements (or those of one group). Returns (groups, count) int32; where the gradient is zero, -1
    (for which `xmc_fast.nn.ops.rewire_` draws at random).
    """
    groups, features = layer.indices.shape[0], layer.in_features
    size = layer.group_size
    step = max(1, min(groups, chunk // (features * size)))
    best = torch.empty(groups, count, dtype=torch.int32)
    for g in range(0, groups, step):
        first, last = g * size, min((g + step) * size, layer.out_features)
        gradient = torch.zeros(last - first, features, device=layer.weight.device)
        for batch in seen:
            part = batch.gradient(first, last).to(torch.float32)
            gradient.addmm_(part.T, batch.x.to(torch.float32))
        strength = ops.magnitude(gradient, size)  # summed over the labels of a group
        lists = ops.feature_ids(layer.indices[g : g + step])
        strength.scatter_(1, lists, -1.0)
        values, ids = torch.topk(strength, count, dim=1)
        best[g : g + step] = torch.where(values > 0, ids, -1).cpu()
    return best
