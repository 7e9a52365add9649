"""How many threads a call uses, and which instruction set is active."""

from __future__ import annotations

import ctypes
import platform
from typing import Any

import threadpoolctl

from xmc_fast import _core


class _Controller(threadpoolctl.LibController):  # type: ignore[misc]
    """Lets threadpoolctl.threadpool_limits() limit our threads like those of BLAS and OpenMP."""

    user_api = "xmc_fast"
    internal_api = "xmc_fast"
    filename_prefixes = ("_core",)
    check_symbols = ("xmc_fast_get_num_threads", "xmc_fast_set_num_threads")

    def get_num_threads(self) -> int:
        return int(self._function("xmc_fast_get_num_threads")())

    def set_num_threads(self, num_threads: int) -> None:
        self._function("xmc_fast_set_num_threads")(ctypes.c_int(num_threads))

    def get_version(self) -> None:
        return None

    def set_additional_attributes(self) -> None:
        pass

    def _function(self, name: str) -> Any:
        return getattr(self.dynlib, name)


threadpoolctl.register(_Controller)

MOST_THREADS = 4096  # each has memory of its own: a number from a file must not decide how much


def resolve_threads(n_jobs: int | None) -> int:
    """The number of threads for ``n_jobs``.

    None means the default (``OMP_NUM_THREADS`` or a threadpoolctl limit if set, else the CPUs this process
    may use); -1 all those CPUs, -2 all but one, and so on (joblib's convention).

    >>> resolve_threads(3)
    3
    """
    if n_jobs is None:
        return int(_core.default_threads())
    n_jobs = int(n_jobs)
    if n_jobs == 0:
        raise ValueError("n_jobs must be a positive count, or negative to count from the CPUs, got 0")
    if n_jobs < 0:
        return max(1, int(_core.available_cpus()) + 1 + n_jobs)
    return min(n_jobs, MOST_THREADS)


def cpu_features() -> dict[str, Any]:
    """The active instruction set and what else decides speed.

    Returns a dict with ``simd`` (active level: "baseline", "avx2", "avx512" or "neon"; the environment variable
    ``XMC_SIMD`` forces one), ``simd_supported`` (the best this CPU has), ``cpus``, ``threads`` (the default
    for n_jobs=None) and ``machine``.

    >>> cpu_features()["simd"] in ("baseline", "avx2", "avx512", "neon")
    True
    """
    return {
        "simd": _core.simd_level(),
        "simd_supported": _core.simd_supported(),
        "cpus": _core.available_cpus(),
        "threads": _core.default_threads(),
        "machine": platform.machine(),
    }
