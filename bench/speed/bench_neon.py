"""Instructions of the kernels on arm64, NEON against plain loops: ``python -m bench.speed.bench_neon FOLDER``.

FOLDER is where ``tests/platforms/arm64.sh FOLDER`` has built the core. `tests/platforms/kernels.cpp` calls one kernel
on made data under qemu-user, whose plugin `tests/platforms/count.c` counts instructions; those of one call are half the
difference between three calls and one. NEON is part of every arm64 CPU, so that the compiler vectorises the plain loops
with it too: "plain" is the `baseline` level as it is shipped, "scalar" the same source with ``-fno-tree-vectorize``.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.common import KEPT, ROOT, Table, command_line, commit
from xmc_fast import __version__

COMPILER = "aarch64-linux-gnu-g++"
TESTS = ROOT / "tests" / "platforms"


def run(*command: Any) -> str:
    """What a command prints to stderr."""
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, check=True).stderr


def build(folder: Path) -> dict[str, Path]:
    """The counting plugin and the drivers with the shipped and with the scalar plain loops."""
    out = folder / "counts"
    out.mkdir(exist_ok=True)
    run("cc", "-O2", "-shared", "-fPIC", TESTS / "count.c", "-o", out / "count.so")
    built = [p for p in (folder / "build" / "CMakeFiles").rglob("*.o") if "bindings" not in str(p)]
    common = [COMPILER, "-std=c++20", "-O3", "-fno-math-errno", "-fno-trapping-math", "-DXMC_ARM64=1"]
    common += ["-I", ROOT / "csrc"]
    baseline = ["-DXMC_SIMD_NS=baseline", "-DXMC_SIMD_IS_baseline", "-fno-tree-vectorize", "-c"]

    def scalar(source: Path) -> Path:
        made = out / f"{source.parent.name}_{source.name}.o"
        if not made.exists() or made.stat().st_mtime < source.stat().st_mtime:
            run(*common, *baseline, source, "-o", made)
        return made

    with ThreadPoolExecutor(2) as pool:
        plain = list(pool.map(scalar, sorted((ROOT / "csrc").glob("*/*.simd.cpp"))))
    others = [p for p in built if "simd_baseline" not in str(p)]
    run(*common, TESTS / "kernels.cpp", *built, "-pthread", "-o", out / "shipped")
    run(*common, TESTS / "kernels.cpp", *others, *plain, "-pthread", "-o", out / "scalar")
    return {name: out / name for name in ("count.so", "shipped", "scalar")}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true", help="keep the result in docs/results")
    args = parser.parse_args()
    files = build(args.folder)
    qemu = ["qemu-aarch64", "-L", args.folder / "sysroot"]

    def count(driver: str, kernel: str, level: str) -> float:
        calls = [
            int(run(*qemu, "-plugin", files["count.so"], files[driver], kernel, level, n)) for n in (1, 3)
        ]
        return (calls[1] - calls[0]) / 2

    names = subprocess.run([*qemu, files["shipped"]], capture_output=True, text=True, check=True).stdout
    version = subprocess.run(["qemu-aarch64", "--version"], capture_output=True, text=True).stdout.split()[2]
    compiler = subprocess.run([COMPILER, "-dumpfullversion"], capture_output=True, text=True).stdout.strip()
    info = {
        "cpu": "arm64 of qemu-user",
        "qemu": version,
        "g++": compiler,
        "commit": commit(),
        "version": __version__,
    }
    table = Table("neon", ["kernel", "neon", "plain", "scalar", "plain / neon", "scalar / neon"], info)
    for kernel in names.splitlines():
        neon, plain = count("shipped", kernel, "neon"), count("shipped", kernel, "baseline")
        scalar = count("scalar", kernel, "baseline")
        ratios = {"plain / neon": round(plain / neon, 2), "scalar / neon": round(scalar / neon, 2)}
        table.add(kernel=kernel, neon=round(neon), plain=round(plain), scalar=round(scalar), **ratios)
        print(table.rows[-1], file=sys.stderr, flush=True)
    if args.write:
        table.save(KEPT)


if __name__ == "__main__":
    main()
