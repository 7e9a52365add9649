"""A small problem for LightXML: texts that name their labels, a model that learns it in seconds."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from xmc_fast.nn import LightXML

N_LABELS = 24
WORDS = [f"word{i}" for i in range(N_LABELS)]


def make_data(n=64, seed=0):
    """Texts that name their labels."""
    rng = np.random.default_rng(seed)
    rows = [np.unique(rng.integers(0, N_LABELS, 3)) for _ in range(n)]
    texts = [" ".join(["the", *(WORDS[i] for i in row), *["filler"] * rng.integers(0, 6)]) for row in rows]
    Y = np.zeros((n, N_LABELS), np.float32)
    for i, row in enumerate(rows):
        Y[i, row] = 1
    return texts, sp.csr_matrix(Y)


TEXTS, Y = make_data()


def make(folder, **options):
    defaults = {
        "mode": "clusters",
        "max_leaf": 4,
        "beam": 2,
        "bottleneck": 8,
        "warmup_epochs": 0,
        "epochs": 2,
        "lr": 5e-3,
        "head_lr": 2e-2,
        "dropout": 0.0,
        "batch_size": 8,
        "device": "cpu",
    }
    return LightXML(folder, **{**defaults, **options})
