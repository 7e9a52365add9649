"""Weighted top-k of dense probabilities as a torch operator: ``torch.ops.xmc_fast.weighted_topk``.

    gains[i, j] = a[j] * eta[i, j] + b[j]

is never stored: a row is read once, chunk by chunk, against the k-th best gain so far.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from xmc_fast import _core
from xmc_fast._threads import resolve_threads

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


def _cpu(eta: Tensor, a: Tensor | None, b: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    _check(eta, a, b, k)
    if eta.shape[1] > 1 and eta.stride(1) != 1:
        eta = eta.contiguous()
    a, b = (None if w is None else w.contiguous() for w in (a, b))
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


def _fake(eta: Tensor, a: Tensor | None, b: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    _check(eta, a, b, k)
    return eta.new_empty(eta.shape[0], k), eta.new_empty(eta.shape[0], k, dtype=torch.int64)


_lib.impl("weighted_topk", _cpu, "CPU")
_lib.impl("weighted_topk", _fake, "Meta")
