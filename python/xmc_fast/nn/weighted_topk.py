"""Weighted top-k of dense probabilities as a torch operator: ``torch.ops.xmc_fast.weighted_topk``.

    gains[i, j] = a[j] * eta[i, j] + b[j]

is never stored: a row is read once, chunk by chunk, against the k-th best gain so far. The CUDA kernel is used
where the package was built with it; its speed on a GPU has not been measured.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from xmc_fast import _core
from xmc_fast.nn._cuda import LIBRARY, STRUCTURES, Library, address, device_of
from xmc_fast.nn._operators import ops, register, threads_for


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
    gains, labels = ops.weighted_topk(eta, a, b, k)
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
    _core.decide_dense_weighted_topk(
        eta.data_ptr(),
        rows,
        labels,
        eta.stride(0),
        address(a),
        address(b),
        k,
        threads_for(eta.numel(), 200_000),
        ids.data_ptr(),
        gains.data_ptr(),
    )
    return gains, ids.long()


def plain(eta: Tensor, a: Tensor | None, b: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    """In plain torch; gains are stored."""
    _check(eta, a, b, k)
    gains = eta if a is None else eta * a
    gains = gains if b is None else gains + b
    last = gains.isnan()  # torch sorts NaN first
    order = torch.sort(gains.masked_fill(last, -torch.inf), dim=1, descending=True, stable=True).indices
    order = order.gather(1, torch.sort(last.gather(1, order), dim=1, stable=True).indices)[:, :k]
    return gains.gather(1, order), order


class CudaTopk:
    """The operator over the compiled library at ``path``.

    With fewer than ``few_rows`` rows each row is cut into ``segment`` labels, so that the device has enough to do.
    Each further 512 labels of k read eta once more.
    """

    _KEPT = 512  # kTopkKept

    def __init__(self, path: Path, *, segment: int = 32_768, few_rows: int = 512) -> None:
        self._run = Library(path).run
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
            job = STRUCTURES["CudaTopk"](
                *(eta.data_ptr(), address(a), address(b), rows, labels, eta.stride(0), k, segment),
                *(t.data_ptr() for t in (keys, parts, gains, ids)),
            )
            self._run("decide_weighted_topk", eta, job)
        return gains, ids


def _fake(eta: Tensor, a: Tensor | None, b: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    _check(eta, a, b, k)
    return eta.new_empty(eta.shape[0], k), eta.new_empty(eta.shape[0], k, dtype=torch.int64)


register(
    "weighted_topk(Tensor eta, Tensor? a, Tensor? b, int k) -> (Tensor, Tensor)",
    cpu=_cpu,
    plain=plain,
    fake=_fake,
    cuda=CudaTopk(LIBRARY) if LIBRARY.is_file() else None,
)
