"""Opening a large model: parts ``--open`` and ``--checks`` of bench_predict.py.

``--open``: a model of a bit more than 1 GB (zero weights, real file sizes) is written; then two processes at once open
it memory-mapped and read every weight. Asserted: opening takes under 0.2 s, and the pages are shared, so that a
process owns (USS) a small part of what it maps.

``--checks``: what it costs that every array used as an index or a size is checked on opening: models opened without
the check, with it, and once more (the process remembers the file), in turns; and the predictions of both.
"""

from __future__ import annotations

import contextlib
import functools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

import numpy as np
import scipy.sparse as sp

from bench.common import CACHE, Table
from xmc_fast.model import Block, SparseModel, _layout, _storage, write_block, write_manifest

LIMIT = 0.2
# Opens the model, reads all of it, waits for the line that says the others have done so too, then measures.
READER = """
import json, sys, time, psutil
from xmc_fast.model import SparseModel
started = time.perf_counter()
model = SparseModel.load(sys.argv[1])
seconds = time.perf_counter() - started
total = sum(float(b.data.sum()) + int(b.indices.max()) for b in model.blocks)
print("read", flush=True)
sys.stdin.readline()
info = psutil.Process().memory_full_info()
found = {"seconds": seconds, "bytes": model.nbytes, "owned": info.uss, "resident": info.rss}
print(json.dumps(found), flush=True)
sys.stdin.readline()
"""


def write_large(folder: Path, gigabytes: float, index: type = np.uint16) -> None:
    """Blocks of 4,096 labels with 5,461 weights each, 134 MB a file with 16-bit columns."""
    labels, columns, each = 4096, 1 << 16 if index is np.uint16 else 1 << 20, 5461
    indptr = np.arange(labels + 1, dtype=np.int64) * each
    block = Block(
        0, columns, indptr, np.tile(np.arange(each, dtype=index), labels), np.zeros(labels * each, np.float32)
    )
    for i in range(int(np.ceil(gigabytes * 1e9 / block.nbytes))):
        write_block(folder, i, i * labels, block)
    write_manifest(folder)


def open_large(table: Table, gigabytes: float = 1.0, processes: int = 2) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        write_large(Path(folder), gigabytes)
        readers = [
            subprocess.Popen(
                [sys.executable, "-c", READER, folder],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(processes)
        ]
        for reader in readers:
            reader.stdout.readline()  # all have read the whole model
        found = []
        for reader in readers:
            reader.stdin.write("measure\n")
            reader.stdin.flush()
            found.append(json.loads(reader.stdout.readline()))
        for reader in readers:
            reader.communicate("end\n")
    for i, row in enumerate(found):
        if row["bytes"] < gigabytes * 1e9 or row["resident"] < row["bytes"]:
            raise AssertionError(f"the model is too small or was not read: {row}")
        if row["seconds"] >= LIMIT or row["owned"] > 0.2 * row["bytes"]:
            raise AssertionError(f"opened in {row['seconds']:.3f} s, owns {row['owned'] / 1e6:.0f} MB: {row}")
        table.add(
            process=i,
            GB=row["bytes"] / 1e9,
            open_seconds=row["seconds"],
            resident_MB=row["resident"] / 1e6,
            owned_MB=row["owned"] / 1e6,
        )


def save_large(folder: Path, gigabytes: float) -> None:
    """A model as `save` stores it, the layout that predicts: few labels have most weights, few columns most entries."""
    labels, columns = 4096, 100_000
    rng = np.random.default_rng(0)
    sizes = (100 + 9600 / np.sqrt(1 + np.arange(labels))).astype(np.int64)
    rows = np.repeat(np.arange(labels), sizes)
    keys = np.unique(rows * columns + (columns * rng.random(len(rows)) ** 3).astype(np.int64))
    indptr = np.searchsorted(keys, columns * np.arange(labels + 1)).astype(np.int64)
    part = indptr, (keys % columns).astype(np.int32), rng.standard_normal(len(keys), np.float32)
    blocks = [Block(i * labels, columns, *part) for i in range(int(gigabytes * 1e9 / (9.4 * len(keys))) + 1)]
    SparseModel(blocks).save(folder)


CHECKED = 0.1  # seconds for 1 GB
LARGE = {
    "blocks, 16-bit columns": functools.partial(write_large, index=np.uint16),
    "blocks, 32-bit columns": functools.partial(write_large, index=np.int32),
    "as saved": save_large,
}


def cost_of_checks(table: Table, gigabytes: float = 1.0, rounds: int = 9) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    for name, write in LARGE.items():
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            write(Path(folder), gigabytes)
            opened = _opened(folder, rounds)
            size = sum(path.stat().st_size for path in Path(folder).iterdir()) / 1e9
            table.add(what=name, GB=size, **opened)
        if gigabytes >= 1 and (size < gigabytes or opened["open_ms"] > 1e3 * CHECKED):
            raise AssertionError(f"opening a model of {size:.2f} GB takes too long: {opened}")
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        weights = sp.random(4000, 40_000, 0.01, format="csr", dtype=np.float32, random_state=0)
        SparseModel(weights).save(folder)
        table.add(
            what="as saved, small",
            GB=SparseModel.load(folder).nbytes / 1e9,
            **_opened(folder, rounds),
            **_predictions(folder, rounds),
        )


@contextlib.contextmanager
def _unchecked():
    """As if this process had checked every file before."""
    with contextlib.ExitStack() as stack:
        for module in (_storage, _layout):
            known = mock.patch.object(module, "remembered", return_value=contextlib.nullcontext(True))
            stack.enter_context(known)
        yield


def _opened(folder: str, rounds: int) -> dict[str, float]:
    """Medians of milliseconds: by the clock, and CPU time of all threads."""
    clock: dict[str, list[float]] = {"unchecked": [], "open": [], "again": []}
    cpu: dict[str, list[float]] = {name: [] for name in clock}

    def once(name: str) -> None:
        start, of_cpu = time.perf_counter(), time.process_time()
        SparseModel.load(folder)
        clock[name].append(1e3 * (time.perf_counter() - start))
        cpu[name].append(1e3 * (time.process_time() - of_cpu))

    for _ in range(rounds):
        _storage._checked.clear()
        with _unchecked():
            once("unchecked")
        _storage._checked.clear()
        once("open")
        once("again")
    of_clock = {f"{name}_ms": statistics.median(values) for name, values in clock.items()}
    return of_clock | {f"{name}_cpu_ms": statistics.median(values) for name, values in cpu.items()}


def _predictions(folder: str, rounds: int) -> dict[str, float]:
    """Median CPU microseconds a row, of one thread."""
    models = {}
    _storage._checked.clear()
    with _unchecked():
        models["predict_unchecked_us"] = SparseModel.load(folder).prepare()
    _storage._checked.clear()
    models["predict_us"] = SparseModel.load(folder).prepare()
    X = sp.random(2000, 40_000, 0.002, format="csr", dtype=np.float32, random_state=1)
    if (models["predict_us"].predict(X, 5) != models["predict_unchecked_us"].predict(X, 5)).nnz:
        raise AssertionError("other predictions")
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(rounds):
        for name, model in models.items():
            start = time.process_time()
            model.predict(X, 5, n_jobs=1)
            seconds[name].append(time.process_time() - start)
    return {name: 1e6 * statistics.median(values) / X.shape[0] for name, values in seconds.items()}
