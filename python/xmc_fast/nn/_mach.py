"""MACH's hash table and top-k on a GPU: `xmc_fast.mach`'s functions for torch tensors on CUDA.

Scores of a slice of labels come from one kernel, their k best from the weighted top-k kernel; slices are merged,
so that memory is rows x slice. Results are those of the CPU, bit for bit.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from xmc_fast.nn._cuda import LIBRARY, STRUCTURES, Library, device_of
from xmc_fast.nn.weighted_topk import CudaTopk

_MASK = 2**64 - 1
_AGGREGATES = {"mean": 0, "min": 1, "median": 2}


def mix64(x: int) -> int:
    """splitmix64's finaliser on 64 bits (csrc/core/rng.h)."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


class CudaMach:
    """The kernels of the compiled library at ``path``.

    Parameters
    ----------
    path : of the library, by default the installed one
    slice_labels : labels scored at a time; the scores of a slice take rows x slice floats
    """

    def __init__(self, path: Path = LIBRARY, *, slice_labels: int = 65_536) -> None:
        self._run = Library(path).run
        self._topk = CudaTopk(path)
        self._slice = slice_labels

    def table(
        self, n_labels: int, n_buckets: int, n_repeats: int, *, random_state: int = 0, device: str = "cuda"
    ) -> Tensor:
        """`xmc_fast.mach.bucket_table` on the device: (R, L) uint16."""
        table = torch.empty(n_repeats, n_labels, dtype=torch.uint16, device=device)
        seed = mix64(random_state & _MASK)
        with device_of(table):
            for r in range(n_repeats):
                a, b = (mix64((seed + 2 * r + i) & _MASK) for i in (0, 1))
                self._run("mach_hash", table, a, b, n_buckets, n_labels, table[r])
        return table

    def topk(self, p: Tensor, table: Tensor, k: int, *, aggregate: str = "mean") -> tuple[Tensor, Tensor]:
        """`xmc_fast.mach.aggregate_topk`: ids (n, k) int64 and scores (n, k), best first.

        Parameters
        ----------
        p : (R, n, B) float32, scores of the buckets
        table : (R, L) uint16, on the same device
        k : int
        aggregate : "mean", "min" or "median"
        """
        if p.ndim != 3 or table.ndim != 2 or p.shape[0] != table.shape[0]:
            raise ValueError(f"p must be (R, n, B) and table (R, L), got {p.shape} and {table.shape}")
        if p.dtype != torch.float32 or table.dtype != torch.uint16:
            raise ValueError(f"p must be float32 and table uint16, got {p.dtype} and {table.dtype}")
        if aggregate not in _AGGREGATES:
            raise ValueError(f"aggregate must be one of {', '.join(_AGGREGATES)}, got {aggregate!r}")
        repeats, rows, buckets = p.shape
        labels = table.shape[1]
        if not 1 <= k <= labels:
            raise ValueError(f"k must be between 1 and the number of labels ({labels}), got {k}")
        p, table = p.contiguous(), table.contiguous()
        best = p.new_empty(rows, 0)
        ids = torch.empty(rows, 0, dtype=torch.int64, device=p.device)
        size = max(min(self._slice, labels), k)
        scores = p.new_empty(rows * size)
        for first in range(0, labels, size):
            count = min(size, labels - first)
            part = scores[: rows * count].view(rows, count)
            with device_of(p):
                job = STRUCTURES["CudaMach"](
                    *(p.data_ptr(), table.data_ptr(), repeats, rows, buckets, labels, first, count),
                    *(_AGGREGATES[aggregate], part.data_ptr()),
                )
                self._run("mach_scores", p, job)
            top, where = self._topk(part, None, None, min(k, count))
            # Earlier labels stand before later ones and equal scores keep their order: so do ties.
            both, names = torch.cat([best, top], 1), torch.cat([ids, where + first], 1)
            best, where = self._topk(both, None, None, min(k, both.shape[1]))
            ids = names.gather(1, where)
        return ids, best
