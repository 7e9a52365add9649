"""Weighted top-k of dense probabilities as a torch operator: ``torch.ops.xmc_fast.weighted_topk``.

    gains[i, j] = a[j] * eta[i, j] + b[j]

is never stored: a row is read once, chunk by chunk, against the k-th best gain so far. The CUDA kernel is used
where the package was built with it (see :mod:`xmc_fast.nn.cuda`); its speed on a GPU has not been measured.
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

_lib: Any = torch.library.Library("xmc_fast", "FRAGMENT")  # type: ignore[no-untyped-call]
_lib.define("weighted_topk(Tensor eta, Tensor? a, Tensor? b, int k) -> (Tensor, Tensor)")

_ENTRIES_PER_THREAD = 200_000  # starting a thread costs about 20 us


def weighted_topk(
    eta: Tensor, k: int, a: Tensor | None = None, b: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The k largest a·η + b of each row.

    Parameters
    ----------
    eta : float32 tensor of shape (n, labels)
        Rows contiguous, any distance between them.
    k : int
    a, b : float32 tensors of shape (labels,), optional
        By default 1 and 0.

    Returns
    -------
    gains : float32 tensor of shape (n, k)
        Best first; equal ones by lower label; NaN last.
    labels : int64 tensor of shape (n, k)

    Examples
    --------
    >>> gains, labels = weighted_topk(torch.tensor([[0.5, 0.25, 0.125]]), 2, torch.tensor([1.0, 4.0, 1.0]))
    >>> labels
    tensor([[1, 0]])
    """
    gains, labels = torch.ops.xmc_fast.weighted_topk(eta, a, b, k)
    return gains, labels


def _check(eta: Tensor, a: Tensor | None, b: Tensor | None, k: int) -> None:
    if eta.dim() != 2 or eta.dtype != torch.float32:
        raise ValueError(f"eta must be a float32 matrix, got {eta.dtype} of shape {tuple(eta.shape)}")
    if not 1 <= k <= eta.shape[1]:
        raise ValueError(f"k must be between 1 and the number of labels ({eta.shape[1]}), got {k}")
    for name, weights in (("a", a), ("b", b)):
        if weights is None:
            continue
        if weights.dtype != torch.float32 or tuple(weights.shape) != (eta.shape[1],):
            raise ValueError(
                f"{name} must be float32 of shape {(eta.shape[1],)}, got {weights.dtype} of shape"
                f" {tuple(weights.shape)}"
            )
        if weights.device != eta.device:
            raise ValueError(f"{name} is on {weights.device}, eta on {eta.device}")


def _address(weights: Tensor | None) -> int:
    return 0 if weights is None else weights.data_ptr()


def _ready(
    eta: Tensor, a: Tensor | None, b: Tensor | None, k: int
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Checked, rows of eta contiguous."""
    _check(eta, a, b, k)
    if eta.shape[1] > 1 and eta.stride(1) != 1:
        eta = eta.contiguous()
    a, b = (None if w is None else w.contiguous() for w in (a, b))
    return eta, a, b


def _cpu(eta: Tensor, a: Tensor | None, b: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    eta, a, b = _ready(eta, a, b, k)
    rows, labels = eta.shape
    gains = torch.empty(rows, k)
    ids = torch.empty(rows, k, dtype=torch.int32)
    useful = max(1, eta.numel() // _ENTRIES_PER_THREAD)
    threads = min(torch.get_num_threads(), resolve_threads(None), useful)
    _core.decide_dense_weighted_topk(
        eta.data_ptr(),
        rows,
        labels,
        eta.stride(0),
        _address(a),
        _address(b),
        k,
        threads,
        ids.data_ptr(),
        gains.data_ptr(),
    )
    return gains, ids.long()


class _Job(ctypes.Structure):
    """CudaTopk of csrc/decide/weighted_topk_cuda.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("eta", "a", "b")),
        *((name, ctypes.c_int64) for name in ("rows", "labels", "stride", "k", "segment")),
        *((name, ctypes.c_void_p) for name in ("keys", "parts", "gains", "ids")),
    )


class CudaTopk:
    """The operator over the compiled library at ``path``.

    With fewer than ``few_rows`` rows each row is cut into ``segment`` labels, so that the device has enough to do.
    Each further 512 labels of k read eta once more.
    """

    _KEPT = 512  # kTopkKept

    def __init__(self, path: Path, *, segment: int = 32_768, few_rows: int = 512) -> None:
        self._run = ctypes.CDLL(str(path)).xmc_decide_weighted_topk
        self._run.argtypes, self._run.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_int
        self._segment, self._few_rows = segment, few_rows

    def __call__(self, eta: Tensor, a: Tensor | None, b: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
        eta, a, b = _ready(eta, a, b, k)
        rows, labels = eta.shape
        segment = labels if rows >= self._few_rows else min(labels, self._segment)
        segments = -(-labels // segment)
        with device_of(eta):
            keys = eta.new_empty(rows, k, dtype=torch.int64)
            parts = eta.new_empty(
                rows * segments * min(k, self._KEPT) if segments > 1 else 0, dtype=torch.int64
            )
            gains, ids = eta.new_empty(rows, k), torch.empty_like(keys)
            job = _Job(
                *(eta.data_ptr(), _address(a), _address(b), rows, labels, eta.stride(0), k, segment),
                *(t.data_ptr() for t in (keys, parts, gains, ids)),
            )
            stream = torch.cuda.current_stream(eta.device).cuda_stream if eta.is_cuda else 0
            status = self._run(ctypes.byref(job), stream)
        if status:
            raise RuntimeError(f"CUDA kernel weighted_topk could not be launched: error {status}")
        return gains, ids


def _fake(eta: Tensor, a: Tensor | None, b: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    _check(eta, a, b, k)
    return eta.new_empty(eta.shape[0], k), eta.new_empty(eta.shape[0], k, dtype=torch.int64)


_lib.impl("weighted_topk", _cpu, "CPU")
_lib.impl("weighted_topk", _fake, "Meta")
if LIBRARY.is_file():
    _lib.impl("weighted_topk", CudaTopk(LIBRARY), "CUDA")
