"""The ensemble's blend and the vote of neighbours, pair by pair."""

from __future__ import annotations

import numpy as np


def neighbour_shares(X, Y, x, q, power):
    """Share of each label among the q rows of X nearest to x, counted with cosine^power."""
    cosines = X @ x / (np.linalg.norm(X, axis=1) * np.linalg.norm(x))
    order = np.argsort(-cosines, kind="stable")[:q]
    weights = np.maximum(cosines[order], 0) ** power
    return (weights[:, None] * Y[order]).sum(0) / weights.sum()


def pair_numbers(lists, count, label):
    """Numbers of one label of one row; ``lists`` holds (labels, scores) of each member, best first."""
    closeness = np.maximum(0, 1 - np.abs(min(np.log10(max(count, 0.1)), 3) - np.arange(-1, 4)))
    numbers = []
    for ids, scores in lists:
        listed = label in ids
        at = ids.index(label) if listed else len(ids)
        score = scores[at] if listed else (scores[-1] if scores else 0.0)
        first = scores[0] if scores else 0.0
        rank = at + 1
        numbers += [score, score**2, first - score, 1 / rank, np.log(rank)]
    return np.concatenate([*(number * closeness for number in numbers), closeness])
