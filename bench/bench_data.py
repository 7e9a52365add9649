"""Reading sparse text and tf-idf beside the peers: ``python bench/bench_data.py``.

Reading: eurlex-4k repeated to more than 100 MB, from the page cache, by ours (one thread, two threads),
scikit-learn's load_svmlight_file and napkinxc's C++ loader. One-thread figures are CPU time; ``ratio`` is the
peer's time by ours, and for the wall-clock rows the speed-up over one thread.
"""

from __future__ import annotations

import lzma
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from common import CACHE, Table, data_dir, interleave
from xmc_fast import data

MEGABYTES = 110


def big_file(megabytes: int = MEGABYTES) -> Path:
    """eurlex-4k's training set repeated to at least that size, cached."""
    path = CACHE / f"eurlex-4k_{megabytes}MB.txt"
    if not path.exists():
        with lzma.open(data_dir("eurlex-4k") / "train.txt.xz") as file:
            header, body = file.read().split(b"\n", 1)
        points, features, labels = map(int, header.split())
        times = megabytes * 1_000_000 // len(body) + 1
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d %d %d\n" % (points * times, features, labels) + body * times)
    return path


def sklearn_reader(path: Path) -> Callable[[], Any]:
    from sklearn.datasets import load_svmlight_file

    def read() -> Any:
        with open(path, "rb") as file:
            n_features = int(file.readline().split()[1])
            X, _ = load_svmlight_file(
                file, n_features=n_features, multilabel=True, zero_based=True, dtype=np.float32
            )
        return X

    return read


def napkinxc_reader(path: Path) -> Callable[[], Any] | None:
    try:
        from napkinxc.datasets import load_libsvm_file
    except ImportError:
        return None
    return lambda: load_libsvm_file(str(path), labels_format="csr_matrix")[0]


def same(A: Any, B: Any) -> bool:
    """Equal matrices up to the last bit of values that a peer rounds twice."""
    columns = min(A.shape[1], B.shape[1])
    difference = abs(A[:, :columns] - B[:, :columns])
    return A.shape[0] == B.shape[0] and A.nnz == B.nnz and difference.max() <= 1e-6 * abs(A).max()


def bench_read() -> Table:
    table = Table("data_read", ["reader", "threads", "clock", "seconds", "mb_per_s", "ratio"])
    path = big_file()
    size = path.stat().st_size / 1e6
    cases: dict[str, Callable[[], Any]] = {"xmc_fast": lambda: data.read_xmc(path, n_jobs=1).X}
    cases["scikit-learn"] = sklearn_reader(path)
    peer = napkinxc_reader(path)
    if peer is not None:
        cases["napkinxc"] = peer
    ours = cases["xmc_fast"]()
    for name, read in cases.items():
        if not same(ours, read()):
            raise AssertionError(f"{name} reads something else")
    seconds = interleave(cases, rounds=5, clock=time.process_time, warm_up=False, budget=90)
    for name, s in seconds.items():
        ratio = s / seconds["xmc_fast"]
        table.add(reader=name, threads=1, clock="cpu", seconds=s, mb_per_s=size / s, ratio=ratio)
    threads = {f"{t}": lambda t=t: data.read_xmc(path, n_jobs=t) for t in (1, 2)}
    walls = interleave(threads, rounds=9, budget=30)
    for t, s in walls.items():
        ratio = walls["1"] / s
        table.add(reader="xmc_fast", threads=int(t), clock="wall", seconds=s, mb_per_s=size / s, ratio=ratio)
    return table


def main() -> None:
    for bench in (bench_read,):
        table = bench()
        print(table)
        table.save()


if __name__ == "__main__":
    main()
