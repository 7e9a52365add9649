"""Updates of text classifiers: new, changed and removed texts, new words and labels (`TextClassifier.update`)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast._validate import to_scipy
from xmc_fast.linear import OneVsAll
from xmc_fast.model import SparseModel
from xmc_fast.text import TfidfVectorizer
from xmc_fast.texts import _store
from xmc_fast.texts._fit import calibrate, make_decision, split
from xmc_fast.texts._inputs import Columns, text_columns
from xmc_fast.texts._labels import encode
from xmc_fast.texts._state import TextState
from xmc_fast.update import apply_change, find_change

if TYPE_CHECKING:
    from xmc_fast.texts._classifier import TextClassifier

DRIFT = 0.05  # from this mean relative change of the idf on, advise to refresh it


def update_texts(
    classifier: TextClassifier,
    texts: Any,
    labels: Any,
    sep: str | None,
    relabel: Mapping[int, Any] | None,
    remove_rows: Sequence[int] | None,
    remove_labels: Sequence[str] | None,
    refresh_idf: bool,
    checkpoint: str | os.PathLike[str] | None,
) -> TextClassifier:
    """See `TextClassifier.update`."""
    state = classifier.state_
    if state is None or not isinstance(classifier.model_, SparseModel):
        raise ValueError("update needs the state of the training: train with fit(..., keep_state=True)")
    columns = text_columns([] if texts is None else texts).select(classifier.text_columns_)
    encoded = classifier.encode([] if labels is None else labels, sep)
    if encoded.Y.shape[0] != columns.n_rows:
        raise ValueError(f"texts has {columns.n_rows} rows, labels has {encoded.Y.shape[0]}")
    changed = encode(
        list((relabel or {}).values()), [*encoded.names, *encoded.unknown], classifier.reading_.get("sep")
    )
    names = [*changed.names, *changed.unknown]
    usable = np.flatnonzero(columns.filled & encoded.labelled)
    train, held = split(classifier, usable)
    vectorizer = grown(classifier.vectorizer_, columns.take(train), len(state.rows)) if len(train) else None
    vectorizer = vectorizer or classifier.vectorizer_
    width = len(names)
    new_x, held_x = (_rows(vectorizer, columns.take(rows)) for rows in (train, held))
    new_y, held_y = (_wide(encoded.Y[rows], width) for rows in (train, held))
    removed = _removed(remove_rows, state)
    old_y = _relabelled(state.linear.Y, state.rows, list(relabel or {}), changed.Y, width)
    held_old = _relabelled(state.Y_held, state.held_rows, list(relabel or {}), changed.Y, width)
    gone = _label_numbers(remove_labels, names)
    estimator = OneVsAll.from_model(classifier.model_).set_params(n_jobs=classifier.n_jobs)
    estimator.state_ = state.linear
    where = np.flatnonzero(np.isin(state.rows, removed))
    change = find_change(state.linear, new_x, new_y, old_y, where, gone)
    X_held = sp.vstack([_wide(state.X_held, new_x.shape[1]), held_x], format="csr")
    drift, idf = _drift(vectorizer, change.X)
    if refresh_idf and idf is not None:
        ratio = (idf / vectorizer.idf_).astype(np.float32)
        change.X, X_held = (_rescaled(matrix, ratio, vectorizer.norm) for matrix in (change.X, X_held))
        vectorizer = _with_idf(vectorizer, idf)
    apply_change(estimator, state.linear, change, checkpoint, same_rows=not refresh_idf)
    kept_labels = np.setdiff1d(np.arange(width), gone)
    kept_held = ~np.isin(state.held_rows, removed)
    both = np.concatenate([kept_held, np.ones(len(held), bool)])
    Y_held = sp.vstack([held_old, held_y], format="csr")[both][:, kept_labels]
    numbers = state.n_rows + np.arange(columns.n_rows)
    classifier.vectorizer_, classifier._feature_names = vectorizer, None
    classifier.label_names_ = [names[i] for i in kept_labels]
    classifier.model_ = _store.named(estimator.model_, classifier.label_names_)
    assert estimator.state_ is not None
    classifier.state_ = TextState(
        estimator.state_,
        np.concatenate([np.delete(state.rows, where), numbers[train]]),
        np.concatenate([state.held_rows[kept_held], numbers[held]]),
        X_held[both],
        Y_held,
        state.n_rows + columns.n_rows,
    )
    every = np.concatenate([change.Y.indices, Y_held.indices])
    classifier.label_counts_ = np.bincount(every, minlength=len(kept_labels)).astype(np.int64)
    summary = {**estimator.update_, "rows_held_out": len(held), "idf_drift": round(drift, 6), "idf": "frozen"}
    if refresh_idf:
        summary["idf"] = "refreshed"
    elif drift > DRIFT:
        summary.setdefault(
            "advice", f"the idf has drifted by {drift:.1%}: refresh_idf=True, or a fit of all texts"
        )
    classifier.model_.params["updates"][-1] = classifier.update_ = summary
    report = classifier.fit_report_
    report |= {"rows": classifier.state_.n_rows, "labels": len(kept_labels), "calibrated": False}
    report |= {"trained": len(classifier.state_.rows), "held_out": len(classifier.state_.held_rows)}
    if len(classifier.state_.held_rows):
        calibrate(classifier, classifier.state_.X_held, Y_held)
    if classifier.decision_ is not None:
        rule = classifier.decision_.rule
        given = int(rule) if rule.isdecimal() else rule
        classifier.decision_ = make_decision(classifier, given, classifier.state_.X_held, Y_held)
    return classifier


def grown(vectorizer: Any, columns: Columns, n_old: int) -> TfidfVectorizer | None:
    """The vectorizer with the words that are new in texts at its end; None if there are none.

    Words must occur in ``min_df`` of the new texts. Their idf counts the old texts as texts without them; the idf of
    old words stays.
    """
    if not isinstance(vectorizer, TfidfVectorizer) or vectorizer.n_features is not None:
        return None
    found = TfidfVectorizer(**vectorizer.get_params())
    try:
        found.fit(columns.given)
    except ValueError:  # no term in so few texts
        return None
    known = set(vectorizer.get_feature_names_out().tolist())
    new = [term for term in found.get_feature_names_out().tolist() if term not in known]
    if not new:
        return None
    n, smooth = columns.n_rows, int(vectorizer.smooth_idf)
    at = found.vocabulary_
    df = (n + smooth) / np.exp(found.idf_[[at[term] for term in new]].astype(np.float64) - 1) - smooth
    idf = np.ones(len(new))
    if vectorizer.use_idf:
        idf += np.log((n_old + n + smooth) / (np.maximum(df, 1) + smooth))
    state = vectorizer.to_dict()
    encoded = [term.encode("utf-8", "surrogatepass") for term in new]
    ends = state["offsets"][-1] + np.cumsum([len(term) for term in encoded])
    return TfidfVectorizer.from_dict(
        {
            "params": state["params"],
            "terms": np.concatenate([state["terms"], np.frombuffer(b"".join(encoded), np.uint8)]),
            "offsets": np.concatenate([state["offsets"], ends]),
            "idf": np.concatenate([state["idf"], idf.astype(np.float32)]),
        }
    )


def _drift(vectorizer: Any, X: sp.csr_matrix) -> tuple[float, npt.NDArray[np.float64] | None]:
    """The mean relative change of the idf over the entries of X if it were counted anew, and that idf."""
    if not isinstance(vectorizer, TfidfVectorizer) or not vectorizer.use_idf:
        return 0.0, None
    smooth = int(vectorizer.smooth_idf)
    df = np.bincount(X.indices, minlength=X.shape[1])
    idf = 1 + np.log((X.shape[0] + smooth) / (np.maximum(df, 1) + smooth))
    change = np.abs(idf / vectorizer.idf_ - 1)
    return float((change * df).sum() / max(df.sum(), 1)), idf


def _with_idf(vectorizer: TfidfVectorizer, idf: npt.NDArray[np.float64]) -> TfidfVectorizer:
    return TfidfVectorizer.from_dict({**vectorizer.to_dict(), "idf": idf.astype(np.float32)})


def _rescaled(X: sp.csr_matrix, ratio: npt.NDArray[np.float32], norm: str | None) -> sp.csr_matrix:
    """Rows with another idf: columns times its ratio, then the norm again."""
    data = X.data * ratio[X.indices]
    rows = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
    if norm is not None:
        size = np.bincount(rows, np.abs(data) if norm == "l1" else np.square(data), minlength=X.shape[0])
        size = size if norm == "l1" else np.sqrt(size)
        data = data / np.where(size > 0, size, 1)[rows]
    return to_scipy(X.indptr, X.indices, data.astype(np.float32), X.shape)


def _rows(vectorizer: Any, columns: Columns) -> sp.csr_matrix:
    if not columns.n_rows:
        return sp.csr_matrix((0, _store.n_terms(vectorizer)), dtype=np.float32)
    return sp.csr_matrix(vectorizer.transform(columns.given), dtype=np.float32)


def _removed(rows: Sequence[int] | None, state: TextState) -> npt.NDArray[np.int64]:
    given = np.asarray([] if rows is None else list(rows), np.int64)
    if len(given) and not 0 <= given.min() <= given.max() < state.n_rows:
        raise ValueError(
            f"remove_rows must be numbers from 0 to {state.n_rows - 1}, got {given.min()} to {given.max()}"
        )
    return given


def _relabelled(
    Y: sp.csr_matrix, numbers: Any, rows: list[int], new: sp.csr_matrix, width: int
) -> sp.csr_matrix:
    """The labels of stored rows, those of ``rows`` (numbers as given) replaced."""
    wide = _wide(Y, width)
    place = {int(number): i for i, number in enumerate(numbers)}
    pairs = [(place[row], i) for i, row in enumerate(rows) if row in place]
    if not pairs:
        return wide
    lines = wide.tolil()
    for at, source in pairs:
        lines[at] = _wide(new[source], width)
    return lines.tocsr()


def _label_numbers(labels: Sequence[str] | None, names: list[str]) -> list[int]:
    place = {name: i for i, name in enumerate(names)}
    for label in labels or ():
        if label not in place:
            raise ValueError(f"remove_labels: the model has no label {label!r}")
    return [place[label] for label in labels or ()]


def _wide(matrix: sp.csr_matrix, width: int) -> sp.csr_matrix:
    return to_scipy(matrix.indptr, matrix.indices, matrix.data, (matrix.shape[0], width))
