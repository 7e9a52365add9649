"""Exact top-k of a linear model in plain numpy, float64."""

from __future__ import annotations

import numpy as np


def scores(W, X, *, bias=None, normalize=False):
    """X Wᵀ with rows normalised and extended as SparseModel says; n x L."""
    X = np.asarray(X, np.float64)
    if normalize:
        norms = np.linalg.norm(X, axis=1, keepdims=True)
        X = X / np.where(norms > 0, norms, 1)
    if bias is not None:
        X = np.hstack([X, np.full((len(X), 1), bias)])
    return X @ np.asarray(W, np.float64).T


def top_k(S, k):
    """Ids and scores of the k best of each row: score descending, then lower id, NaN last."""
    k = min(k, S.shape[1])
    missing = np.isnan(S)
    order = np.lexsort((np.where(missing, 0, -S), missing), axis=1)[:, :k]
    return order, np.take_along_axis(S, order, axis=1)
