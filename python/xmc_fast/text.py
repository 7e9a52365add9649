"""tf-idf features of texts: scikit-learn's vectorizers for their common options, compiled and threaded."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.exceptions import NotFittedError

from xmc_fast import _core
from xmc_fast._threads import resolve_threads
from xmc_fast._validate import to_scipy
from xmc_fast.data import TextColumn, as_texts
from xmc_fast.data._unicode import fold_table, resolve_sigma, word_bits


class TfidfVectorizer(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Texts to tf-idf rows, as ``sklearn.feature_extraction.text.TfidfVectorizer`` makes them.

    Same columns (in the order of code points), and values equal to 1e-6. A row may have several texts, for
    example title and abstract: then tf is the sum of weight times count over them, and n-grams do not cross
    from one to the other. Missing texts (None, NaN) are empty texts.

    Parameters
    ----------
    analyzer : {"word", "char", "char_wb"}
        Terms are n-grams of words (runs of two or more word characters, ``\\b\\w\\w+\\b``), of characters, or of
        characters inside words. The latter two also suit languages without spaces.
    lowercase : bool
    strip_accents : {"unicode", "ascii"} or None
        Remove accents: "unicode" keeps the other characters, "ascii" drops what is not ASCII.
    stop_words : "english", list of str, or None
        Words to leave out (analyzer "word"); "english" is scikit-learn's list.
    ngram_range : (int, int)
        Lowest and highest number of words or characters per term.
    min_df, max_df : int or float
        Keep terms of at least / at most so many rows: a count, or a share of the rows if float.
    max_features : int, optional
        Keep only the most frequent terms.
    n_features : int, optional
        Hash terms into so many columns instead of building a vocabulary, as ``HashingVectorizer`` with
        ``alternate_sign=False``; memory does not grow with the number of terms. Excludes min_df, max_df and
        max_features.
    weights : dict of str to float, optional
        Weight of each text of a row by its name; 1 for those not named.
    norm : {"l2", "l1"} or None
        What rows are divided by.
    use_idf, smooth_idf, sublinear_tf : bool
        idf = log((1 + n) / (1 + df)) + 1, without the ones inside if not ``smooth_idf``; tf becomes
        1 + log(tf) if ``sublinear_tf``.
    n_jobs : int, optional
        Threads; the result does not depend on it.

    Attributes
    ----------
    idf_ : float32 array of shape (terms,)
        Ones without ``use_idf``.
    vocabulary_ : dict
        Term to column.
    fields_ : list of str, or None
        Names of the texts of a row, if they have names.

    Examples
    --------
    >>> vectorizer = TfidfVectorizer()
    >>> X = vectorizer.fit_transform(["green tea", "black tea, green tea"])
    >>> vectorizer.get_feature_names_out().tolist()
    ['black', 'green', 'tea']
    >>> X.shape
    (2, 3)

    Two texts per row, the title counted twice:

    >>> titled = TfidfVectorizer(weights={"title": 2}, use_idf=False, norm=None)
    >>> titled.fit_transform({"title": ["tea"], "body": ["green tea"]}).toarray().tolist()
    [[1.0, 3.0]]
    """

    def __init__(
        self,
        *,
        analyzer: str = "word",
        lowercase: bool = True,
        strip_accents: str | None = None,
        stop_words: str | list[str] | None = None,
        ngram_range: tuple[int, int] = (1, 1),
        min_df: float = 1,
        max_df: float = 1.0,
        max_features: int | None = None,
        n_features: int | None = None,
        weights: Mapping[str, float] | None = None,
        norm: str | None = "l2",
        use_idf: bool = True,
        smooth_idf: bool = True,
        sublinear_tf: bool = False,
        n_jobs: int | None = None,
    ) -> None:
        self.analyzer = analyzer
        self.lowercase = lowercase
        self.strip_accents = strip_accents
        self.stop_words = stop_words
        self.ngram_range = ngram_range
        self.min_df = min_df
        self.max_df = max_df
        self.max_features = max_features
        self.n_features = n_features
        self.weights = weights
        self.norm = norm
        self.use_idf = use_idf
        self.smooth_idf = smooth_idf
        self.sublinear_tf = sublinear_tf
        self.n_jobs = n_jobs

    _table: _core.Vocabulary | None = None  # made from _terms when first needed
    _made: tuple[Any, _core.Analyzer] | None = None  # the analyzer, with the parameters it was made of

    def fit(self, texts: Any, y: Any = None) -> TfidfVectorizer:
        """Learn the vocabulary and the idf.

        Parameters
        ----------
        texts : iterable of str, Series, TextColumn; or several of them: dict of name to texts, frame
        y : ignored
        """
        self._fit(texts, keep_rows=False)
        return self

    def fit_transform(self, texts: Any, y: Any = None) -> Any:
        """Fit, and return the rows of the same texts; reads each text once.

        Returns
        -------
        scipy CSR float32 of shape (texts, terms)
        """
        threads = resolve_threads(self.n_jobs)
        corpus, counts, columns = self._fit(texts, keep_rows=True)
        if counts is None:
            made = self._rows(corpus, threads)
        else:
            made = counts.rows(columns, self._weights(), self.sublinear_tf, self.norm or "none", threads)
        return to_scipy(made[0], made[1], made[2], (corpus.n_rows(), len(self.idf_)))

    def transform(self, texts: Any) -> Any:
        """The rows of texts; terms that are not in the vocabulary are ignored.

        Returns
        -------
        scipy CSR float32 of shape (texts, terms)
        """
        self._check_fitted()
        made = self._rows(self._corpus(texts, fitting=False), resolve_threads(self.n_jobs))
        return to_scipy(made[0], made[1], made[2], (len(made[0]) - 1, len(self.idf_)))

    def transform_one(self, text: str | Mapping[str, str]) -> tuple[Any, Any]:
        """The row of one text (with several fields: a dict of them), with little overhead.

        Returns
        -------
        indices : int32 array, ascending
        values : float32 array

        Examples
        --------
        >>> vectorizer = TfidfVectorizer(norm=None, use_idf=False).fit(["green tea", "black tea"])
        >>> indices, values = vectorizer.transform_one("tea, tea and green tea")
        >>> indices.tolist(), values.tolist()
        ([1, 2], [1.0, 3.0])
        """
        self._check_fitted()
        if isinstance(text, str) and self.fields_ is None:
            corpus = _core.Corpus([[text]], [1.0], resolve_sigma if self.lowercase else None)
        else:
            fields = text.items() if isinstance(text, Mapping) else None
            given: Any = [text] if fields is None else {name: [value] for name, value in fields}
            corpus = self._corpus(given, fitting=False)
        _, indices, values = self._rows(corpus, 1)
        return indices, values

    def spans(self, text: str) -> list[tuple[int, int, int]]:
        """Where the terms of a text are.

        Returns
        -------
        list of (start, end, column)
            For each occurrence of a term that has a column, its characters ``text[start:end]``: for n-grams from
            the first to the last word or character.

        Examples
        --------
        >>> vectorizer = TfidfVectorizer(ngram_range=(1, 2)).fit(["green tea"])
        >>> vectorizer.spans("Hot GREEN  tea!")
        [(4, 9, 0), (11, 14, 2), (4, 14, 1)]
        """
        self._check_fitted()
        encoded = resolve_sigma(text) if self.lowercase else text.encode("utf-8", "surrogatepass")
        return _core.find_terms(encoded, self._analyzer(), self._lookup(), self.n_features or 0)

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[Any]:
        """The terms by column, as an array of str; hashed columns are called hash0, hash1, and so on."""
        self._check_fitted()
        if self.n_features is not None:
            return np.array([f"hash{j}" for j in range(self.n_features)], dtype=object)
        bounds = self._offsets.tolist()
        terms = [self._terms[a:b].decode("utf-8", "surrogatepass") for a, b in itertools.pairwise(bounds)]
        return np.array(terms, dtype=object)

    @property
    def vocabulary_(self) -> dict[str, int]:
        """Term to column."""
        if self.n_features is not None:
            raise AttributeError("hashed columns have no vocabulary")
        return {term: column for column, term in enumerate(self.get_feature_names_out())}

    def to_dict(self) -> dict[str, Any]:
        """The fitted state as plain values and arrays, for storage without pickle.

        Returns
        -------
        dict
            ``params`` (JSON; with the fields), ``terms`` (uint8, the UTF-8 terms one after the other),
            ``offsets`` (int64, term i is terms[offsets[i]:offsets[i + 1]]), ``idf`` (float32).

        Examples
        --------
        >>> fitted = TfidfVectorizer().fit(["green tea"])
        >>> again = TfidfVectorizer.from_dict(fitted.to_dict())
        >>> again.get_feature_names_out().tolist()
        ['green', 'tea']
        """
        self._check_fitted()
        params = {**self.get_params(), "ngram_range": list(self.ngram_range)}
        if self.stop_words is not None and self.stop_words != "english":
            params["stop_words"] = sorted(self.stop_words)
        if self.weights is not None:
            params["weights"] = {name: float(weight) for name, weight in self.weights.items()}
        terms = np.frombuffer(self._terms, np.uint8)
        params["fields"] = self.fields_
        return {"params": params, "terms": terms, "offsets": self._offsets, "idf": self.idf_}

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> TfidfVectorizer:
        """The vectorizer that `to_dict` described."""
        params = dict(state["params"])
        params["ngram_range"] = tuple(params["ngram_range"])
        fields = params.pop("fields", None)
        out = cls(**params)
        out.fields_ = fields
        out._check()
        out._set(
            np.ascontiguousarray(state["terms"], np.uint8).tobytes(),
            np.ascontiguousarray(state["offsets"], np.int64),
            np.ascontiguousarray(state["idf"], np.float32),
        )
        out._lookup()
        terms = len(out._offsets) - 1 if out.n_features is None else out.n_features
        if out.idf_.shape != (terms,) or not np.isfinite(out.idf_).all():
            raise ValueError(f"idf must be {terms} finite numbers, got shape {out.idf_.shape}")
        return out

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_table": None, "_made": None}

    def _check_fitted(self) -> None:
        if not hasattr(self, "idf_"):
            raise NotFittedError("This TfidfVectorizer is not fitted yet: call fit first")

    def _lookup(self) -> Any:
        """The vocabulary of the core; None with hashing."""
        if self._table is None and self.n_features is None:
            self._table = _core.Vocabulary(self._terms, self._offsets)
        return self._table

    def _analyzer(self) -> _core.Analyzer:
        words: Iterable[str] = self.stop_words or ()
        stop = self.stop_words if isinstance(words, str) else tuple(words)
        key = self.analyzer, tuple(self.ngram_range), bool(self.lowercase), self.strip_accents, stop
        made = self._made  # read once: another thread may change it
        if made is None or made[0] != key:
            made = self._made = key, self._make_analyzer(words)
        return made[1]

    def _make_analyzer(self, words: Iterable[str]) -> _core.Analyzer:
        if self.stop_words == "english":
            from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

            words = ENGLISH_STOP_WORDS
        low, high = self.ngram_range
        fold = fold_table(bool(self.lowercase), self.strip_accents)
        return _core.Analyzer(
            self.analyzer, int(low), int(high), bool(self.lowercase), word_bits(), *fold, [*words]
        )

    def _rows(self, corpus: _core.Corpus, threads: int) -> Any:
        """(indptr, indices, values) of texts."""
        return _core.transform_texts(
            corpus,
            self._analyzer(),
            self._lookup(),
            self.n_features or 0,
            self._weights(),
            self.sublinear_tf,
            self.norm or "none",
            threads,
        )

    def _weights(self) -> npt.NDArray[np.float32]:
        """The idf for the core, where none stands for ones."""
        return self.idf_ if self.use_idf else np.empty(0, np.float32)

    def _corpus(self, texts: Any, *, fitting: bool) -> _core.Corpus:
        """The texts of each field for the core, and their weights."""
        given, _ = as_texts(texts)
        fields = list(given) if isinstance(given, dict) else None
        if fitting:
            self.fields_ = fields
        elif (fields is None) != (self.fields_ is None) or set(fields or ()) != set(self.fields_ or ()):
            raise ValueError(f"texts with the fields {self.fields_} expected as in fit, got {fields}")
        weights = dict(self.weights or {})
        if unknown := sorted(set(weights) - set(self.fields_ or ())):
            raise ValueError(f"weights names {', '.join(unknown)}, the texts have the fields {self.fields_}")
        columns = [given] if fields is None else [given[name] for name in self.fields_ or ()]
        data = [
            (c.data, np.ascontiguousarray(c.offsets)) if isinstance(c, TextColumn) else c for c in columns
        ]
        scale = [float(weights.get(name, 1.0)) for name in self.fields_ or ("",)]
        return _core.Corpus(data, scale, resolve_sigma if self.lowercase else None)

    def _fit(self, texts: Any, keep_rows: bool) -> tuple[_core.Corpus, Any, npt.NDArray[np.int32]]:
        """The texts, their counts (None if nothing is learned) and the column of each selected term."""
        self._check()
        corpus = self._corpus(texts, fitting=True)
        n, hashed, columns = corpus.n_rows(), self.n_features or 0, np.empty(0, np.int32)
        if hashed and not self.use_idf:
            ones = np.broadcast_to(np.float32(1), hashed)  # no memory: 8 GB for 2^31 columns otherwise
            self._set(b"", np.zeros(1, np.int64), ones)
            return corpus, None, columns
        counts = _core.TermCounts(corpus, self._analyzer(), hashed, keep_rows, resolve_threads(self.n_jobs))
        if hashed:
            self._set(b"", np.zeros(1, np.int64), self._idf(counts.select(0, n)[2], n))
            return corpus, counts, columns
        if counts.n_terms() == 0:
            what = "a word of two or more characters" if self.analyzer == "word" else "a character"
            raise ValueError(f"empty vocabulary: no text has {what}")
        least = _texts_count(self.min_df, n)
        most = _texts_count(self.max_df, n)
        if most < least:
            raise ValueError(
                f"max_df={self.max_df} means fewer texts than min_df={self.min_df}, of {n} texts"
            )
        terms, offsets, texts_with, occurrences = counts.select(int(np.ceil(least)), int(np.floor(most)))
        keep = np.arange(len(texts_with))
        if self.max_features is not None and len(keep) > self.max_features:
            if not self.weights:
                occurrences = occurrences.astype(np.int64)
            # argsort of the same numbers in the same order: ties fall as in scikit-learn
            keep = np.sort((-occurrences).argsort()[: self.max_features])
        if len(keep) == 0:
            raise ValueError(
                f"no terms remain with min_df={self.min_df}, max_df={self.max_df}"
                f" and max_features={self.max_features}"
            )
        columns = np.full(len(texts_with), -1, np.int32)
        columns[keep] = np.arange(len(keep), dtype=np.int32)
        self._set(*_take(terms, offsets, keep), self._idf(texts_with[keep], n))
        return corpus, counts, columns

    def _idf(self, texts_with: npt.NDArray[np.int64], n: int) -> npt.NDArray[np.float32]:
        """The idf of terms that occur in so many of n texts."""
        if not self.use_idf:
            return np.ones(len(texts_with), np.float32)
        smooth = int(self.smooth_idf)
        least, most = int(texts_with.min()), int(texts_with.max())
        by_count = 1 + np.log((n + smooth) / (np.arange(least, most + 1) + smooth))
        idf: npt.NDArray[np.float32] = by_count.astype(np.float32)[texts_with - least]
        return idf

    def _set(self, terms: bytes, offsets: npt.NDArray[np.int64], idf: npt.NDArray[np.float32]) -> None:
        self._terms, self._offsets, self.idf_ = terms, offsets, idf
        self._table = None

    def _check(self) -> None:
        low, high = self.ngram_range
        if not (isinstance(low, Integral) and isinstance(high, Integral) and 1 <= low <= high):
            raise ValueError(f"ngram_range must be (low, high) with 1 <= low <= high, got {self.ngram_range}")
        for name, choices in (
            ("analyzer", ("word", "char", "char_wb")),
            ("strip_accents", ("unicode", "ascii", None)),
            ("norm", ("l1", "l2", None)),
        ):
            if getattr(self, name) not in choices:
                known = ", ".join(repr(choice) for choice in choices[:-1])
                raise ValueError(f"{name} must be {known} or {choices[-1]!r}, got {getattr(self, name)!r}")
        for name in ("lowercase", "use_idf", "smooth_idf", "sublinear_tf"):
            if not isinstance(getattr(self, name), bool | np.bool_ | Integral):
                raise ValueError(f"{name} must be True or False, got {getattr(self, name)!r}")
        words = self.stop_words
        if isinstance(words, Real) or (isinstance(words, str) and words != "english"):
            raise ValueError(f"stop_words must be 'english', a list of str or None, got {self.stop_words!r}")
        if self.stop_words and self.analyzer != "word":
            raise ValueError(f"stop_words needs analyzer='word', got {self.analyzer!r}")
        for field, weight in (self.weights or {}).items():
            if not isinstance(weight, Real) or not 0 < weight < float("inf"):
                raise ValueError(f"weights must be positive numbers, got {weight!r} for {field!r}")
        if self.n_features is not None:
            if not 1 <= self.n_features < 2**31:
                raise ValueError(f"n_features must be in 1..{2**31 - 1}, got {self.n_features}")
            if (self.min_df, self.max_df, self.max_features) != (1, 1.0, None):
                raise ValueError("n_features (hashing) excludes min_df, max_df and max_features")
        for name in ("min_df", "max_df"):
            value = getattr(self, name)
            if (isinstance(value, Integral) and value < 1) or (
                not isinstance(value, Integral) and not 0 <= value <= 1
            ):
                raise ValueError(f"{name} must be a count >= 1 or a share in 0.0..1.0, got {value!r}")
        if self.max_features is not None and self.max_features < 1:
            raise ValueError(f"max_features must be at least 1, got {self.max_features}")


def _texts_count(df: float, n: int) -> float:
    """A document frequency limit as a (possibly fractional) number of texts."""
    return df if isinstance(df, Integral) else df * n


def _take(
    terms: bytes, offsets: npt.NDArray[np.int64], keep: npt.NDArray[np.intp]
) -> tuple[bytes, npt.NDArray[np.int64]]:
    """Only the terms ``keep`` (ascending)."""
    sizes = np.diff(offsets)
    if len(keep) >= len(sizes):  # all of them, or hashed columns without terms
        return terms, offsets
    mask = np.zeros(len(sizes), bool)
    mask[keep] = True
    chosen = np.frombuffer(terms, np.uint8)[np.repeat(mask, sizes)]
    return chosen.tobytes(), np.concatenate([[0], np.cumsum(sizes[keep])])
