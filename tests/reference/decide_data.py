"""Random probabilities for the tests of decisions, and what every prediction must look like."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp


def random_proba(n, labels, seed=0, density=1.0):
    """Long-tailed probabilities: some labels frequent, most rare; float32 so that all sides see the same."""
    rng = np.random.default_rng(seed)
    eta = rng.beta(0.4, 2.0, (n, labels)) * (1.0 / np.sqrt(1 + np.arange(labels)))
    eta[rng.random((n, labels)) > density] = 0
    return eta.astype(np.float32)


def short_lists(n, labels, size, seed=0):
    """Sparse probabilities with `size` candidates per row."""
    rng = np.random.default_rng(seed)
    popular = rng.permutation(labels)
    indices = np.stack(
        [popular[np.unique((labels * rng.random(4 * size) ** 2).astype(int))[:size]] for _ in range(n)]
    )
    data = rng.beta(0.3, 2.0, indices.shape).astype(np.float32)
    matrix = sp.csr_matrix((data.ravel(), indices.ravel(), np.arange(n + 1) * size), shape=(n, labels))
    matrix.sort_indices()
    return matrix


def dense(prediction):
    chosen = sp.csr_matrix(
        (np.ones(prediction.nnz), prediction.indices, prediction.indptr), shape=prediction.shape
    )
    return chosen.toarray()


def assert_k_best_first(prediction, k):
    assert (np.diff(prediction.indptr) == k).all()
    scores = prediction.data.reshape(-1, k)
    assert (np.diff(scores, axis=1) <= 0).all()
    assert dense(prediction).max(initial=0) <= 1
