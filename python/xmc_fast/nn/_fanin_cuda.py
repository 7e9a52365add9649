"""The fixed fan-in operators on CUDA: from tensors to the compiled library (`xmc_fast.nn._cuda`).

Everything is deterministic, without atomics: one thread owns each result. The gradient for the features walks
the connections of each feature in order; those lists are built by a stable sort when the connections change
and kept as long as the index tensor lives (4 bytes per connection). Labels are processed in chunks, so that
the fused loss and top-k need O(batch x chunk) memory. Among equal scores top-k may order labels differently
from the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from xmc_fast.nn._cuda import STRUCTURES, Library, device_of
from xmc_fast.nn._fanin_args import LossCall, SparseCall, feature_ids
from xmc_fast.nn._fanin_torch import entry_rows
from xmc_fast.nn._operators import TYPES

_BATCH = 64  # kBatch of csrc/fanin/fanin_cuda.h
_CHUNK = 65_536  # labels at a time


class Kernels:
    """The operators of `xmc_fast.nn.ops` over the compiled library at ``path``."""

    def __init__(self, path: Path, *, chunk: int = _CHUNK) -> None:
        self._library = Library(path)
        self._chunk = chunk
        self._lists: Any = WeakTensorKeyDictionary()  # indices -> part of them -> (version, lists by feature)

    # ---- operators

    def linear_t(self, *arguments: Any) -> Tensor:
        return self.linear(*arguments).t().contiguous()

    def linear(
        self, x: Tensor, weight: Tensor, indices: Tensor, bias: Tensor | None, group_size: int
    ) -> Tensor:
        x, weight, indices, bias = _ready(x, weight, indices, bias)
        self._check(indices, x.shape[1])
        with device_of(x):
            out = x.new_empty(x.shape[0], weight.shape[0])
            layer = _layer(x.shape[1], weight, indices, bias, group_size)
            self._forward(layer, self._transposed(x, x.shape[1]), out)
        return out

    def grad_features(
        self,
        grad: Tensor,
        weight: Tensor,
        indices: Tensor,
        group_size: int,
        features: int,
        dtype: torch.dtype,
    ) -> Tensor:
        grad, weight, indices, _ = _ready(grad, weight, indices, None)
        with device_of(grad):
            total = self._padded(grad, features)
            for chunk, part, lists in self._by_feature(indices, features, weight, group_size):
                self._add_features(part, self._transposed(grad[:, chunk], part.labels), *lists, total)
            return self._restored(total, grad.shape[0], dtype)

    def grad_weights(
        self, x: Tensor, grad: Tensor, indices: Tensor, group_size: int, with_bias: bool, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        x, grad, indices, _ = _ready(x, grad, indices, None)
        self._check(indices, x.shape[1])
        with device_of(x):
            gw = x.new_empty(grad.shape[1], indices.shape[1], dtype=dtype)
            gb = x.new_empty(grad.shape[1] if with_bias else 0, dtype=dtype)
            self._weights(_layer(x.shape[1], gw, indices, None, group_size), x, grad, gw, gb)
        return gw, gb

    def grad_sparse(self, *arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x, weight, indices, group_size, crow, col, values = SparseCall(*arguments)
        x, weight, indices, _ = _ready(x, weight, indices, None)
        self._check(indices, x.shape[1])
        with device_of(x):
            crow, col = crow.to(torch.int64).contiguous(), col.to(torch.int32).contiguous()
            values = values.to(torch.float32).contiguous()
            layer = _layer(x.shape[1], weight, indices, None, group_size)
            gx = torch.zeros_like(x, dtype=torch.float32)
            self._run("grad_features_sparse", x, layer, x.shape[0], crow, col, values, gx)
            rows = entry_rows(crow, x.device)
            by_label, order = torch.sort(col.to(torch.int64), stable=True)
            labels, counts = torch.unique_consecutive(by_label, return_counts=True)
            starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
            rows, values = rows[order].contiguous(), values[order].contiguous()
            gw = x.new_empty(len(labels), indices.shape[1], dtype=torch.float32)
            gb = x.new_empty(len(labels), dtype=torch.float32)
            where = (len(labels), labels, starts, rows, values, gw, gb)
            self._run("grad_weights_sparse", x, layer, x, TYPES[x.dtype], *where)
        return gx.to(x.dtype), labels, gw.to(weight.dtype), gb.to(weight.dtype)

    def loss(self, *arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        call = LossCall(*arguments)
        x, weight, indices, bias = _ready(call.x, call.weight, call.indices, call.bias)
        batch, features = x.shape
        group_size = call.group_size
        with device_of(x):
            crow, col = call.crow.to(x.device), call.col.to(x.device, torch.int64)
            rows = entry_rows(crow, x.device)
            xt, total = self._transposed(x, features), self._padded(x, features if call.need_x else 0)
            gw = torch.empty_like(weight) if call.need_weight else weight.new_empty(0)
            gb = call.bias_gradient()
            value = x.new_zeros((), dtype=torch.float64)
            for chunk, part, lists in self._by_feature(indices, features, weight, group_size, bias):
                z = x.new_empty(batch, part.labels, dtype=torch.float32)
                self._forward(part, xt, z)
                inside = (col >= chunk.start) & (col < chunk.stop)
                positive = torch.zeros_like(z, dtype=torch.uint8)
                positive[rows[inside], col[inside] - chunk.start] = 1
                parts = self._library.loss_parts(part.labels)
                sums = z.new_zeros(batch, parts)
                self._run("loss", x, z, positive, batch, part.labels, call.loss, call.scale, sums)
                value += sums.sum(dtype=torch.float64)
                if call.need_x:
                    self._add_features(part, self._transposed(z, part.labels), *lists, total)
                if call.need_weight:
                    self._weights(part, x, z, gw[chunk], gb[chunk])
                elif gb.numel():
                    gb[chunk] = z.sum(0).to(gb.dtype)
            gx = self._restored(total, batch, x.dtype) if call.need_x else x.new_empty(0)
        return value.to(torch.float32), gx, gw, gb

    def topk(
        self, x: Tensor, weight: Tensor, indices: Tensor, bias: Tensor | None, group_size: int, k: int
    ) -> tuple[Tensor, Tensor]:
        x, weight, indices, bias = _ready(x, weight, indices, bias)
        self._check(indices, x.shape[1])
        with device_of(x):
            xt = self._transposed(x, x.shape[1])
            scores = x.new_empty(x.shape[0], 0, dtype=torch.float32)
            ids = x.new_empty(x.shape[0], 0, dtype=torch.int64)
            for chunk in self._chunks(weight.shape[0], group_size):
                part = _layer(x.shape[1], weight, indices, bias, group_size, chunk)
                z = x.new_empty(x.shape[0], part.labels, dtype=torch.float32)
                self._forward(part, xt, z)
                best, where = torch.topk(z, min(k, part.labels))
                scores, ids = torch.cat([scores, best], 1), torch.cat([ids, where + chunk.start], 1)
                scores, order = torch.topk(scores, min(k, scores.shape[1]))
                ids = ids.gather(1, order)
        return scores.to(x.dtype), ids

    # ---- launches

    def _run(self, name: str, like: Tensor, *arguments: Any) -> None:
        self._library.run(f"fanin_{name}", like, *arguments)

    def _forward(self, layer: Any, xt: Tensor, out: Tensor) -> None:
        arguments = (layer, xt, xt.shape[1], out.shape[0], out, TYPES[out.dtype])
        self._run("forward", out, *arguments)

    def _weights(self, layer: Any, x: Tensor, grad: Tensor, gw: Tensor, gb: Tensor) -> None:
        self._run(
            "grad_weights",
            x,
            layer,
            *(x, TYPES[x.dtype], grad, TYPES[grad.dtype], grad.shape[1], x.shape[0]),
            *(gw, TYPES[gw.dtype], gb if gb.numel() else None, TYPES[gb.dtype]),
        )

    def _add_features(self, layer: Any, gt: Tensor, starts: Tensor, entries: Tensor, total: Tensor) -> None:
        arguments = (layer, gt, gt.shape[1], starts, entries, total)
        self._run("grad_features", gt, *arguments)

    def _padded(self, like: Tensor, columns: int) -> Tensor:
        rows = -(-like.shape[0] // _BATCH) * _BATCH
        return torch.zeros(columns, rows, dtype=torch.float32, device=like.device)

    def _transposed(self, x: Tensor, columns: int) -> Tensor:
        """(columns, padded batch) in float32; x may be a slice of columns."""
        to = self._padded(x, columns)
        stride = x.stride(0) if x.shape[0] else 0
        self._run("transpose_in", x, x, TYPES[x.dtype], stride, x.shape[0], columns, to, to.shape[1])
        return to

    def _restored(self, total: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
        columns, padded = total.shape
        out = total.new_empty(rows, columns, dtype=dtype)
        self._run("transpose_out", total, total, padded, rows, columns, out, TYPES[dtype], columns)
        return out

    # ---- connections by feature

    def _chunks(self, labels: int, group: int) -> Iterator[slice]:
        step = max(1, self._chunk // group) * group
        for start in range(0, labels, step):
            yield slice(start, min(labels, start + step))

    def _by_feature(
        self, indices: Tensor, features: int, weight: Tensor, group: int, bias: Tensor | None = None
    ) -> Iterator[tuple[slice, Any, tuple[Tensor, Tensor]]]:
        """Chunks of labels with the connections of each feature: offsets (features + 1), positions."""
        known = self._check(indices, features)
        for n, chunk in enumerate(self._chunks(weight.shape[0], group)):
            if len(known) <= n:
                lists = indices[chunk.start // group : -(-chunk.stop // group)]
                ordered, positions = torch.sort(feature_ids(lists).reshape(-1), stable=True)
                edges = torch.arange(features + 1, device=indices.device)
                known.append((torch.searchsorted(ordered, edges), positions.to(torch.int32)))
            yield chunk, _layer(features, weight, indices, bias, group, chunk), known[n]

    def _check(self, indices: Tensor, features: int) -> list[tuple[Tensor, Tensor]]:
        """The lists known for these connections; out-of-range ones are refused once per change."""
        owner = indices if indices._base is None else indices._base  # layers hold bytes, and pass views
        part = (indices.storage_offset(), tuple(indices.shape), features)
        version, known = self._lists.setdefault(owner, {}).get(part, (None, []))
        if version != indices._version:
            wide = feature_ids(indices)
            if wide.numel() and not 0 <= int(wide.min()) <= int(wide.max()) < features:
                raise ValueError(f"indices must be below the number of features {features}")
            known = []
            self._lists[owner][part] = (indices._version, known)
        result: list[tuple[Tensor, Tensor]] = known
        return result


def _layer(
    features: int, weight: Tensor, indices: Tensor, bias: Tensor | None, group: int, part: slice | None = None
) -> Any:
    """The layer, or the labels ``part`` of it (starting at a group)."""
    first, end = (0, weight.shape[0]) if part is None else (part.start, part.stop)
    fan_in = indices.shape[1]
    return STRUCTURES["CudaLayer"](
        end - first,
        features,
        fan_in,
        group,
        indices.data_ptr() + first // group * fan_in * indices.element_size(),
        weight.data_ptr() + first * fan_in * weight.element_size(),
        None if bias is None else bias.data_ptr() + first * bias.element_size(),
        8 * indices.element_size(),
        TYPES[weight.dtype],
        0 if bias is None else TYPES[bias.dtype],
        0,
    )


def _ready(a: Tensor, b: Tensor, indices: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Any]:
    for t in (a, b, bias):
        if t is not None and t.dtype not in TYPES:
            raise ValueError(f"dtype must be float32, bfloat16 or float16 on CUDA, got {t.dtype}")
    devices = {t.device for t in (a, b, indices, bias) if t is not None}
    if len(devices) != 1:
        raise ValueError(f"tensors must be on one device, got {sorted(map(str, devices))}")
    return a.contiguous(), b.contiguous(), indices.contiguous(), None if bias is None else bias.contiguous()
