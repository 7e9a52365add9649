"""LightXML in plain numpy loops (Jiang et al. 2021, eq. 1 to 5 and algorithm 1), on given text representations."""

from __future__ import annotations

import numpy as np


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def candidate_clusters(scores, beam, true_clusters=()):
    """The clusters of the positives, then the best others, until there are ``beam``; best first, as a set."""
    best = sorted(set(range(len(scores))) - set(true_clusters), key=lambda c: (-scores[c], c))
    return sorted({*true_clusters, *best[: max(0, beam - len(set(true_clusters)))]})


def candidates(clusters, chosen):
    """All labels of the chosen clusters."""
    return sorted(label for c in chosen for label in clusters[c])


def cross_entropy(p, y):
    return -np.log(p) if y else -np.log(1 - p)


def discriminator(e, label, W_h, b_h, E, activation):
    """Eq. 4."""
    h = W_h @ e + b_h
    h = sigmoid(h) if activation == "sigmoid" else h
    return sigmoid(E[label] @ h)


def losses(e, positives, clusters, W_g, b_g, W_h, b_h, E, beam, activation="sigmoid"):
    """L_g and L_d of one text; ``clusters`` are lists of labels, ``E`` by label."""
    g = sigmoid(W_g @ e + b_g)
    true = sorted({c for c, members in enumerate(clusters) for label in members if label in positives})
    recall = sum(cross_entropy(g[c], c in true) for c in range(len(clusters)))
    chosen = candidate_clusters(g, beam, true)
    rank = sum(
        cross_entropy(discriminator(e, label, W_h, b_h, E, activation), label in positives)
        for label in candidates(clusters, chosen)
    )
    return recall, rank


def scores(e, clusters, W_g, b_g, W_h, b_h, E, beam, activation="sigmoid"):
    """{label: score} of the candidates: the product of both probabilities."""
    g = sigmoid(W_g @ e + b_g)
    return {
        label: g[c] * discriminator(e, label, W_h, b_h, E, activation)
        for c in candidate_clusters(g, beam)
        for label in clusters[c]
    }
