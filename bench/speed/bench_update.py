"""Updates against a full fit of the same data, CPU seconds of one thread, in one run.

    python -m bench.speed.bench_update [debtags eurlex57k tibkat-gnd] [--labels N] [--checked 256] [--only labels]
        [--new-labels 1000] [--other-seed]

Of each set, after one fit of everything (with its state kept): the last 1,000 labels (or a fortieth of them, or
--new-labels) as new ones, 5 % of the rows, the same with 5 % of the labels, and 0.1 % of the rows (--only: the first,
or the others). The model without 5 % of the rows is fitted; those without some labels, or without 0.1 % of the rows,
are fitted models from which an update took them. "One epoch, one pass" is the update with 5 % new rows at tol=10,
where a label ends after one epoch and one pass over all rows: what no update of every label can go below, though it
proves nothing at the usual tol. --other-seed: beside it a fit of everything with another `random_state`, whose P@k
shows what is chance.
For new labels the weights must have the same bytes; for new rows the table has the worst f(w) / min f over a random
choice of labels (a model of these alone, prune=0, the minimum bounded from a fit at tol 1e-4), and P@1, P@3, P@5 of the
usual models on the test rows.
"""

from __future__ import annotations

import argparse
import copy
import time
from typing import Any

import numpy as np
import scipy.sparse as sp

from bench.common import Table, command_line, prepared_rows
from bench.sets import load
from bench.speed.linear_every import objective_and_bound, signs
from xmc_fast import OneVsAll, metrics

COLUMNS = ["set", "case", "labels", "rows", "full_seconds", "update_seconds", "share", "labels_trained"]
COLUMNS += [
    "same_bytes",
    "worst_over_minimum",
    "full_worst",
    "labels_checked",
    "p_update",
    "p_full",
    "state_mb",
    "model_mb",
]


def timed(fn: Any) -> tuple[float, Any]:
    start = time.process_time()
    out = fn()
    return time.process_time() - start, out


def same_bytes(a: Any, b: Any) -> bool:
    pairs = zip(a.to_csr().__dict__.items(), b.to_csr().__dict__.items(), strict=True)
    return all(np.array_equal(x, y) for (_, x), (_, y) in pairs if isinstance(x, np.ndarray))


def worst(models: list[Any], X: sp.csr_matrix, Y: sp.csr_matrix) -> list[float]:
    """The largest f(w) / (bound of min f) of each model."""
    A, columns = prepared_rows(X), Y.tocsc()
    close = OneVsAll(prune=0, tol=1e-4, n_jobs=1).fit(X, Y).model_.to_csr()
    weights = [m.model_.to_csr() for m in models]
    out = [1.0] * len(models)
    for first in range(0, Y.shape[1], 128):
        last = min(first + 128, Y.shape[1])
        S = signs(columns, first, last)

        def value(W: Any, S: Any = S, part: slice = slice(first, last)) -> tuple[Any, Any]:
            dense = W[part].toarray().T.astype(np.float64)
            return objective_and_bound(A, S, dense, "squared_hinge", "l2")[:2]

        f, gap = value(close)
        out = [max(o, float((value(W)[0] / (f - gap)).max())) for o, W in zip(out, weights, strict=True)]
    return out


def precision(model: Any, X: sp.csr_matrix, Y: sp.csr_matrix) -> list[float]:
    report = metrics.report(Y, model.predict(X, 5), k=[1, 3, 5])
    return [round(100 * float(report[f"precision@{k}"]), 2) for k in (1, 3, 5)]


def measure(name: str, given: argparse.Namespace, table: Table) -> None:
    X, Y = load(name)
    X_test, Y_test = load(name, "test")
    present = np.flatnonzero(np.asarray(Y.sum(axis=0)).ravel())[: given.labels]
    Y, Y_test = Y[:, present].tocsr(), Y_test[:, present].tocsr()
    order = np.random.default_rng(0).permutation(X.shape[0])
    order = np.concatenate(
        [np.sort(part) for part in np.split(order, [len(order) - round(0.05 * len(order))])]
    )
    X, Y = X[order], Y[order]  # the last 5 % are new

    def fit(**options: Any) -> tuple[float, Any, list[float]]:
        seconds, model = timed(lambda: OneVsAll(n_jobs=1, **options).fit(X, Y, keep_state=True))
        return seconds, model, precision(model, X_test, Y_test)

    def add(case: str, update: Any, model: Any, whole: tuple[float, Any, list[float]], **facts: Any) -> None:
        full_seconds, full, p_full = whole
        seconds, _ = timed(update)
        if "same_bytes" in facts:
            facts["same_bytes"] = same_bytes(full.model_, model.model_)
        table.add(
            set=name,
            case=case,
            labels=model.n_labels_,
            rows=model.state_.X.shape[0],
            full_seconds=full_seconds,
            update_seconds=seconds,
            share=seconds / full_seconds,
            labels_trained=getattr(model, "update_", {}).get("labels_trained", model.n_labels_),
            state_mb=model.state_.nbytes / 1e6,
            model_mb=model.model_.nbytes / 1e6,
            p_update=precision(model, X_test, Y_test),
            p_full=p_full,
            **facts,
        )
        print(table.rows[-1], flush=True)
        table.keep_others("set", "case")
        table.save()

    whole = fit()
    if given.other_seed:
        model = OneVsAll(n_jobs=1, random_state=1)
        add("a fit, another random_state", lambda: model.fit(X, Y, keep_state=True), model, whole)
    if given.only != "rows":
        new = given.new_labels or min(1000, max(1, Y.shape[1] // 40))
        fits = {f"{new:,} new labels": whole}
        if Y.shape[1] < whole[1].block_labels:  # one block is the whole model: smaller ones as well
            fits[f"{new:,} new labels, blocks of 100"] = fit(block_labels=100)
        for case, fitted in fits.items():
            less = copy.copy(fitted[1]).update(remove_labels=np.arange(Y.shape[1] - new, Y.shape[1]))
            add(case, lambda less=less: less.update(old_labels=Y), less, fitted, same_bytes=True)
    if given.only == "labels":
        return
    ratios = worst_of_cases(X, Y, given.checked) if given.checked else {}
    n = X.shape[0] - round(0.05 * X.shape[0])
    old = OneVsAll(n_jobs=1).fit(X[:n], Y[:n], keep_state=True)
    for case, start, update in cases(old, X, Y):
        model = start()
        facts = ratios.get(case, {})
        add(case, lambda model=model, update=update: update(model), model, whole, **facts)


def cases(old: Any, X: Any, Y: Any) -> list[tuple[str, Any, Any]]:
    """Name, the model to start from, the update, of each case with new rows. ``old`` is of all but the last 5 %."""
    n, fewer = old.state_.X.shape[0], X.shape[0] - max(1, round(0.001 * X.shape[0]))
    some = np.arange(Y.shape[1] - max(1, round(0.05 * Y.shape[1])), Y.shape[1])
    return [
        ("5 % new rows", lambda: copy.copy(old), lambda m: m.update(X[n:], Y[n:])),
        (
            "5 % new rows, one epoch, one pass",
            lambda: copy.copy(old).set_params(tol=10.0),
            lambda m: m.update(X[n:], Y[n:]),
        ),
        (
            "5 % new rows, 5 % new labels",
            lambda: copy.copy(old).update(remove_labels=some),
            lambda m: m.update(X[n:], Y[n:], old_labels=Y[:n]),
        ),
        (
            "0.1 % new rows",
            lambda: copy.copy(old).update(X[n:fewer], Y[n:fewer]),
            lambda m: m.update(X[fewer:], Y[fewer:]),
        ),
    ]


def worst_of_cases(X: Any, Y: Any, count: int) -> dict[str, dict[str, float]]:
    """The worst label after each update, of ``count`` labels alone, unpruned."""
    chosen = np.sort(np.random.default_rng(1).permutation(Y.shape[1])[:count])
    part = Y[:, chosen].tocsr()
    n = X.shape[0] - round(0.05 * X.shape[0])
    old = OneVsAll(n_jobs=1, prune=0).fit(X[:n], part[:n], keep_state=True)
    names, models = [], []
    for case, start, update in cases(old, X, part):
        names.append(case)
        models.append(update(start()))
    ratios = worst([*models, OneVsAll(n_jobs=1, prune=0).fit(X, part)], X, part)
    facts = {"full_worst": ratios[-1], "labels_checked": len(chosen)}
    return {case: {"worst_over_minimum": r, **facts} for case, r in zip(names, ratios, strict=False)}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("sets", nargs="*", default=["debtags", "eurlex57k"])
    parser.add_argument("--labels", type=int, help="only so many labels")
    parser.add_argument(
        "--checked", type=int, default=256, help="labels whose minimum is looked for (0: none)"
    )
    parser.add_argument("--only", choices=["labels", "rows"], help="only new labels, or only new rows")
    parser.add_argument("--new-labels", type=int, help="how many labels are new")
    parser.add_argument("--other-seed", action="store_true", help="fit with another random_state as well")
    arguments = parser.parse_args()
    table = Table("update", COLUMNS)
    for name in arguments.sets:
        measure(name, arguments, table)


if __name__ == "__main__":
    main()
