"""`TextClassifier`: texts and tag names in, suggestions with probabilities out."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from xmc_fast._refit import at_once, of_one_model
from xmc_fast.texts import _store
from xmc_fast.texts._decide import Decision
from xmc_fast.texts._embed import column_names, known_terms, rows_of
from xmc_fast.texts._evaluation import Evaluation, evaluation
from xmc_fast.texts._explain import (
    Explanation,
    LabelDescription,
    PathExplanation,
    describe_label,
    explain,
    nearest_examples,
)
from xmc_fast.texts._fit import fit_texts
from xmc_fast.texts._inputs import one_row
from xmc_fast.texts._join import concat, join
from xmc_fast.texts._labels import Encoded, encode, keep_entries
from xmc_fast.texts._state import TextState
from xmc_fast.texts._suggestions import Suggestion, frame, suggestions
from xmc_fast.texts._update import update_texts

Path = str | os.PathLike[str]


class TextClassifier(BaseEstimator):  # type: ignore[misc]
    """Suggest labels for texts: tf-idf features, a linear model, probabilities, and names throughout.

    Parameters
    ----------
    model : estimator, optional
        Trained on the tf-idf rows; by default ``OneVsAll(size="auto", n_jobs=..., random_state=...)``, with all
        weights for a ``label_range``, a ``checkpoint`` or ``keep_state``. For hundreds of thousands of labels
        ``LabelTree()``; for better lists at several times the cost ``Ensemble()``.
    analyzer : "word", "char" or "char_wb"
        Terms are words, or character n-grams (for languages without spaces, or for word parts).
    ngram_range : (int, int)
        Fewest and most words (or characters) of a term.
    min_df : int or float
        Leave out terms of fewer texts (a count, or a share of the texts); not with ``hashing``.
    stop_words : "english", list of str or None
        Words to leave out.
    strip_accents : "unicode", "ascii" or None
        Whether é and e are the same character.
    sublinear_tf : bool
        Use 1 + log(count) for the count of a term.
    hashing : int, optional
        Hash terms to so many columns instead of keeping a vocabulary, whose size has no bound.
    weights : dict, optional
        Weight of each text column of a frame, for example ``{"title": 2}``; columns not named have weight 1.
    embed : callable, optional
        Texts to an array (n, d): columns beside the tf-idf ones, for example of a sentence encoder. tf-idf rows have
        norm 1: scale the numbers to what they shall count. It is not saved: `set_params` gives it again after loading.
    calibrate : float
        Share of the rows that turns scores into probabilities: at most 1,000 rows, all of the share for a
        ``decide`` of `fit`. The model that scores them is not trained on them. Where they are more than a twentieth
        of the rows it is then trained again, on all, unless with a ``checkpoint`` or ``keep_state``. 0: no
        probabilities. An `Ensemble` and `Neighbours` need no such rows.
    n_jobs : int, optional
        Threads; results do not depend on their number.
    random_state : int, RandomState or None
        Chooses the rows for calibration, and seeds the default model.

    Attributes
    ----------
    label_names_ : list of str
        Label of each column. Names are sorted; ids and matrices keep their order.
    label_counts_ : array of int
        Usable rows of each label (before the share for calibration is taken).
    vectorizer_, model_
        The fitted vectorizer and model.
    fit_report_ : dict
        What was read and left out: ``rows``, ``trained``, ``held_out`` (for probabilities; trained on as well
        where ``trained`` has them), ``empty_texts`` (no text but white
        space), ``missing_texts`` (of these, None or NaN), ``unlabelled_rows``, ``repeated_labels`` (within a
        row), ``unknown_labels`` (not in ``label_names``), ``labels``, ``labels_without_rows`` (all of their
        rows are held out, or they have none: they are not learned), ``calibrated``.
    reading_ : dict
        How the training data was read, where known: ``sep``, and of files ``text`` and ``label``, the names of
        the columns. The commands read other files alike.

    Notes
    -----
    Rows without text and rows without labels are left out of the training and counted in ``fit_report_``:
    a row that nobody has tagged yet is not a row to which no tag applies. Texts without any known term get no
    suggestion; they would all get the most frequent labels.

    Examples
    --------
    >>> texts = ["green tea", "black tea", "iron ore", "steel and iron"] * 10
    >>> tags = [["drink"], ["drink"], ["metal", "mining"], ["metal"]] * 10
    >>> classifier = TextClassifier(calibrate=0.2).fit(texts, tags)
    >>> [suggestion.label for suggestion in classifier.predict_one("fine tea", k=1)]
    ['drink']
    >>> classifier.predict(["qqq"])
    [[]]
    """

    label_names_: list[str]
    label_counts_: npt.NDArray[np.int64] | None
    vectorizer_: Any
    model_: Any
    text_columns_: list[str]
    fit_report_: dict[str, Any]
    reading_: dict[str, Any]
    state_: TextState | None = None
    decision_: Decision | None = None
    update_: dict[str, Any]
    embedding_size_: int = 0  # numbers that `embed` gave for a text
    _feature_names: list[str] | None = None  # read when first needed

    def __init__(
        self,
        *,
        model: Any = None,
        analyzer: str = "word",
        ngram_range: tuple[int, int] = (1, 1),
        min_df: float = 2,
        stop_words: Any = None,
        strip_accents: str | None = None,
        sublinear_tf: bool = True,
        hashing: int | None = None,
        weights: dict[str, float] | None = None,
        embed: Callable[[list[str]], Any] | None = None,
        calibrate: float = 0.1,
        n_jobs: int | None = None,
        random_state: Any = 0,
    ) -> None:
        self.model = model
        self.analyzer = analyzer
        self.ngram_range = ngram_range
        self.min_df = min_df
        self.stop_words = stop_words
        self.strip_accents = strip_accents
        self.sublinear_tf = sublinear_tf
        self.hashing = hashing
        self.weights = weights
        self.embed = embed
        self.calibrate = calibrate
        self.n_jobs = n_jobs
        self.random_state = random_state

    @at_once
    def fit(
        self,
        texts: Any,
        labels: Any,
        *,
        sep: str | None = None,
        label_names: Sequence[str] | None = None,
        label_range: tuple[int, int] | None = None,
        checkpoint: Path | None = None,
        engine: Any = None,
        keep_state: bool = False,
        decide: Any = None,
    ) -> TextClassifier:
        """Train.

        Parameters
        ----------
        texts : list of str, Series, or frame
            pandas, polars or pyarrow. Every column of a frame is a text column; see ``weights``.
        labels : list, Series or matrix
            Per row a list of names (or ids), one name (or id), or one string of names with ``sep`` between
            them; or a binary matrix.
        sep : str, optional
            What separates the names of one string. By default the first of ``| ; tab ,`` that occurs.
        label_names : sequence of str, optional
            The labels in order: names of a matrix's columns or of ids; labels that are not among them are
            left out and counted.
        label_range : (start, stop), optional
            Train these labels only, by their order; `concat` joins the parts.
        checkpoint, engine, keep_state
            As in the model's ``fit`` (see `OneVsAll.fit`). `update` needs ``keep_state``.
        decide : "macro-f1", "micro-f1", "precision>=0.8" or int, optional
            How many labels `predict` gives when it is not told ``k``: a threshold per label or a common one,
            chosen on the rows held out for probabilities, or so many labels. By default five.
        """
        return fit_texts(
            self, texts, labels, sep, label_names, label_range, checkpoint, engine, keep_state, decide
        )

    @at_once
    def update(
        self,
        texts: Any = None,
        labels: Any = None,
        *,
        sep: str | None = None,
        relabel: Mapping[int, Any] | None = None,
        remove_rows: Sequence[int] | None = None,
        remove_labels: Sequence[str] | None = None,
        refresh_idf: bool = False,
        checkpoint: Path | None = None,
    ) -> TextClassifier:
        """Learn from new, changed and removed texts; the model must have been trained with ``keep_state``.

        Parameters
        ----------
        texts, labels, sep
            New rows, as in `fit`. Labels and words that are new get the next numbers.
        relabel : dict, optional
            Row number to its labels from now on. Rows are numbered as they were given, from 0 in `fit` and on
            through updates.
        remove_rows : sequence of int, optional
            Rows to forget.
        remove_labels : sequence of str, optional
            Labels to forget.
        refresh_idf : bool
            Count the idf of all words anew, which moves every row; else that of old words stays.
        checkpoint : path, optional
            Folder for solved labels: the same update goes on from there.

        Returns
        -------
        The classifier. ``update_`` tells what was done, how far the idf has drifted and, in ``advice``, whether
        a fit of all texts would be the better choice; see also `OneVsAll.update`.

        Examples
        --------
        >>> texts = ["green tea", "black tea", "iron ore", "steel and iron"] * 10
        >>> tags = [["drink"], ["drink"], ["metal", "mining"], ["metal"]] * 10
        >>> classifier = TextClassifier(calibrate=0).fit(texts, tags, keep_state=True)
        >>> classifier.update(["oak and pine", "pine"], [["wood"], ["wood"]]).predict_one("a pine", k=1)[0].label
        'wood'
        """
        check_is_fitted(self, "model_")
        return update_texts(
            self, texts, labels, sep, relabel, remove_rows, remove_labels, refresh_idf, checkpoint
        )

    @of_one_model
    def predict(
        self,
        texts: Any,
        k: int | None = None,
        *,
        threshold: float | None = None,
        proba: bool | None = None,
        output: str = "suggestions",
    ) -> Any:
        """The ``k`` best labels of each text.

        Parameters
        ----------
        texts : list of str, Series, or frame
            As in `fit`. Missing values are empty texts. A list given to a model of several text columns is
            taken as the last column, the others as empty.
        k : int, optional
            Most labels per text. By default what the model's rule decides (see ``decide`` in `fit`), else 5.
        threshold : float, optional
            Leave out labels of a smaller probability (or score).
        proba : bool, optional
            Probabilities (True) or raw scores (False); by default probabilities where the model has them.
        output : "suggestions", "frame" or "csr"
            A list of `Suggestion` per text; a frame with the columns row, rank, label, probability (pandas, or
            a dict of lists where pandas is not installed); or scipy CSR (texts x labels).

        Returns
        -------
        Best first. A text without any known term has no suggestions (see `known_terms`).
        """
        if output not in ("suggestions", "frame", "csr"):
            raise ValueError(f"output must be 'suggestions', 'frame' or 'csr', got {output!r}")
        top = self._top(self.transform(texts), k, threshold, proba)
        if output == "csr":
            return top
        return (frame if output == "frame" else suggestions)(top, self.label_names_)

    @of_one_model
    def predict_one(
        self, text: Any, k: int | None = None, *, threshold: float | None = None, proba: bool | None = None
    ) -> list[Suggestion]:
        """The ``k`` best labels of one text (a str, or a dict of text columns), with little overhead."""
        row = one_row(self, text)
        if not len(row[0]):
            return []
        rule = self._rule(k, proba)
        ids, values = self.model_.predict_one(
            row, rule.k if rule else 5 if k is None else k, **self._proba(proba)
        )
        if rule is not None and len(rule.thresholds):
            good = values >= (rule.thresholds[ids] if len(rule.thresholds) > 1 else rule.thresholds)
            ids, values = ids[good], values[good]
        pairs = zip(ids.tolist(), values.tolist(), strict=True)
        return [
            Suggestion(self.label_names_[label], value)
            for label, value in pairs
            if threshold is None or value >= threshold
        ]

    def known_terms(self, texts: Any) -> npt.NDArray[np.int64]:
        """How many different terms of each text the model knows; 0: it has nothing to go by."""
        check_is_fitted(self, "model_")
        return known_terms(self, texts)

    def evaluate(
        self, texts: Any, labels: Any, k: Sequence[int] = (1, 3, 5), *, sep: str | None = None, **options: Any
    ) -> Evaluation:
        """Compare the suggestions with true labels.

        Names are matched to the model's labels, in any order. Labels that the model does not know count as
        misses: they lower recall, and each is a label of F1 zero in macro averages. Rows without labels are
        left out. Both are counted in the result. ``options`` are those of `xmc_fast.metrics.report`.
        """
        encoded = self.encode(labels, sep)
        X = self.transform(texts)
        if encoded.Y.shape[0] != X.shape[0]:
            raise ValueError(f"texts has {X.shape[0]} rows, labels has {encoded.Y.shape[0]}")
        top = self._top(X, max(k), None, None)
        return evaluation(encoded, top, np.diff(X.indptr) > 0, k, n_jobs=self.n_jobs, **options)

    def encode(self, labels: Any, sep: str | None = None) -> Encoded:
        """Labels of any form as a matrix with the model's columns, then those of unknown labels.

        Strings are split at ``sep``, by default where those of the training were.
        """
        check_is_fitted(self, "model_")
        return encode(labels, self.label_names_, sep or self.reading_.get("sep"))

    def explain(self, text: Any, label: str | None = None, top: int = 10) -> Explanation | PathExplanation:
        """Why a label gets its score: the contribution of each term of a text (a str, or a dict of columns).

        The contributions and the bias add up to the score. ``label`` is by default the best one of the text;
        ``top`` is how many terms are shown (all are kept). For a `LabelTree` each step of the label's path is
        explained so, and the score is the product of the steps' factors.
        """
        return explain(self, text, label, top)

    def nearest_examples(
        self, text: Any, label: str, texts: Any, labels: Any, top: int = 3
    ) -> list[tuple[int, float]]:
        """Rows of the training data (given again) that have a label and are most like a text.

        Returns
        -------
        Row numbers and cosines of the tf-idf rows, best first.

        Examples
        --------
        >>> texts = ["green tea", "black tea", "iron ore", "steel and iron"] * 10
        >>> tags = [["drink"], ["drink"], ["metal", "mining"], ["metal"]] * 10
        >>> classifier = TextClassifier(calibrate=0.2).fit(texts, tags)
        >>> classifier.nearest_examples("fine green tea", "drink", texts, tags, top=1)[0][0]
        0
        """
        return nearest_examples(self, text, label, texts, labels, top)

    def describe_label(self, label: str, top: int = 10) -> LabelDescription:
        """The strongest terms for and against a label, its frequency, and the labels most like it."""
        return describe_label(self, label, top)

    @property
    def feature_names_(self) -> list[str] | None:
        """Term of each feature; None where terms are hashed."""
        if self._feature_names is None and self.hashing is None:
            check_is_fitted(self, "model_")
            terms = self.vectorizer_.get_feature_names_out().tolist()
            self._feature_names = column_names(terms, self.embedding_size_)
        return self._feature_names

    @property
    def calibrated(self) -> bool:
        """Whether the model gives probabilities."""
        check_is_fitted(self, "model_")
        own = bool(getattr(self.model_, "gives_probabilities", False))
        return own or getattr(self.model_, "calibration", None) is not None

    @property
    def nbytes(self) -> int:
        """Bytes of the model's weights in memory."""
        check_is_fitted(self, "model_")
        return int(self.model_.nbytes)

    @of_one_model
    def save(self, directory: Path) -> None:
        """Write one folder, without pickle; an older model there is replaced."""
        check_is_fitted(self, "model_")
        _store.save(self, directory)

    @classmethod
    def load(cls, directory: Path, *, mmap: bool = True, verify: bool = False) -> TextClassifier:
        """Open what `save` wrote (`xmc_fast.load` opens it too)."""
        loaded: TextClassifier = _store.load(cls, directory, mmap, verify)
        loaded.decision_ = Decision.read(pathlib.Path(directory))
        loaded.state_ = TextState.read(pathlib.Path(directory))
        return loaded

    @classmethod
    def from_parts(
        cls, vectorizer: Any, model: Any, *, label_names: Sequence[str] | None = None
    ) -> TextClassifier:
        """A classifier of a fitted vectorizer and a model trained on its features.

        ``vectorizer`` is an `xmc_fast.text.TfidfVectorizer`, or scikit-learn's without functions of the user.
        """
        return join(cls, vectorizer, model, label_names)

    @classmethod
    def concat(cls, parts: Sequence[TextClassifier]) -> TextClassifier:
        """One classifier with the labels of several that share a vectorizer (parts of the labels).

        Each label keeps the probabilities that were fitted in its part.
        """
        return concat(cls, parts)

    def transform(self, texts: Any) -> sp.csr_matrix:
        """The rows of texts that the model is applied to, float32: tf-idf, then what ``embed`` gives."""
        check_is_fitted(self, "model_")
        return rows_of(self, texts)

    def _proba(self, proba: bool | None) -> dict[str, bool]:
        wanted = self.calibrated if proba is None else proba
        if wanted and not self.calibrated:
            raise ValueError("proba=True needs probabilities: train with calibrate above 0")
        return {"proba": True} if wanted else {}

    def _rule(self, k: int | None, proba: bool | None) -> Decision | None:
        """The stored rule where it applies: ``k`` is not given and the values are those it was fitted on."""
        rule = self.decision_ if k is None else None
        return None if rule is None or (len(rule.thresholds) and proba is False) else rule

    def _top(
        self, X: sp.csr_matrix, k: int | None, threshold: float | None, proba: bool | None
    ) -> sp.csr_matrix:
        """The best labels of rows; none where a row is empty."""
        rule = self._rule(k, proba)
        k = rule.k if rule else 5 if k is None else k
        options: dict[str, Any] = self._proba(proba)
        if hasattr(self.model_, "calibrate"):
            options["n_jobs"] = self.n_jobs
        top = self.model_.predict(X, k, **options)
        top = top if rule is None else rule.keep(top)
        keep = np.repeat(np.diff(X.indptr) > 0, np.diff(top.indptr))
        if threshold is not None:
            keep &= top.data >= threshold
        return keep_entries(top, keep)
