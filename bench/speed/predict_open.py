"""Opening a large model: part ``--open`` of bench_predict.py.

A model of a bit more than 1 GB (zero weights, real file sizes) is written; then two processes at once open it
memory-mapped and read every weight. Asserted: opening takes under 0.2 s, and the pages are shared, so that a
process owns (USS) a small part of what it maps.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from bench.common import CACHE, Table
from xmc_fast.model import Block, write_block, write_manifest

LIMIT = 0.2
# Opens the model, reads all of it, waits for the line that says the others have done so too, then measures.
READER = """
import json, sys, time, psutil
from xmc_fast.model import SparseModel
started = time.perf_counter()
model = SparseModel.load(sys.argv[1])
seconds = time.perf_counter() - started
started = time.perf_counter()
model.blocks  # reads every index once and checks it
checked = time.perf_counter() - started
total = sum(float(b.data.sum()) + int(b.indices.max()) for b in model.blocks)
print("read", flush=True)
sys.stdin.readline()
info = psutil.Process().memory_full_info()
found = {"seconds": seconds, "checked": checked, "bytes": model.nbytes, "owned": info.uss, "resident": info.rss}
print(json.dumps(found), flush=True)
sys.stdin.readline()
"""


def write_large(folder: Path, gigabytes: float) -> None:
    """Blocks of 4,096 labels with 5,461 weights each, 134 MB a file."""
    labels, columns, each = 4096, 1 << 16, 5461
    indptr = np.arange(labels + 1, dtype=np.int64) * each
    block = Block(
        0,
        columns,
        indptr,
        np.tile(np.arange(each, dtype=np.uint16), labels),
        np.zeros(labels * each, np.float32),
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
            check_seconds=row["checked"],
            resident_MB=row["resident"] / 1e6,
            owned_MB=row["owned"] / 1e6,
        )
