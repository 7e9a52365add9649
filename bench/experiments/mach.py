"""P@k of MACH over (B, R) and pruning against one-vs-all, with the bytes of the weights.

    python -m bench.experiments.mach train eurlex-4k                      # one-vs-all
    python -m bench.experiments.mach train eurlex-4k --grid 250x8,500x8   # the repetitions
    python -m bench.experiments.mach train eurlex-4k --base network --grid 250x8
    python -m bench.experiments.mach evaluate eurlex-4k [--base network]
    python -m bench.experiments.mach oracle eurlex-4k                     # perfect buckets: which rows come back
    python -m bench.experiments.mach confirm tibkat-gnd --rows 5000       # the documented setting on the rows after

Bases: "linear" is `OneVsAll()` with its defaults (weights below 0.01 dropped), then at most `keep` weights per bucket,
as float32 or float16; "network" is `BucketNetwork()` on rows of length 1, "hashed" the same on features that each
repetition hashes to a quarter of the columns. A repetition's hash function does not depend on R, so one set of R
models of B buckets serves all smaller R. Models are kept in XMC_CACHE and figures in docs/results/mach_accuracy.json,
row by row, so that each command can be stopped and started; `python -m bench.report.pages` writes the page.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit
from sklearn.preprocessing import normalize

from bench.common import CACHE, KEPT, cpu_name
from bench.models import folder_of, model_of
from bench.sets import load
from xmc_fast._files import write_text
from xmc_fast.linear import OneVsAll
from xmc_fast.mach import Mach, aggregate_topk, bucket_matrices, bucket_matrix, bucket_table
from xmc_fast.metrics import precision_at_k
from xmc_fast.model import SparseModel

FIGURES = KEPT / "mach_accuracy.json"
STORE = CACHE / "mach"
NAMES = ("eurlex-4k", "eurlex57k", "tibkat-gnd")
BASES = ("linear", "network", "hashed")
KEEP = {True: (None, 2000, 1000, 500, 250, 100), False: (None, 1000, 500, 250)}  # one-vs-all; buckets
REPEATS = (2, 4, 8, 16)
# What the guide recommends: buckets, repetitions, weights per bucket.
DOCUMENTED = {"eurlex-4k": (250, 8, 1000), "eurlex57k": (500, 8, 1000), "tibkat-gnd": (1000, 8, 500)}
TRAIN_ROWS = {"tibkat-gnd": 20_000}  # the first so many rows: what an hour of a shared machine allows
KEY = ("data", "base", "B", "R", "keep", "outputs")


def train(name: str, base: str, grid: list[tuple[int, int]], seconds: float) -> None:
    """The model of all labels (`grid` empty) or the missing repetitions, until the time is used up."""
    X, Y = (part[: TRAIN_ROWS.get(name)] for part in load(name))
    if base != "linear":
        X = normalize(X)
    stop = time.perf_counter() + seconds
    jobs = [(B, r) for B, R in grid for r in range(R)]
    for B, r in sorted(jobs, key=lambda job: job[1]) or [(0, 0)]:
        folder = STORE / name / f"{base}_{B}_{r}"
        if folder.with_suffix(".json").exists():
            continue
        if time.perf_counter() > stop:
            return
        folder.parent.mkdir(parents=True, exist_ok=True)
        start = time.process_time()
        if (base, B) == ("linear", 0) and name not in TRAIN_ROWS:  # the model of the other benches
            model, parts = model_of(name), folder_of(name).glob("part-*.npz")
            spent = sum(float(np.load(part)["cpu_seconds"]) for part in parts)
        else:
            model = fit(base, X, bucket_matrix(Y, B, r) if B else Y, r)
            spent = time.process_time() - start
        model.save(folder)
        write_text(folder.with_suffix(".json"), json.dumps({"cpu_s": spent, "rows": X.shape[0]}))
        print(name, base, B, r, f"{spent:.1f} s, {model.nbytes / 1e6:.1f} MB", flush=True)


def fit(base: str, X: Any, Y: Any, seed: int) -> Any:
    if base == "linear":
        return OneVsAll(n_jobs=1).fit(X, Y).model_
    from xmc_fast.nn._bucket_network import BucketNetwork

    return BucketNetwork(n_hashed=X.shape[1] // 4 if base == "hashed" else None, random_state=seed).fit(X, Y)


def evaluate(name: str, base: str, rows: int, keeps: list[int | None]) -> None:
    """P@k of everything of a base that is trained and not yet in FIGURES, for each R and pruning."""
    X, Y = (part[:rows] for part in load(name, "test"))
    x = X if base == "linear" else normalize(X)
    sets: dict[int, list[Path]] = {}
    for path in (STORE / name).glob(f"{base}_*_*.json"):
        sets.setdefault(int(path.stem.split("_")[1]), []).append(path)
    for B, paths in sorted(sets.items()):
        paths.sort(key=lambda path: int(path.stem.split("_")[2]))
        about = [json.loads(path.read_text()) for path in paths]
        full: list[Any] = []
        known = {(c["keep"], c["R"], c["rows"]) for c in figures()["rows"] if is_of(c, name, base, B)}
        for keep in (keeps or KEEP[B == 0]) if base == "linear" else (None,):
            if (keep, max([R for R in REPEATS if len(paths) >= R], default=1), Y.shape[0]) in known:
                continue
            full = full or [read(base, path.with_suffix("")) for path in paths]
            models = full if keep is None else [m.keep_top(keep).astype(np.float16) for m in full]
            common = {"data": name, "base": base, "B": B, "keep": keep, "labels": Y.shape[1]}
            common |= {"train_rows": about[0]["rows"], "rows": Y.shape[0], "cpu": cpu_name()}
            found = []
            for (R, outputs), ids in predict(models, B, x, Y.shape[1]).items():
                p = {f"p{k}": 100 * float(precision_at_k(Y, ids, k)) for k in (1, 3, 5)}
                size = sum(model.nbytes for model in models[:R]) / 1e6
                spent = sum(one["cpu_s"] for one in about[:R])
                found.append({**common, "R": R, "outputs": outputs, **p, "mb": size, "cpu_s": spent})
                print(found[-1], flush=True)
            store("rows", found, KEY)


def confirm(name: str, rows: int) -> None:
    """P@1 of the documented setting and of one-vs-all on the `rows` test rows after those of `evaluate`."""
    first = max(c["rows"] for c in figures()["rows"] if is_of(c, name, "linear", 0))
    X, Y = (part[first : first + rows] for part in load(name, "test"))
    B, R, keep = DOCUMENTED[name]
    full = [SparseModel.load(STORE / name / f"linear_{B}_{r}") for r in range(R)]
    models = [model.keep_top(keep).astype(np.float16) for model in full]
    found = predict(models, B, X, Y.shape[1])[R, "probability"]
    whole = predict([SparseModel.load(STORE / name / "linear_0_0")], 0, X, Y.shape[1])[1, ""]
    cell = {"data": name, "B": B, "R": R, "keep": keep, "first": first, "rows": Y.shape[0]}
    cell |= {
        "p1": 100 * float(precision_at_k(Y, found, 1)),
        "whole_p1": 100 * float(precision_at_k(Y, whole, 1)),
    }
    print(cell, flush=True)
    store("confirm", [cell], ("data", "B", "R", "keep"))


def is_of(cell: dict[str, Any], *where: Any) -> bool:
    return (cell["data"], cell["base"], cell["B"]) == where


def read(base: str, folder: Path) -> Any:
    if base == "linear":
        return SparseModel.load(folder)
    from xmc_fast.nn._bucket_network import BucketNetwork

    return BucketNetwork.load(folder)


def predict(models: list[Any], B: int, X: Any, labels: int, batch: int = 2048) -> dict[tuple[int, str], Any]:
    """The 5 best labels of each row for every number of repetitions and kind of output."""
    if B == 0 and isinstance(models[0], SparseModel):
        return {(1, ""): models[0].predict(X, 5, n_jobs=1)}
    # The network of all labels: every label is its own bucket.
    table = bucket_table(labels, B, len(models)) if B else np.arange(labels, dtype=np.uint16)[None]
    cells = product([R for R in REPEATS if len(models) >= R], ("logit", "probability")) if B else [(1, "")]
    parts: dict[tuple[int, str], list[Any]] = {cell: [] for cell in cells}
    whole = Mach(B or labels, len(models), outputs="logit")
    whole.models_ = models
    for start in range(0, X.shape[0], batch):
        score = whole.bucket_scores(X[start : start + batch])
        sigmoid = expit(score)
        for R, outputs in parts:
            p = sigmoid if outputs == "probability" else score
            parts[R, outputs].append(aggregate_topk(p[:R], table[:R], 5, n_jobs=1)[0])
    return {cell: np.concatenate(part) for cell, part in parts.items()}


def oracle(name: str, grid: list[tuple[int, int]], batch: int = 512) -> None:
    """Perfect models of the buckets: the share of the test rows whose m labels are the m best."""
    Y = load(name, "test")[1].tocsr()
    Y = Y[np.diff(Y.indptr) > 0]
    for B, R in grid or [DOCUMENTED[name][:2]]:
        parts, table, back = bucket_matrices(Y, B, R), bucket_table(Y.shape[1], B, R), 0
        for start in range(0, Y.shape[0], batch):
            y = Y[start : start + batch]
            p = np.stack([M[start : start + batch].toarray() for M in parts]).astype(np.float32)
            ids, _ = aggregate_topk(p, table, int(np.diff(y.indptr).max()), n_jobs=1)
            back += sum(
                set(ids[i, : y.indptr[i + 1] - y.indptr[i]]) == set(y[i].indices) for i in range(y.shape[0])
            )
        cell = {"data": name, "B": B, "R": R, "rows": Y.shape[0], "share": 100 * back / Y.shape[0]}
        print(cell, flush=True)
        store("oracle", [cell], ("data", "B", "R"))


def figures() -> dict[str, list[dict[str, Any]]]:
    return json.loads(FIGURES.read_text("utf-8")) if FIGURES.exists() else {"rows": [], "oracle": []}


def store(part: str, cells: Iterable[dict[str, Any]], key: tuple[str, ...]) -> None:
    """Put figures into the file, each replaces the one before with the same key."""
    kept = figures()
    by_key = {tuple(cell[k] for k in key): cell for cell in (*kept.get(part, []), *cells)}

    def order(cell: dict[str, Any]) -> tuple[Any, ...]:
        base = BASES.index(cell.get("base", "linear"))
        return (NAMES.index(cell["data"]), base, cell["B"], cell["R"], -(cell.get("keep") or 10**9))

    kept[part] = sorted(by_key.values(), key=order)
    write_text(FIGURES, json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="MACH over (B, R) against one-vs-all")
    parser.add_argument("command", choices=["train", "evaluate", "oracle", "confirm"])
    parser.add_argument("name", nargs="?", default="eurlex-4k", choices=NAMES)
    parser.add_argument("--base", default="linear", choices=BASES)
    parser.add_argument("--grid", default="", help="such as 250x8,500x4; none: all labels")
    parser.add_argument("--keep", default="", help="weights per bucket to evaluate, such as all,1000,500")
    parser.add_argument("--rows", type=int, default=10**9, help="test rows to use, from the first")
    parser.add_argument("--seconds", type=float, default=240)
    arguments = parser.parse_args()
    pairs = [tuple(map(int, pair.split("x"))) for pair in arguments.grid.split(",") if pair]
    if arguments.command == "train":
        train(arguments.name, arguments.base, pairs, arguments.seconds)
    elif arguments.command == "evaluate":
        keeps = [None if keep == "all" else int(keep) for keep in arguments.keep.split(",") if keep]
        evaluate(arguments.name, arguments.base, arguments.rows, keeps)
    elif arguments.command == "oracle":
        oracle(arguments.name, pairs)
    else:
        confirm(arguments.name, arguments.rows)
