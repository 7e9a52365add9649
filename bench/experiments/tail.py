"""What rare labels can gain, and what that costs the frequent ones.

    python -m bench.experiments.tail [--sets eurlex-4k debdeps ...]

One-vs-all with its defaults against heavier positives (a power of #neg / #pos, or the weights of the surrogate for
missing labels), and against other choices from the same model's probabilities: the labels with the largest probability
/ propensity, which maximise PSP@k, or half precision and half macro-F1. Probabilities are fitted on a tenth of the
training rows, with a model of the others, and used with the model of all rows. Nothing was chosen on these rows: all
that was run is here. Test rows, one thread. Sets that are not run again keep their rows. Writes tail.json.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import scipy.sparse as sp

from bench.common import Table, command_line, machine
from bench.sets import load
from xmc_fast import OneVsAll, decide, metrics, propensity

SETS = (
    "bibtex",
    "stackex-chess",
    "stackex-cooking",
    "stackex-cs",
    "debtags",
    "debdeps",
    "eurlex-4k",
    "eurlex57k",
)
KS = (1, 3, 5)
COLUMNS = ("set", "model", *(f"{m}@{k}" for m in ("P", "PSP") for k in KS), "macro-F1@5", "training")
CANDIDATES = 50


def measures(Y: sp.csr_matrix, tops: dict[int, sp.csr_matrix], p: np.ndarray) -> dict[str, float]:
    """The columns of a row, in per cent; a list for each k."""
    out = {f"P@{k}": metrics.precision_at_k(Y, tops[k], k) for k in KS}
    out |= {f"PSP@{k}": metrics.psp_at_k(Y, tops[k], p, k) for k in KS}
    out["macro-F1@5"] = metrics.macro_f1_at_k(Y, tops[5], 5)
    return {name: 100 * float(value) for name, value in out.items()}


def measure(name: str, table: Table) -> None:
    X, Y = load(name)
    X_test, Y_test = load(name, "test")
    p = propensity.estimate(Y)

    def trained(rows: Any = slice(None), **options: Any) -> tuple[Any, float]:
        start = time.process_time()
        model = OneVsAll(n_jobs=1, **options).fit(X[rows], Y[rows]).model_
        return model, time.process_time() - start

    def add(title: str, seconds: float, tops: dict[int, sp.csr_matrix]) -> None:
        table.add(set=name, model=title, **measures(Y_test, tops, p), training=seconds)
        print(table.rows[-1], flush=True)

    model, seconds = trained()
    usual = model.predict(X_test, max(KS))
    add("default", seconds, dict.fromkeys(KS, usual))
    weights = {
        "balanced^0.25": "balanced^0.25",
        "balanced^0.5": "balanced^0.5",
        "2 / propensity - 1": propensity.surrogate_weights(p),
    }
    for title, weight in weights.items():
        other, own = trained(positive_weight=weight)
        add(f"positives weighted by {title}", own, dict.fromkeys(KS, other.predict(X_test, max(KS))))

    order = np.random.default_rng(0).permutation(X.shape[0])
    held, rest = np.sort(order[: len(order) // 10]), np.sort(order[len(order) // 10 :])
    part, more = trained(rest)
    model.calibration = part.calibrate(X[held], Y[held], n_jobs=1).calibration
    proba = model.predict(X_test, CANDIDATES, proba=True, n_jobs=1)
    gains = decide.propensity_gains(p)
    choices = {k: decide.weighted_topk(proba, gains, k) for k in KS}
    add("largest probability / propensity", seconds + more, choices)
    mixed = decide.mix(0.5, "macro-f1")
    choices = {k: decide.bca(proba, mixed, k, n_jobs=1)[0] for k in KS}
    add("half precision, half macro-F1", seconds + more, choices)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--sets", nargs="*", default=SETS)
    args = parser.parse_args()
    table = Table("tail", COLUMNS, machine())
    for name in args.sets:
        measure(name, table)
    table.keep_others("set", "model")
    table.save()
    print(table)


if __name__ == "__main__":
    main()
