"""Dynamic sparse training against the papers' baselines: docs/experiments/dst.md.

python -m bench.experiments.dst [--only fixed,tfidf,57k,tibkat,text,frozen,scale]

Every cell (method, seed) is a process of its own, whose result is kept in the cache folder: a stopped run continues
where it was. Finished cells are taken over into docs/results/dst.json, each with its machine and commit;
`python -m bench.report.pages` writes the page. Hyper-parameters were chosen on held-out rows (--tune
--only grid,tfidf-grid,frozen-grid), never on the test set.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import time
from pathlib import Path
from typing import Any

from bench.common import CACHE, KEPT, commit, cpu_name
from bench.experiments.dst_cells import CELLS, GRIDS, SEEDS, TEXT_FROZEN, current
from bench.experiments.dst_data import load, minilm
from xmc_fast.metrics import precision_at_k

KS = (1, 3, 5)
FILE = KEPT / "dst.json"
Cell = dict[str, Any]


def run_cell(arguments: tuple[Any, ...], connection: Any) -> None:
    """In a process of its own, so that its peak memory is its own."""
    import torch

    from bench.experiments.masked import stored_bytes
    from xmc_fast.nn import Rewire, SparseClassifier

    params, seed, (X, Y, VX, VY), threads, cache = arguments
    torch.set_num_threads(threads)
    options = dict(params)
    rules = options.pop("rewire")
    options["random_state"] = seed
    options["rewire"] = None if rules is None else Rewire(**rules, random_state=seed)
    text = "max_length" in params
    if text:
        from bench.experiments.dst_encoder import remembering

        file = cache / f"minilm-{TEXT_FROZEN}.pt"
        encoder, states = remembering(minilm(), TEXT_FROZEN, file)
        options["encoder"] = encoder
    model: Any = SparseClassifier(**options)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    model.fit(X, Y)
    seconds = time.process_time() - start
    top = model.predict(VX, max(KS))
    if text and not file.exists():
        torch.save(states, file)
    values = precision_at_k(VY, top, KS)
    output = model.network_.output
    used = sum(p.numel() for p in output.parameters())
    if params.get("output") == "masked":
        used = int(output.mask.sum())
    connection.send(
        {
            "p": [100 * float(v) for v in values],
            "cpu_per_epoch": seconds / len(model.history_),
            "memory": model.memory(),
            "stored": stored_bytes(output),
            "peak_growth": 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before),
            "history": model.history_,
            "weights": used,
        }
    )


def isolated(target: Any, arguments: tuple[Any, ...]) -> dict[str, Any]:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=target, args=(arguments, theirs))
    process.start()
    theirs.close()
    try:
        result: dict[str, Any] = ours.recv()
    finally:
        process.join()
    return result


def cell_file(cache: Path, experiment: str, name: str, seed: int, tune: bool) -> Path:
    safe = name.replace(" ", "_").replace(",", "").replace("+", "and")
    return cache / f"{experiment}-{'tune-' if tune else ''}{safe}-{seed}.json"


def run(
    experiment: str, cache: Path, *, tune: bool, threads: int, budget: float, match: str, seeds: int
) -> bool:
    """Run the missing cells until the budget of seconds is used; whether all are there."""
    todo = [
        (name, params, seed)
        for seed in (SEEDS.get(experiment, (0,)) if not tune else (0,))[:seeds]
        for name, params in CELLS[experiment]().items()
        if match in name
    ]
    files = [cell_file(cache, experiment, name, seed, tune) for name, _, seed in todo]
    if all(file.exists() for file in files):
        return True
    loaded = load(experiment, cache, tune=tune)
    end = time.monotonic() + budget
    for (name, params, seed), file in zip(todo, files, strict=True):
        if file.exists():
            continue
        if time.monotonic() > end:
            return False
        result = isolated(run_cell, (params, seed, loaded, threads, cache))
        cell = {"experiment": experiment, "name": name, "seed": seed, "tune": tune, "params": params}
        file.write_text(json.dumps({**cell, **result, "cpu": cpu_name(), "commit": commit()}))
        p = ", ".join(f"{v:.2f}" for v in result["p"])
        print(
            f"{experiment} {name} seed {seed}: P@1/3/5 {p}, {result['cpu_per_epoch']:.2f} CPU s/epoch",
            flush=True,
        )
    return True


def take_over(cache: Path) -> None:
    """The finished cells into docs/results, replacing older ones, in order."""
    places = [(e, n) for e, cells in CELLS.items() for n in cells()]

    def key(cell: Cell) -> tuple[Any, ...]:
        return (places.index((cell["experiment"], cell["name"])), cell["seed"])

    rows = json.loads(FILE.read_text("utf-8"))["rows"] if FILE.exists() else []
    rows += [json.loads(path.read_text("utf-8")) for path in sorted(cache.glob("*.json"))]
    kept = {key(row): row for row in rows if current(row)}
    body = ",\n".join(json.dumps(rounded(kept[k])) for k in sorted(kept))
    FILE.write_text(f'{{"rows": [\n{body}\n]}}\n', encoding="utf-8")


def rounded(value: Any) -> Any:
    """Six digits are enough of every figure."""
    if isinstance(value, dict):
        return {key: rounded(v) for key, v in value.items()}
    if isinstance(value, list):
        return [rounded(v) for v in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description="dynamic sparse training against its baselines")
    parser.add_argument("--only", default=",".join(e for e in CELLS if e not in GRIDS))
    parser.add_argument("--match", default="", help="only cells whose name has this")
    parser.add_argument("--seeds", type=int, default=99, help="at most so many seeds")
    parser.add_argument("--cache", type=Path, default=CACHE / "experiment_dst")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which no new cell is begun")
    parser.add_argument("--tune", action="store_true", help="measure on held-out training rows")
    a = parser.parse_args()
    a.cache.mkdir(parents=True, exist_ok=True)
    options = {name: getattr(a, name) for name in ("tune", "threads", "budget", "match", "seeds")}
    if all(run(experiment, a.cache, **options) for experiment in a.only.split(",")):
        take_over(a.cache)


if __name__ == "__main__":
    main()
