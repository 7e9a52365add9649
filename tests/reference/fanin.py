"""The fixed fan-in layer in float64 numpy, as the formula reads (csrc/fanin/fanin.h)."""

from __future__ import annotations

import numpy as np


def dense(weight, indices, group_size, features):
    """The layer as a (labels, features) matrix."""
    W = np.zeros((len(weight), features))
    for label in range(len(weight)):
        W[label, indices[label // group_size].astype(int)] = weight[label]
    return W


def forward(x, W, bias):
    return x @ W.T + bias


def gradients(x, W, g, indices, group_size):
    """For features, weights (at the connections) and bias."""
    full = g.T @ x  # labels x features
    lists = indices[np.arange(len(W)) // group_size].astype(int)
    return g @ W, np.take_along_axis(full, lists, 1), g.sum(0)


def squared_hinge(z, y):
    margin = np.maximum(0, 1 - y * z)
    return (margin**2).sum(), -2 * y * margin


def bce(z, y):
    return np.logaddexp(0, -y * z).sum(), -y / (1 + np.exp(np.clip(y * z, -700, 700)))


def topk(z, k):
    """Best first; equal scores by lower id; NaN last."""
    key = np.where(np.isnan(z), -np.inf, z)
    nan = np.isnan(z)
    ids = np.stack([np.lexsort((np.arange(z.shape[1]), -key[b], nan[b]))[:k] for b in range(len(z))]).reshape(
        len(z), k
    )
    return np.take_along_axis(z, ids, 1), ids
