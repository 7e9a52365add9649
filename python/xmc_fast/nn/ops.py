"""Fixed fan-in layers as torch operators ``torch.ops.xmc_fast.*``.

    out[b, l] = bias[l] + sum_i x[b, indices[l // group_size, i]] * weight[l, i]

Shapes: x (batch, features), weight (labels, fan_in), indices (ceil(labels / group_size), fan_in), 16 bits (see
`index_dtype`) or int32, bias (labels,) or None. x, weight and gradients may each be float32, bfloat16 or
float16 with float32 sums; float64 takes plain torch (for gradcheck). The output has x's dtype.
``fan_in_linear_t`` gives the output as (labels, batch), the order in which it is computed: nothing has to be
transposed. x and the output's gradient may be column-major (a ``.t()`` of such a matrix) for every operator.

The operators have CPU kernels (``csrc/fanin``), CUDA kernels where the package was built with them, plain torch
for every other device, fake kernels (torch.compile, export), autograd, and autocast (of x only). Results have the
same bits for any number of threads; the number is the smaller one of ``torch.get_num_threads()`` and our own
limit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from xmc_fast.nn import _fanin_cpu, _fanin_torch
from xmc_fast.nn._connections import magnitude, random_indices, rewire_
from xmc_fast.nn._cuda import LIBRARY
from xmc_fast.nn._fanin_args import LOSSES, LossCall, feature_ids, index_dtype
from xmc_fast.nn._fanin_cuda import Kernels
from xmc_fast.nn._operators import ops, register

__all__ = [
    "HAS_CUDA",
    "LOSSES",
    "feature_ids",
    "index_dtype",
    "magnitude",
    "ops",
    "random_indices",
    "rewire_",
]


# ---- fake kernels: shapes and dtypes only


def _fake_linear(x: Tensor, weight: Tensor, indices: Tensor, bias: Tensor | None, group_size: int) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


def _fake_linear_t(
    x: Tensor, weight: Tensor, indices: Tensor, bias: Tensor | None, group_size: int
) -> Tensor:
    return x.new_empty(weight.shape[0], x.shape[0])


def _fake_grad_features(
    grad: Tensor, weight: Tensor, indices: Tensor, group_size: int, features: int, dtype: torch.dtype
) -> Tensor:
    return grad.new_empty(grad.shape[0], features, dtype=dtype)


def _fake_grad_weights(
    x: Tensor, grad: Tensor, indices: Tensor, group_size: int, with_bias: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    labels = grad.shape[1]
    gw = x.new_empty(labels, indices.shape[1], dtype=dtype)
    return gw, x.new_empty(labels if with_bias else 0, dtype=dtype)


def _fake_grad_sparse(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, weight = arguments[:2]
    n = torch.library.get_ctx().new_dynamic_size()
    labels = x.new_empty(n, dtype=torch.int64)
    return torch.empty_like(x), labels, weight.new_empty(n, weight.shape[1]), weight.new_empty(n)


def _fake_loss(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    call = LossCall(*arguments)
    x, weight = call.x, call.weight
    value = x.new_empty((), dtype=torch.float64 if x.dtype == torch.float64 else torch.float32)
    gx = x.new_empty(x.shape if call.need_x else (0,))
    gw = weight.new_empty(weight.shape if call.need_weight else (0,))
    return value, gx, gw, call.bias_gradient()


def _fake_topk(
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


def _linear_t_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return _linear_backward(ctx, grad.t())


def _loss_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _loss_backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * len(LossCall._fields)
    # loss.backward() passes one: the gradients then need no copy
    simple = type(grad) is Tensor and not torch._C._are_functorch_transforms_active()
    plain = simple and grad.device.type == "cpu" and float(grad) == 1.0
    gx, gw, gb = (g if plain else g * grad.to(g.dtype) for g in ctx.saved_tensors)
    need_x, need_weight, _, need_bias = ctx.needs_input_grad[:4]
    none = (None,) * 8
    return gx if need_x else None, gw if need_weight else None, None, gb if need_bias else None, *none


# ---- registration

_LAYER = "Tensor weight, Tensor indices, Tensor? bias, int group_size"
_SCHEMAS = {
    "linear": f"(Tensor x, {_LAYER}) -> Tensor",
    "linear_t": f"(Tensor x, {_LAYER}) -> Tensor",
    "grad_features": "(Tensor grad, Tensor weight, Tensor indices, int group_size, int features,"
    " ScalarType dtype) -> Tensor",
    "grad_weights": "(Tensor x, Tensor grad, Tensor indices, int group_size, bool with_bias,"
    " ScalarType dtype) -> (Tensor, Tensor)",
    "grad_sparse": "(Tensor x, Tensor weight, Tensor indices, int group_size, Tensor crow, Tensor col,"
    " Tensor values) -> (Tensor, Tensor, Tensor, Tensor)",
    "loss": f"(Tensor x, {_LAYER}, Tensor crow, Tensor col, int loss, float scale,"
    " bool need_x, bool need_weight, bool need_bias) -> (Tensor, Tensor, Tensor, Tensor)",
    "topk": f"(Tensor x, {_LAYER}, int k) -> (Tensor, Tensor)",
}
_FAKES: dict[str, Any] = {
    "linear": _fake_linear,
    "linear_t": _fake_linear_t,
    "grad_features": _fake_grad_features,
    "grad_weights": _fake_grad_weights,
    "grad_sparse": _fake_grad_sparse,
    "loss": _fake_loss,
    "topk": _fake_topk,
}
_BACKWARD: dict[str, Any] = {
    "linear": (_linear_backward, _linear_setup),
    "linear_t": (_linear_t_backward, _linear_setup),
    "loss": (_loss_backward, _loss_setup),
}
HAS_CUDA = LIBRARY.is_file()  # whether the package was built with CUDA kernels
_cuda = Kernels(LIBRARY) if HAS_CUDA else None
for _name, _schema in _SCHEMAS.items():
    register(
        f"fan_in_{_name}{_schema}",
        cpu=getattr(_fanin_cpu, _name),
        plain=getattr(_fanin_torch, _name),
        fake=_FAKES[_name],
        cuda=getattr(_cuda, _name, None),
        backward=_BACKWARD.get(_name),
        autocast=_name in ("linear", "linear_t", "loss", "topk"),
    )
