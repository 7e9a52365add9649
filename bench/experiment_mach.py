"""P@k of MACH over (B, R) against one-vs-all, with the bytes of the weights, into docs/experiments/mach.md.

python bench/experiment_mach.py [eurlex-4k]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from common import data_dir, machine, machine_line
from xmc_fast import Mach, data
from xmc_fast.linear import OneVsAll

DOC = Path(__file__).parents[1] / "docs" / "experiments" / "mach.md"
GRID = "250x4,250x8,500x8,1000x4,1000x8"


def precision(top, Y, k: int) -> float:
    hits = [len(set(top[i].indices[:k]) & set(Y[i].indices)) for i in range(Y.shape[0])]
    return 100 * float(np.mean(hits)) / k


def main(names: list[str], grid: str) -> None:
    lines = [
        "# MACH: precision against memory",
        "",
        f"Made by `python bench/experiment_mach.py --grid {grid} {' '.join(names)}`.",
        machine_line(machine(seconds=0.1)) + ".",
        "",
        "Base: `OneVsAll()` with its defaults; scores: the mean over the repetitions, of sigmoid(score) or of the",
        "score.",
        "MB: the weights after pruning. Hashing makes buckets of many labels, so their weight vectors are denser than",
        "those of single labels: with few labels, sparse one-vs-all can be the smaller model.",
        "",
        "| data | model | B | R | outputs | P@1 | P@3 | P@5 | MB | train CPU s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]

    def row(name, model, B, R, outputs, top, Y, nbytes, seconds):
        p = " | ".join(f"{precision(top, Y, k):.2f}" for k in (1, 3, 5))
        lines.append(
            f"| {name} | {model} | {B} | {R} | {outputs} | {p} | {nbytes / 1e6:.1f} | {seconds:.0f} |"
        )
        print(lines[-1], flush=True)
        DOC.parent.mkdir(parents=True, exist_ok=True)
        DOC.write_text("\n".join(lines) + "\n", encoding="utf-8")

    for name in names:
        folder = data_dir(name)
        train, test = (data.read_xmc(folder / f"{part}.txt.xz") for part in ("train", "test"))
        start = time.process_time()
        ova = OneVsAll().fit(train.X, train.Y)
        seconds = time.process_time() - start
        row(name, "OneVsAll", "", "", "", ova.predict(test.X, 5), test.Y, ova.model_.nbytes, seconds)
        for B, R in (map(int, pair.split("x")) for pair in grid.split(",")):
            start = time.process_time()
            mach = Mach(B, R).fit(train.X, train.Y)
            seconds = time.process_time() - start
            for outputs in ("probability", "logit"):
                mach.outputs = outputs
                row(name, "Mach", B, R, outputs, mach.predict(test.X, 5), test.Y, mach.nbytes, seconds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="MACH over (B, R) against one-vs-all")
    parser.add_argument("names", nargs="*", default=["eurlex-4k"])
    parser.add_argument("--grid", default=GRID)
    arguments = parser.parse_args()
    main(arguments.names, arguments.grid)
