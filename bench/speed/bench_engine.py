"""Two workers against one, and the bytes of X that travel: python -m bench.speed.bench_engine

Local clusters of processes on 127.0.0.1 with one thread per worker; start-up is not timed, a small fit warms the
workers up. The model's bytes are compared with those of a single process before anything is reported. Needs two
idle cores for a fair ratio of seconds; "by_cpu" needs none: twice the CPU time of one worker's run over that of two
workers, what idle cores would show if the two ended together. --rounds 3 gives medians.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from bench.common import Table, command_line, machine
from xmc_fast import OneVsAll
from xmc_fast.data import make_synthetic
from xmc_fast.engine import connect


@contextlib.contextmanager
def dask_workers(count: int) -> Iterator[Any]:
    import distributed

    options = {"dashboard_address": "127.0.0.1:0", "host": "127.0.0.1", "silence_logs": 50}
    with (
        distributed.LocalCluster(n_workers=count, threads_per_worker=1, **options) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.wait_for_workers(count)
        yield client


@contextlib.contextmanager
def ray_workers(count: int) -> Iterator[Any]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    ray.init(
        num_cpus=count, include_dashboard=False, log_to_driver=False, logging_level="error",
        object_store_memory=500 << 20, _node_ip_address="127.0.0.1",
    )  # fmt: skip
    try:
        yield ray
    finally:
        ray.shutdown()


ENGINES = {"dask": dask_workers, "ray": ray_workers}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def timed_fit(
    X: Any, Y: Any, engine: Any, *, stored: bool
) -> tuple[float, int, dict[str, bytes], dict[str, Any]]:
    """Seconds, bytes over the loopback device, the folder's files (if stored) and the engine's report."""
    estimator = OneVsAll(n_jobs=1, block_labels=100 if stored else 25)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run" if stored else None
        before = psutil.net_io_counters(pernic=True)["lo"].bytes_recv
        start = time.perf_counter()
        estimator.fit(X, Y, checkpoint=folder, engine=connect(engine))
        seconds = time.perf_counter() - start
        traffic = psutil.net_io_counters(pernic=True)["lo"].bytes_recv - before
        files = contents(folder) if folder else {}
    return seconds, traffic, files, estimator.report_.get("engine", {})


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--labels", type=int, default=3000)
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=list(ENGINES))
    args = parser.parse_args()
    X, Y = make_synthetic(20_000, 20_000, args.labels, random_state=1)
    small = make_synthetic(200, 100, 300, random_state=1)
    alone, _, expected, _ = timed_fit(X, Y, None, stored=True)
    print(f"one process, one thread: {alone:.1f} s", flush=True)
    columns = (
        "engine",
        "workers",
        "seconds",
        "speedup",
        "by_cpu",
        "x_bytes",
        "sent_per_worker",
        "loopback_bytes",
    )
    table = Table("engine", columns, machine())
    for name in args.engines:
        seconds: dict[int, list[float]] = {1: [], 2: []}
        cpu: dict[int, list[float]] = {1: [], 2: []}
        shipped = {}
        for _ in range(args.rounds):
            for count in seconds:
                with ENGINES[name](count) as engine:
                    timed_fit(*small, engine, stored=False)
                    taken, _, files, report = timed_fit(X, Y, engine, stored=True)
                    assert files == expected, "the bytes differ from those of one process"
                    seconds[count].append(taken)
                    cpu[count].append(sum(row["cpu_seconds"] for row in report["workers"].values()))
                    if (
                        count not in shipped
                    ):  # what travels when X is sent instead of read from shared storage
                        shipped[count] = timed_fit(X, Y[:, 300:400], engine, stored=False)
        one, cpu_one = statistics.median(seconds[1]), statistics.median(cpu[1])
        for count in seconds:
            _, traffic, _, report = shipped[count]
            table.add(
                engine=name, workers=count, seconds=statistics.median(seconds[count]),
                speedup=one / statistics.median(seconds[count]),
                by_cpu=count * cpu_one / statistics.median(cpu[count]),
                x_bytes=report["data_bytes"], loopback_bytes=traffic,
                sent_per_worker=max(row["data_bytes"] for row in report["workers"].values()),
            )  # fmt: skip
            print(table.rows[-1], flush=True)
    print(table)
    table.save()


if __name__ == "__main__":
    main()
