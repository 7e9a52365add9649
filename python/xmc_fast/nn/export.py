"""Our operators in torch's own, for programs that run without this package: ONNX, AOTInductor, LibTorch.

``torch.export`` keeps ``torch.ops.xmc_fast.*`` as single nodes: right where this package is at hand. Elsewhere::

    program = torch.export.export(model, (x,))
    program = program.run_decompositions(decompositions())
    torch.onnx.export(program, (x,), "model.onnx")

The features of each label are gathered, (batch, labels, fan_in), so that memory limits the labels of one call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from xmc_fast.nn import _fanin_torch, gather_dot, ops, weighted_topk


def decompositions() -> dict[Any, Callable[..., Any]]:
    """torch's default decompositions and ours, for ``ExportedProgram.run_decompositions``.

    >>> torch.ops.xmc_fast.fan_in_linear.default in decompositions()
    True
    """
    table: Any = torch.export.default_decompositions()
    forward: dict[Any, Callable[..., Any]] = {
        ops.ops.fan_in_linear: _fanin_torch.linear,
        ops.ops.fan_in_linear_t: _fanin_torch.linear_t,
        ops.ops.fan_in_topk: _fanin_torch.topk,
        ops.ops.gather_dot: gather_dot.plain_forward,
        ops.ops.weighted_topk: weighted_topk.plain,
    }
    for packet, function in forward.items():
        table[packet.default] = function
    table[torch.ops.aten.view.dtype] = _view
    return table  # type: ignore[no-any-return]


def _view(x: Tensor, dtype: torch.dtype) -> Any:
    """The bytes of index lists as numbers, by arithmetic: ONNX cannot read bytes as another type. (It may be int32
    where int16 was required: `xmc_fast.nn.ops.feature_ids` takes either.)"""
    width = {torch.int16: 2, torch.int32: 4}.get(dtype)
    if x.dtype != torch.uint8 or width is None:
        return NotImplemented
    parts = x.reshape(*x.shape[:-1], -1, width).to(torch.int32)
    return sum(parts[..., i] << (8 * i) for i in range(width))
