"""Int8 weights for inference: a byte a weight and a float a label, in place of four bytes a weight.

    weight[l, i] = scale[l] * code[l, i],   code in -127 .. 127,   scale[l] = max_i |weight[l, i]| / 127

Weights become floats for a chunk of labels at a time, so that the kernels of every device serve; the error of a
weight is at most scale / 2.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from xmc_fast.nn import ops
from xmc_fast.nn.fanin import FixedFanInLinear

_CHUNK = 1 << 22  # weights that exist as floats at a time


class Int8FanInLinear(nn.Module):
    """A trained `xmc_fast.nn.FixedFanInLinear` with weights of one byte, for predictions only.

    Examples
    --------
    >>> layer = FixedFanInLinear(64, 1000, fan_in=16)
    >>> small, x = Int8FanInLinear(layer), torch.randn(4, 64)
    >>> small.codes.dtype, bool((small(x) - layer(x)).abs().max() < 0.01)
    (torch.int8, True)
    """

    codes: Tensor
    scale: Tensor
    bias: Tensor | None
    connections: Tensor

    def __init__(self, layer: FixedFanInLinear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.fan_in, self.group_size = layer.fan_in, layer.group_size
        weight = layer.weight.detach().float()
        scale = weight.abs().amax(1) / 127
        self.register_buffer("scale", scale)
        codes = (weight / scale.clamp(min=1e-30)[:, None]).round_()
        self.register_buffer("codes", codes.to(torch.int8))
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach().clone())
        self.register_buffer("connections", layer.connections)

    @property
    def indices(self) -> Tensor:
        """The connections as numbers: a view, (groups, fan_in)."""
        return self.connections.view(ops.index_dtype(self.in_features))

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, fan_in={self.fan_in},"
            f" group_size={self.group_size}, bias={self.bias is not None}"
        )

    def forward(self, x: Tensor) -> Tensor:
        """x (..., in_features) -> (..., out_features)"""
        rows = x.reshape(-1, self.in_features)
        out = rows.new_empty(len(rows), self.out_features)
        for first, last, part in self._parts():
            out[:, first:last] = ops.ops.fan_in_linear(rows, *part)
        return out.reshape(*x.shape[:-1], self.out_features)

    @torch.no_grad()
    def topk(self, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Scores and ids of the k best outputs of each row, best first, without a batch x outputs buffer."""
        if not 0 <= k <= self.out_features:
            raise ValueError(f"k must be in [0, {self.out_features}], got {k}")
        rows = x.reshape(-1, self.in_features)
        best, ids = rows.new_empty(len(rows), 0), self.codes.new_empty(len(rows), 0, dtype=torch.int64)
        for first, last, part in self._parts():  # ascending: equal scores keep the lower id first
            scores, found = ops.ops.fan_in_topk(rows, *part, min(k, last - first))
            both = torch.cat([best, scores], 1)
            best, place = torch.sort(both, dim=1, descending=True, stable=True)
            best, ids = best[:, :k], torch.cat([ids, found + first], 1).gather(1, place[:, :k])
        return best.reshape(*x.shape[:-1], k), ids.reshape(*x.shape[:-1], k)

    def _parts(self) -> list[tuple[int, int, tuple[Tensor, Tensor, Tensor | None, int]]]:
        """Ranges of labels with the arguments of the operators for them."""
        step = max(1, _CHUNK // self.fan_in // self.group_size) * self.group_size
        return [self._part(f, min(f + step, self.out_features)) for f in range(0, self.out_features, step)]

    def _part(self, first: int, last: int) -> tuple[int, int, tuple[Tensor, Tensor, Tensor | None, int]]:
        lists = slice(first // self.group_size, -(-last // self.group_size))
        weight = self.codes[first:last].to(self.scale.dtype) * self.scale[first:last, None]
        bias = None if self.bias is None else self.bias[first:last]
        return first, last, (weight, self.indices[lists], bias, self.group_size)


def quantize_(model: nn.Module) -> nn.Module:
    """Put an `Int8FanInLinear` in the place of every `xmc_fast.nn.FixedFanInLinear` in ``model``; returns it.

    >>> model = nn.Sequential(nn.Linear(8, 16), FixedFanInLinear(16, 100, fan_in=4))
    >>> type(quantize_(model)[1]).__name__
    'Int8FanInLinear'
    """
    if isinstance(model, FixedFanInLinear):
        return Int8FanInLinear(model)
    for name, child in model.named_children():
        setattr(model, name, quantize_(child))
    return model
