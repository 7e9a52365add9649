"""The fixed fan-in operators on the CPU: from tensors to the compiled core.

float32, bfloat16 and float16 take the kernels of ``csrc/fanin``; float64 takes a slow path in plain torch.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from xmc_fast import _core
from xmc_fast.nn import _fanin_torch as plain
from xmc_fast.nn._fanin_args import INDEX_BITS, LossCall, SparseCall, check_layer, check_rows, check_topk
from xmc_fast.nn._operators import TYPES, threads_for

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


def _threads(products: int) -> int:
    return threads_for(products, 2_000_000)


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
    that, see csrc/core/buffer_pool.h): new memory costs a fifth of a forward pass in page faults."""
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
        return (plain.linear_t if transposed else plain.linear)(x, weight, indices, bias, group_size)
    x, weight, indices = _packed(x), weight.contiguous(), indices.contiguous()
    bias = None if bias is None else bias.contiguous()
    out = new_result((labels, batch) if transposed else (batch, labels), x.dtype)
    layer = layer_view(features, weight, indices, bias, labels, group_size)
    threads = _threads(batch * weight.numel())
    _core.fanin_forward(layer, *_matrix(x), batch, *pointer(out), int(transposed), threads)
    return out


def grad_features(
    grad: Tensor, weight: Tensor, indices: Tensor, group_size: int, features: int, dtype: torch.dtype
) -> Tensor:
    check_layer(features, weight, indices, None, group_size)
    check_rows(grad, "grad", weight.shape[0])
    batch, labels = grad.shape
    if _double(grad, weight):
        return plain.grad_features(grad, weight, indices, group_size, features, dtype)
    grad, weight, indices = _packed(grad), weight.contiguous(), indices.contiguous()
    gx = grad.new_empty(batch, features, dtype=dtype)
    layer = layer_view(features, weight, indices, None, labels, group_size)
    _core.fanin_grad_features(layer, *_matrix(grad), batch, *pointer(gx), _threads(batch * weight.numel()))
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
        return plain.grad_weights(x, grad, indices, group_size, with_bias, dtype)
    x, grad, indices = _packed(x), _packed(grad), indices.contiguous()
    gw = new_result((labels, fan_in), dtype)
    check_layer(features, gw, indices, None, group_size)
    gb = new_result((labels if with_bias else 0,), dtype)
    layer = layer_view(features, None, indices, None, labels, group_size)
    threads = _threads(batch * gw.numel())
    _core.fanin_grad_weights(layer, *_matrix(x), *_matrix(grad), batch, *pointer(gw), *pointer(gb), threads)
    return gw, gb


def grad_sparse(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, weight, indices, group_size, crow, col, values = SparseCall(*arguments)
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
    threads = _threads(2 * len(g[1]) * indices.shape[1])
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
        return plain.loss(*call)
    x, weight, indices = call.x.contiguous(), call.weight.contiguous(), call.indices.contiguous()
    bias = None if call.bias is None else call.bias.contiguous()
    gx = torch.empty_like(x) if call.need_x else x.new_empty(0)
    gw = new_result(tuple(weight.shape), weight.dtype) if call.need_weight else weight.new_empty(0)
    gb = call.bias_gradient()
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
        _threads(3 * x.shape[0] * weight.numel()),
    )
    return torch.tensor(value, dtype=torch.float32), gx, gw, gb


def topk(
    x: Tensor, weight: Tensor, indices: Tensor, bias: Tensor | None, group_size: int, k: int
) -> tuple[Tensor, Tensor]:
    check_rows(x, "x")
    check_layer(x.shape[1], weight, indices, bias, group_size)
    check_topk(weight, k)
    if _double(x, weight, bias):
        return plain.topk(x, weight, indices, bias, group_size, k)
    x, weight, indices = x.contiguous(), weight.contiguous(), indices.contiguous()
    bias = None if bias is None else bias.contiguous()
    layer = layer_view(x.shape[1], weight, indices, bias, weight.shape[0], group_size)
    scores_, ids_ = _core.fanin_topk(layer, *pointer(x), x.shape[0], k, _threads(x.shape[0] * weight.numel()))
    shape = (x.shape[0], k)
    scores = torch.from_numpy(scores_).reshape(shape).to(x.dtype)
    return scores, torch.from_numpy(ids_).reshape(shape).to(torch.int64)
