"""The machine's limits, which all other benches refer to: ``python -m bench.speed.roofline`` prints them.

roofline.cpp is compiled on demand with the system's compiler (CXX, else c++) into XMC_CACHE.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import subprocess
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_suffix(".cpp")
SIMD = {"avx512": ["-march=native"], "avx2": ["-mavx2", "-mfma"], "baseline": []}


@functools.cache
def library(simd: str) -> Any:
    """The compiled probe of an instruction set."""
    from bench.common import CACHE

    command = [os.environ.get("CXX", "c++"), "-O3", "-std=c++20", "-shared", "-fPIC", "-pthread", *SIMD[simd]]
    text = SOURCE.read_bytes() + " ".join(command).encode()
    path = CACHE / f"roofline-{hashlib.sha256(text).hexdigest()[:16]}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(f".{os.getpid()}")
        subprocess.run([*command, str(SOURCE), "-o", str(new)], check=True)
        new.replace(path)
    loaded = ctypes.CDLL(str(path))
    loaded.measure_random_lines.restype = ctypes.c_double
    return loaded


def measure(threads: int, seconds: float, simd: str) -> tuple[float, float, float]:
    """GFLOP/s of float32 multiply-adds, GB/s read, GB/s triad of so many threads; about `seconds` per figure."""
    out = (ctypes.c_double * 3)()
    library(simd).measure_roofline(threads, ctypes.c_double(seconds), out)
    return out[0], out[1], out[2]


def random_lines(table_lines: int, seconds: float, simd: str) -> float:
    """Lines of 64 bytes that one thread reads per second in random order from a table of so many."""
    return float(library(simd).measure_random_lines(ctypes.c_int64(table_lines), ctypes.c_double(seconds)))


def main() -> None:
    from bench.common import Table, arguments, machine
    from xmc_fast import _core

    arguments(__doc__)
    table = Table("roofline", ["simd", "threads", "fma_gflops", "read_gbs", "triad_gbs"])
    best = _core.simd_supported()
    for level in ("baseline", "avx2", "avx512"):
        _core.force_simd_level(level)
        for threads in sorted({1, _core.available_cpus()}):
            info = machine(threads)
            table.add(**{c: info[c] for c in table.columns})
        if level == best:
            break
    print(table)
    table.save()


if __name__ == "__main__":
    main()
