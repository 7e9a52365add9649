"""What an ensemble of one-vs-all and neighbours gains over each of them, and what it costs.

    python -m bench.experiments.blend [--sets eurlex-4k bibtex ...]

The ensemble's defaults were chosen on 15 % of EURLex-4K's training rows; all rows here are test rows. Sets that are
not run again keep their rows. Writes blend.json; the table of docs/guide/ensemble.md is made of it by bench.report.
"""

from __future__ import annotations

import time

import numpy as np

from bench.common import Table, command_line, machine
from bench.sets import load
from xmc_fast import Ensemble, Neighbours, OneVsAll, metrics

SETS = ("eurlex-4k", "bibtex", "debtags", "stackex-chess", "stackex-cooking", "stackex-cs", "eurlex57k")
COLUMNS = ("set", "model", "P@1", "P@3", "P@5", "nDCG@5", "macro-F1@5", "training", "us_per_row", "MB")


def measure(name: str, table: Table) -> None:
    """Three models on one set, one thread, CPU time."""
    X, Y = load(name)
    X_test, Y_test = load(name, "test")
    models = {
        "one-vs-all": OneVsAll(n_jobs=1),
        "neighbours": Neighbours(n_jobs=1),
        "ensemble": Ensemble(n_jobs=1),
    }
    for title, model in models.items():
        start = time.process_time()
        model.fit(X.astype(np.float32), Y)
        trained = time.process_time()
        fitted = getattr(model, "model_", model)
        fitted.predict(X_test[:10])  # the layout is built here
        asked = time.process_time()
        top = fitted.predict(X_test, 5)
        seconds = time.process_time() - asked
        table.add(
            set=name,
            model=title,
            **{f"P@{k}": 100 * float(metrics.precision_at_k(Y_test, top, k)) for k in (1, 3, 5)},
            **{"nDCG@5": 100 * float(metrics.ndcg_at_k(Y_test, top, 5))},
            **{"macro-F1@5": 100 * float(metrics.macro_f1_at_k(Y_test, top, 5))},
            training=trained - start,
            us_per_row=1e6 * seconds / X_test.shape[0],
            MB=fitted.nbytes / 1e6,
        )
        print(table.rows[-1], flush=True)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--sets", nargs="*", default=SETS)
    args = parser.parse_args()
    table = Table("blend", COLUMNS, machine())
    for name in args.sets:
        measure(name, table)
    table.keep_others("set", "model")
    table.save()
    print(table)


if __name__ == "__main__":
    main()
