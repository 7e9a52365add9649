"""Settings of lightxml_whole, its models by name: what tables call them, and what differs from the settings."""

from __future__ import annotations

from typing import Any

SETTINGS: dict[str, Any] = {
    "max_length": 128,
    "pooling": "mean",
    "layers": 1,
    "head_start": "centroids",
    "mode": "flat",
    "warmup_epochs": 5,
    "epochs": 0,
    "batch_size": 64,
    "lr": 1e-4,
    "head_lr": 1e-3,
    "dropout": 0.1,
    "schedule": "linear",
    "max_leaf": 16,
    "beam": 16,
    "bottleneck": 384,
}
CLUSTERS = {"mode": "clusters"}
CELLS: dict[str, tuple[str, dict[str, Any]]] = {
    "linear": ("one-vs-all, tf-idf of the whole texts", {}),
    "linear-cut": ("one-vs-all, tf-idf of the 128 tokens", {}),
    "vectors": ("(vectors of the encoder as it comes, once for all texts)", {}),
    "centroids": ("LightXML, flat, encoder frozen, heads as they start", {"warmup_epochs": 0}),
    "flat-heads": ("LightXML, flat, encoder frozen", {}),
    "random-start": ("LightXML, flat, encoder frozen, random start", {"head_start": "random"}),
    "sparse": ("SparseClassifier on the vectors of the frozen encoder", {}),
    "dynamic-heads": ("LightXML, clusters, dynamic negatives, encoder frozen", CLUSTERS),
    "static-heads": (
        "LightXML, clusters, static negatives, encoder frozen",
        {**CLUSTERS, "negatives": "static"},
    ),
    "upper": ("LightXML, flat, upper 2 layers trained for 2 epochs", {"epochs": 2, "frozen_layers": 4}),
    "full": ("LightXML, flat, whole encoder trained for 2 epochs", {"epochs": 2}),
}
