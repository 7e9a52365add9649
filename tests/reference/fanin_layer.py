"""A fixed fan-in layer with random weights, and rows for it."""

from __future__ import annotations

import torch

from xmc_fast.nn import fanin


def make(batch, features, labels, fan_in, group, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    layer = fanin.FixedFanInLinear(features, labels, fan_in, group_size=group, random_state=seed)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(labels, fan_in, generator=generator))
        layer.bias.copy_(torch.randn(labels, generator=generator))
    return layer.to(dtype), torch.randn(batch, features, generator=generator).to(dtype)
