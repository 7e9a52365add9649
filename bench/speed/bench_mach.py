"""MACH kernels against numpy and torch: hashing, and aggregation with the top 5 of 670,091 labels.

    python -m bench.speed.bench_mach [aggregate] [hash] [memory]

One thread, CPU time. `aggregate`: R = 32, B = 20,000, batch 128; beside the peers the shares of the machine's limits,
all measured in the same run, per instance:
  of_l2_floats   the operation as it is specified: one float32 per label and repetition from L2 (at the rate of random
                 lines from 512 KiB), and the outputs once from memory
  of_adds        one float32 addition per label and repetition, at half the FMA rate
  of_byte_lines  what no method with a byte per output can avoid: one line of 64 bytes per label, repetition and 64
                 instances in random order from tables of four repetitions (5 MB), and the outputs once from memory
Bounds pass over most labels with less than a float each, so the first two are no limits to the method: they may be
above 1. `memory`: 10 million labels, R = 16; peak resident memory of the process.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import scipy.sparse as sp

from bench.common import Table, interleave, machine
from bench.speed import roofline
from xmc_fast import mach


def numpy_topk(p: np.ndarray, table: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """One instance: p (R, B)."""
    s = np.zeros(table.shape[1], np.float32)
    for r in range(len(p)):
        s += p[r][table[r]]
    s /= np.float32(len(p))
    best = np.argpartition(-s, k)[:k]
    best = best[np.lexsort((best, -s[best]))]
    return best, s[best]


def torch_topk(p, table, k: int):
    """A batch: p (R, n, B), table (R, L) int64."""
    import torch

    s = p[0].index_select(1, table[0])
    for r in range(1, len(p)):
        s += p[r].index_select(1, table[r])
    return torch.topk(s / len(p), k)


def aggregate(n_labels: int = 670_091, R: int = 32, B: int = 20_000, n: int = 128, k: int = 5) -> Table:
    table = Table(
        "mach_aggregate",
        ["outputs", "what", "ms_per_instance", "ratio", "of_l2_floats", "of_adds", "of_byte_lines"],
        machine(),
    )
    rng = np.random.default_rng(0)
    buckets = mach.bucket_table(n_labels, B, R, random_state=1)
    for name, power in (("uniform", 1), ("peaked", 8)):
        p = rng.random((R, n, B), dtype=np.float32) ** power
        ids, scores = mach.aggregate_topk(p, buckets, k, n_jobs=1)
        for i in range(0, n, 40):
            expected, expected_scores = numpy_topk(p[:, i], buckets, k)
            np.testing.assert_array_equal(ids[i], expected)
            np.testing.assert_array_equal(scores[i], expected_scores)
        runs = {
            "xmc_fast": lambda p=p: mach.aggregate_topk(p, buckets, k, n_jobs=1),
            "numpy": lambda p=p: [numpy_topk(p[:, i], buckets, k) for i in range(4)],
        }
        sizes = {"xmc_fast": n, "numpy": 4, "torch": 4}
        try:
            import torch

            torch.set_num_threads(1)
            part, index = torch.from_numpy(p[:, :4].copy()), torch.from_numpy(buckets.astype(np.int64))
            runs["torch"] = lambda part=part, index=index: torch_topk(part, index, k)
        except ImportError:
            pass
        times = {
            what: 1e3 * t / sizes[what]
            for what, t in interleave(runs, rounds=3, clock=time.process_time, warm_up=False).items()
        }
        for what, ms in times.items():
            table.add(outputs=name, what=what, ms_per_instance=ms, ratio=ms / times["xmc_fast"])
        limits = limits_ms(table.info, n_labels, R, B)
        table.rows[-len(times)] |= {key: ms / times["xmc_fast"] for key, ms in limits.items()}
    return table


def limits_ms(info: dict[str, float], n_labels: int, R: int, B: int) -> dict[str, float]:
    """The machine's limits for one instance in ms (see the top), the cache's lines measured now."""
    read = 4 * R * B / (info["read_gbs"] * 1e9)
    near, far = (roofline.random_lines(n, 0.3, str(info["simd"])) for n in (1 << 13, 4 * B))
    return {
        "of_l2_floats": 1e3 * (n_labels * R / 16 / near + read),
        "of_adds": 1e3 * n_labels * R / (info["fma_gflops"] / 2 * 1e9),
        "of_byte_lines": 1e3 * (n_labels * R / 64 / far + read),
    }


def numpy_table(n_labels: int, B: int, R: int, seed: int) -> np.ndarray:
    from reference.mach import bucket_table

    return bucket_table(n_labels, B, R, seed)


def hashing(
    n_labels: int = 2_000_000, B: int = 20_000, R: int = 8, rows: int = 500_000, per_row: int = 5
) -> Table:
    table = Table("mach_hash", ["what", "package", "ms", "ratio"], machine())
    rng = np.random.default_rng(0)
    Y = sp.csr_matrix(
        (np.ones(rows * per_row, np.float32), rng.integers(n_labels, size=rows * per_row, dtype=np.int32),
         np.arange(rows + 1) * per_row), (rows, n_labels),
    )  # fmt: skip
    Y.sum_duplicates()
    Y.data[:] = 1
    buckets = numpy_table(n_labels, B, R, 0)
    np.testing.assert_array_equal(mach.bucket_table(n_labels, B, R), buckets)

    def with_scipy() -> list[sp.csr_matrix]:
        parts = []
        for row in buckets:  # the table is given: no hashing here
            M = sp.csr_matrix((Y.data.copy(), row[Y.indices].astype(np.int32), Y.indptr.copy()), (rows, B))
            M.sum_duplicates()
            M.data[:] = 1
            parts.append(M)
        return parts

    def with_numpy() -> list[np.ndarray]:
        number = np.repeat(np.arange(rows) * B, np.diff(Y.indptr))
        parts = []
        for row in buckets:
            keys = np.sort(number + row[Y.indices])
            parts.append(keys[np.diff(keys, prepend=-1) > 0])
        return parts

    for ours, theirs, keys in zip(mach.bucket_matrices(Y, B, R), with_scipy(), with_numpy(), strict=True):
        assert (ours != theirs).nnz == 0
        assert len(keys) == ours.nnz
    for what, cases in (
        (
            f"table of {n_labels} labels, R = {R}",
            {
                "xmc_fast": lambda: mach.bucket_table(n_labels, B, R, n_jobs=1),
                "numpy": lambda: numpy_table(n_labels, B, R, 0),
            },
        ),
        (
            f"label matrix {rows} x {n_labels} to {R} bucket matrices",
            {
                "xmc_fast": lambda: mach.bucket_matrices(Y, B, R, n_jobs=1),
                "numpy": with_numpy,
                "scipy": with_scipy,
            },
        ),
    ):
        times = interleave(cases, rounds=5, clock=time.process_time)
        for package, seconds in times.items():
            table.add(what=what, package=package, ms=1e3 * seconds, ratio=seconds / times["xmc_fast"])
    return table


def memory(n_labels: int = 10_000_000, R: int = 16, B: int = 20_000, n: int = 32) -> Table:
    import resource

    table = Table("mach_memory", ["labels", "R", "B", "rows", "seconds", "peak_gb"], machine())
    p = np.random.default_rng(0).random((R, n, B), dtype=np.float32)
    start = time.perf_counter()
    buckets = mach.bucket_table(n_labels, B, R)
    mach.aggregate_topk(p, buckets, 5)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    table.add(labels=n_labels, R=R, B=B, rows=n, seconds=seconds, peak_gb=peak)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description="MACH kernels against numpy and torch")
    parts = {
        "memory": memory,
        "hash": hashing,
        "aggregate": aggregate,
    }  # memory first: its peak is the process's
    parser.add_argument("parts", nargs="*", choices=[[], *parts], help="all by default")
    arguments = parser.parse_args()
    for name in arguments.parts or parts:
        table = parts[name]()
        table.save()
        print(table)


if __name__ == "__main__":
    main()
