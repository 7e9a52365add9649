"""One-vs-all models for the benches of prediction: trained once with `OneVsAll`'s defaults, kept in XMC_CACHE.

    python bench/models.py [eurlex-4k eurlex57k tibkat-gnd] [--minutes 5]

trains them part by part (4,000 labels each; what is done is kept, so it can be stopped and run again). Of each
part the unpruned weights are pruned at every threshold of DELTAS, the top 5 of the test rows are kept for each
(the table of bench_predict.py --pruning), then only the weights of at least 0.01 are: unpruned weights of the
largest set would not fit a small machine.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from common import CACHE
from sets import load
from xmc_fast.linear import OneVsAll
from xmc_fast.model import SparseModel, merge_topk

SETS = ("eurlex-4k", "eurlex57k", "tibkat-gnd")
DELTAS = (0.0, 0.003, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3)
DELTA = 0.01
K = 5
PART = 4000  # labels trained at a time


def folder_of(name: str) -> Path:
    folder = CACHE / "predict" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def matrices(name: str) -> list[sp.csr_matrix]:
    """X, Y of the training part, X, Y of the test part."""
    return [*load(name), *load(name, "test")]


def _parts(labels: int) -> list[tuple[int, int]]:
    return [(first, min(first + PART, labels)) for first in range(0, labels, PART)]


def _train_part(name: str, part: tuple[int, int], data: list[sp.csr_matrix]) -> None:
    X, Y, X_test, _ = data
    folder = folder_of(name)
    started = time.process_time()
    full = OneVsAll(prune=0.0).fit(X, Y, labels=part).model_
    result: dict[str, Any] = {"cpu_seconds": time.process_time() - started}
    for delta in DELTAS:
        pruned = full.prune(delta)
        top = pruned.predict(X_test, K)
        result |= {f"ids_{delta}": top.indices, f"scores_{delta}": top.data, f"nnz_{delta}": pruned.nnz}
    full.prune(DELTA).save(folder / f"part-{part[0]:06d}")
    np.savez(folder / f"part-{part[0]:06d}.npz", **result)


def model_of(name: str, minutes: float | None = None) -> SparseModel | None:
    """The model pruned at 0.01, from the cache or trained now; None if the minutes were not enough."""
    folder = folder_of(name)
    if not (folder / "model" / "manifest.json").is_file():
        started = time.monotonic()
        data = matrices(name)
        parts = _parts(data[1].shape[1])
        for part in parts:
            if (folder / f"part-{part[0]:06d}.npz").exists():
                continue
            if minutes is not None and time.monotonic() - started > 60 * minutes:
                return None
            _train_part(name, part, data)
        models = [SparseModel.load(folder / f"part-{first:06d}") for first, _ in parts]
        SparseModel.concat(models).save(folder / "model")
    return SparseModel.load(folder / "model", mmap=False)


def pruned_predictions(name: str) -> list[tuple[float, int, sp.csr_matrix]]:
    """For each threshold: the weights left and the top 5 of the test rows."""
    folder = folder_of(name)
    model_of(name)
    _, Y, X_test, _ = matrices(name)
    parts = [np.load(folder / f"part-{first:06d}.npz") for first, _ in _parts(Y.shape[1])]
    out = []
    for delta in DELTAS:
        tops = []
        for part, (first, last) in zip(parts, _parts(Y.shape[1]), strict=True):
            ids = part[f"ids_{delta}"]
            indptr = np.linspace(0, len(ids), X_test.shape[0] + 1).astype(np.int64)
            shape = (X_test.shape[0], last - first)
            tops.append(sp.csr_matrix((part[f"scores_{delta}"], ids, indptr), shape))
        merged = merge_topk(tops, K, first_labels=[first for first, _ in _parts(Y.shape[1])])
        out.append((delta, sum(int(part[f"nnz_{delta}"]) for part in parts), merged))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=SETS)
    parser.add_argument("--minutes", type=float, help="stop after the part that passes this time")
    arguments = parser.parse_args()
    for name in arguments.names:
        model = model_of(name, arguments.minutes)
        print(name, model if model is not None else "not finished: run again", flush=True)


if __name__ == "__main__":
    main()
