"""Nearly exact prediction: `SparseModel.predict(..., recall=...)` beside the exact path, on trained models.

    python -m bench.speed.bench_near [--sets related eurlex57k ...] [--recalls 0.99 0.995 ...]

The index is built, and its settings measured, on the first half of the test rows; recall, P@k and time are those of the
second half, one thread, CPU time, interleaved, five best labels. Before anything is timed the scores of all labels
found must have the bits of the exact ones. Set `related` is that of bench_tree.py; its model is trained once by
`OneVsAll(n_jobs=1)` into XMC_CACHE/near/related (a part of its labels with --labels), those of the other sets are the
models of bench.models.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from bench.common import CACHE, Table, command_line, interleave
from bench.models import model_of
from bench.speed.bench_tree import load
from xmc_fast import OneVsAll, metrics
from xmc_fast.model import SparseModel

K = 5
COLUMNS = ["set", "labels", "features", "weights", "train_seconds", "model_mb", "index_mb", "build_seconds"]
COLUMNS += [
    "rows",
    "recall",
    "held_out",
    "recall_1",
    "recall_5",
    "us_per_row",
    "times_faster",
    "P1",
    "P3",
    "P5",
]


def trained(name: str, labels: int | None) -> tuple[SparseModel, float | None]:
    """The exact model of a set, and the CPU seconds of its training where they are known."""
    if name != "related":
        model = model_of(name)
        assert model is not None
        return model, None
    folder = CACHE / "near" / (name if labels is None else f"{name}-{labels}")
    if not (folder / "model").is_dir():
        X, Y = load(name, "train")
        Y = Y if labels is None else Y[:, :labels]
        start = time.process_time()
        model = OneVsAll(n_jobs=1).fit(X, Y, checkpoint=folder / "checkpoint").model_
        seconds = time.process_time() - start
        model.save(folder / "model")
        (folder / "train.json").write_text(json.dumps({"train_seconds": seconds}), encoding="utf-8")
    return SparseModel.load(folder / "model"), json.loads((folder / "train.json").read_text())[
        "train_seconds"
    ]


def found(near: sp.csr_matrix, exact: sp.csr_matrix, k: int) -> float:
    """The share of the exact k best that a list has."""
    a, b = (top.indices.reshape(-1, K)[:, :k] for top in (near, exact))
    return float((a[:, :, None] == b[:, None, :]).any(1).mean())


def check_scores(near: sp.csr_matrix, exact: sp.csr_matrix) -> None:
    """An error unless a label that both lists have got the same score, and none is above the exact list's worst."""
    pairs = [
        dict(zip(top.indices, top.data, strict=True)) for row in zip(near, exact, strict=True) for top in row
    ]
    for got, wanted in zip(pairs[::2], pairs[1::2], strict=True):
        least = min(wanted.values())
        for label, score in got.items():
            if score != wanted.get(label, score) or (label not in wanted and score > least):
                raise RuntimeError(f"label {label} has score {score}, the exact list {wanted}")


def size(folder: Path, name: str) -> float:
    return (folder / name).stat().st_size / 1e6


def measure(table: Table, name: str, labels: int | None, recalls: list[float], scratch: Path) -> None:
    built, seconds = trained(name, labels)
    X, Y = load(name, "test")
    Y = Y[:, : built.n_labels]
    half = X.shape[0] // 2
    start = time.process_time()
    built.build_near_index(X[:half], K, n_jobs=1).save(scratch)
    build = time.process_time() - start
    model = SparseModel.load(scratch)
    X, Y = X[half:], Y[half:]
    best = float(model.near_index.settings[0, 0])  # type: ignore[union-attr]
    recalls = [1.0, *(recall for recall in recalls if recall <= best)]
    tops = {recall: model.predict(X, K, recall=recall, n_jobs=1) for recall in recalls}
    for top in tops.values():
        check_scores(top, tops[1.0])

    def run(recall: float) -> Any:
        return lambda: model.predict(X, K, recall=recall, n_jobs=1)

    times = interleave({str(r): run(r) for r in recalls}, rounds=5, clock=time.process_time, budget=120)
    settings = model.near_index.settings  # type: ignore[union-attr]
    for recall, top in tops.items():
        p = metrics.precision_at_k(Y, top, k=(1, 3, 5))
        us = 1e6 * times[str(recall)] / X.shape[0]
        enough = settings[settings[:, 0] >= recall]
        table.add(
            set=name, labels=model.n_labels, features=model.n_features, weights=model.nnz, train_seconds=seconds,
            model_mb=size(scratch, "layout.safetensors"), index_mb=size(scratch, "near.safetensors"),
            build_seconds=build, rows=X.shape[0], recall=recall,
            held_out=1.0 if recall == 1 else float(enough[np.argmin(enough[:, 1]), 0]),
            recall_1=found(top, tops[1.0], 1), recall_5=found(top, tops[1.0], 5), us_per_row=us,
            times_faster=times["1.0"] / times[str(recall)],
            **{f"P{k}": 100 * float(v) for k, v in zip((1, 3, 5), p, strict=True)},
        )  # fmt: skip
        print(table.rows[-1], flush=True)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--sets", nargs="+", default=["related"])
    parser.add_argument("--recalls", type=float, nargs="+", default=[0.99, 0.995, 0.999])
    parser.add_argument("--labels", type=int, help="train and predict only the first labels of `related`")
    args = parser.parse_args()
    table = Table("near", COLUMNS)
    for name in args.sets:
        measure(table, name, args.labels, args.recalls, CACHE / "near" / f"{name}-indexed")
    table.keep_others("set", "recall")
    table.save()
    print(table)


if __name__ == "__main__":
    main()
