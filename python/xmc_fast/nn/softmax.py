"""Cross-entropy over a large vocabulary without its logits: the last layer of a language model.

    loss = mean_b ( log sum_v exp(z_bv) - z_{b,t_b} ),   z = x W^T + bias

The logits exist for a few rows at a time, and the gradients are computed in the same pass: three matrix products, as
with the logits, but the memory of the gradients alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from xmc_fast.nn import ops
from xmc_fast.nn.fanin import FixedFanInLinear

_CHUNK = 1 << 25  # logits in memory at a time


def fused_cross_entropy(
    x: Tensor,
    layer: nn.Linear | FixedFanInLinear,
    targets: Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    chunk: int = _CHUNK,
) -> Tensor:
    """``nn.functional.cross_entropy(layer(x), targets)``, without the logits.

    Parameters
    ----------
    x : Tensor of shape (rows, in_features)
        Of a language model: its last hidden states, batch x length rows.
    layer : nn.Linear or FixedFanInLinear
    targets : int64 tensor of shape (rows,)
        Rows with ``ignore_index`` count for nothing.
    reduction : {"mean", "sum"}
        The mean is over the rows that count.
    chunk : int
        Logits that are in memory at a time.

    Examples
    --------
    >>> layer, x, t = nn.Linear(8, 50), torch.randn(6, 8), torch.randint(50, (6,))
    >>> plain = nn.functional.cross_entropy(layer(x), t)
    >>> torch.allclose(fused_cross_entropy(x, layer, t), plain)
    True
    """
    if x.dim() != 2 or tuple(targets.shape) != (len(x),):
        raise ValueError(
            f"x must be (rows, in_features) and targets (rows,), got {tuple(x.shape)} and {tuple(targets.shape)}"
        )
    if reduction not in ("mean", "sum"):
        raise ValueError(f'reduction must be "mean" or "sum", got {reduction!r}')
    given = targets != ignore_index
    scale = 1 / given.sum().clamp(min=1) if reduction == "mean" else torch.ones((), device=x.device)
    rows = given * scale.to(torch.float32)
    loss: Tensor = _Fused.apply(  # type: ignore[no-untyped-call]
        x, layer.weight, layer.bias, layer, targets.where(given, 0), rows, chunk, torch.is_grad_enabled()
    )
    return loss


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        layer: nn.Linear | FixedFanInLinear,
        targets: Tensor,
        share: Tensor,
        chunk: int,
        train: bool,
    ) -> Tensor:
        need_x, need_w, need_b = (need and train for need in ctx.needs_input_grad[:3])
        gx = torch.empty_like(x) if need_x else None
        gw = torch.zeros_like(weight, dtype=torch.float32) if need_w else None
        gb = torch.zeros_like(bias, dtype=torch.float32) if need_b and bias is not None else None
        total = x.new_zeros((), dtype=torch.float64)
        step = max(1, chunk // max(weight.shape[0], 1))
        for first in range(0, len(x), step):
            part = slice(first, first + step)
            rows, own = x[part], targets[part, None]
            z = _logits(rows, layer, weight, bias)
            z -= z.amax(1, keepdim=True)
            true = z.gather(1, own)
            norm = z.exp_().sum(1, keepdim=True)
            total += ((norm.log() - true).squeeze(1).double() * share[part]).sum()
            if not (need_x or need_w or need_b):
                continue
            z *= share[part, None] / norm
            z.scatter_add_(1, own, -share[part, None])  # the slopes by the logits
            _add_gradients(z.to(x.dtype), rows, layer, weight, None if gx is None else gx[part], gw)
            if gb is not None:
                gb += z.sum(0)
            del z  # before the next ones are made
        # not saved as tensors: autograd then takes them over without a copy
        gw, gb = (g if g is None or p is None else g.to(p.dtype) for g, p in ((gw, weight), (gb, bias)))
        ctx.gradients = gx, gw, gb
        return total.to(torch.float32)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            raise RuntimeError("the gradients of fused_cross_entropy are gone: backward can run once")
        return *(g if g is None else g.mul_(grad.to(g.dtype)) for g in gradients), *(None,) * 5


def _logits(x: Tensor, layer: Any, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Float32 logits of a few rows, which the caller may overwrite."""
    if isinstance(layer, FixedFanInLinear):
        z: Tensor = ops.ops.fan_in_linear(x, weight, layer.indices, bias, layer.group_size)
    else:
        z = nn.functional.linear(x, weight, bias)
    return z.float()


def _add_gradients(
    g: Tensor, x: Tensor, layer: Any, weight: Tensor, gx: Tensor | None, gw: Tensor | None
) -> None:
    """The gradients of rows with slopes g (rows, labels): for x into ``gx``, for the weights added to ``gw``."""
    if isinstance(layer, FixedFanInLinear):
        lists, group = layer.indices, layer.group_size
        if gx is not None:
            gx.copy_(ops.ops.fan_in_grad_features(g, weight, lists, group, x.shape[1], x.dtype))
        if gw is not None:
            gw += ops.ops.fan_in_grad_weights(x, g, lists, group, False, torch.float32)[0]
        return
    if gx is not None:
        torch.mm(g, weight.to(g.dtype), out=gx)
    if gw is not None:
        gw.addmm_(g.t(), x) if g.dtype == gw.dtype else gw.add_(g.t() @ x)
