"""What macro-F1@k costs in P@k: decisions for mixtures of the two, heuristics beside them.

    python -m bench.experiments.tradeoff [--data eurlex-4k] [--k 1 3 5]

Probabilities as in bench/speed/bench_decide.py (one-vs-all, calibrated on held-out rows; cached in XMC_CACHE); measured
with the true labels of the test rows. The table is saved for docs/experiments/tradeoff.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.common import Table, command_line
from bench.speed.bench_decide import probabilities
from xmc_fast import decide

LAMBDAS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)
EXPONENTS = (0.25, 0.5, 1.0)


def rules(proba: Any, k: int) -> dict[str, Any]:
    """Predictions by name: the mixtures, then the heuristics."""
    counts = np.asarray(proba.sum(axis=0), np.float64).ravel()
    out = {f"mixture, λ = {x:g}": decide.bca(proba, decide.mix(x, "macro-f1"), k)[0] for x in LAMBDAS}
    for e in EXPONENTS:
        out[f"power law, exponent {e:g}"] = decide.weighted_topk(proba, decide.power_law_gains(counts, e), k)
    out["log"] = decide.weighted_topk(proba, decide.log_gains(counts, proba.shape[0]), k)
    return out


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--data", default="eurlex-4k")
    parser.add_argument("--k", type=int, nargs="+", default=[1, 3, 5])
    args = parser.parse_args()
    proba, Y = probabilities(args.data)
    columns = [f"{metric}@{k}" for k in args.k for metric in ("P", "macro-F1")]
    rows: dict[str, dict[str, Any]] = {}
    for k in args.k:
        for name, prediction in rules(proba, k).items():
            values = [100 * decide.expected_utility(Y, prediction, m, k=k) for m in ("precision", "macro-f1")]
            found = dict(zip((f"P@{k}", f"macro-F1@{k}"), values, strict=True))
            rows[name] = rows.get(name, {"rule": name}) | found
    table = Table("tradeoff", ["rule", *columns], rows=list(rows.values()))
    print(table)
    table.save()


if __name__ == "__main__":
    main()
