"""Why a label: the classifiers on its path through a tree, and what each feature adds to them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from xmc_fast.model._predict import one_row
from xmc_fast.tree._store import Level


class PathStep(NamedTuple):
    """One classifier on a label's path: ``score = bias + sum of contributions``."""

    tree: int
    level: int  # from the top; the last one is the label itself
    node: int
    score: float
    factor: float  # exp(-w max(0, 1 - score)^power), the step's part of the product; w: see LabelTree
    bias: float
    columns: npt.NDArray[np.int64]  # features of the row
    values: npt.NDArray[np.float64]  # of the row, normalised if the model does
    weights: npt.NDArray[np.float64]  # of the node's classifier
    contributions: npt.NDArray[np.float64]  # values * weights


def explain(model: Any, x: Any, label: int) -> list[PathStep]:
    """See `LabelTree.explain`."""
    row = one_row(x, model.n_features_in_)
    if not 0 <= label < model.n_labels_:
        raise ValueError(f"label must be from 0 to {model.n_labels_ - 1}, got {label}")
    columns, values = row.indices.astype(np.int64), row.data.astype(np.float64)
    if model.normalize and len(values):
        values = values / (np.sqrt(np.square(values).sum()) or 1.0)
    steps = []
    for t, (levels, order) in enumerate(model.trees_):
        for i, (parent, node) in enumerate(path(levels, order, label)):
            level = levels[i]
            features, weights = node_weights(level, parent, node)
            bias = float(level["bias"][node])
            at = np.minimum(np.searchsorted(features, columns), max(len(features) - 1, 0))
            known = features[at] == columns if len(features) else np.zeros(len(columns), bool)
            own = np.where(known, weights[at], 0.0) if len(features) else np.zeros(len(columns))
            score = bias + float((values * own).sum())
            share = model.decay ** (len(levels) - 1 - i)
            factor = float(np.exp(-share * max(0.0, 1 - score) ** model.power))
            steps.append(PathStep(t, i, node, score, factor, bias, columns, values, own, values * own))
    return steps


def path(levels: list[Level], order: npt.NDArray[np.int32], label: int) -> list[tuple[int, int]]:
    """The (parent, node) of each level on the way to a label, from the top down."""
    node = int(np.flatnonzero(order == label)[0])
    found = []
    for level in reversed(levels):
        parent = int(np.searchsorted(level["child_start"], node, side="right")) - 1
        found.append((parent, node))
        node = parent
    return found[::-1]


def node_weights(
    level: Level, parent: int, node: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Features (ascending) and weights of one node's classifier, out of its parent's chunk."""

    def part(name: str, start: str) -> npt.NDArray[Any]:
        return level[name][int(level[start][parent]) : int(level[start][parent + 1])]

    buckets = level["bucket"].reshape(-1, 2)
    first, last = (int(level["bucket_start"][p]) for p in (parent, parent + 1))
    ends = buckets[first:last, 0].astype(np.int64)
    sizes = ends[1:] - ends[:-1]
    B = len(sizes)
    features = part("tag", "feature_start").astype(np.int64) * B + np.repeat(np.arange(B), sizes)
    of_entry = np.repeat(features, part("count", "feature_start").astype(np.int64) + 1)
    mine = part("child", "entry_start") == node - int(level["child_start"][parent])
    weights = part("weight", "entry_start")[mine].astype(np.float64) * float(level["scale"][node])
    order = np.argsort(of_entry[mine], kind="stable")
    return of_entry[mine][order], weights[order]
