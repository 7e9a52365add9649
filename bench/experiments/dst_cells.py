"""The cells of dst.py: experiment -> name of the output layer -> parameters.

They are those of SparseClassifier, on texts where these are cut to ``max_length``; "rewire" has the
parameters of Rewire. An epoch less or a rate is never chosen by a test score: what was tried on held-out rows is
in the experiments whose name ends with "grid".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

DIMS = 512  # of dense features
Cells = dict[str, dict[str, Any]]


def rewire(grow: str, **options: Any) -> dict[str, Any]:
    return {"grow": grow, "fraction": 0.3, "interval": 50, "stop": 0.75, **options}


def equal_rank(fan_in: int, hidden: int, labels: int, features: int = DIMS) -> int:
    """Rank of the bottleneck e -> rank -> L with the bytes of a sparse layer and the units before it."""
    weights = labels * fan_in * 6 / 4 + features * hidden
    return min(features, round(weights / (features + labels)))


RULES: dict[str, dict[str, Any] | None] = {
    "static": None,
    "SET": rewire("random"),
    "RigL": rewire("gradient"),
    "DeepR": rewire("random", prune="sign"),
}

# ---- fixed dense features

LSA = {"epochs": 8, "batch_size": 128, "lr": 5e-3, "rewire": None}
WIDE = {**LSA, "lr": 2e-3}  # with an intermediate layer
NARROW = {**LSA, "output": "bottleneck", "lr": 3e-3}
DENSE = {**LSA, "output": "dense", "lr": 2e-3, "epochs": 6}


def fixed_cells() -> Cells:
    cells: Cells = {"dense": DENSE}
    for s in (8, 32, 64, 128):
        for name in ("static", "SET", "RigL"):
            cells[f"fan-in {s}, {name}"] = {**LSA, "fan_in": s, "rewire": RULES[name]}
    cells["fan-in 32, DeepR"] = {**LSA, "fan_in": 32, "rewire": RULES["DeepR"]}
    for name in ("static", "RigL"):
        masked = {"output": "masked", "fan_in": 32, "epochs": 6, "rewire": RULES[name]}
        cells[f"unstructured 32, {name}"] = {**LSA, **masked}
    wide = [(32, 1024, "static SET RigL"), (32, 2048, "static SET RigL"), (64, 2048, "RigL")]
    wide += [(8, 2048, "static RigL"), (32, 16384, "static RigL")]
    for s, h, names in wide:
        for name in names.split():
            cells[f"fan-in {s} + {h} units, {name}"] = {
                **WIDE,
                "fan_in": s,
                "hidden": h,
                "rewire": RULES[name],
            }
    for h in (0, 1024, 2048):
        rank = equal_rank(32, h, 3993)
        cells[f"bottleneck {rank}, as 32" + (f" + {h}" if h else "")] = {**NARROW, "rank": rank}
    shared = {**LSA, "group_size": 16, "rewire": RULES["RigL"]}
    cells |= {f"fan-in {s} shared by 16, RigL": {**shared, "fan_in": s} for s in (32, 96)}
    cells["fan-in 192 shared by 16, RigL, bf16"] = {**shared, "fan_in": 192, "dtype": "bfloat16"}
    half = {"dtype": "bfloat16", "gradient": "sparse", "rewire": RULES["RigL"]}
    cells["fan-in 32, RigL, bf16, sparse gradient"] = {**LSA, "fan_in": 32, **half}
    return cells


def larger_cells(labels: int, epochs: int) -> Cells:
    """The central comparisons on more rows or labels; steps between changes grow with the rows."""
    dynamic = {name: rewire(grow, interval=100) for name, grow in (("SET", "random"), ("RigL", "gradient"))}
    cells: Cells = {"dense": {**DENSE, "epochs": epochs}}
    for name, rule in {"static": None, **dynamic}.items():
        cells[f"fan-in 32, {name}"] = {**LSA, "epochs": epochs, "fan_in": 32, "rewire": rule}
    for name, rule in {"static": None, "RigL": dynamic["RigL"]}.items():
        cells[f"fan-in 32 + 2048 units, {name}"] = {
            **WIDE,
            "epochs": epochs,
            "fan_in": 32,
            "hidden": 2048,
            "rewire": rule,
        }
    for h in (0, 2048):
        rank = equal_rank(32, h, labels)
        cells[f"bottleneck {rank}, as 32" + (f" + {h}" if h else "")] = {
            **NARROW,
            "epochs": epochs,
            "rank": rank,
        }
    return cells


# ---- sparse features

TFIDF = {"epochs": 6, "batch_size": 128, "lr": 2e-3, "hidden": 512, "dropout": 0.3, "rewire": None}


def tfidf_cells() -> Cells:
    rank = equal_rank(32, 0, 3993)
    return {
        "dense": {**TFIDF, "output": "dense", "lr": 1e-3},
        "fan-in 32, static": {**TFIDF, "fan_in": 32},
        "fan-in 32, SET": {**TFIDF, "fan_in": 32, "rewire": RULES["SET"]},
        "fan-in 32, RigL": {**TFIDF, "fan_in": 32, "rewire": RULES["RigL"]},
        "fan-in 64, SET": {**TFIDF, "fan_in": 64, "rewire": RULES["SET"]},
        "fan-in 32 of 2048 units, static": {**TFIDF, "fan_in": 32, "hidden": 2048},
        "fan-in 32 of 2048 units, RigL": {**TFIDF, "fan_in": 32, "hidden": 2048, "rewire": RULES["RigL"]},
        "fan-in 64 of 2048 units, RigL": {**TFIDF, "fan_in": 64, "hidden": 2048, "rewire": RULES["RigL"]},
        f"bottleneck {rank}, as 32": {**TFIDF, "output": "bottleneck", "rank": rank},
    }


# ---- texts

TEXT_ROWS = (2000, 2000)  # training, test
TEXT_FROZEN = 4  # layers of the encoder that are not trained
TEXT = {
    "fan_in": 32,
    "epochs": 5,
    "batch_size": 32,
    "max_length": 32,
    "lr": 3e-3,
    "encoder_lr": 1e-4,
    "precision": "bf16",
    "meta": None,
    "rewire": None,
}
FROZEN = {"epochs": 5, "batch_size": 32, "fan_in": 32, "lr": 3e-3, "dropout": 0.1, "rewire": None}
OFTEN = rewire("gradient", interval=15)
TEXT_RANK = equal_rank(32, 0, 4271, 384)


def text_cells() -> Cells:
    return {
        "dense": {**TEXT, "output": "dense"},
        "fan-in 32, static": TEXT,
        "fan-in 32, RigL": {**TEXT, "rewire": OFTEN},
        "fan-in 32, RigL, meta-labels": {**TEXT, "rewire": OFTEN, "meta": 16},
        "fan-in 32, RigL, dense head of 200": {**TEXT, "rewire": OFTEN, "output": "head_tail", "head": 200},
        f"bottleneck {TEXT_RANK}, as 32": {**TEXT, "output": "bottleneck", "rank": TEXT_RANK},
    }


def frozen_cells() -> Cells:
    """The same on the encoder as it is: what its training brings."""
    return {
        "dense": {**FROZEN, "output": "dense"},
        "fan-in 32, static": FROZEN,
        "fan-in 32, RigL": {**FROZEN, "rewire": OFTEN},
        "fan-in 32, RigL, dense head of 200": {**FROZEN, "rewire": OFTEN, "output": "head_tail", "head": 200},
        f"bottleneck {TEXT_RANK}, as 32": {**FROZEN, "output": "bottleneck", "rank": TEXT_RANK},
    }


# ---- peak memory of three training steps where a dense matrix hurts: 131,072 labels on 768 features

SCALE = {"epochs": 3, "batch_size": 64, "rewire": None}


def scale_cells() -> Cells:
    sparse = {**SCALE, "fan_in": 32, "rewire": rewire("gradient", interval=1)}
    return {
        "dense": {**SCALE, "output": "dense"},
        "fan-in 32, RigL": sparse,
        "fan-in 32, RigL, sparse gradient": {**sparse, "gradient": "sparse"},
        "fan-in 32, RigL, bf16, sparse gradient": {**sparse, "gradient": "sparse", "dtype": "bfloat16"},
    }


# ---- what was tried on held-out rows


def grid_cells() -> Cells:
    narrow = {**NARROW, "rank": equal_rank(32, 1024, 3993)}
    plain = {**LSA, "fan_in": 32, "rewire": RULES["RigL"]}
    cells = {f"dense lr {lr}": {**DENSE, "lr": lr} for lr in (1e-3, 2e-3, 5e-3)}
    cells |= {f"bottleneck lr {lr}": {**narrow, "lr": lr} for lr in (1e-3, 3e-3, 1e-2)}
    cells |= {f"RigL 32 lr {lr}": {**plain, "lr": lr} for lr in (5e-3, 1e-2)}
    wide = {**plain, "hidden": 1024}
    return cells | {f"RigL 32 + 1024 units lr {lr}": {**wide, "lr": lr} for lr in (2e-3, 5e-3)}


def tfidf_grid() -> Cells:
    cells = {f"dense lr {lr}": {**TFIDF, "output": "dense", "lr": lr} for lr in (1e-3, 2e-3)}
    for name in ("static", "RigL"):
        fan_in = {**TFIDF, "fan_in": 32, "rewire": RULES[name]}
        cells |= {f"{name} 32 lr {lr}": {**fan_in, "lr": lr} for lr in (2e-3, 5e-3)}
    return cells


def frozen_grid() -> Cells:
    tuned = {
        name: cell for name, cell in frozen_cells().items() if "static" not in name and "head" not in name
    }
    return {
        f"{name} lr {lr}": {**cell, "lr": lr} for lr in (3e-3, 1e-2, 1e-3) for name, cell in tuned.items()
    }


CELLS: dict[str, Callable[[], Cells]] = {
    "fixed": fixed_cells,
    "tfidf": tfidf_cells,
    "57k": lambda: larger_cells(4271, 4),
    "tibkat": lambda: larger_cells(41218, 4),
    "text": text_cells,
    "frozen": frozen_cells,
    "scale": scale_cells,
    "grid": grid_cells,
    "tfidf-grid": tfidf_grid,
    "frozen-grid": frozen_grid,
}
GRIDS = ("grid", "tfidf-grid", "frozen-grid")
SEEDS = {"fixed": (0, 1, 2), "tfidf": (0, 1, 2), "text": (0, 1), "frozen": (0, 1, 2)}  # others: one


def current(cell: dict[str, Any]) -> bool:
    """Whether a cell was made with the parameters that the command has now."""
    experiment = cell["experiment"]
    known = CELLS[experiment]() if experiment in CELLS else {}
    return cell["tune"] == (experiment in GRIDS) and known.get(cell["name"]) == cell["params"]
