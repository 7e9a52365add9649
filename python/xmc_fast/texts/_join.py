"""Text classifiers from parts: of a vectorizer and a model, or of classifiers for parts of the labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from xmc_fast.model import SparseModel
from xmc_fast.texts import _store

if TYPE_CHECKING:
    from xmc_fast.texts._classifier import TextClassifier


def join(
    cls: type[TextClassifier],
    vectorizer: Any,
    model: Any,
    label_names: Sequence[str] | None,
    embedded: int = 0,
) -> TextClassifier:
    """See `TextClassifier.from_parts`; ``embedded``: features of the model after the vectorizer's."""
    out = cls()
    terms = _store.n_terms(vectorizer)
    features = getattr(model, "n_features", getattr(model, "n_features_in_", terms + embedded))
    if terms + embedded != features:
        more = f" and {embedded} of embeddings" if embedded else ""
        raise ValueError(f"the vectorizer has {terms} terms{more}, the model {features} features")
    out.embedding_size_ = embedded
    if label_names is None:
        label_names = getattr(model, "label_names", None)
    n_labels = int(getattr(model, "n_labels", getattr(model, "n_labels_", 0)))
    names = [str(i) for i in range(n_labels)] if label_names is None else [str(n) for n in label_names]
    if len(names) != n_labels:
        raise ValueError(f"label_names has {len(names)} entries, the model has {n_labels} labels")
    out.vectorizer_, out.model_, out.label_names_ = vectorizer, model, names
    out.text_columns_, out.label_counts_, out.fit_report_, out.reading_ = [""], None, {}, {}
    return out


def concat(cls: type[TextClassifier], parts: Sequence[TextClassifier]) -> TextClassifier:
    """See `TextClassifier.concat`."""
    if not parts:
        raise ValueError("parts must hold at least one classifier, got none")
    first = parts[0]
    for position, part in enumerate(parts):
        if not _store.same_vectorizer(part.vectorizer_, first.vectorizer_):
            raise ValueError(
                f"parts[{position}] has another vectorizer than parts[0]: they were trained on other texts"
            )
    names = [name for part in parts for name in part.label_names_]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the label {twice!r} is in two parts")
    model = SparseModel.concat([part.model_ for part in parts])
    model.calibration = _store.joined_calibration([part.model_.calibration for part in parts])
    out = cls(**first.get_params(deep=False))
    out.vectorizer_, out.label_names_, out.text_columns_ = first.vectorizer_, names, first.text_columns_
    out.model_ = _store.named(model, names)
    counts = [part.label_counts_ for part in parts if part.label_counts_ is not None]
    out.label_counts_ = np.concatenate(counts) if len(counts) == len(parts) else None
    out.embedding_size_ = first.embedding_size_
    out.fit_report_, out.reading_ = {**first.fit_report_, "labels": len(names)}, first.reading_
    return out
