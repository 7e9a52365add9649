"""Opening models of any kind and predicting with them alike."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from xmc_fast.cli._inputs import joined

if TYPE_CHECKING:
    from xmc_fast.data import Dataset


def open_model(folder: str, threads: int | None = None) -> Any:
    """A saved model of any kind."""
    import xmc_fast

    if not xmc_fast.model.is_model_folder(folder):
        raise ValueError(f"{folder} is not a model folder (it has no manifest.json)")
    model: Any = xmc_fast.load(folder)
    if hasattr(model, "n_jobs"):
        model.n_jobs = threads
    return model


def linear_part(model: Any) -> Any:
    """The linear model inside a text classifier; else the model itself."""
    from xmc_fast.texts import TextClassifier

    return model.model_ if isinstance(model, TextClassifier) else model


def takes_text(model: Any) -> bool:
    """Whether a model takes texts; else it takes features."""
    from xmc_fast.texts import TextClassifier

    return isinstance(model, TextClassifier) or hasattr(model, "predict_file")


def label_names(model: Any) -> list[str] | None:
    """Names of a model's labels, if it has them."""
    names = getattr(model, "label_names_", None)
    return names if names is not None else getattr(model, "label_names", None)


def n_labels(model: Any) -> int:
    """Number of labels of a model."""
    linear = linear_part(model)
    return int(getattr(linear, "n_labels", None) or linear.n_labels_)


def names(model: Any) -> list[str]:
    """Names of a model's labels, their numbers where it has none."""
    return label_names(model) or [str(i) for i in range(n_labels(model))]


def calibrated(model: Any) -> bool:
    """Whether a model gives probabilities that were fitted on held-out data."""
    inner = linear_part(model)
    return getattr(inner, "gives_probabilities", False) or getattr(inner, "calibration", None) is not None


def check_input(model: Any, data: Dataset) -> None:
    """An error where a model and data do not go together."""
    wants_text = takes_text(model)
    if wants_text != (data.texts is not None):
        kinds = ("features", "raw text")
        raise ValueError(
            f"the model takes {kinds[wants_text]}, the data is {kinds[not wants_text]} (see --format)"
        )


def predict(model: Any, data: Dataset, k: int, *, proba: bool = False, **options: Any) -> Any:
    """The ``k`` best labels of each row as CSR; options that a model does not know are left out."""
    check_input(model, data)
    accepted = inspect.signature(model.predict).parameters
    options = {name: value for name, value in options.items() if name in accepted}
    if "output" in accepted:  # a text classifier
        return model.predict(data.texts, k, proba=proba, output="csr", **options)
    if proba and "proba" not in accepted:
        raise ValueError(f"a {type(model).__name__} model has no calibrated probabilities")
    options |= {"proba": proba} if "proba" in accepted else {}
    return model.predict(data.X if data.texts is None else joined(data), k, **options)


def sizes(model: Any) -> dict[str, Any]:
    """Numbers of a saved model, those of ``xmc-fast info``."""
    inner = linear_part(model)
    facts = {
        "labels": n_labels(model),
        "features": int(getattr(inner, "n_features", None) or inner.n_features_in_),
        "weights": getattr(inner, "nnz", None),
        "trees": getattr(inner, "n_trees", None),
        "buckets": getattr(inner, "n_buckets", None),
        "repeats": getattr(inner, "n_repeats", None),
        "bytes": inner.nbytes,
    }
    return {name: value for name, value in facts.items() if value is not None}
