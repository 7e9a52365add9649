"""Do explanations add up, and what do they cost: random pairs of a test text and a label, one thread.

    python -m bench.speed.bench_explain [debtags eurlex57k tibkat-gnd] [--pairs 10000] [--rows 20000]

Of each pair: bias + sum of contributions against the score in double precision from the model's weights, and, for the
labels that the model suggests, against the score of `predict`, which adds up 32-bit numbers. Cost: `explain` of one
label with its table of ten terms against `predict_one`, by turns, medians; and what all terms with their places in the
text (the list of contributions, the HTML) cost on top. Models are trained on at most --rows rows (0: all).
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
import scipy.sparse as sp

from bench.common import Table, command_line
from bench.sets import read_texts
from xmc_fast import OneVsAll, TextClassifier

COLUMNS = ["set", "rows", "labels", "pairs", "largest_error", "suggested_pairs", "largest_error_suggested"]
COLUMNS += ["predict_one_us", "explain_us", "share", "places_us"]
LIMIT = 1e-6


def names_of(Y: sp.csr_matrix) -> list[list[str]]:
    return [[f"label {j}" for j in row] for row in np.split(Y.indices, Y.indptr[1:-1])]


def error(why: Any, score: float) -> float:
    return abs(why.bias + sum(c.contribution for c in why.contributions) - score)


def measure(name: str, pairs: int, rows: int, table: Table) -> None:
    texts, Y = read_texts(name, "train")
    kept = len(texts) if rows == 0 else min(rows, len(texts))
    model = TextClassifier(model=OneVsAll(n_jobs=1), n_jobs=1).fit(texts[:kept], names_of(Y[:kept]))
    tests = [text for text in read_texts(name, "test")[0] if text.strip()]
    rng = np.random.default_rng(0)
    chosen = rng.integers(len(tests), size=pairs)
    labels = rng.integers(len(model.label_names_), size=pairs)
    X = model.transform([tests[i] for i in chosen]).astype(np.float64)
    W = model.model_.to_csr().astype(np.float64)
    norms = np.sqrt(np.asarray(X.multiply(X).sum(axis=1)).ravel())
    X = sp.diags_array(1 / np.where(norms > 0, norms, 1)) @ X
    X = sp.hstack([X, np.full((pairs, 1), model.model_.bias)], format="csr")
    scores = np.asarray(X.multiply(W[labels]).sum(axis=1)).ravel()
    largest, suggested, seen = 0.0, 0.0, 0
    one, why_times, place_times = [], [], []
    for i, label, score in zip(chosen.tolist(), labels.tolist(), scores.tolist(), strict=True):
        start = time.perf_counter()
        top = model.predict_one(tests[i], 1, proba=False)
        middle = time.perf_counter()
        why = model.explain(tests[i], model.label_names_[label])
        str(why)
        end = time.perf_counter()
        len(why.contributions[:])
        place_times.append(time.perf_counter() - end)
        one.append(middle - start)
        why_times.append(end - middle)
        largest = max(largest, error(why, score), abs(why.score - score))
        for label_name, value in top:
            suggested = max(suggested, error(model.explain(tests[i], label_name), value))
            seen += 1
    assert largest <= LIMIT, f"{name}: {largest} off the score"
    table.add(
        set=name,
        rows=kept,
        labels=len(model.label_names_),
        pairs=pairs,
        largest_error=largest,
        suggested_pairs=seen,
        largest_error_suggested=suggested,
        predict_one_us=1e6 * statistics.median(one),
        explain_us=1e6 * statistics.median(why_times),
        share=statistics.median(why_times) / statistics.median(one),
        places_us=1e6 * statistics.median(place_times),
    )
    print(table.rows[-1], flush=True)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("sets", nargs="*", default=["debtags", "eurlex57k", "tibkat-gnd"])
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=20_000)
    arguments = parser.parse_args()
    table = Table("explain", COLUMNS)
    for name in arguments.sets:
        measure(name, arguments.pairs, arguments.rows, table)
        table.keep_others("set")
        table.save()


if __name__ == "__main__":
    main()
