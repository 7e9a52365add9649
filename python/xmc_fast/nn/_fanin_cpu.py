"""The fixed fan-in operators on the CPU: from tensors to the compiled core.

float32, bfloat16 and float16 take the kernels of ``csrc/fanin``; float64 takes a slow path in plain torch.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from xmc_fast import _core
from xmc_fast._threads import resolve_threads
from xmc_fast.nn._fanin_args import INDEX_BITS, LOSSES, TYPES, LossCall, check_layer, check_rows

_FLOPS_PER_THREAD = 2_000_000  # starting a thread costs about 20 us
_LARGE = 1 << 20  # bytes from which page faults count


def layer_view(
    features: int, weight: Tensor | None, indices: Tensor, bias: Tensor | None, labels: int, group: int
) -> Any:
    """The compiled view. The tensors must be contiguous and outlive it."""
    return _core.FaninLayer(
        labels,
        features,
        indices.shape[1],
        group,
        indices.data_ptr(),
        INDEX_BITS[indices.dtype],
        0 if weight is None else weight.data_ptr(),
        0 if weight is None else TYPES[weight.dtype],
        0 if bias is None else bias.data_ptr(),
        0 if bias is None else TYPES[bias.dtype],
    )


def threads_for(products: int) -> int:
    wanted = min(resolve_threads(None), torch.get_num_threads())
    return max(1, min(wanted, products // _FLOPS_PER_THREAD))


def pointer(t: Tensor) -> tuple[int, int]:
    return (t.data_ptr(), TYPES[t.dtype]) if t.numel() else (0, TYPES.get(t.dtype, 0))


def _packed(t: Tensor) -> Tensor:
    """Contiguous row by row, or, as it may also be, column by column."""
    return t if t.t().is_contiguous() else t.contiguous()


def _matrix(t: Tensor) -> tuple[int, int, int]:
    """Address, type and order (csrc/fanin/fanin.h) of a packed matrix with a row for each batch row."""
    return *pointer(t), int(not t.is_contiguous())


def new_result(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Uninitialised. Large ones take memory that an earlier result has given back (at most 256 MiB wait for
    that, see csrc/core/recycle.h): new memory costs a fifth of a forward pass in page faults."""
    size = math.prod(shape) * dtype.itemsize
    if size < _LARGE:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(_core.new_result(size)).view(dtype).view(shape)


def _double(*tensors: Tensor | None) -> bool:
    """True for the float64 reference path; a dtype without kernel is refused here."""
    for t in tensors:
        if t is not None and t.dtype not in TYPES and t.dtype != torch.float64:
            raise ValueError(f"dtype must be float32, bfloat16, float16 or float64, got {t.dtype}")
    return any(t is not None and t.dtype == torch.float64 for t in tensors)


def _label_features(indices: Tensor, labels: int, group: int) -> Tensor:
    """Index list of every label, int64, (labels, fan_in)."""
    return indices.to(torch.int64).repeat_interleave(group, 0)[:labels]


def linear(x: Tensor, weight: Tensor, indices: Tensor, bias: Tensor | None, group_size: int) -> Tensor:
    return _linear(x, weight, indices, bias, group_size, False)


def linear_t(x: Tensor, weight: Tensor, indices: Tensor, bias: Tensor | None, group_size: int) -> Tensor:
    return _linear(x, weight, indices, bias, group_size, True)


def _linear(
    x: Tensor, weight: Tensor, indices: Tensor, bias: Tensor | None, group_size: int, transposed: bool
) -> Tensor:
    check_rows(x, "x")
    check_layer(x.shape[1], weight, indices, bias, group_size)
    batch, features = x.shape
    labels = weight.shape[0]
    if _double(x, weight, bias):
        z = torch.einsum("bls,ls->bl", x[:, _label_features(indices, labels, group_size)], weight)
        z = (z if bias is None else z + bias).to(x.dtype)
        return (z.t() if transposed else z).contiguous()
    x, weight, indices = _packed(x), weight.contiguous(), indices.contiguous()
    bias = None if bias is None else bias.contiguous()
    out = new_result((labels, batch) if transposed else (batch, labels), x.dtype)
    layer = layer_view(features, weight, indices, bias, labels, group_size)
    threads = threads_for(batch * weight.numel())
    _core.fanin_forward(layer, *_matrix(x), batch, *pointer(out), int(transposed), threads)
    return out


def grad_features(
    grad: Tensor, weight: Tensor, indices: Tensor, group_size: int, features: int, dtype: torch.dtype
) -> Tensor:
    check_layer(features, weight, indices, None, group_size)
    check_rows(grad, "grad", weight.shape[0])
    batch, labels = grad.shape
    if _double(grad, weight):
        products = grad.unsqueeze(2) * weight
        columns = _label_features(indices, labels, group_size).reshape(-1)
        gx = grad.new_zeros(batch, features).index_add_(1, columns, products.reshape(batch, -1))
        return gx.to(dtype)
    grad, weight, indices = _packed(grad), weight.contiguous(), indices.contiguous()
    gx = grad.new_empty(batch, features, dtype=dtype)
    layer = layer_view(features, weight, indices, None, labels, group_size)
    _core.fanin_grad_features(layer, *_matrix(grad), batch, *pointer(gx), threads_for(batch * weight.numel()))
    return gx


def grad_weights(
    x: Tensor, grad: Tensor, indices: Tensor, group_size: int, with_bias: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    check_rows(x, "x")
    check_rows(grad, "grad")
    batch, features = x.shape
    labels, fan_in = grad.shape[1], indices.shape[1]
    if grad.shape[0] != batch:
        raise ValueError(f"grad has {grad.shape[0]} rows, x has {batch}")
    if _double(x, grad):
        gw = torch.einsum("bls,bl->ls", x[:, _label_features(indices, labels, group_size)], grad)
        gb = grad.sum(0) if with_bias else grad.new_empty(0)
        return gw.to(dtype).contiguous(), gb.to(dtype)
    x, grad, indices = _packed(x), _packed(grad), indices.contiguous()
    gw = new_result((labels, fan_in), dtype)
    check_layer(features, gw, indices, None, group_size)
    gb = new_result((labels if with_bias else 0,), dtype)
    layer = layer_view(features, None, indices, None, labels, group_size)
    threads = threads_for(batch * gw.numel())
    _core.fanin_grad_weights(layer, *_matrix(x), *_matrix(grad), batch, *pointer(gw), *pointer(gb), threads)
    return gw, gb


def grad_sparse(
    x: Tensor,
    weight: Tensor,
    indices: Tensor,
    group_size: int,
    crow: Tensor,
    col: Tensor,
    values: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    check_rows(x, "x")
    check_layer(x.shape[1], weight, indices, None, group_size)
    if crow.shape[0] != x.shape[0] + 1:
        raise ValueError(f"crow must have {x.shape[0] + 1} entries, got {crow.shape[0]}")
    x, weight, indices = x.contiguous(), weight.contiguous(), indices.contiguous()
    g = (
        crow.to(torch.int64).contiguous().numpy(),
        col.to(torch.int32).contiguous().numpy(),
        values.detach().to(torch.float32).contiguous().numpy(),
    )
    layer = layer_view(x.shape[1], weight, indices, None, weight.shape[0], group_size)
    threads = threads_for(2 * len(g[1]) * indices.shape[1])
    gx = torch.empty_like(x)
    _core.fanin_grad_features_sparse(layer, *g, *pointer(gx), threads)
    labels, gw, gb = _core.fanin_grad_weights_sparse(layer, *pointer(x), *g, threads)
    rows = torch.from_numpy(gw).reshape(len(labels), indices.shape[1])
    return gx, torch.from_numpy(labels), rows.to(weight.dtype), torch.from_numpy(gb).to(weight.dtype)


def loss(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    call = LossCall(*arguments)
    check_rows(call.x, "x")
    check_layer(call.x.shape[1], call.weight, call.indices, call.bias, call.group_size)
    if _double(call.x, call.weight, call.bias):
        return _loss_double(call)
    x, weight, indices = call.x.contiguous(), call.weight.contiguous(), call.indices.contiguous()
    bias = None if call.bias is None else call.bias.contiguous()
    gx = torch.empty_like(x) if call.need_x else x.new_empty(0)
    gw = new_result(tuple(weight.shape), weight.dtype) if call.need_weight else weight.new_empty(0)
    gb = torch.empty_like(bias) if bias is not None and call.need_bias else weight.new_empty(0)
    value = _core.fanin_loss(
        layer_view(x.shape[1], weight, indices, bias, weight.shape[0], call.group_size),
        *pointer(x),
        x.shape[0],
        call.crow.to(torch.int64).contiguous().numpy(),
        call.col.to(torch.int32).contiguous().numpy(),
        call.loss,
        call.scale,
        *pointer(gx),
        *pointer(gw),
        *pointer(gb),
        threads_for(3 * x.shape[0] * weight.numel()),
    )
    return torch.tensor(value, dtype=torch.float32), gx, gw, gb


def _loss_double(call: LossCall) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, weight, indices, bias, group_size = call[:5]
    z = linear(x, weight, indices, bias, group_size)
    y = torch.full_like(z, -1.0)
    rows = torch.repeat_interleave(torch.arange(x.shape[0]), call.crow.diff().to(torch.int64))
    y[rows, call.col.to(torch.int64)] = 1.0
    if call.loss == LOSSES["squared_hinge"]:
        margin = (1 - y * z).clamp(min=0)
        value, g = (margin * margin).sum(), -2 * y * margin
    else:
        value, g = torch.nn.functional.softplus(-y * z).sum(), -y * torch.sigmoid(-y * z)
    g = g * call.scale
    gx = x.new_empty(0)
    if call.need_x:
        gx = grad_features(g, weight, indices, group_size, x.shape[1], x.dtype)
    gw, gb = grad_weights(x, g, indices, group_size, call.wants_bias(), weight.dtype)
    return call.scale * value, gx, gw if call.need_weight else weight.new_empty(0), gb


def topk(
    x: Tensor, weight: Tensor, indices: Tensor, bias: Tensor | None, group_size: int, k: int
) -> tuple[Tensor, Tensor]:
    check_rows(x, "x")
    check_layer(x.shape[1], weight, indices, bias, group_size)
    if not 0 <= k <= weight.shape[0]:
        raise ValueError(f"k must be in [0, {weight.shape[0]}], got {k}")
    if _double(x, weight, bias):
        z = linear(x, weight, indices, bias, group_size)
        scores, ids = torch.sort(z, dim=1, descending=True, stable=True)
        return scores[:, :k].contiguous(), ids[:, :k].contiguous()
    x, weight, indices = x.contiguous(), weight.contiguous(), indices.contiguous()
    bias = None if bias is None else bias.contiguous()
    layer = layer_view(x.shape[1], weight, indices, bias, weight.shape[0], group_size)
    scores_, ids_ = _core.fanin_topk(
        layer, *pointer(x), x.shape[0], k, threads_for(x.shape[0] * weight.numel())
    )
    shape = (x.shape[0], k)
    scores = torch.from_numpy(scores_).reshape(shape).to(x.dtype)
    return scores, torch.from_numpy(ids_).reshape(shape).to(torch.int64)
