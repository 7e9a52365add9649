"""Beam search in a label tree, as csrc/tree/predict.h says it; levels as csrc/tree/level.h stores them."""

from __future__ import annotations

import numpy as np


def chunk_scores(x, level, p):
    """Scores of the children of parent p for a dense row, l2-normalised here."""
    norm = np.linalg.norm(x.astype(np.float64))
    x = x / norm if norm > 0 else x
    first, last = level["child_start"][p : p + 2]
    buckets = level["bucket"].reshape(-1, 2)[level["bucket_start"][p] : level["bucket_start"][p + 1]]
    B = len(buckets) - 1
    tags = level["tag"][level["feature_start"][p] :]
    counts = level["count"][level["feature_start"][p] :]
    entries = slice(level["entry_start"][p], level["entry_start"][p + 1])
    child, weight = level["child"][entries], level["weight"][entries].astype(np.float64)
    scores = np.zeros(last - first)
    for b in range(B):
        (feature, entry), end = buckets[b], buckets[b + 1][0]
        for f in range(feature, end):
            size = int(counts[f]) + 1
            j = int(tags[f]) * B + b
            for t in range(entry, entry + size):
                scores[child[t]] += x[j] * weight[t]
            entry += size
    return scores * level["scale"][first:last] + level["bias"][first:last]


def search(x, levels, beam, k, power, decay, slack=np.inf):
    """Nodes of the last level and their scores, best first."""
    nodes = [(p, 0.0) for p in range(len(levels[0]["child_start"]) - 1)]
    for depth, level in enumerate(levels):
        found = []
        for p, above in nodes:
            penalty = np.maximum(0, 1 - chunk_scores(x, level, p)) ** power
            found += [(decay * above - loss, level["child_start"][p] + c) for c, loss in enumerate(penalty)]
        found.sort(key=lambda pair: (-pair[0], pair[1]))
        if depth + 1 == len(levels):
            found = found[:k]
        else:
            found = [pair for pair in found[:beam] if pair[0] >= found[0][0] - slack]
        nodes = [(node, score) for score, node in found]
    return np.array([n for n, _ in nodes]), np.exp([s for _, s in nodes])
