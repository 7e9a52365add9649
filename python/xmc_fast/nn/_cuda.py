"""The compiled CUDA library: one table of its functions and argument structures, one way to call them.

``csrc/cuda/build.sh`` compiles and links the kernels for sm_75 to sm_120 into ``libxmc_cuda.so`` beside the core;
a build where nvcc is does that by itself, so that one package serves CPU and GPU. Operators are registered for CUDA
tensors where that file exists; it is loaded at the first call. The kernels are checked on the CPU from
the same source (tests/test_cuda_host.py); **their speed on a GPU has not been measured.**
"""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from xmc_fast import _core

LIBRARY = Path(_core.__file__).parent / "libxmc_cuda.so"

_C = {
    "p": ctypes.c_void_p,
    "n": ctypes.c_int64,
    "u": ctypes.c_uint64,
    "i": ctypes.c_int,
    "f": ctypes.c_float,
}
# Arguments in their order: p pointer, n int64, u uint64, i int, f float. All functions but the last take the
# stream as a last pointer and return a cudaError_t.
_FUNCTIONS = {
    "fanin_transpose_in": "pinnnpn",
    "fanin_transpose_out": "pnnnpin",
    "fanin_forward": "ppnnpi",
    "fanin_loss": "ppnnifp",
    "fanin_grad_features": "ppnppp",
    "fanin_grad_weights": "ppipinnpipi",
    "fanin_grad_features_sparse": "pnpppp",
    "fanin_grad_weights_sparse": "ppinpppppp",
    "gather_dot": "pp",
    "gather_dot_grad_h": "ppp",
    "gather_dot_grad_rows": "ppnppp",
    "decide_weighted_topk": "p",
    "mach_hash": "uunnp",
    "mach_scores": "p",
}
_STRUCTURES = {
    # csrc/fanin/fanin_cuda.h
    "CudaLayer": "labels:n features:n fan_in:n group:n indices:p weights:p bias:p index_bits:i weight_type:i"
    " bias_type:i reserved:i",
    # csrc/gather/gather_dot_cuda.h
    "CudaGatherDot": "batch:n width:n dims:n candidates:p h:p table:p h_type:i table_type:i",
    # csrc/decide/weighted_topk_cuda.h
    "CudaTopk": "eta:p a:p b:p rows:n labels:n stride:n k:n segment:n keys:p parts:p gains:p ids:p",
    # csrc/mach/mach_cuda.h
    "CudaMach": "p:p table:p repeats:n rows:n buckets:n labels:n first:n count:n aggregate:i scores:p",
}


def _structure(name: str, fields: str) -> type[ctypes.Structure]:
    pairs = [(field, _C[kind]) for field, kind in (f.split(":") for f in fields.split())]
    return type(name, (ctypes.Structure,), {"_fields_": pairs})


STRUCTURES: dict[str, Any] = {name: _structure(name, fields) for name, fields in _STRUCTURES.items()}


class Library:
    """The functions of the compiled library at ``path``, which is loaded when one is first called."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def _library(self) -> ctypes.CDLL:
        library = ctypes.CDLL(str(self._path))
        for name, arguments in _FUNCTIONS.items():
            function = getattr(library, f"xmc_{name}")
            function.argtypes, function.restype = [_C[a] for a in arguments + "p"], ctypes.c_int
        parts = library.xmc_fanin_loss_parts
        parts.argtypes, parts.restype = [ctypes.c_int64], ctypes.c_int64
        return library

    def run(self, name: str, like: Tensor, *arguments: Any) -> None:
        """Launch on the stream of ``like``. Tensors are passed by address, structures by reference."""
        stream = torch.cuda.current_stream(like.device).cuda_stream if like.is_cuda else 0
        status = self._function(name)(*(_argument(a) for a in arguments), stream)
        if status:
            raise RuntimeError(f"CUDA kernel {name} could not be launched: error {status}")

    def loss_parts(self, labels: int) -> int:
        """Partial sums of the fused loss for a row."""
        return int(self._function("fanin_loss_parts")(labels))

    def _function(self, name: str) -> Any:
        return getattr(self._library, f"xmc_{name}")


def _argument(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.data_ptr()
    return ctypes.byref(value) if isinstance(value, ctypes.Structure) else value


def address(t: Tensor | None) -> int:
    """Of the first element; 0 for None."""
    return 0 if t is None else t.data_ptr()


def device_of(t: Tensor) -> AbstractContextManager[Any]:
    """The CUDA device of a tensor as the current one."""
    return torch.cuda.device(t.device) if t.is_cuda else nullcontext()
