"""From scores to probabilities: Platt's sigmoid, one for the model and, where data allow, one per label.

P(y_l = 1 | score s) = 1 / (1 + exp(-(a_l s + b_l))). The global pair (a, b) minimises the log-loss over the
candidates, the top labels of each validation row (Platt 1999, with his smoothed targets; Newton's method as
in Lin, Lin & Weng 2007). A label with enough positives among them gets its own pair, the minimiser of its
log-loss plus a Gaussian prior around the global pair, so that few data move it little.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast._folder import ModelFormatError
from xmc_fast._validate import Csr
from xmc_fast.model._tensors import Tensors, read_tensors, write_tensors

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Calibration:
    """probability = sigmoid(scale[l] * score + shift[l])."""

    scale: npt.NDArray[np.float32]  # L, positive
    shift: npt.NDArray[np.float32]  # L
    global_scale: float
    global_shift: float


def sigmoid(z: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return (1 / (1 + np.exp(-np.clip(z, -80, 80)))).astype(np.float32)


def fit_calibration(
    scores: npt.NDArray[np.float32],
    labels: npt.NDArray[np.int32],
    relevant: npt.NDArray[np.bool_],
    n_labels: int,
    *,
    min_positives: int,
    prior_strength: float,
) -> Calibration:
    """Fit on flat arrays of candidates (score, label, whether it is relevant)."""
    s = scores.astype(np.float64)
    positives = int(relevant.sum())
    negatives = len(relevant) - positives
    if not positives or not negatives:
        raise ValueError(
            f"calibration needs relevant and irrelevant labels among the candidates, got {positives} relevant"
            f" of {len(relevant)}"
        )
    target = np.where(relevant, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    start = np.array([1.0]), np.array([np.log((positives + 1) / (negatives + 1))])
    A, B = _newton(s, np.zeros(len(s), np.int64), target, start, np.array([1e-6]))
    a, b = max(float(A[0]), 1e-3), float(B[0])
    scale, shift = np.full(n_labels, a), np.full(n_labels, b)
    own = np.flatnonzero(np.bincount(labels[relevant], minlength=n_labels) >= min_positives)
    if own.size:
        number = np.full(n_labels, -1, np.int64)
        number[own] = np.arange(own.size)
        mine = number[labels]
        take = mine >= 0
        center = np.full(own.size, a), np.full(own.size, b)
        prior = np.full(own.size, float(prior_strength))
        A, B = _newton(s[take], mine[take], relevant[take].astype(np.float64), center, prior)
        scale[own], shift[own] = np.maximum(A, 0.1 * a), B
    return Calibration(scale.astype(np.float32), shift.astype(np.float32), a, b)


def _newton(
    s: Floats, group: npt.NDArray[np.int64], y: Floats, center: tuple[Floats, Floats], prior: Floats
) -> tuple[Floats, Floats]:
    """Minimise, for each group at once, log-loss(a s + b, y) + prior/2 |(a, b) - center|^2 from center."""
    n = len(prior)

    def total(values: Floats) -> Floats:
        sums: Floats = np.bincount(group, values, minlength=n).astype(np.float64)
        return sums

    def objective(a: Floats, b: Floats) -> Floats:
        z = a[group] * s + b[group]
        penalty = 0.5 * prior * ((a - center[0]) ** 2 + (b - center[1]) ** 2)
        return total(np.logaddexp(0, z) - y * z) + penalty

    a, b = center
    value = objective(a, b)
    for _ in range(50):
        p = 1 / (1 + np.exp(-np.clip(a[group] * s + b[group], -500, 500)))
        g_a = total((p - y) * s) + prior * (a - center[0])
        g_b = total(p - y) + prior * (b - center[1])
        h = p * (1 - p)
        h_aa, h_ab, h_bb = total(h * s * s) + prior + 1e-12, total(h * s), total(h) + prior + 1e-12
        det = h_aa * h_bb - h_ab * h_ab
        d_a, d_b = -(h_bb * g_a - h_ab * g_b) / det, -(h_aa * g_b - h_ab * g_a) / det
        step = np.ones(n)
        for _ in range(30):  # halve the steps that make things worse
            worse = objective(a + step * d_a, b + step * d_b) > value
            if not worse.any():
                break
            step = np.where(worse, step / 2, step)
        step = np.where(worse, 0.0, step)
        a, b = a + step * d_a, b + step * d_b
        before, value = value, objective(a, b)
        if np.all(before - value <= 1e-9 * np.abs(value) + 1e-12):
            break
    return a, b


def is_relevant(top: sp.csr_matrix, truth: Csr) -> npt.NDArray[np.bool_]:
    """For each stored entry of ``top`` whether ``truth`` has it."""
    rows = np.repeat(np.arange(top.shape[0], dtype=np.int64), np.diff(top.indptr))
    true_rows = np.repeat(np.arange(truth.shape[0], dtype=np.int64), np.diff(truth.indptr))
    width = truth.shape[1]
    relevant: npt.NDArray[np.bool_] = np.isin(rows * width + top.indices, true_rows * width + truth.indices)
    return relevant


def write_calibration(path: Path, calibration: Calibration) -> None:
    tensors: Tensors = {"scale": calibration.scale, "shift": calibration.shift}
    common = {"global_scale": calibration.global_scale, "global_shift": calibration.global_shift}
    write_tensors(path, tensors, {name: repr(value) for name, value in common.items()})


def read_calibration(path: Path) -> Calibration:
    tensors, metadata = read_tensors(path, map_file=False, verify=True)
    try:
        common = float(metadata["global_scale"]), float(metadata["global_shift"])
        scale, shift = tensors["scale"], tensors["shift"]
        for array in (scale, shift):
            if array.dtype != np.float32 or array.shape != (scale.size,) or not np.isfinite(array).all():
                raise ValueError("scale or shift")
        return Calibration(scale, shift, *common)
    except (KeyError, ValueError) as error:
        raise ModelFormatError(f"{path}: damaged, {error} is missing or bad") from None
