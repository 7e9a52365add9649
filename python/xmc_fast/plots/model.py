"""Pictures of models: their weights, what pruning costs, how reliable their probabilities are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from xmc_fast._validate import at_least, labels, matrix_of
from xmc_fast.metrics import precision_at_k
from xmc_fast.model import SparseModel, is_relevant, weight_counts
from xmc_fast.plots._axes import axes, finish

if TYPE_CHECKING:
    from xmc_fast.tree import LabelTree


def weight_histogram(model: SparseModel, ax: Any = None, *, delta: float = 0.01, bins: int = 60) -> Any:
    """Absolute weights on log axes, those that pruning at ``delta`` drops shown apart.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> ax = weight_histogram(SparseModel(sp.random(20, 30, 0.5, "csr", random_state=0)))
    >>> ax.get_xlabel()
    '|weight|'
    """
    ax = axes(ax)
    at_least(1, bins=bins)
    edges = np.logspace(-5, 2, bins + 1)
    counts = weight_counts(model, edges)
    kept = weight_counts(model.prune(delta), edges)
    ax.stairs(counts, edges, label=f"all: {model.nnz:,}")
    ax.stairs(kept, edges, fill=True, alpha=0.5, label=f"|w| ≥ {delta:g}: {model.prune(delta).nnz:,}")
    return finish(ax, "|weight|", "weights", xscale="log", yscale="symlog")


def pruning_curve(
    model: SparseModel,
    X: Any,
    Y: Any,
    ax: Any = None,
    *,
    deltas: Sequence[float] = (0, 0.003, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3),
    k: Sequence[int] = (1, 3, 5),
    n_jobs: int | None = None,
) -> Any:
    """P@k (left axis) and size (right axis) of the model pruned at each of ``deltas``.

    Returns
    -------
    matplotlib Axes
        The left one; the right one is ``ax.figure.axes[-1]``.

    Examples
    --------
    >>> from xmc_fast import OneVsAll
    >>> from xmc_fast.data import make_synthetic
    >>> X, Y = make_synthetic(60, 20, 12)
    >>> ax = pruning_curve(OneVsAll().fit(X, Y).model_, X, Y, deltas=[0.01, 0.1])
    >>> [line.get_label() for line in ax.lines]
    ['P@1', 'P@3', 'P@5']
    """
    ax = axes(ax)
    truth, precision, size = matrix_of(labels(Y)), [], []
    for delta in deltas:
        pruned = model.prune(delta)
        top = pruned.predict(X, max(k), n_jobs=n_jobs)
        precision.append([100 * float(precision_at_k(truth, top, cut)) for cut in k])
        size.append(pruned.nbytes / 1e6)
    for cut, values in zip(k, np.transpose(precision), strict=True):
        ax.plot(deltas, values, marker="o", label=f"P@{cut}")
    ax.set(xlabel="Δ (weights below are dropped)", ylabel="P@k, %")
    ax.set_xscale("symlog", linthresh=1e-3)
    right = ax.twinx()
    right.plot(deltas, size, color="grey", linestyle="--", marker=".", label="size")
    right.set(ylabel="size, MB", ylim=(0, None))
    ax.legend(loc="lower left")
    return ax


def reliability(
    model: SparseModel | LabelTree,
    X: Any,
    Y: Any,
    ax: Any = None,
    *,
    k: int = 20,
    bins: int = 10,
    n_jobs: int | None = None,
) -> Any:
    """How often labels given a probability p are relevant: a calibrated model is on the diagonal.

    Bins hold equally many of the ``k`` best labels of each row.

    Examples
    --------
    >>> from xmc_fast import OneVsAll
    >>> from xmc_fast.data import make_synthetic
    >>> X, Y = make_synthetic(60, 20, 12)
    >>> model = OneVsAll().fit(X[:40], Y[:40]).model_
    >>> model = model.calibrate(X[40:], Y[40:])
    >>> ax = reliability(model, X[40:], Y[40:], k=5)
    >>> ax.get_xlabel()
    'predicted probability'
    """
    ax = axes(ax)
    top = model.predict(X, k, proba=True, n_jobs=n_jobs)
    relevant = is_relevant(top, labels(Y, n_rows=top.shape[0], n_labels=top.shape[1]))
    order = np.argsort(top.data, kind="stable")
    at_least(1, bins=bins)
    groups = [group for group in np.array_split(order, bins) if len(group)]
    p = [float(top.data[group].mean()) for group in groups]
    observed = [float(relevant[group].mean()) for group in groups]
    error = sum(abs(a - b) * len(g) for a, b, g in zip(p, observed, groups, strict=True)) / max(1, len(order))
    ax.plot([0, 1], [0, 1], color="grey", linewidth=1)
    ax.plot(p, observed, marker="o", label=f"calibration error {error:.4f}")
    return finish(ax, "predicted probability", "share of relevant labels", xlim=(0, 1), ylim=(0, 1))
