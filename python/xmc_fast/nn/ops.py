"""Fixed fan-in layers as torch operators ``torch.ops.xmc_fast.*``.

    out[b, l] = bias[l] + sum_i x[b, indices[l // group_size, i]] * weight[l, i]

Shapes: x (batch, features), weight (labels, fan_in), indices (ceil(labels / group_size), fan_in), uint16 or
int32, bias (labels,) or None. x, weight and gradients may each be float32, bfloat16 or float16 with float32
sums; float64 takes a slow reference path in plain torch (for gradcheck). The output has x's dtype.

The operators have CPU kernels (``csrc/fanin``), fake kernels (torch.compile, export), autograd, and autocast
(which casts x only: the weights need no copy, since every sum is float32 anyway). CUDA kernels are used where
the package was built with them, see :mod:`xmc_fast.nn.cuda`. Results have the same bits for any number of
threads; the number is the smaller one of ``torch.get_num_threads()`` and our own limit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from xmc_fast import _core
from xmc_fast._threads import resolve_threads
from xmc_fast.nn import cuda

LOSSES = {"squared_hinge": 0, "bce": 1}
_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_INDEX_BITS = {torch.uint16: 16, torch.int32: 32}
_FLOPS_PER_THREAD = 2_000_000  # starting a thread costs about 20 us

_lib: Any = torch.library.Library("xmc_fast", "FRAGMENT")  # type: ignore[no-untyped-call]
_LAYER = "Tensor weight, Tensor indices, Tensor? bias, int group_size"
_lib.define(f"fan_in_linear(Tensor x, {_LAYER}) -> Tensor")
_lib.define(
    "fan_in_grad_features(Tensor grad, Tensor weight, Tensor indices, int group_size, int features,"
    " ScalarType dtype) -> Tensor"
)
_lib.define(
    "fan_in_grad_weights(Tensor x, Tensor grad, Tensor indices, int group_size, bool with_bias,"
    " ScalarType dtype) -> (Tensor, Tensor)"
)
_lib.define(
    "fan_in_grad_sparse(Tensor x, Tensor weight, Tensor indices, int group_size, Tensor crow, Tensor col,"
    " Tensor values) -> (Tensor, Tensor, Tensor, Tensor)"
)
_lib.define(
    f"fan_in_loss(Tensor x, {_LAYER}, Tensor crow, Tensor col, int loss, float scale,"
    " bool need_x, bool need_weight, bool need_bias) -> (Tensor, Tensor, Tensor, Tensor)"
)
_lib.define(f"fan_in_topk(Tensor x, {_LAYER}, int k) -> (Tensor, Tensor)")

ops = torch.ops.xmc_fast


def index_dtype(features: int) -> torch.dtype:
    """uint16 as long as it can name every feature, else int32."""
    return torch.uint16 if features <= 65536 else torch.int32


# ---- checks and the way into the compiled core


def _check(features: int, weight: Tensor, indices: Tensor, bias: Tensor | None, group_size: int) -> None:
    if weight.dim() != 2:
        raise ValueError(f"weight must be (labels, fan_in), got shape {tuple(weight.shape)}")
    labels, fan_in = weight.shape
    if group_size < 1:
        raise ValueError(f"group_size must be >= 1, got {group_size}")
    groups = (labels + group_size - 1) // group_size
    if tuple(indices.shape) != (groups, fan_in):
        raise ValueError(f"indices must have shape {(groups, fan_in)}, got {tuple(indices.shape)}")
    if indices.dtype not in _INDEX_BITS:
        raise ValueError(f"indices must be uint16 or int32, got {indices.dtype}")
    if fan_in > features:
        raise ValueError(f"fan_in {fan_in} exceeds the {features} features")
    if bias is not None and tuple(bias.shape) != (labels,):
        raise ValueError(f"bias must have shape {(labels,)}, got {tuple(bias.shape)}")


def _check_rows(x: Tensor, name: str, columns: int | None = None) -> None:
    if x.dim() != 2 or (columns is not None and x.shape[1] != columns):
        wanted = "two dimensions" if columns is None else f"shape (batch, {columns})"
        raise ValueError(f"{name} must have {wanted}, got shape {tuple(x.shape)}")


def _layer(
    features: int, weight: Tensor | None, indices: Tensor, bias: Tensor | None, labels: int, group: int
) -> Any:
    """The compiled view. The tensors must be contiguous and outlive it."""
    return _core.FaninLayer(
        labels,
        features,
        indices.shape[1],
        group,
        indices.data_ptr(),
        _INDEX_BITS[indices.dtype],
        0 if weight is None else weight.data_ptr(),
        0 if weight is None else _TYPES[weight.dtype],
        0 if bias is None else bias.data_ptr(),
        0 if bias is None else _TYPES[bias.dtype],
    )


def _threads(products: int) -> int:
    wanted = min(resolve_threads(None), torch.get_num_threads())
    return max(1, min(wanted, products // _FLOPS_PER_THREAD))


def _pointer(t: Tensor) -> tuple[int, int]:
    return (t.data_ptr(), _TYPES[t.dtype]) if t.numel() else (0, _TYPES.get(t.dtype, 0))


def _double(*tensors: Tensor | None) -> bool:
    """True for the float64 reference path; a dtype without kernel is refused here."""
    for t in tensors:
        if t is not None and t.dtype not in _TYPES and t.dtype != torch.float64:
            raise ValueError(f"dtype must be float32, bfloat16, float16 or float64, got {t.dtype}")
    return any(t is not None and t.dtype == torch.float64 for t in tensors)


def _label_features(indices: Tensor, labels: int, group: int) -> Tensor:
    """Index list of every label, int64, (labels, fan_in)."""
    return indices.to(torch.int64).repeat_interleave(group, 0)[:labels]


# ---- CPU


def _linear(x: Tensor, weight: Tensor, indices: Tensor, bias: Tensor | None, group_size: int) -> Tensor:
    _check_rows(x, "x")
    _check(x.shape[1], weight, indices, bias, group_size)
    batch, features = x.shape
    labels = weight.shape[0]
    if _double(x, weight, bias):
        z = torch.einsum("bls,ls->bl", x[:, _label_features(indices, labels, group_size)], weight)
        return (z if bias is None else z + bias).to(x.dtype).contiguous()
    x, weight, indices = x.contiguous(), weight.contiguous(), indices.contiguous()
    bias = None if bias is None else bias.contiguous()
    out = x.new_empty(batch, labels)
    layer = _layer(features, weight, indices, bias, labels, group_size)
    threads = _threads(batch * weight.numel())
    _core.fanin_forward(layer, *_pointer(x), batch, *_pointer(out), threads)
    return out


def _grad_features(
    grad: Tensor, weight: Tensor, indices: Tensor, group_size: int, features: int, dtype: torch.dtype
) -> Tensor:
    _check(features, weight, indices, None, group_size)
    _check_rows(grad, "grad", weight.shape[0])
    batch, labels = grad.shape
    if _double(grad, weight):
        products = grad.unsqueeze(2) * weight
        columns = _label_features(indices, labels, group_size).reshape(-1)
        gx = grad.new_zeros(batch, features).index_add_(1, columns, products.reshape(batch, -1))
        return gx.to(dtype)
    grad, weight, indices = grad.contiguous(), weight.contiguous(), indices.contiguous()
    gx = grad.new_empty(batch, features, dtype=dtype)
    layer = _layer(features, weight, indices, None, labels, group_size)
    _core.fanin_grad_features(layer, *_pointer(grad), batch, *_pointer(gx), _threads(batch * weight.numel()))
    return gx


def _grad_weights(
    x: Tensor, grad: Tensor, indices: Tensor, group_size: int, with_bias: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    _check_rows(x, "x")
    _check_rows(grad, "grad")
    batch, features = x.shape
    labels, fan_in = grad.shape[1], indices.shape[1]
    if grad.shape[0] != batch:
        raise ValueError(f"grad has {grad.shape[0]} rows, x has {batch}")
    if _double(x, grad):
        gw = torch.einsum("bls,bl->ls", x[:, _label_features(indices, labels, group_size)], grad)
        gb = grad.sum(0) if with_bias else grad.new_empty(0)
        return gw.to(dtype).contiguous(), gb.to(dtype)
    x, grad, indices = x.contiguous(), grad.contiguous(), indices.contiguous()
    gw = x.new_empty(labels, fan_in, dtype=dtype)
    _check(features, gw, indices, None, group_size)
    gb = x.new_empty(labels if with_bias else 0, dtype=dtype)
    layer = _layer(features, None, indices, None, labels, group_size)
    threads = _threads(batch * gw.numel())
    _core.fanin_grad_weights(
        layer, *_pointer(x), *_pointer(grad), batch, *_pointer(gw), *_pointer(gb), threads
    )
    return gw, gb


def _grad_sparse(
    x: Tensor,
    weight: Tensor,
    indices: Tensor,
    group_size: int,
    crow: Tensor,
    col: Tensor,
    values: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _check_rows(x, "x")
    _check(x.shape[1], weight, indices, None, group_size)
    if crow.shape[0] != x.shape[0] + 1:
        raise ValueError(f"crow must have {x.shape[0] + 1} entries, got {crow.shape[0]}")
    x, weight, indices = x.contiguous(), weight.contiguous(), indices.contiguous()
    g = (
        crow.to(torch.int64).contiguous().numpy(),
        col.to(torch.int32).contiguous().numpy(),
        values.detach().to(torch.float32).contiguous().numpy(),
    )
    layer = _layer(x.shape[1], weight, indices, None, weight.shape[0], group_size)
    threads = _threads(2 * len(g[1]) * indices.shape[1])
    gx = torch.empty_like(x)
    _core.fanin_grad_features_sparse(layer, *g, *_pointer(gx), threads)
    labels, gw, gb = _core.fanin_grad_weights_sparse(layer, *_pointer(x), *g, threads)
    rows = torch.from_numpy(gw).reshape(len(labels), indices.shape[1])
    return gx, torch.from_numpy(labels), rows.to(weight.dtype), torch.from_numpy(gb).to(weight.dtype)


def _loss(
    x: Tensor,
    weight: Tensor,
    indices: Tensor,
    bias: Tensor | None,
    group_size: int,
    crow: Tensor,
    col: Tensor,
    loss: int,
    scale: float,
    need_x: bool,
    need_weight: bool,
    need_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _check_rows(x, "x")
    _check(x.shape[1], weight, indices, bias, group_size)
    need_bias = need_bias and bias is not None
    if _double(x, weight, bias):
        return _loss_reference(
            x, weight, indices, bias, group_size, crow, col, loss, scale, need_x, need_weight, need_bias
        )
    x, weight, indices = x.contiguous(), weight.contiguous(), indices.contiguous()
    bias = None if bias is None else bias.contiguous()
    gx = torch.empty_like(x) if need_x else x.new_empty(0)
    gw = torch.empty_like(weight) if need_weight else weight.new_empty(0)
    gb = torch.empty_like(bias) if need_bias and bias is not None else weight.new_empty(0)
    layer = _layer(x.shape[1], weight, indices, bias, weight.shape[0], group_size)
    value = _core.fanin_loss(
        layer,
        *_pointer(x),
        x.shape[0],
        crow.to(torch.int64).contiguous().numpy(),
        col.to(torch.int32).contiguous().numpy(),
        loss,
        scale,
        *_pointer(gx),
        *_pointer(gw),
        *_pointer(gb),
        _threads(3 * x.shape[0] * weight.numel()),
    )
    return torch.tensor(value, dtype=torch.float32), gx, gw, gb


def _loss_reference(
    x: Tensor,
    weight: Tensor,
    indices: Tensor,
    bias: Tensor | None,
    group_size: int,
    crow: Tensor,
    col: Tensor,
    loss: int,
    scale: float,
    need_x: bool,
    need_weight: bool,
    need_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    z = _linear(x, weight, indices, bias, group_size)
    y = torch.full_like(z, -1.0)
    rows = torch.repeat_interleave(torch.arange(x.shape[0]), crow.diff().to(torch.int64))
    y[rows, col.to(torch.int64)] = 1.0
    if loss == LOSSES["squared_hinge"]:
        margin = (1 - y * z).clamp(min=0)
        value, g = (margin * margin).sum(), -2 * y * margin
    else:
        value, g = torch.nn.functional.softplus(-y * z).sum(), -y * torch.sigmoid(-y * z)
    g = g * scale
    gx = _grad_features(g, weight, indices, group_size, x.shape[1], x.dtype) if need_x else x.new_empty(0)
    gw, gb = _grad_weights(x, g, indices, group_size, need_bias, weight.dtype)
    return scale * value, gx, gw if need_weight else weight.new_empty(0), gb


def _topk(
    x: Tensor, weight: Tensor, indices: Tensor, bias: Tensor | None, group_size: int, k: int
) -> tuple[Tensor, Tensor]:
    _check_rows(x, "x")
    _check(x.shape[1], weight, indices, bias, group_size)
    if not 0 <= k <= weight.shape[0]:
        raise ValueError(f"k must be in [0, {weight.shape[0]}], got {k}")
    if _double(x, weight, bias):
        z = _linear(x, weight, indices, bias, group_size)
        scores, ids = torch.sort(z, dim=1, descending=True, stable=True)
        return scores[:, :k].contiguous(), ids[:, :k].contiguous()
    x, weight, indices = x.contiguous(), weight.contiguous(), indices.contiguous()
    bias = None if bias is None else bias.contiguous()
    layer = _layer(x.shape[1], weight, indices, bias, weight.shape[0], group_size)
    scores_, ids_ = _core.fanin_topk(
        layer, *_pointer(x), x.shape[0], k, _threads(x.shape[0] * weight.numel())
    )
    shape = (x.shape[0], k)
    scores = torch.from_numpy(scores_).reshape(shape).to(x.dtype)
    return scores, torch.from_numpy(ids_).reshape(shape).to(torch.int64)


# ---- fake kernels: shapes and dtypes only


def _linear_fake(x: Tensor, weight: Tensor, indices: Tensor, bias: Tensor | None, group_size: int) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


def _grad_features_fake(
    grad: Tensor, weight: Tensor, indices: Tensor, group_size: int, features: int, dtype: torch.dtype
) -> Tensor:
    return grad.new_empty(grad.shape[0], features, dtype=dtype)


def _grad_weights_fake(
    x: Tensor, grad: Tensor, indices: Tensor, group_size: int, with_bias: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    labels = grad.shape[1]
    gw = x.new_empty(labels, indices.shape[1], dtype=dtype)
    return gw, x.new_empty(labels if with_bias else 0, dtype=dtype)


def _grad_sparse_fake(
    x: Tensor,
    weight: Tensor,
    indices: Tensor,
    group_size: int,
    crow: Tensor,
    col: Tensor,
    values: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    n = torch.library.get_ctx().new_dynamic_size()
    labels = x.new_empty(n, dtype=torch.int64)
    return torch.empty_like(x), labels, weight.new_empty(n, weight.shape[1]), weight.new_empty(n)


def _loss_fake(
    x: Tensor,
    weight: Tensor,
    indices: Tensor,
    bias: Tensor | None,
    group_size: int,
    crow: Tensor,
    col: Tensor,
    loss: int,
    scale: float,
    need_x: bool,
    need_weight: bool,
    need_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    value = x.new_empty((), dtype=torch.float64 if x.dtype == torch.float64 else torch.float32)
    gx = x.new_empty(x.shape if need_x else (0,))
    gw = weight.new_empty(weight.shape if need_weight else (0,))
    gb = weight.new_empty(0) if bias is None or not need_bias else bias.new_empty(bias.shape)
    return value, gx, gw, gb


def _topk_fake(
    x: Tensor, weight: Tensor, indices: Tensor, bias: Tensor | None, group_size: int, k: int
) -> tuple[Tensor, Tensor]:
    shape = (x.shape[0], k)
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int64)


# ---- autograd


def _linear_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, indices, bias, group_size = inputs
    ctx.save_for_backward(x, weight, indices)
    ctx.group_size, ctx.bias_dtype = group_size, None if bias is None else bias.dtype


def _linear_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, indices = ctx.saved_tensors
    need_x, need_weight, _, need_bias, _ = ctx.needs_input_grad
    gx = gw = gb = None
    if need_x:
        gx = ops.fan_in_grad_features(grad, weight, indices, ctx.group_size, x.shape[1], x.dtype)
    if need_weight:
        gw, gb = ops.fan_in_grad_weights(x, grad, indices, ctx.group_size, need_bias, weight.dtype)
    elif need_bias:
        gb = grad.sum(0, dtype=torch.promote_types(grad.dtype, torch.float32))
    if need_bias and gb is not None:
        gb = gb.to(ctx.bias_dtype)
    return gx, gw, None, gb if need_bias else None, None


def _loss_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[1:])


def _loss_backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    # loss.backward() passes one: the gradients then need no copy
    plain = type(grad) is Tensor and grad.device.type == "cpu" and float(grad) == 1.0
    gx, gw, gb = (g if plain else g * grad.to(g.dtype) for g in ctx.saved_tensors)
    need_x, need_weight, _, need_bias = ctx.needs_input_grad[:4]
    none = (None,) * 8
    return gx if need_x else None, gw if need_weight else None, None, gb if need_bias else None, *none


# ---- autocast: x in the autocast dtype, everything else as it is


def _autocast(name: str, device: str) -> Any:
    def cast(x: Tensor, *args: Any) -> Any:
        dtype = torch.get_autocast_dtype(device)
        with torch.autocast(device, enabled=False):
            ready = x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x
            return getattr(ops, name)(ready, *args)

    return cast


_IMPLEMENTATIONS: dict[str, tuple[Any, Any]] = {
    "fan_in_linear": (_linear, _linear_fake),
    "fan_in_grad_features": (_grad_features, _grad_features_fake),
    "fan_in_grad_weights": (_grad_weights, _grad_weights_fake),
    "fan_in_grad_sparse": (_grad_sparse, _grad_sparse_fake),
    "fan_in_loss": (_loss, _loss_fake),
    "fan_in_topk": (_topk, _topk_fake),
}
for _name, (_cpu, _fake) in _IMPLEMENTATIONS.items():
    _lib.impl(_name, _cpu, "CPU")
    torch.library.register_fake(f"xmc_fast::{_name}", _fake, lib=_lib)
for _name in ("fan_in_linear", "fan_in_loss", "fan_in_topk"):
    for _device in ("cpu", "cuda"):
        _lib.impl(_name, _autocast(_name, _device), f"Autocast{_device.upper()}")
torch.library.register_autograd(
    "xmc_fast::fan_in_linear", _linear_backward, setup_context=_linear_setup, lib=_lib
)
torch.library.register_autograd("xmc_fast::fan_in_loss", _loss_backward, setup_context=_loss_setup, lib=_lib)
HAS_CUDA = cuda.register(_lib.impl)  # whether the package was built with CUDA kernels


# ---- connections


def random_indices(groups: int, features: int, fan_in: int, *, seed: int = 0) -> Tensor:
    """Index lists of ``fan_in`` different random features each, ascending; (groups, fan_in).

    >>> random_indices(2, 10, 3, seed=0).shape
    torch.Size([2, 3])
    """
    if not 1 <= fan_in <= features:
        raise ValueError(f"fan_in must be in [1, {features}], got {fan_in}")
    indices = torch.empty(groups, fan_in, dtype=index_dtype(features))
    bits = _INDEX_BITS[indices.dtype]
    threads = _threads(groups * fan_in)
    _core.fanin_random_indices(groups, features, fan_in, bits, seed, indices.data_ptr(), threads)
    return indices


def rewire_(
    weight: Tensor,
    indices: Tensor,
    features: int,
    *,
    group_size: int = 1,
    strength: Tensor | None = None,
    count: int = 0,
    threshold: float = -1.0,
    candidates: Tensor | None = None,
    seed: int = 0,
) -> Tensor:
    """Prune and regrow connections of a CPU layer in place; returns the mask of new ones, (groups, fan_in).

    In each index list the ``count`` weakest connections and all with strength <= ``threshold`` go. Each is
    replaced by a feature that the list does not hold: the next of ``candidates`` (groups, c; best first, for
    example the largest gradients), then random ones. New weights are zero. ``strength`` (groups, fan_in) is
    by default the magnitude, summed over the labels of a group.
    """
    _check(features, weight, indices, None, group_size)
    if not (weight.is_contiguous() and indices.is_contiguous()):
        raise ValueError("weight and indices must be contiguous, since they are changed in place")
    if not 0 <= count <= indices.shape[1]:
        raise ValueError(f"count must be in [0, {indices.shape[1]}], got {count}")
    groups, fan_in = indices.shape
    with torch.no_grad():
        if strength is None:
            strength = magnitude(weight, group_size)
        if tuple(strength.shape) != (groups, fan_in):
            raise ValueError(f"strength must have shape {(groups, fan_in)}, got {tuple(strength.shape)}")
        if candidates is None:
            candidates = torch.empty(groups, 0, dtype=torch.int32)
        changed = _core.fanin_rewire(
            _layer(features, weight, indices, None, weight.shape[0], group_size),
            strength.to(torch.float32).contiguous().numpy().reshape(-1),
            threshold,
            count,
            candidates.to(torch.int32).contiguous().numpy().reshape(-1),
            seed,
            _threads(groups * fan_in * 50),
        )
    torch.autograd.graph.increment_version([weight, indices])
    return torch.from_numpy(changed.astype(np.bool_)).reshape(groups, fan_in)


def magnitude(weight: Tensor, group_size: int = 1) -> Tensor:
    """|weight| summed over the labels of each group, (groups, fan_in)."""
    size = weight.detach().abs().to(torch.float32)
    if group_size == 1:
        return size
    padding = -size.shape[0] % group_size
    padded = torch.nn.functional.pad(size, (0, 0, 0, padding))
    return padded.reshape(-1, group_size, size.shape[1]).sum(1)
