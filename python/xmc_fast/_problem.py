"""What the core is given for a fit of `OneVsAll`: parameters, checked, as its arrays and options."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils import check_random_state

from xmc_fast import _core
from xmc_fast._validate import Csr, aligned, features, fingerprint, transpose
from xmc_fast._work import Arrays
from xmc_fast.model import SparseModel

_NO_FLOATS = np.empty(0, np.float32)
# In the order of the core's enums; a model as start comes after the named rules.
_SOLVERS = ("dual", "newton", "l1", "lanes")  # "lanes" (dual without the search for rare labels): for benches
_LOSSES = ("squared_hinge", "logistic")
INITS = ("zero", "mean", "multi-positive", "bias")
SMALL_ENOUGH = 4_000_000  # bytes of an exact model that size="auto" leaves as it is


def check_parameters(model: Any) -> None:
    """ValueError for the first parameter that is wrong."""

    def fail(name: str, expected: str) -> None:
        raise ValueError(f"{name} must be {expected}, got {getattr(model, name)!r}")

    for name, choices in (
        ("loss", ("squared_hinge", "logistic")),
        ("penalty", ("l2", "l1")),
        ("solver", ("auto", "dual", "newton")),
    ):
        if getattr(model, name) not in choices:
            fail(name, f"one of {', '.join(map(repr, choices))}")
    for name in ("C", "tol"):
        if not (_is_number(getattr(model, name)) and getattr(model, name) > 0):
            fail(name, "a positive number")
    if not (_is_number(model.prune) and model.prune >= 0):
        fail("prune", "at least 0")
    if model.bias is not None and not _is_number(model.bias):
        fail("bias", "a finite number or None")
    if model.keep_top is not None and model.keep_top < 1:
        fail("keep_top", "at least 1 or None")
    if model.size not in ("exact", "small", "auto") and not (_is_whole(model.size) and model.size > 0):
        fail("size", "'exact', 'small', 'auto' or a number of bytes")
    for name in ("block_labels", "max_iter"):
        if getattr(model, name) < 1:
            fail(name, "at least 1")
    if isinstance(model.init, str) and model.init not in INITS:
        fail("init", f"one of {', '.join(map(repr, INITS))} or a SparseModel")
    if not isinstance(model.init, (str, SparseModel)):
        fail("init", "a name or a SparseModel")
    if model.penalty == "l1" and model.loss != "squared_hinge":
        fail("loss", "'squared_hinge' with penalty='l1'")
    if model.penalty == "l1" or model.loss == "logistic":
        able = ("auto",) if model.penalty == "l1" else ("auto", "newton")
        if model.solver not in able:
            given = f"loss={model.loss!r}, penalty={model.penalty!r}"
            fail("solver", f"one of {', '.join(map(repr, able))} with {given}")


def size_of(model: Any, n_labels: int, n_columns: int) -> str | int:
    """``model.size``, decided: "auto" is "exact" where no model of this shape has more than SMALL_ENOUGH bytes."""
    if model.size == "auto":
        return "small" if 8 * n_labels * n_columns > SMALL_ENOUGH else "exact"  # a weight and its feature
    return model.size if isinstance(model.size, str) else int(model.size)


def seed_of(model: Any) -> int:
    """random_state as a number."""
    if isinstance(model.random_state, (int, np.integer)):
        return int(model.random_state)
    return int(check_random_state(model.random_state).randint(1 << 31))


def settings_of(model: Any, seed: int) -> dict[str, Any]:
    """What decides the model's bits, beside the data."""
    weight = model.positive_weight
    if weight is not None and not isinstance(weight, (str, int, float)):
        weight = fingerprint({"positive_weight": np.asarray(weight, np.float32)})
    return {
        "C": float(model.C),
        "loss": model.loss,
        "penalty": model.penalty,
        "tol": float(model.tol),
        "bias": None if model.bias is None else float(model.bias),
        "normalize": bool(model.normalize),
        "prune": float(model.prune),
        "keep_top": model.keep_top,
        "positive_weight": weight,
        "block_labels": int(model.block_labels),
        "solver": model._solver(),
        "init": model.init if isinstance(model.init, str) else _model_hash(model.init),
        "max_iter": int(model.max_iter),
        "seed": seed,
        "simd": _core.simd_level(),
    }


def problem_of(
    model: Any, x: Csr | npt.NDArray[np.float32], y: Csr, label_range: tuple[int, int], seed: int
) -> tuple[Arrays, dict[str, Any]]:
    """The core's arrays and options. X goes as it is: the core scales rows and adds the bias."""
    csr = x if isinstance(x, Csr) else _empty(x.shape[1])
    positives = transpose(y)
    n_columns = x.shape[1] + (model.bias is not None)
    init, start = _start(model, y.shape[1], label_range, n_columns)
    arrays: Arrays = {
        "x_indptr": csr.indptr,
        "x_indices": csr.indices,
        "x_data": csr.data,
        "x_dense": np.empty((0, 0), np.float32) if isinstance(x, Csr) else x,
        "y_indptr": positives.indptr,
        "y_indices": positives.indices,
        "cost_positive": _positive_cost(model.positive_weight, np.diff(positives.indptr), x.shape[0]),
        "warm_indptr": start.indptr,
        "warm_indices": start.indices,
        "warm_data": start.data,
    }
    options = {
        "n_features": x.shape[1],
        "normalize": bool(model.normalize),
        "bias": None if model.bias is None else float(model.bias),
        "solver": _SOLVERS.index(model._solver()),
        "loss": _LOSSES.index(model.loss),
        "init": init,
        "C": float(model.C),
        "tol": float(model.tol),
        "max_iter": int(model.max_iter),
        "seed": seed,
        "threshold": float(model.prune),
        "keep_top": int(model.keep_top or 0),
        "bias_threshold": float(model.prune),
        "old_rows": 0,
        "keep_multipliers": False,
    }
    return arrays, options


def _start(model: Any, n_labels: int, label_range: tuple[int, int], n_columns: int) -> tuple[int, Csr]:
    """The rule's number and the CSR arrays of the first weights (n_labels x n_columns; empty: none)."""
    if isinstance(model.init, str):
        return INITS.index(model.init), _empty(n_columns)
    first, last = label_range
    W = features(model.init.to_csr(), "init", n_features=n_columns)
    if W.shape[0] == n_labels:
        return len(INITS), W
    if W.shape[0] != last - first:
        raise ValueError(f"init has {W.shape[0]} labels, expected {last - first}")
    tail = np.full(n_labels - last, W.indptr[-1])
    indptr = np.concatenate([np.zeros(first, np.int64), W.indptr, tail])
    return len(INITS), Csr(indptr, W.indices, W.data, (n_labels, n_columns))


def _empty(columns: int) -> Csr:
    return Csr(np.zeros(1, np.int64), np.empty(0, np.int32), _NO_FLOATS, (0, columns))


def _model_hash(model: SparseModel) -> str:
    W = features(model.to_csr(), "init")
    return fingerprint({"indptr": W.indptr, "indices": W.indices, "data": W.data})


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and bool(np.isfinite(value))


def _is_whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def label_range_of(given: tuple[int, int] | None, n_labels: int) -> tuple[int, int]:
    start, stop = (0, n_labels) if given is None else (int(given[0]), int(given[1]))
    if not 0 <= start < stop <= n_labels:
        raise ValueError(f"labels must be a range inside (0, {n_labels}), got ({start}, {stop})")
    return start, stop


def _positive_cost(weight: Any, counts: npt.NDArray[np.int64], n: int) -> npt.NDArray[np.float32]:
    """c+ per label, or empty for 1."""
    if weight is None:
        return _NO_FLOATS
    if isinstance(weight, str):
        name, power = (*weight.split("^"), "1")[:2]
        if name != "balanced" or not power.replace(".", "", 1).isdecimal():
            raise ValueError(
                f"positive_weight must be numbers, 'balanced', 'balanced^0.5' or None, got {weight!r}"
            )
        ratio = np.maximum((n - counts) / np.maximum(counts, 1), 1e-6)
        return (ratio ** float(power)).astype(np.float32)
    cost = np.broadcast_to(np.asarray(weight, np.float32), counts.shape) if np.ndim(weight) == 0 else None
    if cost is None:
        cost = np.asarray(weight, np.float32)
        if cost.shape != counts.shape:
            raise ValueError(f"positive_weight has shape {cost.shape}, expected ({len(counts)},)")
    if not np.all(np.isfinite(cost) & (cost > 0)):
        raise ValueError("positive_weight must be positive and finite")
    return aligned(cost, np.float32)
