"""`Lexical`: labels whose names stand in the text, also labels that no training row has.

Names and texts are compared word by word (csrc/data/names.h). A label that is named in a text is described by how
often and where, by the name itself, and by what the training rows say: how many name the label, how many of these
have it, how many have it at all. Logistic regression on these numbers gives the probability that the label is right.
What the rows say of a row's labels is counted on the other folds of the rows, so a label that only one row has is met
as one that no row has: that is how the regression learns what to think of labels without rows.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from xmc_fast import _core
from xmc_fast._folder import (
    ModelFormatError,
    count,
    file_in,
    opening,
    read_manifest,
    replace_folder,
    write_manifest,
)
from xmc_fast._refit import at_once, of_one_model
from xmc_fast._threads import resolve_threads
from xmc_fast._validate import labels, to_scipy
from xmc_fast.data import TextColumn
from xmc_fast.data._unicode import fold_table, resolve_sigma, word_bits
from xmc_fast.lexical._learned import learned_names
from xmc_fast.lexical._numbers import (
    Matches,
    Seen,
    count_rows,
    fit_weights,
    numbers,
    prior_alone,
    relevant,
    some,
)
from xmc_fast.model._calibrate import sigmoid
from xmc_fast.model._estimator import OneText
from xmc_fast.model._tensors import read_tensors, write_tensors
from xmc_fast.texts._inputs import Columns, text_columns

_KIND = "lexical"
_FILE = "lexical.safetensors"
_FOLDS = 5
# What German, English and their words of Greek and Latin origin differ in: Kommunikation, communication.
SPELLINGS = (
    *(("ä", "a"), ("ö", "o"), ("ü", "u"), ("k", "c"), ("z", "c"), ("j", "i"), ("y", "i")),
    *(("ph", "f"), ("cc", "c"), ("sch", "s"), ("sh", "s")),
)
# Of nouns and adjectives, after these replacements: Universität(en), universit(y, ies).
_ENDINGS = (
    "e en er ern es em n s i ie ies ien ia iti ities itat itaten is ise iser ises isen ic ical ics al elle iv ive"
    " ismus ism isten ist ists us um a o at or oren ors ation ationen ations ung ing logi logie"
)
ENDINGS = tuple(_ENDINGS.split())


class Lexical(OneText, BaseEstimator):  # type: ignore[misc]
    """Suggest the labels whose names stand in the text.

    Needs no training row of a label, only its name, so it suggests labels that are new. Alone it is less accurate
    than `TextClassifier`; as a member of an `Ensemble` it adds what nobody could learn from few rows.

    Parameters
    ----------
    names : sequence of str or of sequences of str
        Names of each label, in the order of Y's columns; several where there are synonyms (see
        `xmc_fast.data.read_names`).
    spellings : sequence of (str, str)
        Letters that are replaced in names and texts, in lower case and one after the other. The default makes German
        and English spellings of one word alike.
    endings : sequence of str
        Endings, after these replacements, in which a word of a name and a word of a text may differ; a root of four
        bytes must remain.
    strip_accents : {"unicode", "ascii"} or None
        As in `xmc_fast.text.TfidfVectorizer`.
    learn_names : bool
        Take terms that come with a label, or with a word of names, in texts that do not name it for further names: what
        texts in other languages, or of other writers, call it. A fifth of the rows is kept from this; the regression is
        fitted on these only.
    head : int
        A name among so many words at the start counts as one of the title. Of texts with several fields, the first
        field is the title.
    fit_rows : int
        Rows that the regression is fitted on, at most; all are counted.
    n_jobs : int, optional
        Threads; results do not depend on their number.
    random_state : int, RandomState or None
        Chooses the folds.

    Attributes
    ----------
    names_, name_labels_
        All names, given and learned (a `TextColumn`), and their labels.
    seen_ : Seen
        For each label the training rows that name it, that name and have it, and that have it.
    weights_ : float64 array
        Of the regression's numbers, the constant last.
    n_labels_ : int

    Examples
    --------
    >>> import numpy as np
    >>> names = ["green tea", "iron ore", ["steel", "steels"]]
    >>> texts = ["A cup of green tea", "tea", "iron ores and tea", "no iron ore, green teas"] * 5
    >>> Y = np.array([[1, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]] * 5)  # no row has the last label
    >>> model = Lexical(names).fit(texts, Y)
    >>> model.predict(["green tea, steel", "rice"], k=2).toarray().astype(bool).tolist()
    [[True, False, True], [False, False, False]]
    """

    gives_probabilities = True  # without calibration

    _scanner: tuple[Any, ...] | None = None  # made of the names when first needed; these come first

    def __init__(
        self,
        names: Sequence[str | Sequence[str]] = (),
        *,
        spellings: Sequence[tuple[str, str]] = SPELLINGS,
        endings: Sequence[str] = ENDINGS,
        strip_accents: str | None = None,
        learn_names: bool = True,
        head: int = 12,
        fit_rows: int = 20_000,
        n_jobs: int | None = None,
        random_state: Any = 0,
    ) -> None:
        self.names = names
        self.spellings = spellings
        self.endings = endings
        self.strip_accents = strip_accents
        self.learn_names = learn_names
        self.head = head
        self.fit_rows = fit_rows
        self.n_jobs = n_jobs
        self.random_state = random_state

    @at_once
    def fit(self, texts: Any, Y: Any) -> Lexical:
        """Count names in texts (list, Series, column or frame) and learn from Y (n, L), binary, when they are right."""
        for name, least in (("head", 0), ("fit_rows", 2)):
            if not getattr(self, name) >= least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)!r}")
        y = labels(Y)
        self._set_names()
        if self.n_labels_ != y.shape[1]:
            raise ValueError(f"Y has {y.shape[1]} columns (labels), names has {self.n_labels_} entries")
        given = self._given(texts)
        found = self._find(given)
        n = len(found.row_words)
        if n != y.shape[0]:
            raise ValueError(f"texts has {n} rows, Y has {y.shape[0]}")
        fold = check_random_state(self.random_state).permutation(n) % min(_FOLDS, max(n, 1))
        fit_on = np.ones(n, bool)
        if self.learn_names and n >= _FOLDS:
            fit_on = fold == 0
            named = found.csr(np.ones(len(found.labels), np.float32), self.n_labels_)
            truth = to_scipy(y.indptr, y.indices, np.ones(len(y.indices), np.float32), y.shape)
            unnamed = truth - truth.multiply(named)
            unnamed.eliminate_zeros()
            if self._add_names(given, unnamed, np.flatnonzero(~fit_on)):
                found = self._find(given)
        right = relevant(found, y)
        parts = count_rows(found, y, right, fold)
        self.seen_ = Seen(*(part.sum(0) for part in parts))
        self.n_rows_ = n
        chosen = np.flatnonzero(some(fit_on, self.fit_rows)[found.rows])
        if not right[chosen].any() or right[chosen].all():
            self.weights_ = prior_alone()
            return self
        own = Seen(*(part[fold[found.rows[chosen]], found.labels[chosen]] for part in parts))
        rest = Seen(*(a - b for a, b in zip(self.seen_.of(found.labels[chosen]), own, strict=True)))
        share = 1 - 1 / (fold.max() + 1)
        z = numbers(found, chosen, rest, n * share, self.name_sizes_)
        self.weights_ = fit_weights(z, right[chosen])
        return self

    def predict(self, texts: Any, k: int = 5, *, proba: bool = False) -> sp.csr_matrix:
        """The ``k`` most probable labels of each text, of those that it names.

        Parameters
        ----------
        texts : list of str, Series, column, or frame of the fields of `fit`
        k : int
            Labels per text.
        proba : bool
            Probabilities; else their log-odds.

        Returns
        -------
        scipy CSR (n, L), best first; texts that name no label have none.
        """
        check_is_fitted(self, "weights_")
        if k < 0:
            raise ValueError(f"k must be at least 0, got {k}")
        self._scan()  # what is made at the first call is kept
        return self._best(texts, k, proba)

    @of_one_model
    def _best(self, texts: Any, k: int, proba: bool) -> sp.csr_matrix:
        found = self._find(self._given(texts))
        every = np.arange(len(found.labels))
        z = numbers(found, every, self.seen_.of(found.labels), self.n_rows_, self.name_sizes_)
        score = (z @ self.weights_[:-1] + self.weights_[-1]).astype(np.float32)
        order = np.lexsort((found.labels, -score, found.rows))
        sizes = np.diff(found.indptr)
        best = order[every - np.repeat(found.indptr[:-1], sizes) < k]
        indptr = np.concatenate([[0], np.cumsum(np.minimum(sizes, k))])
        values = score[best]
        shape = len(sizes), self.n_labels_
        return to_scipy(indptr, found.labels[best], sigmoid(values) if proba else values, shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the names and counts in memory."""
        check_is_fitted(self, "weights_")
        return int(self.names_.nbytes + self.name_labels_.nbytes + sum(part.nbytes for part in self.seen_))

    @of_one_model
    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write the model as a folder; an older model there is replaced."""
        check_is_fitted(self, "weights_")
        params = {name: int(getattr(self, name)) for name in ("head", "fit_rows")}
        spellings = [list(pair) for pair in self.spellings]
        more: dict[str, Any] = {"learn_names": bool(self.learn_names)}
        more |= {"spellings": spellings, "endings": list(self.endings), "strip_accents": self.strip_accents}
        start, stop = self.names_.offsets[[0, -1]]
        tensors: dict[str, npt.NDArray[Any]] = {
            "text": self.names_.data[start:stop],
            "offsets": self.names_.offsets - start,
            "labels": self.name_labels_,
            "weights": self.weights_,
            **self.seen_._asdict(),
        }
        with replace_folder(directory) as folder:
            write_tensors(folder / _FILE, tensors, {"kind": _KIND})
            facts = {"n_labels": self.n_labels_, "rows": self.n_rows_, "fields": self.fields_}
            write_manifest(folder, _KIND, {"params": {**params, **more}, **facts})

    @classmethod
    def load(cls, directory: str | os.PathLike[str], *, mmap: bool = True, verify: bool = False) -> Lexical:
        """Open what `save` wrote. Everything is read; ``verify`` checks every byte."""
        return _load(cls, directory, mmap=mmap, verify=verify)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_scanner": None}

    def _set_names(self) -> None:
        names = [[given] if isinstance(given, str) else given for given in self.names]
        if wrong := [n for n in names if isinstance(n, bytes) or not hasattr(n, "__iter__")]:
            raise ValueError(f"names must hold str or sequences of str, got {type(wrong[0]).__name__}")
        names = [[*of_label] for of_label in names]
        flat = [name for of_label in names for name in of_label]
        if wrong := [name for name in flat if not isinstance(name, str)]:
            raise ValueError(f"names must hold str or sequences of str, got {type(wrong[0]).__name__}")
        self.n_labels_ = len(names)
        self.names_ = TextColumn.from_texts(flat)
        self.name_labels_ = np.repeat(np.arange(len(names)), [len(of) for of in names]).astype(np.int32)
        self._scanner = None

    def _add_names(self, given: Columns, unnamed: sp.csr_matrix, rows: npt.NDArray[np.intp]) -> int:
        """Learn names from some rows; how many."""
        texts = given.take(rows).given
        more, of = learned_names(texts, unnamed[rows], self.names_.tolist(), self.name_labels_, self.n_jobs)
        self.names_ = TextColumn.from_texts([*self.names_, *more])
        self.name_labels_ = np.append(self.name_labels_, np.array(of, np.int32))
        self._scanner = None
        return len(more)

    def _given(self, texts: Any) -> Columns:
        """The texts, of the fields of `fit`."""
        given = text_columns(texts)
        if not hasattr(self, "weights_"):
            self.fields_ = given.names
        elif given.names != self.fields_:
            raise ValueError(f"texts with the fields {self.fields_} expected as in fit, got {given.names}")
        return given

    def _find(self, given: Columns) -> Matches:
        analyzer, names = self._scan()
        corpus = _corpus([*given.columns.values()])
        return Matches(*names.find(corpus, analyzer, int(self.head), resolve_threads(self.n_jobs)))

    def _scan(self) -> tuple[Any, Any]:
        spellings = tuple((old, new) for old, new in self.spellings)
        key, of, scanner = (self.strip_accents, spellings, tuple(self.endings)), self.names_, self._scanner
        if scanner is None or scanner[0] is not of or scanner[1] != key:
            analyzer = _core.Analyzer(
                "word", 1, 1, True, word_bits(), *fold_table(True, self.strip_accents), []
            )
            names = _core.Names(_corpus([of]), self.name_labels_, analyzer, [*key[1]], [*key[2]])
            self._scanner = scanner = of, key, analyzer, names
        return scanner[2], scanner[3]

    @property
    def name_sizes_(self) -> npt.NDArray[np.float64]:
        """Bytes of each label's shortest name."""
        out = np.full(self.n_labels_, 1e9)
        np.minimum.at(out, self.name_labels_, self.names_.sizes)
        return out


def _corpus(columns: list[Any]) -> Any:
    data = [(c.data, np.ascontiguousarray(c.offsets)) if isinstance(c, TextColumn) else c for c in columns]
    return _core.Corpus(data, [1.0] * len(data), resolve_sigma)


@opening
def _load(cls: Any, directory: str | os.PathLike[str], *, mmap: bool, verify: bool) -> Lexical:
    manifest = read_manifest(directory, _KIND, required=("params", "n_labels", "rows", "fields"))
    folder, params = Path(directory), manifest["params"]
    model: Lexical = cls(
        spellings=[(str(old), str(new)) for old, new in params["spellings"]],
        endings=[str(ending) for ending in params["endings"]],
        strip_accents=params["strip_accents"],
        learn_names=bool(params["learn_names"]),
        **{name: count(params.get(name), name) for name in ("head", "fit_rows")},
    )
    found, _ = read_tensors(file_in(folder, _FILE), map_file=False, verify=verify)
    model.n_labels_, model.n_rows_ = int(manifest["n_labels"]), count(manifest["rows"], "rows")
    model.fields_ = manifest["fields"]
    model.names_ = TextColumn(found["text"], found["offsets"])
    model.name_labels_, model.weights_ = found["labels"], found["weights"]
    model.seen_ = Seen(*(found[name] for name in Seen._fields))
    wrong = [part.shape for part in model.seen_ if part.shape != (model.n_labels_,)]
    of = model.name_labels_
    if wrong or len(of) != len(model.names_) or ((of < 0) | (of >= model.n_labels_)).any():
        raise ModelFormatError(f"{folder / _FILE}: damaged, names or counts of other labels")
    if model.weights_.shape != prior_alone().shape or not np.isfinite(model.weights_).all():
        raise ModelFormatError(f"{folder / _FILE}: damaged, {len(prior_alone())} weights expected")
    model._scan()
    return model
