"""What `OneVsAll.fit` takes of memory beside X and Y, each fit in a process of its own, one thread.

    python -m bench.speed.fit_memory [--sets eurlex57k eurlex-4k] [--fits exact small ..]

The peak of resident memory (VmHWM, pages of mapped files included) during the fit, less what was resident when X and Y
were loaded and a fit of a few rows was done. With a `memory` the fit was given so many bytes; its model must have the
bytes of the one without. Linux only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.common import Table, command_line, machine
from bench.sets import load
from xmc_fast.linear import OneVsAll

FITS = {  # name -> size, memory
    "exact": ("exact", None),
    "exact, memory=150 MB": ("exact", 150_000_000),
    "small": ("small", None),
    "small, memory=150 MB": ("small", 150_000_000),
}


def resident(key: str) -> int:
    """Bytes by /proc/self/status: VmRSS now, VmHWM the peak."""
    return 1024 * int(Path("/proc/self/status").read_text().split(f"{key}:")[1].split()[0])


def digest(model: Any) -> str:
    W = model.to_csr()
    parts = (W.indptr, W.indices, W.data)
    return hashlib.md5(b"".join(array.astype(array.dtype.str).tobytes() for array in parts)).hexdigest()


def measure(name: str, size: str, memory: int | None) -> dict[str, Any]:
    X, Y = load(name)
    OneVsAll(n_jobs=1).fit(X[:200], Y[:200, :50])
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    start = time.process_time()
    estimator = OneVsAll(size=size, n_jobs=1).fit(X, Y, memory=memory)
    seconds = time.process_time() - start
    peak = resident("VmHWM") - before
    row = {"peak_mb": peak / 1e6, "model_mb": estimator.nbytes / 1e6, "cpu_seconds": seconds}
    data = sum(a.nbytes for M in (X, Y) for a in (M.indptr, M.indices, M.data))
    return {"data_mb": data / 1e6, **row, "digest": digest(estimator.model_)}


def main() -> None:
    parser: argparse.ArgumentParser = command_line(__doc__)
    parser.add_argument("--sets", nargs="+", default=["eurlex-4k", "eurlex57k"])
    parser.add_argument("--fits", nargs="+", default=list(FITS), choices=list(FITS), metavar="FIT")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one[0], *FITS[args.one[1]])))
        return
    table = Table("fit_memory", ["set", "fit", "data_mb", "peak_mb", "model_mb", "cpu_seconds"], machine())
    for name in args.sets:
        load(name)  # fills the cache
        digests: dict[str, str] = {}
        for fit in args.fits:
            size = FITS[fit][0]
            run = [sys.executable, "-m", "bench.speed.fit_memory", "--one", name, fit]
            found = json.loads(subprocess.run(run, check=True, capture_output=True, text=True).stdout)
            if digests.setdefault(size, found["digest"]) != found.pop("digest"):
                raise SystemExit(f"{name}, {fit}: other weights than without a budget")
            table.add(set=name, fit=fit, **found)
    table.keep_others("set", "fit")
    table.rows.sort(key=lambda row: (row["set"], list(FITS).index(row["fit"])))
    print(table)
    table.save()


if __name__ == "__main__":
    main()
