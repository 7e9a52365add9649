"""Names of labels learned from training rows: terms that stand in the texts whose label is not named there.

Texts in another language than the names, or with other words for a thing, do not name their labels. A term (a word or a
pair of words) of these texts that comes with a label, or with the labels that have a word in their names, is taken for
another name of it: Dice's coefficient of the rows with the term and the rows with the label must be high. Of names with
up to three words each word may be replaced so, which gives names to labels that have no rows: what "Theorie" is in
English is learned from other labels.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast.text import TfidfVectorizer

_ROWS = 3  # at least, that have both
_MOST_ROWS = 2000  # of a label: it needs no other names, and counting costs
_OF_LABELS, _OF_WORDS = 0.3, 0.25  # least coefficients
_BEST_LABELS, _BEST_WORDS = 3, 2  # terms, at most
_WORDS, _COMBINATIONS = 3, 8  # of a name
_CHUNK = 1000

Found = dict[int, list[str]]


def learned_names(
    texts: Any,
    unnamed: sp.csr_matrix,
    names: list[str],
    name_labels: npt.NDArray[np.int32],
    n_jobs: int | None = None,
) -> tuple[list[str], list[int]]:
    """More names and their labels; ``unnamed`` (texts x labels): the labels of a text that it does not name."""
    try:
        vectorizer = TfidfVectorizer(
            ngram_range=(1, 2), min_df=_ROWS, max_df=0.05, use_idf=False, norm=None, n_jobs=n_jobs
        )
        X = _ones(vectorizer.fit_transform(texts))
        of_names = TfidfVectorizer(use_idf=False, norm=None, n_jobs=1)
        N = of_names.fit_transform(names)
    except ValueError:  # no terms that are frequent enough and rare enough
        return [], []
    terms = vectorizer.get_feature_names_out()
    having = sp.csr_matrix(
        (np.ones(len(names), np.float32), (name_labels, np.arange(len(names)))),
        shape=(unnamed.shape[1], len(names)),
    )
    label_words = _ones(having @ N)  # labels x words of their names
    of_labels = _companions(unnamed, X, terms, _OF_LABELS, _BEST_LABELS)
    of_words = _companions(_ones(unnamed @ label_words), X, terms, _OF_WORDS, _BEST_WORDS)
    words = of_names.get_feature_names_out()
    column = {word: i for i, word in enumerate(words)}
    more: dict[tuple[int, str], None] = {}
    for name, label in zip(names, name_labels.tolist(), strict=True):
        own = [words[column_] for _, _, column_ in of_names.spans(name)]
        if not 1 <= len(own) <= _WORDS:
            continue
        choices = [[word, *of_words.get(column[word], [])] for word in own]
        made = itertools.islice(itertools.product(*choices), 1, 1 + _COMBINATIONS)
        more |= {(label, " ".join(parts)): None for parts in made}
    more |= {(label, term): None for label, found in of_labels.items() for term in found}
    return [name for _, name in more], [label for label, _ in more]


def _companions(M: sp.csr_matrix, X: sp.csr_matrix, terms: Any, least: float, best: int) -> Found:
    """The terms (columns of X) whose rows are nearest to the rows of each column of M."""
    by_unit = M.T.tocsr()
    of_unit, of_term = np.diff(by_unit.indptr), np.bincount(X.indices, minlength=X.shape[1])
    usable = np.flatnonzero((of_unit >= _ROWS) & (of_unit <= _MOST_ROWS))
    out: Found = {}
    for first in range(0, len(usable), _CHUNK):
        units = usable[first : first + _CHUNK]
        both = (by_unit[units] @ X).tocsr()
        unit = np.repeat(units, np.diff(both.indptr))
        dice = 2 * both.data / (of_term[both.indices] + of_unit[unit])
        good = np.flatnonzero((both.data >= _ROWS) & (dice >= least))
        for i in good[np.lexsort((both.indices[good], -dice[good], unit[good]))].tolist():
            found = out.setdefault(int(unit[i]), [])
            if len(found) < best:
                found.append(str(terms[both.indices[i]]))
    return out


def _ones(matrix: sp.csr_matrix) -> sp.csr_matrix:
    matrix = matrix.tocsr()
    matrix.data = np.ones(len(matrix.data), np.float32)
    return matrix
