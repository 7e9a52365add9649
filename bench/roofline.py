"""Prints the machine's limits, which all other benches refer to: ``python bench/roofline.py``."""

from __future__ import annotations

from common import Table, arguments, machine
from xmc_fast import _core


def main() -> None:
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
