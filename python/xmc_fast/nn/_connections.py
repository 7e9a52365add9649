"""Connections of fixed fan-in layers: random index lists, pruning and regrowing."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from xmc_fast import _core
from xmc_fast.nn._fanin_args import INDEX_BITS, check_layer, index_dtype
from xmc_fast.nn._fanin_cpu import layer_view
from xmc_fast.nn._operators import threads_for

_PER_THREAD = 2_000_000


def random_indices(groups: int, features: int, fan_in: int, *, random_state: int = 0) -> Tensor:
    """Index lists of ``fan_in`` different random features each, ascending; (groups, fan_in).

    >>> random_indices(2, 10, 3, random_state=0).shape
    torch.Size([2, 3])
    """
    if not 1 <= fan_in <= features:
        raise ValueError(f"fan_in must be in [1, {features}], got {fan_in}")
    indices = torch.empty(groups, fan_in, dtype=index_dtype(features), device="cpu")
    bits = INDEX_BITS[indices.dtype]
    threads = threads_for(groups * fan_in, _PER_THREAD)
    _core.fanin_random_indices(groups, features, fan_in, bits, random_state, indices.data_ptr(), threads)
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
    random_state: int = 0,
) -> Tensor:
    """Prune and regrow connections of a CPU layer in place; returns the mask of new ones, (groups, fan_in).

    In each index list the ``count`` weakest connections and all with strength <= ``threshold`` go. Each is
    replaced by a feature that the list does not hold: the next of ``candidates`` (groups, c; best first, for
    example the largest gradients), then random ones. New weights are zero. ``strength`` (groups, fan_in) is
    by default the magnitude, summed over the labels of a group.
    """
    check_layer(features, weight, indices, None, group_size)
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
            candidates = torch.empty(groups, 0, dtype=torch.int32, device="cpu")
        changed = _core.fanin_rewire(
            layer_view(features, weight, indices, None, weight.shape[0], group_size),
            strength.to(torch.float32).contiguous().numpy().reshape(-1),
            threshold,
            count,
            candidates.to(torch.int32).contiguous().numpy().reshape(-1),
            random_state,
            threads_for(groups * fan_in * 50, _PER_THREAD),
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
