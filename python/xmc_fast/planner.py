"""How long a fit takes, how much memory a machine needs and how large the model gets, before it is run.

The per-label cost was measured (bench/speed/calibrate_plan.py writes plan.json): passes over X and over the weights,
the more of them the more positives a label has. Labels are taken to follow a power law. What a `LabelTree` costs was
measured by bench/speed/bench_tree.py (plan_tree.json): `Plan.tree`, and `Plan.choose` tells which of the two.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from xmc_fast._validate import above_zero, at_least

_LANES = 16  # labels a thread solves together
_LANE_ARRAYS = 3  # feature-major and row-major float arrays of that width: w, g; alpha, coefficients, masks


@dataclass(frozen=True)
class TreePlan:
    """An estimate of a `LabelTree` with its defaults on one of the machines."""

    hours: float  # from start to end
    cpu_hours: float  # of one core
    memory: int  # bytes
    model_bytes: int


@dataclass(frozen=True)
class Plan:
    """An estimate of a `OneVsAll` fit. ``str(plan)`` is a table for people; ``tree`` the same for a `LabelTree`."""

    hours: float  # from start to end
    cpu_hours: float  # of one core, all labels
    memory_per_node: int  # bytes
    model_bytes: int
    blocks: int
    shipped_bytes: int  # X and Y, to each machine
    weights_per_label: float
    tree: TreePlan

    def choose(self, *, hours: float | None = None, memory: float | None = None) -> str:
        """Which model fits into so many hours and bytes of memory per machine: "exact" (`OneVsAll`) or "tree"
        (`LabelTree`). The exact one is more precise, so it is taken where it fits.

        >>> large = plan(490_000, 136_000, 670_000, 37_000_000, cores=2)
        >>> large.choose(), large.choose(hours=0.5), large.choose(hours=24, memory=16e9)
        ('exact', 'tree', 'exact')
        """
        above_zero(**{n: v for n, v in (("hours", hours), ("memory", memory)) if v is not None})
        needs = {
            "exact": (self.hours, self.memory_per_node),
            "tree": (self.tree.hours, self.tree.memory),
        }
        for name, (time, size) in needs.items():
            if (hours is None or time <= hours) and (memory is None or size <= memory):
                return name
        asked = [
            f"{hours:g} h" if hours is not None else "",
            f"{memory / 1e9:g} GB" if memory is not None else "",
        ]
        raise ValueError(
            f"neither model fits into {' and '.join(filter(None, asked))}: the tree needs {self.tree.hours:.3g} h and"
            f" {self.tree.memory / 1e9:.3g} GB, the exact one {self.hours:.3g} h and"
            f" {self.memory_per_node / 1e9:.3g} GB per machine"
        )

    def __str__(self) -> str:
        rows = [
            ("time", f"{self.hours:,.3g} h"),
            ("work", f"{self.cpu_hours:,.4g} core hours"),
            ("memory per node", f"{self.memory_per_node / 1e9:,.3g} GB"),
            ("model", f"{self.model_bytes / 1e9:,.3g} GB ({self.weights_per_label:,.4g} weights per label)"),
            ("data to each node", f"{self.shipped_bytes / 1e9:,.3g} GB"),
            ("blocks", f"{self.blocks:,}"),
            (
                "a label tree",
                f"{self.tree.cpu_hours:,.3g} core hours, {self.tree.model_bytes / 1e9:,.3g} GB model,"
                f" {self.tree.memory / 1e9:,.3g} GB of memory on one machine",
            ),
        ]
        return "\n".join(f"{name:<20}{value}" for name, value in rows)


def plan(
    n: int,
    d: int,
    labels: int,
    nnz: int,
    machines: int = 1,
    *,
    cores: int = 16,
    labels_per_row: float = 5.0,
    beta: float = 0.9,
    block_labels: int = 1000,
    speed: float = 1.0,
    efficiency: float = 0.9,
    network: float = 1.25e9,
) -> Plan:
    """Estimate a `OneVsAll` fit (squared hinge, pruned at 0.01) on some machines.

    Parameters
    ----------
    n, d, labels : int
        Rows, features, labels.
    nnz : int
        Stored values of X.
    machines : int
    cores : int
        Of one machine; one worker process each, with so many threads.
    labels_per_row : float
    beta : float
        Exponent of the label frequencies: the label of rank r is on N r^-beta rows.
    block_labels : int
        Labels of a block.
    speed : float
        Of a core, against the one of the calibration.
    efficiency : float
        Share of the cores' time that is not lost to starting, waiting and the shared memory bus.
    network : float
        Bytes per second at which a machine gets the data.

    Examples
    --------
    >>> small, large = plan(15_000, 5_000, 4_000, 3_500_000), plan(490_000, 136_000, 670_000, 37_000_000)
    >>> small.hours < large.hours and small.memory_per_node < large.memory_per_node
    True
    """
    at_least(1, n=n, d=d, labels=labels, nnz=nnz, machines=machines, cores=cores, block_labels=block_labels)
    at_least(0, beta=beta)
    above_zero(labels_per_row=labels_per_row, speed=speed, efficiency=efficiency, network=network)
    measured = _coefficients()
    assigned = n * labels_per_row
    positives, share = power_law(n, labels, assigned, beta)
    growth = 1 + measured["positives_slope"] * np.log1p(positives / 3)
    once = measured["per_nnz"] * nnz + measured["per_feature"] * d + measured["per_label"]
    per_label = float(once * (growth * share).sum()) / speed
    touched = positives * nnz / n  # values in a label's positives
    kept = d * -np.expm1(-measured["weights_factor"] * touched ** measured["weights_power"] / d)
    weights = float((kept * share).sum())
    blocks = math.ceil(labels / block_labels)
    shipped = 8 * nnz + 8 * (n + 1) + 4 * assigned + 8 * (labels + 1)
    workers = min(machines, blocks)
    # A worker's tasks halve from a share of the rest to a block; each reads X anew.
    tasks = 2 * max(1.0, math.log2(max(blocks / workers, 1)))
    start = shipped / network + tasks * measured["task_per_nnz"] * nnz / speed
    units = blocks * min(
        math.ceil(block_labels / 256), math.ceil(labels / 256)
    )  # what one thread does at a time
    busy = min(workers * cores, units)
    solve = labels * per_label / (busy * efficiency)
    slowest = min(block_labels, 256, labels) * once * float(growth.max()) / speed  # the last unit to end
    threads = 4 * _LANES * _LANE_ARRAYS * (n + d)
    block_bytes = 8 * weights * block_labels
    memory = shipped + 8 * nnz + 24 * n + cores * threads + 2 * block_bytes * max(1, cores // 4)
    return Plan(
        hours=(solve + start + slowest) / 3600,
        cpu_hours=labels * per_label / 3600,
        memory_per_node=int(memory),
        model_bytes=int(labels * weights * (6 if d < 1 << 16 else 8)),
        blocks=blocks,
        shipped_bytes=int(shipped),
        weights_per_label=weights,
        tree=_tree(n, d, labels, nnz, assigned, cores=cores, speed=speed, efficiency=efficiency),
    )


def tree_sizes(n: int, d: int, labels: int, nnz: int, assigned: float) -> dict[str, float]:
    """What time and size of a tree grow with, each to a power of its own (plan_tree.json).

    >>> tree_sizes(1000, 500, 200, 20_000, 3000)
    {'positives': 3000, 'row': 20.0, 'labels': 200, 'features': 500}
    """
    at_least(1, n=n)
    return {"positives": assigned, "row": nnz / n, "labels": labels, "features": d}


def _tree(
    n: int, d: int, labels: int, nnz: int, assigned: float, *, cores: int, speed: float, efficiency: float
) -> TreePlan:
    own = _coefficients("plan_tree.json", "")

    def power(of: str) -> float:
        result = float(own[of]["scale"])
        for name, x in tree_sizes(n, d, labels, nnz, assigned).items():
            result *= max(x, 1) ** float(own[of][name])
        return result

    model = power("bytes")
    data = 8 * nnz + 8 * n + 12 * assigned
    memory = own["memory"]["process"] + own["memory"]["copies"] * data + 2 * model
    memory += 4 * _LANES * _LANE_ARRAYS * (n + d) * (cores - 1)
    cpu = power("seconds") / speed / 3600
    return TreePlan(cpu / (cores * efficiency), cpu, int(memory), int(model))


def power_law(n: int, labels: int, assigned: float, beta: float) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Positives of labels at some ranks, and the share of the labels that each of them stands for.

    >>> positives, share = power_law(1000, 100, 5000, 0.0)
    >>> round(float(positives.max()), 6), round(float(share.sum()), 6)
    (50.0, 1.0)
    """
    at_least(1, n=n, labels=labels)
    edges = np.unique(np.round(np.geomspace(1, labels + 1, 400)).astype(np.int64))
    if len(edges) < 2:
        edges = np.array([1, 2])
    ranks = np.sqrt(edges[:-1] * (edges[1:] - 1.0))  # the middle of each range, on a log scale
    share = np.diff(edges) / labels
    shape = ranks**-beta
    positives = shape * assigned / (labels * (shape * share).sum())
    return np.clip(positives, 1, n), share


@cache
def _coefficients(file: str = "plan.json", part: str = "seconds") -> dict[str, Any]:
    data = json.loads(resources.files("xmc_fast").joinpath(file).read_text(encoding="utf-8"))
    return dict(data[part] if part else data)
