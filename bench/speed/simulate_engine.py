"""Scaling on paper: the scheduler of `xmc_fast.engine` simulated on up to 10^8 labels.

    python -m bench.speed.simulate_engine

The cost of a label comes from the measured model of `xmc_fast.plan`, block by block along a power law; tasks are cut
by the same function that cuts them in a run; each task reads X again, a twentieth of the machines runs at half speed
and is relieved at the end, and machines die at random and come back. Prints a Markdown table.
"""

from __future__ import annotations

import heapq

import numpy as np

import xmc_fast
from bench.common import command_line
from xmc_fast import planner
from xmc_fast.engine._run import take

SETS = [  # labels, rows, features, values per row
    (100_000, 500_000, 200_000, 75),
    (1_000_000, 2_000_000, 500_000, 75),
    (10_000_000, 10_000_000, 1_000_000, 75),
    (100_000_000, 50_000_000, 2_000_000, 75),
]


def block_costs(labels: int, n: int, d: int, nnz: int, block: int) -> np.ndarray:
    """Core seconds of each block, labels in random order (so a block has some head and much tail)."""
    measured = planner._coefficients()
    positives, share = planner.power_law(n, labels, 5 * n, 0.9)
    once = measured["per_nnz"] * nnz + measured["per_feature"] * d + measured["per_label"]
    growth = 1 + measured["positives_slope"] * np.log1p(positives / 3)
    rng = np.random.default_rng(0)
    blocks = -(-labels // block)
    mean, square = (growth * share).sum(), (growth**2 * share).sum()
    spread = np.sqrt(max(square - mean**2, 0) / block)
    return once * block * np.maximum(rng.normal(mean, spread, blocks), 0.1)


def simulate(
    costs: np.ndarray,
    machines: int,
    cores: int,
    task_seconds: float,
    deaths_per_day: float,
    slow: float = 0.05,
) -> tuple[float, int, int]:
    """Seconds until the last block is stored, tasks, blocks lost to dying machines."""
    rng = np.random.default_rng(1)
    speed = np.where(rng.random(machines) < slow, 0.5, 1.0) * cores * 0.9
    wave = max(1, 512 * cores // 1000)
    queue = list(range(len(costs)))
    cost = dict(enumerate(costs.tolist()))
    left, first, tasks, lost = float(costs.sum()), 0, 0, 0
    free = [(0.0, m) for m in range(machines)]
    heapq.heapify(free)
    end = np.zeros(machines)
    while first < len(queue):
        now, machine = heapq.heappop(free)
        smallest = min(wave, max(1, (len(queue) - first) // machines))
        count = take(queue[first : first + 4096], cost, left / (2 * machines), smallest)
        work = sum(cost[b] for b in queue[first : first + count])
        seconds = task_seconds + work / speed[machine]
        if rng.random() < seconds / 86400 * deaths_per_day:  # half of the task is stored when it dies
            seconds, count = seconds / 2 + 120, max(1, count // 2)
            work = sum(cost[b] for b in queue[first : first + count])
            lost += wave
        first, left, tasks = first + count, left - work, tasks + 1
        end[machine] = now + seconds
        heapq.heappush(free, (now + seconds, machine))
    # Relief: what the slow ones still have is shared when the others run dry.
    rest = np.sort(end)
    return float(rest[: max(1, int(0.9 * machines))].max() + task_seconds), tasks, lost


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--cores", type=int, default=64)
    parser.add_argument("--deaths-per-day", type=float, default=0.1, help="of one machine (default 0.1)")
    args = parser.parse_args()
    print("| labels | machines | core hours | hours | efficiency | tasks | GB per node | model |")
    print("|---|---|---|---|---|---|---|---|")
    for labels, n, d, per_row in SETS:
        nnz = n * per_row
        costs = block_costs(labels, n, d, nnz, 1000)
        for machines in (1, 10, 100, 1000):
            estimate = xmc_fast.plan(n, d, labels, nnz, machines, cores=args.cores)
            task = planner._coefficients()["task_per_nnz"] * nnz / 8  # the start runs on some of the cores
            seconds, tasks, _ = simulate(costs, machines, args.cores, task, args.deaths_per_day)
            seconds += estimate.shipped_bytes / 1.25e9
            ideal = costs.sum() / (machines * args.cores)
            print(
                f"| {labels:,} | {machines:,} | {costs.sum() / 3600:,.0f} | {seconds / 3600:,.3g} |"
                f" {100 * ideal / seconds:.0f} % | {tasks:,} | {estimate.memory_per_node / 1e9:,.0f} |"
                f" {estimate.model_bytes / 1e12:,.3g} TB |"
            )


if __name__ == "__main__":
    main()
