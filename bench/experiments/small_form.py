"""The small form of one-vs-all models: bytes, P@k and speed, the threshold chosen on rows that were kept back.

    python -m bench.experiments.small_form [--sets eurlex-4k eurlex57k tibkat-gnd] [--pecos]

A model is trained on nine tenths of the training rows, and `compress` chooses its threshold on the others (0.1 points
of P@1, of P@3 and of P@5; ten times on EURLex-4K, four times on EURLEX57K, each tenth at most once). The model of all
training rows (`bench.models`) is compressed at that threshold and meets the test rows once ("chosen"). The other
thresholds are for the curve only; the first is the default. The trained models are kept in XMC_CACHE. Exact and small
predict in turns, one thread, CPU time (one row: time by the clock); opening and the first call are those of a fresh
process. With --pecos PECOS alone is measured; the rows of earlier runs stay.

    python -m bench.experiments.small_form --held-out [--sets bibtex debtags ..]

is what the default threshold is chosen by: what thresholds lose on tenths of the training rows of which the models know
nothing.

    python -m bench.experiments.small_form --default [--sets bibtex debtags ..]

compares `OneVsAll(size="auto")` with `OneVsAll()` on the test rows of every set.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np

from bench.common import CACHE, Table, command_line, interleave, machine
from bench.models import DELTA, SETS, matrices, model_of
from bench.sets import load
from xmc_fast._problem import size_of
from xmc_fast._validate import labels
from xmc_fast.linear import OneVsAll
from xmc_fast.metrics import precision_at_k
from xmc_fast.model import SparseModel
from xmc_fast.model._calibrate import is_relevant
from xmc_fast.model._compress import DELTA as DEFAULT
from xmc_fast.model._compress import TRIED, largest_delta, lost_at

K = 5
MAX_LOSS = 0.1  # points of P@1, of P@3 and of P@5
FOLDS = {"eurlex-4k": 10, "eurlex57k": 4}  # a tenth of their rows is too few
TENTHS = {"eurlex-4k": 4, "debdeps": 2, "eurlex57k": 2}  # of --held-out; ten of the others
DEFAULTS = (0.0, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05)
CURVE = (DEFAULT, 0.05, 0.1, 0.15, 0.2)
FRESH = """
import json, sys, time
import scipy.sparse as sp
from xmc_fast import load
X = sp.load_npz(sys.argv[2])
load(sys.argv[1])  # imports what it needs
times = [time.perf_counter()]
model = load(sys.argv[1])
times.append(time.perf_counter())
cpu = [time.process_time()]
for _ in range(4):
    model.predict(X, 5, n_jobs=1)
    cpu.append(time.process_time())
print(json.dumps({"open": times[1] - times[0], "calls": [b - a for a, b in zip(cpu, cpu[1:])]}))
"""


def tenths(n: int, count: int):
    """Masks of so many tenths of the rows, none twice."""
    order, tenth = np.random.default_rng(0).permutation(n), n // 10
    for fold in range(count):
        held = np.zeros(n, bool)
        held[order[fold * tenth : (fold + 1) * tenth]] = True
        yield held


def chosen_threshold(name: str, X, Y) -> float:
    """What `compress` chooses on training rows that the model has not seen, FOLDS times a tenth of them."""
    lost = []
    for fold, held in enumerate(tenths(X.shape[0], FOLDS.get(name, 1))):
        folder = CACHE / "small_form" / (f"{name}-{fold}" if fold else name)
        if not (folder / "manifest.json").is_file():
            folder.parent.mkdir(parents=True, exist_ok=True)
            OneVsAll(prune=DELTA).fit(X[~held], Y[~held]).model_.save(folder)
        model = SparseModel.load(folder, mmap=False)
        lost.append(lost_at(lambda d, of=model: of.compress(delta=d), model, X[held], Y[held], None))
    print(
        name,
        "lost:",
        dict(zip(np.round(TRIED, 4).tolist(), np.mean(lost, axis=0).round(3).tolist(), strict=True)),
        "points of P@1, P@3, P@5",
        flush=True,
    )
    return largest_delta(np.mean(lost, axis=0), MAX_LOSS)


def megabytes(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6


def fresh(folder: Path, X) -> dict[str, float]:
    """Opening, and the first call against the later ones, in a process of its own."""
    import scipy.sparse as sp

    with tempfile.TemporaryDirectory() as scratch:
        sp.save_npz(Path(scratch) / "X.npz", X)
        run = [sys.executable, "-c", FRESH, str(folder), str(Path(scratch) / "X.npz")]
        found = json.loads(subprocess.run(run, capture_output=True, check=True, text=True).stdout)
    first, *later = found["calls"]
    return {"open_ms": 1e3 * found["open"], "first_over_later": first / float(np.median(later))}


def one_by_one(models: dict, X) -> dict:
    """Median microseconds of `predict_one`, the models in turns."""
    X.sort_indices()
    took = {form: [] for form in models}
    for _ in range(3):
        for form, model in models.items():
            for a, b in itertools.pairwise(X.indptr):
                start = time.perf_counter()
                model.predict_one((X.indices[a:b], X.data[a:b]), K)
                took[form].append(time.perf_counter() - start)
    return {form: 1e6 * float(np.median(seconds)) for form, seconds in took.items()}


def precisions(Y, top) -> dict[str, float]:
    return {f"P@{k}": 100 * float(precision_at_k(Y, top, k)) for k in (1, 3, 5)}


def measure(name: str, table: Table, chosen: float | None) -> None:
    X_train, Y_train, X, Y = matrices(name)
    chosen = chosen_threshold(name, X_train, Y_train) if chosen is None else chosen
    exact = model_of(name)
    forms = {("exact", DELTA): exact}
    forms |= {("small", delta): exact.compress(delta=delta) for delta in sorted({chosen, *CURVE})}
    timed = [("exact", DELTA), ("small", chosen), ("small", DEFAULT)]
    cases = {form: partial(forms[form].predict, X, K, n_jobs=1) for form in timed}
    times = interleave(cases, rounds=5, clock=time.process_time, budget=40)
    ones = one_by_one({form: forms[form] for form in timed}, X[:500])
    for (form, delta), model in forms.items():
        row = {"set": name, "form": form, "delta": delta, "chosen": delta == chosen, "weights": model.nnz}
        with tempfile.TemporaryDirectory() as scratch:
            model.save(Path(scratch) / "m")
            row["MB"] = megabytes(Path(scratch) / "m")
            if (form, delta) in times:
                row["us_per_row"] = 1e6 * times[form, delta] / X.shape[0]
                row["one_us"] = ones[form, delta]
                row |= fresh(Path(scratch) / "m", X[:2000])
        table.add(**row, **precisions(Y, model.predict(X, K)))


def measure_pecos(name: str, table: Table) -> None:
    from bench.speed.peers import pecos

    X_train, Y_train, X, Y = matrices(name)
    with tempfile.TemporaryDirectory() as scratch:
        predict = pecos(X_train, Y_train, Path(scratch) / "m", threads=2)
        started = time.process_time()
        top = predict(X, K)
        seconds = time.process_time() - started
        size = megabytes(Path(scratch) / "m")
    us = 1e6 * seconds / X.shape[0]
    hits = [[Y[i, label] > 0 for label in row] for i, row in enumerate(np.asarray(top))]
    found = {f"P@{k}": 100 * float(np.mean([row[:k] for row in hits])) for k in (1, 3, 5)}
    table.add(set=name, form="PECOS XR-Linear", delta=0.1, chosen=False, MB=size, us_per_row=us, **found)


def hits_at(model: SparseModel, X, Y) -> np.ndarray:
    """Of each row the points of P@1, P@3 and P@5: (rows, 3)."""
    top = model.predict(X, K)
    hits = 100 * is_relevant(top, labels(Y)).reshape(X.shape[0], -1)
    return np.stack([hits[:, :k].mean(axis=1) for k in (1, 3, 5)], axis=1)


def measure_held_out(names: list[str]) -> None:
    """A row for each set: the most lost of P@1, P@3 and P@5, means over all rows that were held out."""
    columns = ["set", "labels", "tenths", "rows", "exact MB", *(f"{delta:g}" for delta in DEFAULTS), "error"]
    info = machine()
    for name in names:
        X, Y = load(name)
        lost: dict[float, list[np.ndarray]] = {delta: [] for delta in DEFAULTS}
        for held in tenths(X.shape[0], TENTHS.get(name, 10)):
            exact = OneVsAll(prune=DELTA).fit(X[~held], Y[~held]).model_
            before = hits_at(exact, X[held], Y[held])
            for delta in DEFAULTS:
                lost[delta].append(before - hits_at(exact.compress(delta=delta), X[held], Y[held]))
        rows = {delta: np.concatenate(of) for delta, of in lost.items()}
        row: dict = {"set": name, "labels": Y.shape[1], "tenths": TENTHS.get(name, 10)}
        row |= {"rows": len(rows[0.0]), "exact MB": exact.nbytes / 1e6}
        row |= {f"{delta:g}": float(of.mean(axis=0).max()) for delta, of in rows.items()}
        row["error"] = float((rows[DEFAULT].std(axis=0) / len(rows[DEFAULT]) ** 0.5).max())
        table = Table("small_form_held_out", columns, info)
        table.add(**row)
        table.keep_others("set")
        table.rows.sort(key=lambda row: row["labels"])
        print(table, flush=True)
        table.save()


def measure_default(names: list[str]) -> None:
    info = machine()
    for name in names:
        X_train, Y_train, X, Y = matrices(name)
        exact = model_of(name) if name in SETS else OneVsAll().fit(X_train, Y_train).model_
        form = size_of(OneVsAll(size="auto"), exact.n_labels, exact.n_columns)
        default = exact.compress() if form == "small" else exact
        row: dict = {"set": name, "labels": exact.n_labels, "form": form}
        for form, model in (("exact", exact), ("default", default)):
            found = precisions(Y, model.predict(X, K))
            row |= {f"{form} MB": model.nbytes / 1e6} | {f"{form} {key}": p for key, p in found.items()}
        row["most_lost"] = max(row[f"exact P@{k}"] - row[f"default P@{k}"] for k in (1, 3, 5))
        table = Table("small_form_default", list(row), info)
        table.add(**row)
        table.keep_others("set")
        table.rows.sort(key=lambda row: row["labels"])
        print(table)
        table.save()


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--sets", nargs="*", default=SETS)
    parser.add_argument("--held-out", action="store_true", help="thresholds to choose the default from")
    parser.add_argument("--default", action="store_true", help="the default threshold on every set")
    parser.add_argument("--chosen", type=float, help="the threshold that an earlier run has chosen")
    parser.add_argument("--pecos", action="store_true", help="train PECOS too")
    args = parser.parse_args()
    if args.held_out:
        measure_held_out(args.sets)
        return
    if args.default:
        measure_default(args.sets)
        return
    columns = ["set", "form", "delta", "chosen", "weights", "MB", "P@1", "P@3", "P@5", "us_per_row", "one_us"]
    table = Table("small_form", [*columns, "open_ms", "first_over_later"], machine())
    for name in args.sets:
        if args.pecos:
            measure_pecos(name, table)
        else:
            measure(name, table, args.chosen)
    table.keep_others("set", "form")
    table.rows.sort(key=lambda row: SETS.index(row["set"]))
    print(table)
    table.save()


if __name__ == "__main__":
    main()
