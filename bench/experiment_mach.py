"""P@k of MACH over (B, R) and pruning against one-vs-all, with the bytes of the weights.

    python bench/experiment_mach.py train eurlex-4k --grid 250x8,500x8   # repetitions and one-vs-all, kept
    python bench/experiment_mach.py evaluate eurlex-4k
    python bench/experiment_mach.py report                               # docs/experiments/mach.md and picture

Base: `OneVsAll()` with its defaults (weights below 0.01 dropped), then at most `keep` weights per bucket, as float32
or float16. A repetition's hash function does not depend on R, so one set of R models of B buckets serves all
smaller R. Models and figures are kept in XMC_CACHE and not made again: each command can be stopped and started.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import product
from pathlib import Path

import numpy as np

from common import CACHE, cpu_name
from sets import load
from xmc_fast._files import write_text
from xmc_fast.linear import OneVsAll
from xmc_fast.mach import Mach, bucket_matrix
from xmc_fast.metrics import precision_at_k
from xmc_fast.model import SparseModel
from xmc_fast.plots.mach import accuracy_against_memory

HEAD = """# MACH: precision against memory

Made by `python bench/experiment_mach.py train NAME --grid BxR`, `... evaluate NAME`, `... report`; seed 0.
{machine}.

A model is B buckets x R repetitions of `OneVsAll()` (weights below 0.01 dropped), then at most so many weights per
bucket, as float32 or float16; a label's score is the mean over the repetitions of sigmoid(score), all labels
scored exactly (the mean of the scores themselves is within a point). MB: the weights in memory. Vectors: R·B / L,
what the memory of dense weights would be against dense one-vs-all. CPU s: training.

| data | model | weights kept | P@1 | P@3 | P@5 | MB | vectors | CPU s |
|---|---|---|---:|---:|---:|---:|---:|---:|"""
TAIL = """The documented setting for EURLex-4K is B = 250, R = 8, 1,000 weights per bucket in float16
(`Mach(250, 8).fit(X, Y).compress(keep_top=1000, dtype="float16")`): a quarter of the memory of the one-vs-all model
as it is trained by default, P@1 0.9 points below it. Without this pruning memory rises instead:
a bucket of sixteen labels needs more features than a label, so that eight repetitions of sparse bucket models are
larger than the sparse one-vs-all model. What it costs, honestly: one-vs-all pruned in the same way is as accurate at
the same size or better (the black curve). With a few thousand labels MACH saves memory against *dense* output layers,
not against pruned linear models; P@5 needs more repetitions than P@1, since two repetitions cannot tell labels apart
that share a bucket with a frequent one.

Measured so far: EURLex-4K. The script knows eurlex57k and tibkat-gnd (its first 20,000 training rows), too.
"""
DOCS = Path(__file__).parents[1] / "docs"
STORE = CACHE / "mach"
NAMES = ("eurlex-4k", "eurlex57k", "tibkat-gnd")
KEEP = (None, 2000, 1000, 500, 250)
TRAIN_ROWS = {"tibkat-gnd": 20_000}  # the first so many rows: what an hour of a shared machine allows


def train(name: str, grid: list[tuple[int, int]], seconds: float) -> None:
    """One-vs-all (`grid` empty) or the missing repetitions, until the time is used up."""
    X, Y = (part[: TRAIN_ROWS.get(name)] for part in load(name))
    stop = time.perf_counter() + seconds
    jobs = [(B, r) for B, R in grid for r in range(R)]
    for B, r in [(0, 0)] if not grid else sorted(jobs, key=lambda job: job[1]):
        folder = _folder(name, B, r)
        if folder.with_suffix(".json").exists():
            continue
        if time.perf_counter() > stop:
            return
        folder.parent.mkdir(parents=True, exist_ok=True)
        start = time.process_time()
        target = bucket_matrix(Y, B, r) if B else Y
        model = OneVsAll().fit(X, target, checkpoint=None if B else folder.with_suffix(".part")).model_
        spent = time.process_time() - start
        model.save(folder)
        write_text(folder.with_suffix(".json"), json.dumps({"cpu_s": spent, "nnz": model.nnz}))
        print(name, B, r, f"{spent:.1f} s, {model.nnz} weights", flush=True)


def evaluate(name: str, rows: int) -> None:
    """P@k of everything that is trained, for each R and pruning, into a JSON file per (B, keep)."""
    X, Y = (part[:rows] for part in load(name, "test"))
    sets: dict[int, list[Path]] = {}
    for path in sorted((STORE / name).glob("*_*.json")):
        B = 0 if path.stem == "one_vs_all" else int(path.stem.split("_")[0])
        sets.setdefault(B, []).append(path.with_suffix(""))
    for (B, paths), keep in product(sorted(sets.items()), KEEP):
        out = STORE / name / "results" / f"{B}_{keep}_{len(paths)}_{Y.shape[0]}.json"
        if out.exists():
            continue
        full = [SparseModel.load(folder) for folder in paths]
        seconds = [json.loads(folder.with_suffix(".json").read_text())["cpu_s"] for folder in paths]
        models = full if keep is None else [model.keep_top(keep).astype(np.float16) for model in full]
        cells = []
        if B == 0:
            cells.append({"R": 1, "outputs": "", **_cell(models, seconds, Y, models[0].predict(X, 5))})
        else:
            for R, outputs in product(
                [R for R in (2, 4, 8, 16) if len(models) >= R], ("logit", "probability")
            ):
                part = Mach(B, R, outputs=outputs)
                part.models_, part.n_labels_ = models[:R], Y.shape[1]
                cells.append(
                    {"R": R, "outputs": outputs, **_cell(models[:R], seconds[:R], Y, part.predict(X, 5))}
                )
        out.parent.mkdir(exist_ok=True)
        common = {"data": name, "B": B, "keep": keep, "labels": Y.shape[1], "rows": Y.shape[0]}
        write_text(out, json.dumps([{**common, **cell} for cell in cells]))
        for cell in cells:
            print(common, cell, flush=True)


def _cell(models: list[SparseModel], seconds: list[float], Y, top) -> dict[str, float]:
    p1, p3, p5 = (100 * float(precision_at_k(Y, top, k)) for k in (1, 3, 5))
    size = sum(model.nbytes for model in models)
    return {"p1": p1, "p3": p3, "p5": p5, "mb": size / 1e6, "cpu_s": sum(seconds)}


def report() -> None:
    """docs/experiments/mach.md and its picture from all results."""
    cells: list[dict] = []
    for name in NAMES:
        found: dict[tuple, dict] = {}
        for path in sorted((STORE / name / "results").glob("*.json"), key=lambda p: p.stat().st_mtime):
            for cell in json.loads(path.read_text()):
                found[cell["B"], cell["R"], cell["keep"] or 10**9, cell["outputs"]] = (
                    cell  # the latest counts
                )
        cells += [found[key] for key in sorted(found, key=lambda k: (k[0], k[1], -k[2], k[3]))]
    lines = [HEAD.format(machine=cpu_name())]
    for cell in cells:
        if cell["outputs"] == "logit":
            continue  # within a point of the probabilities
        model = f"{cell['B']} x {cell['R']}" if cell["B"] else "one-vs-all"
        vectors = cell["B"] * cell["R"] / cell["labels"] if cell["B"] else 1.0
        keep = "all, float32" if cell["keep"] is None else f"{cell['keep']}, float16"
        p = " | ".join(f"{cell[key]:.2f}" for key in ("p1", "p3", "p5"))
        lines.append(
            f"| {cell['data']} | {model} | {keep} | {p} | {cell['mb']:.1f} | {vectors:.2f} | {cell['cpu_s']:.0f} |"
        )
    lines += ["", "![P@1 against the bytes of the weights](../img/mach_memory.png)", "", TAIL]
    (DOCS / "experiments").mkdir(parents=True, exist_ok=True)
    write_text(DOCS / "experiments" / "mach.md", "\n".join(lines))
    picture(cells)


def picture(cells: list[dict]) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    names = [name for name in NAMES if any(cell["data"] == name for cell in cells)]
    figure, axes = pyplot.subplots(1, len(names), figsize=(5 * len(names), 4), squeeze=False)
    for ax, name in zip(axes[0], names, strict=True):
        own = [cell for cell in cells if cell["data"] == name and cell["outputs"] != "logit"]
        one = sorted((cell["mb"], cell["p1"]) for cell in own if cell["B"] == 0)
        accuracy_against_memory(
            [(c["B"], c["R"], 1e6 * c["mb"], c["p1"]) for c in own if c["B"] and c["keep"] == 1000], ax
        )
        ax.plot(*zip(*one, strict=True), "k*-", label="one-vs-all, pruned")
        ax.set_title(f"{name}, 1,000 weights per bucket, float16", fontsize="small")
        ax.set_ylabel("P@1, %")
        ax.legend(fontsize="small")
    figure.tight_layout()
    (DOCS / "img").mkdir(parents=True, exist_ok=True)
    figure.savefig(DOCS / "img" / "mach_memory.png", dpi=110)


def _folder(name: str, B: int, r: int) -> Path:
    return STORE / name / (f"{B}_{r}" if B else "one_vs_all")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="MACH over (B, R) against one-vs-all")
    parser.add_argument("command", choices=["train", "evaluate", "report"])
    parser.add_argument("name", nargs="?", default="eurlex-4k")
    parser.add_argument("--grid", default="")
    parser.add_argument("--rows", type=int, default=10**9, help="test rows to use, from the first")
    parser.add_argument("--seconds", type=float, default=240)
    arguments = parser.parse_args()
    pairs = [tuple(map(int, pair.split("x"))) for pair in arguments.grid.split(",") if pair]
    if arguments.command == "train":
        train(arguments.name, pairs, arguments.seconds)
    elif arguments.command == "evaluate":
        evaluate(arguments.name, arguments.rows)
    else:
        report()
