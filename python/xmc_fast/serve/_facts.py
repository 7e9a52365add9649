"""What the page says about a model: sizes, how it was trained, its measures, the frequencies of its labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from xmc_fast._folder import read_json
from xmc_fast.texts import TextClassifier

VALIDATION = "validation.json"  # written by xmc-fast train --valid
POINTS = 60  # of the curve of label frequencies


def facts(classifier: TextClassifier, folder: Path) -> dict[str, Any]:
    """JSON-ready facts of a classifier and of its folder."""
    inner: Any = classifier.model_
    weights = getattr(inner, "nnz", None)
    return {
        "kind": type(inner).__name__,
        "labels": len(classifier.label_names_),
        "features": int(getattr(inner, "n_features", None) or inner.n_features_in_),
        "weights": None if weights is None else int(weights),
        "bytes": classifier.nbytes,
        "disk_bytes": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
        "probabilities": classifier.calibrated or type(inner).__name__ == "LabelTree",
        "explains": hasattr(inner, "blocks"),
        "text_columns": classifier.text_columns_,
        "reading": classifier.reading_,
        "fit_report": classifier.fit_report_,
        "validation": read_json(folder / VALIDATION) if (folder / VALIDATION).is_file() else None,
        "label_frequencies": frequencies(classifier),
    }


def frequencies(classifier: TextClassifier) -> list[tuple[int, int]]:
    """(rank, rows) of labels by falling frequency, at ranks evenly spaced on a logarithmic axis."""
    counts = classifier.label_counts_
    if counts is None or not len(counts):
        return []
    falling = np.sort(np.asarray(counts))[::-1]
    ranks = np.unique(np.geomspace(1, len(falling), POINTS).round().astype(int))
    return [(int(rank), int(falling[rank - 1])) for rank in ranks]
