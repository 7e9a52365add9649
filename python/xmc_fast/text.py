"""tf-idf features of texts: scikit-learn's TfidfVectorizer for its common options, compiled and threaded."""

from __future__ import annotations

import functools
import itertools
import re
import sys
from collections.abc import Iterable
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.exceptions import NotFittedError

from xmc_fast import _core
from xmc_fast._arrays import to_scipy
from xmc_fast._threads import resolve_threads


class TfidfVectorizer(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Texts to tf-idf rows, as ``sklearn.feature_extraction.text.TfidfVectorizer`` makes them.

    Words are runs of two or more word characters (the pattern ``\\b\\w\\w+\\b``) of the lower-case text,
    Unicode included; the vocabulary is in the order of code points. Same columns, and values equal to 1e-6.

    Parameters
    ----------
    lowercase : bool
    ngram_range : (int, int)
        Lowest and highest number of words per term.
    min_df, max_df : int or float
        Keep terms of at least / at most so many texts: a count, or a share of the texts if float.
    max_features : int, optional
        Keep only the most frequent terms.
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

    Examples
    --------
    >>> vectorizer = TfidfVectorizer()
    >>> X = vectorizer.fit_transform(["green tea", "black tea, green tea"])
    >>> vectorizer.get_feature_names_out().tolist()
    ['black', 'green', 'tea']
    >>> X.shape
    (2, 3)
    """

    def __init__(
        self,
        *,
        lowercase: bool = True,
        ngram_range: tuple[int, int] = (1, 1),
        min_df: float = 1,
        max_df: float = 1.0,
        max_features: int | None = None,
        norm: str | None = "l2",
        use_idf: bool = True,
        smooth_idf: bool = True,
        sublinear_tf: bool = False,
        n_jobs: int | None = None,
    ) -> None:
        self.lowercase = lowercase
        self.ngram_range = ngram_range
        self.min_df = min_df
        self.max_df = max_df
        self.max_features = max_features
        self.norm = norm
        self.use_idf = use_idf
        self.smooth_idf = smooth_idf
        self.sublinear_tf = sublinear_tf
        self.n_jobs = n_jobs

    _table: _core.Terms | None = None  # made from _terms when first needed

    def fit(self, texts: Iterable[str], y: Any = None) -> TfidfVectorizer:
        """Learn the vocabulary and the idf.

        Parameters
        ----------
        texts : iterable of str
        y : ignored
        """
        self._fit(texts, keep_rows=False)
        return self

    def fit_transform(self, texts: Iterable[str], y: Any = None) -> Any:
        """Fit, and return the rows of the same texts; reads each text once.

        Returns
        -------
        scipy CSR float32 of shape (texts, terms)
        """
        counts, columns, rows = self._fit(texts, keep_rows=True)
        made = counts.rows(
            columns, self.idf_, self.sublinear_tf, self.norm or "none", resolve_threads(self.n_jobs)
        )
        return to_scipy(made[0], made[1], made[2], (rows, len(self.idf_)))

    def transform(self, texts: Iterable[str]) -> Any:
        """The rows of texts; terms that are not in the vocabulary are ignored.

        Returns
        -------
        scipy CSR float32 of shape (texts, terms)
        """
        if not hasattr(self, "idf_"):
            raise NotFittedError("This TfidfVectorizer is not fitted yet: call fit first")
        low, high = self._check()
        prepared, word_bits = _prepare(texts, self.lowercase)
        if self._table is None:
            self._table = _core.Terms(self._terms, self._offsets)
        norm, threads = self.norm or "none", resolve_threads(self.n_jobs)
        made = self._table.transform(
            prepared, self.lowercase, word_bits, low, high, self.idf_, self.sublinear_tf, norm, threads
        )
        return to_scipy(made[0], made[1], made[2], (len(prepared), len(self.idf_)))

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[Any]:
        """The terms by column, as an array of str."""
        if not hasattr(self, "idf_"):
            raise NotFittedError("This TfidfVectorizer is not fitted yet: call fit first")
        bounds = self._offsets.tolist()
        terms = [self._terms[a:b].decode("utf-8", "surrogatepass") for a, b in itertools.pairwise(bounds)]
        return np.array(terms, dtype=object)

    @property
    def vocabulary_(self) -> dict[str, int]:
        """Term to column."""
        return {term: column for column, term in enumerate(self.get_feature_names_out())}

    def to_dict(self) -> dict[str, Any]:
        """The fitted state as plain values and arrays, for storage without pickle.

        Returns
        -------
        dict
            ``params`` (JSON), ``terms`` (uint8, the UTF-8 terms one after the other), ``offsets`` (int64, term i
            is terms[offsets[i]:offsets[i + 1]]), ``idf`` (float32).

        Examples
        --------
        >>> fitted = TfidfVectorizer().fit(["green tea"])
        >>> again = TfidfVectorizer.from_dict(fitted.to_dict())
        >>> again.get_feature_names_out().tolist()
        ['green', 'tea']
        """
        if not hasattr(self, "idf_"):
            raise NotFittedError("This TfidfVectorizer is not fitted yet: call fit first")
        params = {**self.get_params(), "ngram_range": list(self.ngram_range)}
        terms = np.frombuffer(self._terms, np.uint8)
        return {"params": params, "terms": terms, "offsets": self._offsets, "idf": self.idf_}

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> TfidfVectorizer:
        """The vectorizer that :meth:`to_dict` described."""
        params = dict(state["params"])
        params["ngram_range"] = tuple(params["ngram_range"])
        out = cls(**params)
        out._set(
            np.ascontiguousarray(state["terms"], np.uint8).tobytes(),
            np.ascontiguousarray(state["offsets"], np.int64),
            np.ascontiguousarray(state["idf"], np.float32),
        )
        out._table = _core.Terms(out._terms, out._offsets)
        return out

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_table": None}

    def _fit(self, texts: Iterable[str], keep_rows: bool) -> tuple[Any, npt.NDArray[np.int32], int]:
        """Counts, the column of each selected term, and the number of texts."""
        low, high = self._check()
        prepared, word_bits = _prepare(texts, self.lowercase)
        threads = resolve_threads(self.n_jobs)
        counts = _core.TermCounts(prepared, self.lowercase, word_bits, low, high, keep_rows, threads)
        if counts.n_terms() == 0:
            raise ValueError("empty vocabulary: no text has a word of two or more characters")
        n = len(prepared)
        least = _texts_count(self.min_df, n)
        most = _texts_count(self.max_df, n)
        if most < least:
            raise ValueError(
                f"max_df={self.max_df} means fewer texts than min_df={self.min_df}, of {n} texts"
            )
        terms, offsets, texts_with, occurrences = counts.select(int(np.ceil(least)), int(np.floor(most)))
        keep = np.arange(len(texts_with))
        if self.max_features is not None and len(keep) > self.max_features:
            # argsort of the same numbers in the same order: ties fall as in scikit-learn
            keep = np.sort((-occurrences).argsort()[: self.max_features])
        if len(keep) == 0:
            raise ValueError(
                f"no terms remain with min_df={self.min_df}, max_df={self.max_df}"
                f" and max_features={self.max_features}"
            )
        columns = np.full(len(texts_with), -1, np.int32)
        columns[keep] = np.arange(len(keep), dtype=np.int32)
        idf = np.ones(len(keep))
        if self.use_idf:
            smooth = int(self.smooth_idf)
            idf += np.log((n + smooth) / (texts_with[keep] + smooth))
        self._set(*_take(terms, offsets, keep), idf.astype(np.float32))
        return counts, columns, n

    def _set(self, terms: bytes, offsets: npt.NDArray[np.int64], idf: npt.NDArray[np.float32]) -> None:
        self._terms, self._offsets, self.idf_ = terms, offsets, idf
        self._table = None

    def _check(self) -> tuple[int, int]:
        low, high = self.ngram_range
        if not (isinstance(low, Integral) and isinstance(high, Integral) and 1 <= low <= high):
            raise ValueError(f"ngram_range must be (low, high) with 1 <= low <= high, got {self.ngram_range}")
        if self.norm not in ("l1", "l2", None):
            raise ValueError(f"norm must be 'l1', 'l2' or None, got {self.norm!r}")
        for name in ("min_df", "max_df"):
            value = getattr(self, name)
            if (isinstance(value, Integral) and value < 1) or (
                not isinstance(value, Integral) and not 0 <= value <= 1
            ):
                raise ValueError(f"{name} must be a count >= 1 or a share in 0.0..1.0, got {value!r}")
        if self.max_features is not None and self.max_features < 1:
            raise ValueError(f"max_features must be at least 1, got {self.max_features}")
        return int(low), int(high)


def _texts_count(df: float, n: int) -> float:
    """A document frequency limit as a (possibly fractional) number of texts."""
    return df if isinstance(df, Integral) else df * n


def _take(
    terms: bytes, offsets: npt.NDArray[np.int64], keep: npt.NDArray[np.intp]
) -> tuple[bytes, npt.NDArray[np.int64]]:
    """Only the terms ``keep`` (ascending)."""
    sizes = np.diff(offsets)
    if len(keep) == len(sizes):
        return terms, offsets
    mask = np.zeros(len(sizes), bool)
    mask[keep] = True
    chosen = np.frombuffer(terms, np.uint8)[np.repeat(mask, sizes)]
    return chosen.tobytes(), np.concatenate([[0], np.cumsum(sizes[keep])])


def _prepare(texts: Iterable[str], lowercase: bool) -> tuple[list[str | bytes], npt.NDArray[np.uint8]]:
    """ASCII texts as they are, others in lower case as UTF-8, and which code points are word characters."""
    if isinstance(texts, (str, bytes)):
        raise ValueError("texts must be an iterable of str, got a single string")
    prepared: list[str | bytes] = []
    ascii_only = True
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"texts must hold str, got {type(text).__name__} at position {i}")
        if text.isascii():
            prepared.append(text)
        else:
            ascii_only = False
            prepared.append((text.lower() if lowercase else text).encode("utf-8", "surrogatepass"))
    return prepared, np.zeros(0, np.uint8) if ascii_only else _word_bits()


@functools.cache
def _word_bits() -> npt.NDArray[np.uint8]:
    """Bit c: whether code point c is a word character (``\\w``) to this Python."""
    every = np.arange(sys.maxunicode + 1, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")
    word = np.zeros(len(every), bool)
    for run in re.finditer(r"\w+", every):
        word[run.start() : run.end()] = True
    return np.packbits(word, bitorder="little")
