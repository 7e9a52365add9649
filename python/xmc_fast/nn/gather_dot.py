"""Scores of a few labels per row as a torch operator, ``torch.ops.xmc_fast.gather_dot``, with gradients.

    scores[b, j] = h[b] . table[candidates[b, j]]

Nothing of shape (batch, candidates, dims) is made, neither forward nor backward. The gradient for the table is
sparse: one row per label that occurs. The CPU kernels (``csrc/gather``) give the same bits for any number of
threads; float64 and devices without a kernel take plain torch. The CUDA kernels are used where the package was
built with them; their speed on a GPU has not been measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from xmc_fast import _core
from xmc_fast.nn._cuda import LIBRARY, STRUCTURES, Library, address, device_of
from xmc_fast.nn._operators import TYPES, call, ops, register, threads_for, wide


def gather_dot(h: Tensor, table: Tensor, candidates: Tensor, *, sparse_grad: bool = True) -> Tensor:
    """Dots of each row with its own few rows of a table.

    Parameters
    ----------
    h : (batch, dims), float32, bfloat16 or float16
    table : (labels, dims), float32
    candidates : (batch, width) int64
        Labels; negative ones are padding with score 0 and no gradient.
    sparse_grad : bool
        The gradient for the table as a sparse tensor over the labels that occur (for torch.optim.SparseAdam or
        SGD); dense otherwise.

    Returns
    -------
    (batch, width) float32

    Examples
    --------
    >>> table = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> gather_dot(torch.tensor([[2.0, 3.0]]), table, torch.tensor([[2, 0, -1]]))
    tensor([[5., 2., 0.]])
    """
    scores: Tensor = call("gather_dot", h, table, candidates, sparse_grad)
    return scores


def _check(rows: Tensor, table: Tensor | None, candidates: Tensor, name: str) -> None:
    if rows.dim() != 2 or (rows.dtype not in TYPES and rows.dtype != torch.float64):
        raise ValueError(f"{name} must be a matrix of floats, got {rows.dtype} of shape {tuple(rows.shape)}")
    if candidates.dtype != torch.int64 or candidates.dim() != 2 or candidates.shape[0] != rows.shape[0]:
        raise ValueError(
            f"candidates must be int64 of shape ({rows.shape[0]}, width),"
            f" got {candidates.dtype} of shape {tuple(candidates.shape)}"
        )
    if table is None:
        return
    if table.dim() != 2 or table.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"table must be a float32 matrix, got {table.dtype} of shape {tuple(table.shape)}")
    if name == "h" and table.shape[1] != rows.shape[1]:
        raise ValueError(f"h has {rows.shape[1]} columns, table has {table.shape[1]}")
    if name == "grad" and rows.shape != candidates.shape:
        raise ValueError(f"grad must have shape {tuple(candidates.shape)}, got {tuple(rows.shape)}")


def _shape(candidates: Tensor, dims: int, labels: int) -> tuple[int, int, int, int, int]:
    return *candidates.shape, dims, labels, candidates.data_ptr()


def _threads(candidates: Tensor, dims: int) -> int:
    return threads_for(candidates.numel() * dims, 1_000_000)


# ---- plain torch


def _picked(table: Tensor, candidates: Tensor, kind: torch.dtype) -> Tensor:
    """Rows of the table, (batch, width, dims), zeros at padding."""
    return table.to(kind)[candidates.clamp(min=0)] * (candidates >= 0).unsqueeze(2)


def plain_forward(h: Tensor, table: Tensor, candidates: Tensor, sparse_grad: bool) -> Tensor:
    kind = wide(h, table)
    return torch.einsum("bd,bjd->bj", h.to(kind), _picked(table, candidates, kind))


def _plain_grad_h(grad: Tensor, table: Tensor, candidates: Tensor) -> Tensor:
    kind = wide(grad, table)
    return torch.einsum("bj,bjd->bd", grad.to(kind), _picked(table, candidates, kind))


def _plain_grad_rows(grad: Tensor, h: Tensor, candidates: Tensor, labels: int) -> tuple[Tensor, Tensor]:
    kept, kind = candidates >= 0, wide(grad, h)
    found, place = candidates[kept].unique(return_inverse=True)  # type: ignore[no-untyped-call]
    products = (grad.to(kind).unsqueeze(2) * h.to(kind).unsqueeze(1))[kept]
    return found, products.new_zeros(len(found), h.shape[1]).index_add_(0, place, products)


# ---- CPU


def _forward(h: Tensor, table: Tensor, candidates: Tensor, sparse_grad: bool) -> Tensor:
    _check(h, table, candidates, "h")
    if wide(h, table) == torch.float64:
        return plain_forward(h, table, candidates, sparse_grad)
    h, table, candidates = h.float().contiguous(), table.contiguous(), candidates.contiguous()
    scores = h.new_empty(candidates.shape)
    shape = _shape(candidates, h.shape[1], table.shape[0])
    threads = _threads(candidates, h.shape[1])
    _core.gather_dot(shape, h.data_ptr(), table.data_ptr(), scores.data_ptr(), threads)
    return scores


def _grad_h(grad: Tensor, table: Tensor, candidates: Tensor) -> Tensor:
    _check(grad, table, candidates, "grad")
    if wide(grad, table) == torch.float64:
        return _plain_grad_h(grad, table, candidates)
    grad, table, candidates = grad.float().contiguous(), table.contiguous(), candidates.contiguous()
    gh = grad.new_empty(len(grad), table.shape[1])
    shape = _shape(candidates, table.shape[1], table.shape[0])
    threads = _threads(candidates, table.shape[1])
    _core.gather_dot_grad_h(shape, grad.data_ptr(), table.data_ptr(), gh.data_ptr(), threads)
    return gh


def _grad_rows(grad: Tensor, h: Tensor, candidates: Tensor, labels: int) -> tuple[Tensor, Tensor]:
    _check(h, None, candidates, "h")
    if wide(grad, h) == torch.float64:
        return _plain_grad_rows(grad, h, candidates, labels)
    grad, h, candidates = grad.float().contiguous(), h.float().contiguous(), candidates.contiguous()
    shape = _shape(candidates, h.shape[1], labels)
    threads = _threads(candidates, h.shape[1])
    found, rows = _core.gather_dot_grad_rows(shape, grad.data_ptr(), h.data_ptr(), threads)
    return torch.from_numpy(found), torch.from_numpy(rows).reshape(len(found), h.shape[1])


# ---- fake kernels: shapes and dtypes only


def _forward_fake(h: Tensor, table: Tensor, candidates: Tensor, sparse_grad: bool) -> Tensor:
    return h.new_empty(candidates.shape, dtype=wide(h, table))


def _grad_h_fake(grad: Tensor, table: Tensor, candidates: Tensor) -> Tensor:
    return grad.new_empty(grad.shape[0], table.shape[1], dtype=wide(grad, table))


def _grad_rows_fake(grad: Tensor, h: Tensor, candidates: Tensor, labels: int) -> tuple[Tensor, Tensor]:
    n = torch.library.get_ctx().new_dynamic_size()
    return candidates.new_empty(n), h.new_empty(n, h.shape[1], dtype=wide(grad, h))


# ---- autograd


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    h, table, candidates, ctx.sparse_grad = inputs
    ctx.save_for_backward(h, table, candidates)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    h, table, candidates = ctx.saved_tensors
    gh = gt = None
    if ctx.needs_input_grad[0]:
        gh = ops.gather_dot_grad_h(grad, table, candidates).to(h.dtype)
    if ctx.needs_input_grad[1]:
        labels, rows = ops.gather_dot_grad_rows(grad, h, candidates, table.shape[0])
        rows = rows.to(table.dtype)
        if ctx.sparse_grad:
            gt = torch.sparse_coo_tensor(
                labels[None], rows, table.shape, is_coalesced=True, check_invariants=False
            )
        else:
            gt = torch.zeros_like(table).index_copy(0, labels, rows)
    return gh, gt, None, None


# ---- CUDA


class CudaGatherDot:
    """The operators over the compiled library at ``path``. Candidates are not checked against the table."""

    def __init__(self, path: Path) -> None:
        self._run = Library(path).run

    def forward(self, h: Tensor, table: Tensor, candidates: Tensor, sparse_grad: bool) -> Tensor:
        _check(h, table, candidates, "h")
        h, table, candidates = h.contiguous(), table.contiguous(), candidates.contiguous()
        with device_of(h):
            scores = h.new_empty(candidates.shape, dtype=torch.float32)
            self._run("gather_dot", h, self._job(candidates, h.shape[1], h, table), scores)
        return scores

    def grad_h(self, grad: Tensor, table: Tensor, candidates: Tensor) -> Tensor:
        _check(grad, table, candidates, "grad")
        grad, table, candidates = grad.float().contiguous(), table.contiguous(), candidates.contiguous()
        with device_of(grad):
            gh = grad.new_empty(len(grad), table.shape[1])
            self._run("gather_dot_grad_h", grad, self._job(candidates, table.shape[1], None, table), grad, gh)
        return gh

    def grad_rows(self, grad: Tensor, h: Tensor, candidates: Tensor, labels: int) -> tuple[Tensor, Tensor]:
        _check(h, None, candidates, "h")
        grad, h, candidates = grad.float().contiguous(), h.contiguous(), candidates.contiguous()
        with device_of(h):
            ordered, places = torch.sort(candidates.reshape(-1), stable=True)
            kept = ordered >= 0
            ordered, places = ordered[kept], places[kept].contiguous()
            found, counts = torch.unique_consecutive(ordered, return_counts=True)
            starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
            rows = h.new_empty(len(found), h.shape[1], dtype=torch.float32)
            job = self._job(candidates, h.shape[1], h, None)
            self._run("gather_dot_grad_rows", h, job, grad, len(found), starts, places, rows)
        return found, rows

    def _job(self, candidates: Tensor, dims: int, h: Tensor | None, table: Tensor | None) -> Any:
        types = (0 if t is None else TYPES[t.dtype] for t in (h, table))
        return STRUCTURES["CudaGatherDot"](
            *candidates.shape, dims, candidates.data_ptr(), address(h), address(table), *types
        )


# ---- registration

_cuda = CudaGatherDot(LIBRARY) if LIBRARY.is_file() else None
register(
    "gather_dot(Tensor h, Tensor table, Tensor candidates, bool sparse_grad) -> Tensor",
    cpu=_forward,
    plain=plain_forward,
    fake=_forward_fake,
    cuda=getattr(_cuda, "forward", None),
    backward=(_backward, _setup),
)
register(
    "gather_dot_grad_h(Tensor grad, Tensor table, Tensor candidates) -> Tensor",
    cpu=_grad_h,
    plain=_plain_grad_h,
    fake=_grad_h_fake,
    cuda=getattr(_cuda, "grad_h", None),
)
register(
    "gather_dot_grad_rows(Tensor grad, Tensor h, Tensor candidates, int labels) -> (Tensor, Tensor)",
    cpu=_grad_rows,
    plain=_plain_grad_rows,
    fake=_grad_rows_fake,
    cuda=getattr(_cuda, "grad_rows", None),
)
