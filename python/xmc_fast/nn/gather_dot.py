"""Scores of a few labels per row as a torch operator, ``torch.ops.xmc_fast.gather_dot``, with gradients.

    scores[b, j] = h[b] . table[candidates[b, j]]

Nothing of shape (batch, candidates, dims) is made, neither forward nor backward. The gradient for the table is
sparse: one row per label that occurs. The CPU kernels (``csrc/gather``) give the same bits for any number of
threads; float64 takes a slow path in plain torch (for gradcheck). The CUDA kernels are used where the package was
built with them (see :mod:`xmc_fast.nn.cuda`); their speed on a GPU has not been measured.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from xmc_fast import _core
from xmc_fast._threads import resolve_threads
from xmc_fast.nn.cuda import LIBRARY, device_of

_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_FLOPS_PER_THREAD = 1_000_000  # starting a thread costs about 20 us

_lib: Any = torch.library.Library("xmc_fast", "FRAGMENT")  # type: ignore[no-untyped-call]
_lib.define("gather_dot(Tensor h, Tensor table, Tensor candidates, bool sparse_grad) -> Tensor")
_lib.define("gather_dot_grad_h(Tensor grad, Tensor table, Tensor candidates) -> Tensor")
_lib.define("gather_dot_grad_rows(Tensor grad, Tensor h, Tensor candidates, int labels) -> (Tensor, Tensor)")

ops = torch.ops.xmc_fast


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
    scores: Tensor = ops.gather_dot(h, table, candidates, sparse_grad)
    return scores


def _check(rows: Tensor, table: Tensor | None, candidates: Tensor, name: str) -> None:
    if rows.dim() != 2 or (rows.dtype not in _TYPES and rows.dtype != torch.float64):
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


def _threads(products: int) -> int:
    wanted = min(resolve_threads(None), torch.get_num_threads())
    return max(1, min(wanted, products // _FLOPS_PER_THREAD))


def _shape(candidates: Tensor, dims: int, labels: int) -> tuple[int, int, int, int, int]:
    return *candidates.shape, dims, labels, candidates.data_ptr()


# ---- CPU


def _forward(h: Tensor, table: Tensor, candidates: Tensor, sparse_grad: bool) -> Tensor:
    _check(h, table, candidates, "h")
    if torch.float64 in (h.dtype, table.dtype):
        picked = table[candidates.clamp(min=0)] * (candidates >= 0).unsqueeze(2)
        return torch.einsum("bd,bjd->bj", h.to(picked.dtype), picked)
    h, table, candidates = h.float().contiguous(), table.contiguous(), candidates.contiguous()
    scores = h.new_empty(candidates.shape)
    shape = _shape(candidates, h.shape[1], table.shape[0])
    threads = _threads(candidates.numel() * h.shape[1])
    _core.gather_dot(*shape, h.data_ptr(), table.data_ptr(), scores.data_ptr(), threads)
    return scores


def _grad_h(grad: Tensor, table: Tensor, candidates: Tensor) -> Tensor:
    _check(grad, table, candidates, "grad")
    if torch.float64 in (grad.dtype, table.dtype):
        picked = table[candidates.clamp(min=0)] * (candidates >= 0).unsqueeze(2)
        return torch.einsum("bj,bjd->bd", grad.to(picked.dtype), picked)
    grad, table, candidates = grad.float().contiguous(), table.contiguous(), candidates.contiguous()
    dims = table.shape[1]
    gh = grad.new_empty(len(grad), dims)
    shape = _shape(candidates, dims, table.shape[0])
    threads = _threads(candidates.numel() * dims)
    _core.gather_dot_grad_h(*shape, grad.data_ptr(), table.data_ptr(), gh.data_ptr(), threads)
    return gh


def _grad_rows(grad: Tensor, h: Tensor, candidates: Tensor, labels: int) -> tuple[Tensor, Tensor]:
    _check(h, None, candidates, "h")
    if torch.float64 in (grad.dtype, h.dtype):
        kept = candidates >= 0
        found, place = candidates[kept].unique(return_inverse=True)  # type: ignore[no-untyped-call]
        products = (grad.unsqueeze(2) * h.unsqueeze(1))[kept]
        return found, products.new_zeros(len(found), h.shape[1]).index_add_(0, place, products)
    grad, h, candidates = grad.float().contiguous(), h.float().contiguous(), candidates.contiguous()
    shape = _shape(candidates, h.shape[1], labels)
    threads = _threads(candidates.numel() * h.shape[1])
    found, rows = _core.gather_dot_grad_rows(*shape, grad.data_ptr(), h.data_ptr(), threads)
    return torch.from_numpy(found), torch.from_numpy(rows).reshape(len(found), h.shape[1])


# ---- fake kernels: shapes and dtypes only


def _out_dtype(a: Tensor, b: Tensor) -> torch.dtype:
    return torch.float64 if torch.float64 in (a.dtype, b.dtype) else torch.float32


def _forward_fake(h: Tensor, table: Tensor, candidates: Tensor, sparse_grad: bool) -> Tensor:
    return h.new_empty(candidates.shape, dtype=_out_dtype(h, table))


def _grad_h_fake(grad: Tensor, table: Tensor, candidates: Tensor) -> Tensor:
    return grad.new_empty(grad.shape[0], table.shape[1], dtype=_out_dtype(grad, table))


def _grad_rows_fake(grad: Tensor, h: Tensor, candidates: Tensor, labels: int) -> tuple[Tensor, Tensor]:
    n = torch.library.get_ctx().new_dynamic_size()
    return candidates.new_empty(n), h.new_empty(n, h.shape[1], dtype=_out_dtype(grad, h))


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


class _Job(ctypes.Structure):
    """CudaGatherDot of csrc/gather/gather_dot_cuda.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("batch", "width", "dims")),
        *((name, ctypes.c_void_p) for name in ("candidates", "h", "table")),
        *((name, ctypes.c_int32) for name in ("h_type", "table_type")),
    )


class CudaGatherDot:
    """The operators over the compiled library at ``path``. Candidates are not checked against the table."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        pointer = ctypes.c_void_p
        self._functions = {}
        for name, arguments in (
            ("dot", [pointer, pointer]),
            ("dot_grad_h", [pointer, pointer, pointer]),
            ("dot_grad_rows", [pointer, pointer, ctypes.c_int64, pointer, pointer, pointer]),
        ):
            function = getattr(library, f"xmc_gather_{name}")
            function.argtypes, function.restype = [*arguments, pointer], ctypes.c_int
            self._functions[name] = function

    def forward(self, h: Tensor, table: Tensor, candidates: Tensor, sparse_grad: bool) -> Tensor:
        _check(h, table, candidates, "h")
        h, table, candidates = h.contiguous(), table.contiguous(), candidates.contiguous()
        with device_of(h):
            scores = h.new_empty(candidates.shape, dtype=torch.float32)
            self._run("dot", h, self._job(candidates, h.shape[1], h, table), scores)
        return scores

    def grad_h(self, grad: Tensor, table: Tensor, candidates: Tensor) -> Tensor:
        _check(grad, table, candidates, "grad")
        grad, table, candidates = grad.float().contiguous(), table.contiguous(), candidates.contiguous()
        with device_of(grad):
            gh = grad.new_empty(len(grad), table.shape[1])
            self._run("dot_grad_h", grad, self._job(candidates, table.shape[1], None, table), grad, gh)
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
            self._run("dot_grad_rows", h, job, grad, len(found), starts, places, rows)
        return found, rows

    def _job(self, candidates: Tensor, dims: int, h: Tensor | None, table: Tensor | None) -> _Job:
        pointers = (0 if t is None else t.data_ptr() for t in (h, table))
        types = (0 if t is None else _TYPES[t.dtype] for t in (h, table))
        return _Job(*candidates.shape, dims, candidates.data_ptr(), *pointers, *types)

    def _run(self, name: str, like: Tensor, job: _Job, *arguments: Any) -> None:
        stream = torch.cuda.current_stream(like.device).cuda_stream if like.is_cuda else 0
        ready = [a.data_ptr() if isinstance(a, Tensor) else a for a in arguments]
        status = self._functions[name](ctypes.byref(job), *ready, stream)
        if status:
            raise RuntimeError(f"CUDA kernel gather_{name} could not be launched: error {status}")


_IMPLEMENTATIONS: dict[str, tuple[Any, Any]] = {
    "gather_dot": (_forward, _forward_fake),
    "gather_dot_grad_h": (_grad_h, _grad_h_fake),
    "gather_dot_grad_rows": (_grad_rows, _grad_rows_fake),
}
for _name, (_cpu, _fake) in _IMPLEMENTATIONS.items():
    _lib.impl(_name, _cpu, "CPU")
    torch.library.register_fake(f"xmc_fast::{_name}", _fake, lib=_lib)
torch.library.register_autograd("xmc_fast::gather_dot", _backward, setup_context=_setup, lib=_lib)
if LIBRARY.is_file():
    _cuda = CudaGatherDot(LIBRARY)
    _lib.impl("gather_dot", _cuda.forward, "CUDA")
    _lib.impl("gather_dot_grad_h", _cuda.grad_h, "CUDA")
    _lib.impl("gather_dot_grad_rows", _cuda.grad_rows, "CUDA")
