"""Updates against full fits of the same data, CPU seconds of one thread, in one run.

    python -m bench.speed.bench_update [debtags eurlex57k] [--labels N]

Of each set: the last 1,000 labels (or a fortieth of them) as new ones, 5 % and 0.1 % of the rows as new ones. For new
labels the weights must have the same bytes; for new rows the table has the worst f(w) / min f over the labels (prune=0
models, the minimum bounded from a fit at tol 1e-4), and P@1, P@3, P@5 of the usual models on the test rows.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import scipy.sparse as sp

from bench.common import Table, command_line, prepared_rows
from bench.sets import load
from bench.speed.linear_every import objective_and_bound, signs
from xmc_fast import OneVsAll, metrics

COLUMNS = ["set", "case", "labels", "rows", "full_seconds", "update_seconds", "share", "labels_trained"]
COLUMNS += ["same_bytes", "worst_over_minimum", "full_worst", "p_update", "p_full", "state_mb", "model_mb"]


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


def measure(name: str, labels: int | None, table: Table, checks: bool) -> None:
    X, Y = load(name)
    X_test, Y_test = load(name, "test")
    present = np.flatnonzero(np.asarray(Y.sum(axis=0)).ravel())[:labels]
    Y, Y_test = Y[:, present].tocsr(), Y_test[:, present].tocsr()
    new = min(1000, max(1, Y.shape[1] // 40))
    full_seconds, full = timed(lambda: OneVsAll(n_jobs=1).fit(X, Y))
    old = OneVsAll(n_jobs=1).fit(X, Y[:, :-new], keep_state=True)
    seconds, _ = timed(lambda: old.update(old_labels=Y))
    add(
        table,
        name,
        f"{new} new labels",
        full_seconds,
        seconds,
        old,
        same_bytes=same_bytes(full.model_, old.model_),
    )
    for share in (0.05, 0.001):
        count = max(1, round(share * X.shape[0]))
        order = np.random.default_rng(0).permutation(X.shape[0])
        rows, added = np.sort(order[count:]), np.sort(order[:count])
        both = np.concatenate([rows, added])
        full_seconds, full = timed(lambda both=both: OneVsAll(n_jobs=1).fit(X[both], Y[both]))
        old = OneVsAll(n_jobs=1).fit(X[rows], Y[rows], keep_state=True)
        seconds, _ = timed(lambda old=old, added=added: old.update(X[added], Y[added]))
        facts: dict[str, Any] = {}
        if checks:
            plain = OneVsAll(n_jobs=1, prune=0)
            updated = (
                OneVsAll(n_jobs=1, prune=0).fit(X[rows], Y[rows], keep_state=True).update(X[added], Y[added])
            )
            ratios = worst([updated, plain.fit(X[both], Y[both])], X[both], Y[both])
            facts = {"worst_over_minimum": ratios[0], "full_worst": ratios[1]}
        facts |= {"p_update": precision(old, X_test, Y_test), "p_full": precision(full, X_test, Y_test)}
        add(table, name, f"{share:.1%} new rows", full_seconds, seconds, old, **facts)


def add(table: Table, name: str, case: str, full: float, update: float, model: Any, **facts: Any) -> None:
    table.add(
        set=name,
        case=case,
        labels=model.n_labels_,
        rows=model.state_.X.shape[0],
        full_seconds=full,
        update_seconds=update,
        share=update / full,
        labels_trained=model.update_["labels_trained"],
        state_mb=model.state_.nbytes / 1e6,
        model_mb=model.model_.nbytes / 1e6,
        **facts,
    )
    print(table.rows[-1], flush=True)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("sets", nargs="*", default=["debtags", "eurlex57k"])
    parser.add_argument("--labels", type=int, help="only so many labels")
    parser.add_argument(
        "--no-checks", action="store_true", help="leave out the worst label, which takes longest"
    )
    arguments = parser.parse_args()
    table = Table("update", COLUMNS)
    for name in arguments.sets:
        measure(name, arguments.labels, table, not arguments.no_checks)
        table.keep_others("set")
        table.save()


if __name__ == "__main__":
    main()
