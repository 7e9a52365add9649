"""What macro-F1@k costs in P@k: decisions for mixtures of the two, heuristics beside them.

    python bench/examples/tradeoff.py [--data eurlex-4k] [--k 1 3 5] [--write docs]

Probabilities as in bench/bench_decide.py (one-vs-all, calibrated on held-out rows; cached in XMC_CACHE); measured
with the true labels of the test rows. Prints the page; with --write also saves it as experiments/tradeoff.md
with the picture img/tradeoff.png.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench_decide import probabilities
from xmc_fast import decide
from xmc_fast.plots import plot_tradeoff

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


def table(proba: Any, Y: Any, ks: list[int]) -> str:
    head = "".join(f" P@{k} | macro-F1@{k} |" for k in ks)
    rows: dict[str, str] = {}
    for k in ks:
        for name, prediction in rules(proba, k).items():
            values = (100 * decide.expected_utility(Y, prediction, m, k=k) for m in ("precision", "macro-f1"))
            rows[name] = rows.get(name, f"| {name} |") + "".join(f" {v:.2f} |" for v in values)
    return "\n".join([f"| rule |{head}", "|---|" + "---:|" * (2 * len(ks)), *rows.values()])


def save_picture(path: Path, proba: Any, Y: Any, ks: list[int]) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(ks), figsize=(4.2 * len(ks), 3.8), squeeze=False)
    for k, ax in zip(ks, panels[0], strict=True):
        plot_tradeoff(proba, k, ax, lambdas=LAMBDAS, exponents=EXPONENTS, Y=Y)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", default="eurlex-4k")
    parser.add_argument("--k", type=int, nargs="+", default=[1, 3, 5])
    parser.add_argument("--write", type=Path, help="folder for experiments/tradeoff.md and img/tradeoff.png")
    args = parser.parse_args(arguments)
    proba, Y = probabilities(args.data)
    page = f"""# Precision against macro-F1

{args.data}, {proba.shape[0]:,} test rows, {proba.shape[1]:,} labels; the 100 most probable labels of each row from a
calibrated one-vs-all model. Decisions maximise λ · P@k + (1 - λ) · macro-F1@k on the probabilities
(`decide.bca(proba, decide.mix(λ, "macro-f1"), k)`); figures in %, measured with the true labels.

λ = 1 is the usual top-k. The heuristics weight a probability by the label's expected frequency
(`decide.power_law_gains`, `decide.log_gains`).

{table(proba, Y, args.k)}

![P@k against macro-F1@k over the mixture, with heuristics](../img/tradeoff.png)

Made by `python bench/examples/tradeoff.py --data {args.data} --write docs`.
"""
    print(page)
    if args.write:
        (args.write / "experiments").mkdir(parents=True, exist_ok=True)
        (args.write / "experiments" / "tradeoff.md").write_text(page, encoding="utf-8")
        save_picture(args.write / "img" / "tradeoff.png", proba, Y, args.k)


if __name__ == "__main__":
    main()
