"""Rows of text classifiers: tf-idf, and with `TextClassifier(embed=...)` the embedding of the text beside it.

    row = [tf-idf (norm 1), embedding as the callable gives it],  one CSR, float32

Empty texts have no embedding: their rows stay empty, and get no suggestions. Saved models keep how many numbers an
embedding has, not the callable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast.texts._inputs import Columns, text_columns

if TYPE_CHECKING:
    from xmc_fast.texts._classifier import TextClassifier


def embeddings(embed: Any, columns: Columns, size: int | None = None) -> sp.csr_matrix:
    """What ``embed`` gives for the texts that are not empty, n_rows x d; ``size``: the d it must have."""
    rows = np.flatnonzero(columns.filled)
    given = columns.take(rows).columns.values()
    texts = [" ".join(parts).strip() for parts in zip(*given, strict=True)]
    if not texts and size is not None:
        return sp.csr_matrix((columns.n_rows, size), dtype=np.float32)
    found = np.asarray(embed(texts))
    expected = f"numbers of shape ({len(texts)}, {'d' if size is None else size})"
    if found.dtype.kind not in "iuf" or found.ndim != 2 or len(found) != len(texts):
        raise ValueError(f"embed must return {expected}, got {found.dtype} of shape {found.shape}")
    if found.shape[1] != (size or found.shape[1]) or not found.shape[1]:
        raise ValueError(f"embed must return {expected}, got shape {found.shape}")
    if not np.isfinite(found).all():
        raise ValueError("embed must return finite numbers, got inf or nan")
    spread = sp.csr_matrix(
        (np.ones(len(rows), np.float32), (rows, np.arange(len(rows)))), (columns.n_rows, len(rows))
    )
    return (spread @ sp.csr_matrix(found.astype(np.float32))).tocsr()


def beside(X: sp.csr_matrix, dense: sp.csr_matrix | None) -> sp.csr_matrix:
    """[X, dense]"""
    return X if dense is None else sp.hstack([X, dense], format="csr")


def tfidf(classifier: TextClassifier, columns: Columns) -> sp.csr_matrix:
    """The tf-idf part of rows, float32."""
    X = classifier.vectorizer_.transform(columns.given)
    return X if X.dtype == np.float32 else X.astype(np.float32)


def rows_of(classifier: TextClassifier, texts: Any) -> sp.csr_matrix:
    """See `TextClassifier.transform`."""
    columns = text_columns(texts).select(classifier.text_columns_)
    X, size = tfidf(classifier, columns), classifier.embedding_size_
    if not size:
        return X
    if classifier.embed is None:
        raise ValueError(
            f"the model was trained with embed, which gave {size} numbers for a text and is not saved with it:"
            " give the same callable by set_params(embed=...)"
        )
    return beside(X, embeddings(classifier.embed, columns, size))


def known_terms(classifier: TextClassifier, texts: Any) -> npt.NDArray[np.int64]:
    """See `TextClassifier.known_terms`."""
    X = tfidf(classifier, text_columns(texts).select(classifier.text_columns_))
    counts: npt.NDArray[np.int64] = np.diff(X.indptr)
    return counts


def column_names(terms: list[str], size: int) -> list[str]:
    """Names of the features."""
    return [*terms, *(f"embedding {i}" for i in range(size))]
