"""Neighbours by inner product and DECLARE's recovery, written plainly."""

from __future__ import annotations

import numpy as np


def search(rows, queries, q):
    """The q best rows per query: higher score first, then lower row."""
    scores = queries.astype(np.float64) @ rows.astype(np.float64).T
    ids = np.argsort(-scores, axis=1, kind="stable")[:, :q]
    return ids, np.take_along_axis(scores, ids, 1)


def recover(ids, similarity, Y, k):
    """Per query the k best (label, score) pairs of sum_r s_r Y[r], labels of at least one neighbour only."""
    out = []
    for row_ids, row_sims in zip(ids, similarity, strict=True):
        neighbours = Y[row_ids].toarray()
        score = row_sims.astype(np.float64) @ neighbours
        labels = np.flatnonzero(neighbours.any(0))
        best = labels[np.lexsort((labels, -score[labels].astype(np.float32)))][:k]
        out.append((best, score[best]))
    return out
