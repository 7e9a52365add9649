"""The fixed fan-in operators in plain torch: for devices without a kernel, and for float64.

Correct before fast: x is gathered to (batch, labels, fan_in). Sums are float32, or float64 if an argument is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from xmc_fast.nn._fanin_args import (
    LOSSES,
    LossCall,
    SparseCall,
    check_layer,
    check_rows,
    check_topk,
    feature_ids,
)
from xmc_fast.nn._operators import wide


def _lists(indices: Tensor, labels: int, group: int) -> Tensor:
    """Index list of every label, int64, (labels, fan_in)."""
    return feature_ids(indices).repeat_interleave(group, 0)[:labels]


def linear(x: Tensor, weight: Tensor, indices: Tensor, bias: Tensor | None, group_size: int) -> Tensor:
    check_rows(x, "x")
    check_layer(x.shape[1], weight, indices, bias, group_size)
    kind = wide(x, weight, bias)
    lists = _lists(indices, weight.shape[0], group_size)
    z = torch.einsum("bls,ls->bl", x.to(kind)[:, lists], weight.to(kind))
    return (z if bias is None else z + bias).to(x.dtype).contiguous()


def linear_t(x: Tensor, weight: Tensor, indices: Tensor, bias: Tensor | None, group_size: int) -> Tensor:
    return linear(x, weight, indices, bias, group_size).t().contiguous()


def grad_features(
    grad: Tensor, weight: Tensor, indices: Tensor, group_size: int, features: int, dtype: torch.dtype
) -> Tensor:
    check_layer(features, weight, indices, None, group_size)
    check_rows(grad, "grad", weight.shape[0])
    kind = wide(grad, weight)
    batch, labels = grad.shape
    products = grad.to(kind).unsqueeze(2) * weight.to(kind)
    columns = _lists(indices, labels, group_size).reshape(-1)
    gx = products.new_zeros(batch, features).index_add_(1, columns, products.reshape(batch, -1))
    return gx.to(dtype)


def grad_weights(
    x: Tensor, grad: Tensor, indices: Tensor, group_size: int, with_bias: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    kind = wide(x, grad)
    g = grad.to(kind)
    gw = torch.einsum("bls,bl->ls", x.to(kind)[:, _lists(indices, grad.shape[1], group_size)], g)
    gb = g.sum(0) if with_bias else g.new_empty(0)
    return gw.to(dtype).contiguous(), gb.to(dtype)


def grad_sparse(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, weight, indices, group_size, crow, col, values = SparseCall(*arguments)
    kind = wide(x, weight, values)
    values, x_wide = values.to(kind), x.to(kind)
    rows, labels = entry_rows(crow, x.device), col.to(x.device, torch.int64)
    lists = _lists(indices, weight.shape[0], group_size)[labels]  # (entries, fan_in)
    gx = torch.zeros_like(x_wide)
    gx.index_put_((rows.unsqueeze(1), lists), weight.to(kind)[labels] * values.unsqueeze(1), accumulate=True)
    found, place = labels.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    gw = x_wide.new_zeros(len(found), weight.shape[1])
    gw.index_add_(0, place, x_wide[rows.unsqueeze(1), lists] * values.unsqueeze(1))
    gb = x_wide.new_zeros(len(found)).index_add_(0, place, values)
    return gx.to(x.dtype), found, gw.to(weight.dtype), gb.to(weight.dtype)


def loss(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    call = LossCall(*arguments)
    x, weight, indices, bias, group_size = call[:5]
    z = linear(x.to(wide(x, weight, bias)), weight, indices, bias, group_size)
    name = next(name for name, number in LOSSES.items() if number == call.loss)
    each, g = label_losses(name, z, entry_rows(call.crow, x.device), call.col)
    g = g * call.scale
    gx, gw = x.new_empty(0), weight.new_empty(0)
    if call.need_x:
        gx = grad_features(g, weight, indices, group_size, x.shape[1], x.dtype)
    if call.need_weight:
        gw = grad_weights(x, g, indices, group_size, False, weight.dtype)[0]
    gb = weight.new_empty(0) if bias is None or not call.need_bias else g.sum(0).to(bias.dtype)
    return (call.scale * each.sum()).to(wide(x)), gx, gw, gb


def label_losses(name: str, z: Tensor, rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Losses and their slopes by the logits z, y = +1 at (rows, labels) and -1 elsewhere."""
    y = torch.full_like(z, -1.0)
    y[rows.to(z.device), labels.to(z.device, torch.int64)] = 1.0
    if name == "squared_hinge":
        margin = (1 - y * z).clamp(min=0)
        return margin * margin, -2 * y * margin
    return torch.nn.functional.softplus(-y * z), -y * torch.sigmoid(-y * z)


def topk(
    x: Tensor, weight: Tensor, indices: Tensor, bias: Tensor | None, group_size: int, k: int
) -> tuple[Tensor, Tensor]:
    check_topk(weight, k)
    z = linear(x, weight, indices, bias, group_size)
    scores, ids = torch.sort(z, dim=1, descending=True, stable=True)
    return scores[:, :k].contiguous(), ids[:, :k].contiguous()


def entry_rows(crow: Tensor, device: torch.device) -> Tensor:
    """The row of each entry of a CSR matrix."""
    rows = torch.arange(len(crow) - 1, device=crow.device)
    return torch.repeat_interleave(rows, crow.diff().to(torch.int64)).to(device)
