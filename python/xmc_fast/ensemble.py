"""`Ensemble`: several models' best labels, ranked anew by what each member says of them.

A pair of a row and a label that some member lists is described by that member's score s, s^2, the distance to the
row's best score, 1 / rank and log rank. How far to trust a member depends on how frequent a label is: each number
enters once for each of the knots 0, 1, 10, 100, 1,000 of the label's frequency, weighted by its (linear) closeness on
the log scale; 0 is a knot of its own, for labels that only names tell. Logistic regression on these numbers gives the
probability that the label is right. It is fitted on rows that the members did not see (folds of the training rows), so
a member that has learned its rows by heart is not trusted for that.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.base import BaseEstimator, clone
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from threadpoolctl import threadpool_limits

from xmc_fast._folder import (
    ModelFormatError,
    count,
    file_in,
    opening,
    part_of,
    read_manifest,
    replace_folder,
    write_manifest,
)
from xmc_fast._folder import load as load_any
from xmc_fast._progress import progress
from xmc_fast._refit import at_once, of_one_model
from xmc_fast._validate import Csr, features, labels, to_scipy
from xmc_fast.data import TextColumn
from xmc_fast.linear import OneVsAll
from xmc_fast.model import OneRow, SparseModel, is_relevant
from xmc_fast.model._calibrate import sigmoid
from xmc_fast.model._tensors import read_tensors, write_tensors
from xmc_fast.neighbours import Neighbours
from xmc_fast.texts._inputs import Columns, text_columns

_KIND = "ensemble"
_BLEND = "blend.safetensors"
_KNOTS = np.arange(-1, 4)  # log10 of a label's frequency; -1 for 0
_NUMBERS = 5  # of a pair, from each member
_CHUNK = 4096  # rows that are ranked at a time


class Pairs(NamedTuple):
    """Rows and labels that some member lists, by row and label."""

    row: npt.NDArray[np.int64]
    label: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.float32]  # pairs x columns


class Ensemble(OneRow, BaseEstimator):  # type: ignore[misc]
    """Several models as one: their best labels, blended by logistic regression on rows they did not see.

    Parameters
    ----------
    members : sequence of estimators, optional
        Each with ``fit(X, Y)`` and ``predict(X, k)``; by default `OneVsAll` and `Neighbours`. All are given the same X:
        features, or texts. Of texts members are `TextClassifier`, each with a model and features of its own, and
        `Lexical`; by default two `TextClassifier` with the models just named.
    folds : int
        The members are trained so many times more, each time without a part of the rows, which the blend is then
        fitted on. With 1 they are trained once, without ``blend_rows`` rows (a quarter of all at most).
    candidates : int
        Labels that each member lists for a row.
    blend_rows : int
        Rows that the blend is fitted on, at most.
    n_jobs : int, optional
        Threads of the default members; results do not depend on their number.
    random_state : int, RandomState or None
        Chooses the folds, and seeds the default members.

    Attributes
    ----------
    members_ : list
        Trained on all rows.
    weights_ : (members * 5 + 1) * 5 float32
        Of the blend's numbers (see the module), those of the knots alone last; the constant is in them.
    label_counts_ : array of int
        Training rows of each label.
    n_labels_ : int
    n_features_in_ : int, or None
        None if X is texts.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.eye(4)[np.arange(40) % 4]
    >>> Y = np.eye(4)[np.arange(40) % 4]
    >>> Ensemble().fit(X, Y).predict(np.eye(4), k=1).indices
    array([0, 1, 2, 3], dtype=int32)
    """

    gives_probabilities = True  # without calibration

    def __init__(
        self,
        members: Sequence[Any] | None = None,
        *,
        folds: int = 3,
        candidates: int = 50,
        blend_rows: int = 10_000,
        n_jobs: int | None = None,
        random_state: Any = 0,
    ) -> None:
        self.members = members
        self.folds = folds
        self.candidates = candidates
        self.blend_rows = blend_rows
        self.n_jobs = n_jobs
        self.random_state = random_state

    @at_once
    def fit(self, X: Any, Y: Any) -> Ensemble:
        """Train the members on each fold, then on all rows.

        Parameters
        ----------
        X : (n, D) sparse or dense; or n texts: list, Series, column or frame
        Y : (n, L) binary
        """
        for name, least in (("folds", 1), ("candidates", 1), ("blend_rows", 1)):
            if not getattr(self, name) >= least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)!r}")
        x = _Rows.of(X)
        members = [*(self._default_members(x.texts is not None) if self.members is None else self.members)]
        if not members:
            raise ValueError("members must hold at least one estimator, got none")
        y = labels(Y, n_rows=x.n)
        if x.n < self.folds:
            raise ValueError(f"X must have at least as many rows as folds ({self.folds}), got {x.n}")
        truth = _binary(y)
        order = check_random_state(self.random_state).permutation(x.n)
        once = self.folds == 1
        most = min(self.blend_rows, max(1, x.n // 4)) if once else -(-self.blend_rows // self.folds)
        pairs: list[Pairs] = []
        held_out: list[npt.NDArray[np.intp]] = []
        with progress((self.folds + (not once)) * len(members), unit="model", desc="ensemble") as bar:

            def trained(rows: npt.NDArray[np.intp]) -> Iterator[Any]:
                for member in members:
                    yield _model(clone(member).fit(x.take(rows), truth[rows]))
                    bar.update(1)

            for part in (order[:most],) if once else (order[i :: self.folds] for i in range(self.folds)):
                rest, chosen = np.sort(np.setdiff1d(order, part)), np.sort(part[:most])
                counts = np.bincount(truth[rest].indices, minlength=y.shape[1])
                lists = []
                self.members_ = []
                for fitted in trained(rest):
                    lists.append(_listed(fitted, x.take(chosen), self.candidates))
                    self.members_ += [fitted] if once else []
                pairs.append(_pairs(lists, counts))
                held_out.append(chosen)
            if not once:
                self.members_, counts = (
                    [*trained(np.arange(x.n))],
                    np.bincount(y.indices, minlength=y.shape[1]),
                )
        self.label_counts_ = counts.astype(np.int64)
        self.n_features_in_, self.n_labels_ = x.n_features, y.shape[1]
        starts = np.cumsum([0, *map(len, held_out)])
        rows = [p.row + start for p, start in zip(pairs, starts, strict=False)]
        label, numbers = (np.concatenate([p[i] for p in pairs]) for i in (1, 2))
        every = Pairs(np.concatenate(rows), label, numbers)
        self.weights_ = _fit_weights(every, _binary(labels(truth[np.concatenate(held_out)])))
        return self

    @of_one_model
    def predict(self, X: Any, k: int = 5, *, proba: bool = False) -> sp.csr_matrix:
        """The ``k`` most probable labels of each row, of those that some member lists.

        Parameters
        ----------
        X : (n, D) sparse or dense, or n texts
        k : int
            Labels per row.
        proba : bool
            Probabilities; else their log-odds.

        Returns
        -------
        scipy CSR (n, L), best first.
        """
        check_is_fitted(self, "weights_")
        if k < 0:
            raise ValueError(f"k must be at least 0, got {k}")
        x = self._rows(X)
        chunks = (np.arange(i, min(i + _CHUNK, x.n)) for i in range(0, max(1, x.n), _CHUNK))
        parts = [self._ranked(x.take(rows), k) for rows in chunks]
        counts, ids, values = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        indptr = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        return to_scipy(indptr, ids, sigmoid(values) if proba else values, (x.n, self.n_labels_))

    def predict_one(
        self, x: Any, k: int = 5, **options: Any
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """The ``k`` best labels of one row (as in `SparseModel.predict_one`) or text, and their scores."""
        if not isinstance(x, str):
            return super().predict_one(x, k, **options)
        top = self.predict([x], k, **options)
        return top.indices, top.data

    def contributions(self, X: Any, label: int) -> npt.NDArray[np.float32]:
        """What each member adds to a label's log-odds, rows x (members + 1); the last column is the label's frequency.

        The rows add up to the score of `predict`; NaN where no member lists the label.

        Examples
        --------
        >>> import numpy as np
        >>> X = Y = np.eye(4)[np.arange(40) % 4]
        >>> model = Ensemble().fit(X, Y)
        >>> parts = model.contributions(X[:1], 0)
        >>> bool(np.isclose(parts.sum(), model.predict(X[:1], 1).data[0], rtol=1e-4))
        True
        """
        check_is_fitted(self, "weights_")
        if not 0 <= label < self.n_labels_:
            raise ValueError(f"label must be in 0..{self.n_labels_ - 1}, got {label}")
        x = self._rows(X)
        given = x.take(np.arange(x.n))
        lists = [_listed(member, given, self.candidates) for member in self.members_]
        pairs = _pairs(lists, self.label_counts_)
        out = np.full((x.n, len(self.members_) + 1), np.nan, np.float32)
        one = pairs.label == label
        width = _NUMBERS * len(_KNOTS)
        edges = range(0, len(self.weights_), width)
        products = pairs.numbers[one] * self.weights_
        out[pairs.row[one]] = np.add.reduceat(products, list(edges), axis=1)
        return out

    @property
    def nbytes(self) -> int:
        """Bytes of the members in memory."""
        check_is_fitted(self, "weights_")
        return sum(int(member.nbytes) for member in self.members_) + int(self.label_counts_.nbytes)

    @of_one_model
    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write one folder with a folder for each member; an older model there is replaced."""
        check_is_fitted(self, "weights_")
        params = {name: int(getattr(self, name)) for name in ("folds", "candidates", "blend_rows")}
        facts = {"n_labels": self.n_labels_, "n_features": self.n_features_in_}
        with replace_folder(directory) as folder:
            for i, member in enumerate(self.members_):
                member.save(folder / f"member-{i}")
            blend: dict[str, npt.NDArray[Any]] = {
                "weights": self.weights_,
                "label_counts": self.label_counts_,
            }
            write_tensors(folder / _BLEND, blend, {"kind": _KIND})
            write_manifest(folder, _KIND, {"params": params, **facts, "members": len(self.members_)})

    @classmethod
    def load(cls, directory: str | os.PathLike[str], *, mmap: bool = True, verify: bool = False) -> Ensemble:
        """Open what `save` wrote. ``mmap`` maps the members' weights; ``verify`` reads and checks every byte."""
        return _load(cls, directory, mmap=mmap, verify=verify)

    def _default_members(self, of_texts: bool) -> list[Any]:
        models = [
            OneVsAll(n_jobs=self.n_jobs, random_state=self.random_state),
            Neighbours(n_jobs=self.n_jobs),
        ]
        if not of_texts:
            return models
        from xmc_fast.texts import TextClassifier

        return [TextClassifier(model=model, calibrate=0, n_jobs=self.n_jobs) for model in models]

    def _rows(self, X: Any) -> _Rows:
        """What `predict` is given, if it is of the kind of `fit`."""
        x = _Rows.of(X, self.n_features_in_)
        if (x.texts is None) != (self.n_features_in_ is not None):
            kinds = ("texts", "features")[:: 1 if self.n_features_in_ is None else -1]
            raise ValueError("X must be {} as in fit, got {}".format(*kinds))
        return x

    def _ranked(
        self, given: Any, k: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Labels per row, labels and log-odds, best first."""
        lists = [_listed(member, given, self.candidates) for member in self.members_]
        return _ranked(lists, self.label_counts_, self.weights_, k)


class _Rows(NamedTuple):
    """What members are given: features or texts."""

    n: int
    n_features: int | None
    matrix: sp.csr_matrix | None
    texts: Columns | None

    @classmethod
    def of(cls, X: Any, n_features: int | None = None) -> _Rows:
        if _are_texts(X):
            columns = text_columns(X)
            return cls(columns.n_rows, None, None, columns)
        matrix = to_scipy(*features(X, n_features=n_features))
        return cls(matrix.shape[0], matrix.shape[1], matrix, None)

    def take(self, rows: npt.NDArray[np.intp]) -> Any:
        return self.matrix[rows] if self.texts is None else self.texts.take(rows).given  # type: ignore[index]


def _are_texts(X: Any) -> bool:
    if sp.issparse(X):
        return False
    if isinstance(X, (dict, TextColumn)):
        return True
    if isinstance(X, (list, tuple)):
        return any(isinstance(value, str) for value in X[:100])
    matrix = isinstance(X, np.ndarray) and X.ndim != 1
    return not matrix and np.asarray(X).dtype.kind not in "biuf"


def _model(fitted: Any) -> Any:
    """What predicts and is saved: of `OneVsAll` its model."""
    linear = getattr(fitted, "model_", None)
    return linear if isinstance(linear, SparseModel) and not hasattr(fitted, "vectorizer_") else fitted


def _listed(member: Any, given: Any, k: int) -> sp.csr_matrix:
    """A member's list: scores, also where it could give probabilities of them."""
    named = hasattr(member, "vectorizer_")
    own = {"output": "csr", "proba": False} if named else {}
    top: sp.csr_matrix = member.predict(given, k, **own)
    return top


def _binary(y: Csr) -> sp.csr_matrix:
    return to_scipy(y.indptr, y.indices, np.ones(len(y.indices), bool), y.shape)


def _pairs(lists: Sequence[sp.csr_matrix], counts: npt.NDArray[Any]) -> Pairs:
    """The numbers of all pairs that some member lists; see the module."""
    n, n_labels = lists[0].shape
    keys = [np.repeat(np.arange(n), np.diff(top.indptr)) * np.int64(n_labels) + top.indices for top in lists]
    pairs = np.unique(np.concatenate(keys))
    row, label = pairs // max(1, n_labels), pairs % max(1, n_labels)
    frequency = np.minimum(np.log10(np.maximum(counts[label], 0.1)), _KNOTS[-1])
    closeness = np.maximum(0, 1 - np.abs(frequency[:, None] - _KNOTS)).astype(np.float32)
    numbers = [
        numbers[:, None] * closeness
        for top, key in zip(lists, keys, strict=True)
        for numbers in _member_numbers(top, row, np.searchsorted(pairs, key))
    ]
    return Pairs(row, label, np.concatenate([*numbers, closeness], axis=1))


def _ranked(
    lists: Sequence[sp.csr_matrix], counts: npt.NDArray[Any], weights: npt.NDArray[np.float32], k: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Labels per row, labels and log-odds, best first, of the members' lists; ``counts``: rows of each label."""
    pairs = _pairs(lists, counts)
    score = pairs.numbers @ weights
    order = np.lexsort((pairs.label, -score, pairs.row))
    sizes = np.bincount(pairs.row, minlength=lists[0].shape[0])
    starts = np.concatenate([[0], np.cumsum(sizes)])
    best = order[np.arange(len(order)) - starts[pairs.row[order]] < k]
    return np.minimum(sizes, k), pairs.label[best].astype(np.int32), score[best]


def _member_numbers(
    top: sp.csr_matrix, row: npt.NDArray[np.int64], at: npt.NDArray[np.intp]
) -> Iterator[npt.NDArray[np.float32]]:
    """The numbers of one member, whose listed pairs are ``at``. Others have its lowest score, and the rank below it."""
    counts = np.diff(top.indptr)
    some = counts > 0
    first, last = np.zeros((2, top.shape[0]), np.float32)
    first[some], last[some] = top.data[top.indptr[:-1][some]], top.data[top.indptr[1:][some] - 1]
    score, rank = last[row], (counts[row] + 1).astype(np.float32)
    score[at] = top.data
    rank[at] = np.arange(len(at)) - np.repeat(top.indptr[:-1], counts) + 1
    yield score
    yield score * score
    yield first[row] - score
    yield 1 / rank
    yield np.log(rank)


def _fit_weights(pairs: Pairs, truth: sp.csr_matrix) -> npt.NDArray[np.float32]:
    """Logistic regression; scaling and constant are folded into the weights (the closenesses add up to 1)."""
    indptr = np.searchsorted(pairs.row, np.arange(truth.shape[0] + 1))
    listed = to_scipy(indptr, pairs.label, np.ones(len(pairs.label), bool), truth.shape)
    relevant = is_relevant(listed, labels(truth))
    if relevant.all() or not relevant.any():
        raise ValueError(
            f"the blend needs relevant and irrelevant labels among the candidates, got {relevant.sum()} relevant"
            f" of {len(relevant)}: give it more rows, or other candidates"
        )
    with threadpool_limits(1):  # sums in one order: the same bits on any machine load
        scaler = StandardScaler().fit(pairs.numbers)
        model = LogisticRegression(max_iter=300).fit(scaler.transform(pairs.numbers), relevant)
    weights = model.coef_[0].astype(np.float64) / scaler.scale_
    weights[-len(_KNOTS) :] += model.intercept_[0] - weights @ scaler.mean_
    out: npt.NDArray[np.float32] = weights.astype(np.float32)
    return out


@opening
def _load(cls: Any, directory: str | os.PathLike[str], *, mmap: bool, verify: bool) -> Ensemble:
    facts = ("params", "n_labels", "n_features", "members")
    manifest = read_manifest(directory, _KIND, required=facts)
    folder = Path(directory)
    model: Ensemble = cls(**{name: count(value, name, 1) for name, value in manifest["params"].items()})
    model.n_labels_, model.n_features_in_ = int(manifest["n_labels"]), manifest["n_features"]
    model.members_ = []
    for i in range(count(manifest["members"], "members", 1, 1000)):
        member: Any = load_any(part_of(folder, f"member-{i}"), mmap=mmap, verify=verify)
        sizes = _sizes(member)
        if sizes != (model.n_labels_, model.n_features_in_):
            raise ModelFormatError(f"{folder / f'member-{i}'}: has {sizes} labels and features")
        model.members_.append(member)
    found, _ = read_tensors(file_in(folder, _BLEND), map_file=False, verify=True)
    model.weights_, model.label_counts_ = found["weights"], found["label_counts"]
    wanted = (_NUMBERS * len(model.members_) + 1) * len(_KNOTS)
    if model.weights_.shape != (wanted,) or model.label_counts_.shape != (model.n_labels_,):
        raise ModelFormatError(f"{folder / _BLEND}: damaged, weights of other members or labels")
    return model


def _sizes(member: Any) -> tuple[int | None, int | None]:
    """Labels and features of a model; of one that takes texts no features."""
    names = getattr(member, "label_names_", None)
    n_labels = (
        len(names) if names is not None else getattr(member, "n_labels", getattr(member, "n_labels_", None))
    )
    if hasattr(member, "vectorizer_"):
        return n_labels, None
    return n_labels, getattr(member, "n_features", getattr(member, "n_features_in_", None))
