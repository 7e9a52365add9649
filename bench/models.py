"""One-vs-all models for the benches of prediction: trained once with `OneVsAll`'s defaults, kept in XMC_CACHE.

    python -m bench.models [eurlex-4k eurlex57k tibkat-gnd] [--minutes 5]

trains them part by part (4,000 labels each; what is done is kept, so it can be stopped and run again). Of each
part the unpruned weights are pruned at every threshold of DELTAS, the top 5 of the test rows are kept for each
(the table of bench_predict.py --pruning), then only the weights of at least 0.01 are. Where unpruned weights
are more than a small machine holds and trains in minutes, that is done for the first 8,000 labels; the others
are pruned at 0.01 while they are trained.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from bench.common import CACHE, command_line
from bench.sets import load
from xmc_fast.linear import OneVsAll
from xmc_fast.model import SparseModel, merge_topk

SETS = ("eurlex-4k", "eurlex57k", "tibkat-gnd")
DELTAS = (0.0, 0.003, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3)
DELTA = 0.01
K = 5
PART = 4000  # labels trained at a time
MOST = 2e9  # labels x features up to which all labels are trained unpruned
SOME = 8000  # labels that are, otherwise


def folder_of(name: str) -> Path:
    folder = CACHE / "predict" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def matrices(name: str) -> list[sp.csr_matrix]:
    """X, Y of the training part, X, Y of the test part."""
    return [*load(name), *load(name, "test")]


def unpruned_labels(X: sp.csr_matrix, Y: sp.csr_matrix) -> int:
    """How many of the labels, the first ones, are trained unpruned."""
    return Y.shape[1] if X.shape[1] * Y.shape[1] <= MOST else SOME


def _parts(labels: int) -> list[tuple[int, int]]:
    return [(first, min(first + PART, labels)) for first in range(0, labels, PART)]


def _train_part(name: str, part: tuple[int, int], data: list[sp.csr_matrix]) -> None:
    X, Y, X_test, _ = data
    folder = folder_of(name)
    if part[0] >= unpruned_labels(X, Y):
        OneVsAll(prune=DELTA).fit(X, Y, labels=part).model_.save(folder / f"part-{part[0]:06d}")
        return
    started = time.process_time()
    full = OneVsAll(prune=0.0).fit(X, Y, labels=part).model_
    result: dict[str, Any] = {"cpu_seconds": time.process_time() - started}
    for delta in DELTAS:
        pruned = full.prune(delta)
        top = pruned.predict(X_test, K)
        result |= {f"ids_{delta}": top.indices, f"scores_{delta}": top.data, f"nnz_{delta}": pruned.nnz}
    np.savez(folder / f"part-{part[0]:06d}.npz", **result)
    full.prune(DELTA).save(folder / f"part-{part[0]:06d}")


def model_of(name: str, minutes: float | None = None) -> SparseModel | None:
    """The model pruned at 0.01, from the cache or trained now; None if the minutes were not enough."""
    folder = folder_of(name)
    if not (folder / "model" / "manifest.json").is_file():
        started = time.monotonic()
        data = matrices(name)
        parts = _parts(data[1].shape[1])
        for part in parts:
            if (folder / f"part-{part[0]:06d}" / "manifest.json").exists():
                continue
            if minutes is not None and time.monotonic() - started > 60 * minutes:
                return None
            _train_part(name, part, data)
        models = [SparseModel.load(folder / f"part-{first:06d}") for first, _ in parts]
        SparseModel.concat(models).save(folder / "model")
    return SparseModel.load(folder / "model", mmap=False)


def pruned_predictions(name: str) -> list[tuple[float, int, sp.csr_matrix]]:
    """For each threshold: the weights left and the top 5 of the test rows, of the labels trained unpruned."""
    folder = folder_of(name)
    X, Y, X_test, _ = matrices(name)
    ranges = _parts(unpruned_labels(X, Y))
    if not all((folder / f"part-{first:06d}.npz").exists() for first, _ in ranges):
        model_of(name)
    parts = [np.load(folder / f"part-{first:06d}.npz") for first, _ in ranges]
    out = []
    for delta in DELTAS:
        tops = []
        for part, (first, last) in zip(parts, ranges, strict=True):
            ids = part[f"ids_{delta}"]
            indptr = np.linspace(0, len(ids), X_test.shape[0] + 1).astype(np.int64)
            shape = (X_test.shape[0], last - first)
            tops.append(sp.csr_matrix((part[f"scores_{delta}"], ids, indptr), shape))
        merged = merge_topk(tops, K, first_labels=[first for first, _ in ranges])
        out.append((delta, sum(int(part[f"nnz_{delta}"]) for part in parts), merged))
    return out


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("names", nargs="*", default=SETS)
    parser.add_argument("--minutes", type=float, help="stop after the part that passes this time")
    arguments = parser.parse_args()
    for name in arguments.names:
        model = model_of(name, arguments.minutes)
        print(name, model if model is not None else "not finished: run again", flush=True)


if __name__ == "__main__":
    main()
