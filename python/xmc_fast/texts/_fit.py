"""Training of text classifiers (`TextClassifier.fit`): names to columns, texts to features, probabilities, a rule."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.utils import check_random_state

from xmc_fast._validate import at_least
from xmc_fast.linear import OneVsAll
from xmc_fast.model import SparseModel
from xmc_fast.text import TfidfVectorizer
from xmc_fast.texts import _store
from xmc_fast.texts._decide import CANDIDATES, Decision, check_rule, fit_decision
from xmc_fast.texts._embed import beside, embeddings
from xmc_fast.texts._inputs import text_columns
from xmc_fast.texts._labels import encode
from xmc_fast.texts._state import TextState

if TYPE_CHECKING:
    from xmc_fast.texts._classifier import TextClassifier

Rows = npt.NDArray[np.intp]
PRIOR_STRENGTH = 100.0  # of the probabilities of labels with few rows (docs/experiments/settings.md)
MOST_HELD_OUT = 1000  # rows for probabilities; a rule for how many labels a text gets takes the whole share
WORTH_REFIT = 0.05  # where more than this share is held out, the model is trained again, on all rows


def fit_texts(
    classifier: TextClassifier,
    texts: Any,
    labels: Any,
    sep: str | None,
    label_names: Sequence[str] | None,
    label_range: tuple[int, int] | None,
    checkpoint: str | os.PathLike[str] | None,
    engine: Any,
    keep_state: bool,
    decide: Any,
) -> TextClassifier:
    """See `TextClassifier.fit`."""
    if decide is not None:
        check_rule(decide)
    if not 0 <= classifier.calibrate < 1:
        raise ValueError(f"calibrate must be a share from 0 to below 1, got {classifier.calibrate!r}")
    if keep_state and classifier.embed is not None:
        raise ValueError("keep_state is not for a classifier with embed: train it anew on all texts")
    columns = text_columns(texts)
    encoded = encode(labels, label_names, sep)
    if encoded.Y.shape[0] != columns.n_rows:
        raise ValueError(f"texts has {columns.n_rows} rows, labels has {encoded.Y.shape[0]}")
    filled = columns.filled
    Y = encoded.known
    usable = np.flatnonzero(filled & (np.diff(Y.indptr) > 0))
    if not len(usable):
        raise ValueError(f"none of the {columns.n_rows} rows has both a text and a label")
    names = encoded.names
    if label_names is None and encoded.by_name:  # not those of unusable rows only
        found = np.flatnonzero(np.bincount(Y[usable].indices, minlength=len(names)))
        names, Y = [names[i] for i in found], Y[:, found]
    once = checkpoint is not None or keep_state  # something goes on from this fit
    model = _make_model(classifier, whole=label_range is None and not once)
    needed = decide is not None or not getattr(model, "gives_probabilities", False)
    most = MOST_HELD_OUT if decide is None else None
    train, held_out = split(classifier, usable, most) if needed else (usable, usable[:0])
    counts = np.bincount(Y[usable].indices, minlength=Y.shape[1]).astype(np.int64)
    classifier.text_columns_ = columns.names
    classifier.reading_ = {"sep": sep or encoded.sep} if encoded.sep else {}
    options = {"checkpoint": checkpoint, "engine": engine, "labels": label_range}
    options |= {"keep_state": True} if keep_state else {}
    given = {name: value for name, value in options.items() if value is not None}
    wide, first = Y, slice(*label_range) if label_range is not None else slice(None)
    names, counts, Y = names[first], counts[first], Y[:, first]
    classifier.label_names_, classifier.label_counts_ = names, counts

    dense = None if classifier.embed is None else embeddings(classifier.embed, columns)  # once for all rows
    classifier.embedding_size_ = 0 if dense is None else dense.shape[1]

    def learn(rows: Rows) -> Any:
        """Train vectorizer and model on some of the rows."""
        classifier.vectorizer_, classifier._feature_names = make_vectorizer(classifier), None
        X = classifier.vectorizer_.fit_transform(columns.take(rows).given)
        X = beside(X, None if dense is None else dense[rows])
        fitted = model.fit(X, wide[rows], **given)
        linear = getattr(fitted, "model_", None)
        classifier.model_ = _store.named(linear, names) if isinstance(linear, SparseModel) else fitted
        return fitted

    fitted = learn(train)
    classifier.fit_report_ = {
        "rows": columns.n_rows,
        "trained": len(train),
        "held_out": len(held_out),
        "empty_texts": int((~filled).sum()),
        "missing_texts": columns.missing,
        "unlabelled_rows": int((~encoded.labelled).sum()),
        "repeated_labels": encoded.repeated,
        "unknown_labels": len(encoded.unknown),
        "labels": len(names),
        "labels_without_rows": int((np.bincount(Y[train].indices, minlength=Y.shape[1]) == 0).sum()),
        "calibrated": bool(getattr(classifier.model_, "gives_probabilities", False)),
    }
    n_features = _store.n_terms(classifier.vectorizer_) + classifier.embedding_size_
    X_held = sp.csr_matrix((0, n_features), dtype=np.float32)
    if len(held_out):
        X_held = classifier.vectorizer_.transform(columns.take(held_out).given)
        X_held = beside(X_held, None if dense is None else dense[held_out])
    Y_held = Y[held_out]
    if len(held_out):
        calibrate(classifier, X_held, Y_held)
    classifier.decision_ = None if decide is None else make_decision(classifier, decide, X_held, Y_held)
    if not once and len(held_out) > WORTH_REFIT * len(usable):
        calibration = getattr(classifier.model_, "calibration", None)
        learn(usable)
        if calibration is not None:
            classifier.model_.calibration = calibration
        classifier.fit_report_ |= {"trained": len(usable), "labels_without_rows": int((counts == 0).sum())}
    classifier.state_ = None
    if keep_state:
        rows = train.astype(np.int64), held_out.astype(np.int64)
        classifier.state_ = TextState(fitted.state_, *rows, X_held, Y_held, columns.n_rows)
    return classifier


def split(classifier: TextClassifier, rows: Rows, most: int | None = None) -> tuple[Rows, Rows]:
    """Rows to train on and rows to calibrate on (``most`` at most), both ascending."""
    n_held = round(classifier.calibrate * len(rows))
    n_held = n_held if most is None else min(n_held, most)
    chosen = check_random_state(classifier.random_state).permutation(len(rows))[:n_held]
    held = np.zeros(len(rows), bool)
    held[chosen] = True
    return rows[~held], rows[held]


def make_vectorizer(classifier: TextClassifier) -> TfidfVectorizer:
    """A vectorizer with the classifier's parameters."""
    hashed = classifier.hashing is not None
    if classifier.hashing is not None:
        at_least(1, hashing=classifier.hashing)
    return TfidfVectorizer(
        analyzer=classifier.analyzer,
        ngram_range=classifier.ngram_range,
        min_df=1 if hashed else classifier.min_df,
        stop_words=classifier.stop_words,
        strip_accents=classifier.strip_accents,
        sublinear_tf=classifier.sublinear_tf,
        n_features=classifier.hashing,
        weights=classifier.weights,
        n_jobs=classifier.n_jobs,
    )


def _make_model(classifier: TextClassifier, *, whole: bool) -> Any:
    """``whole``: the model is not a part of something else, and nothing goes on from it."""
    if classifier.model is None:
        size = "auto" if whole else "exact"
        return OneVsAll(size=size, n_jobs=classifier.n_jobs, random_state=classifier.random_state)
    return clone(classifier.model)


def calibrate(classifier: TextClassifier, X: sp.csr_matrix, Y: sp.csr_matrix) -> None:
    """Fit probabilities on held-out rows where the model has them."""
    if not hasattr(classifier.model_, "calibrate"):
        return
    try:
        classifier.model_.calibrate(X, Y, prior_strength=PRIOR_STRENGTH, n_jobs=classifier.n_jobs)
    except ValueError:  # no right label among the candidates of so few rows
        return
    classifier.fit_report_["calibrated"] = True


def make_decision(classifier: TextClassifier, rule: Any, X: sp.csr_matrix, Y: sp.csr_matrix) -> Decision:
    """Fit a rule on held-out rows."""
    top = (
        classifier.model_.predict(X, CANDIDATES, proba=True) if classifier.calibrated and X.shape[0] else None
    )
    return fit_decision(rule, top, Y)
