"""Why a label: the contribution of each term of a text to the score, exact for a linear model."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from xmc_fast.model import SparseModel
from xmc_fast.model._explain import explain_columns, label_probability, label_weights
from xmc_fast.texts._inputs import one_row
from xmc_fast.tree import LabelTree
from xmc_fast.tree._explain import node_weights, path

if TYPE_CHECKING:
    from xmc_fast.texts._classifier import TextClassifier


# label name to column, of classifiers that needed it once
_PLACES: WeakKeyDictionary[Any, tuple[Any, dict[str, int]]] = WeakKeyDictionary()
_PLACES_LOCK = Lock()


class Contribution(NamedTuple):
    """One term's part of a score: ``value`` (of the normalised row) times ``weight``."""

    term: str
    value: float
    weight: float
    contribution: float
    spans: tuple[tuple[int, int], ...]  # where it stands in the text, [start, stop)


class Contributions(Sequence[Contribution]):
    """The terms of an explanation, the largest absolute contribution first: a list that is made when it is looked at,
    for most of its cost is to find where the terms stand in the text."""

    def __init__(
        self,
        classifier: TextClassifier,
        text: str,
        columns: npt.NDArray[Any],
        values: npt.NDArray[np.float64],
        weights: npt.NDArray[np.float64],
    ) -> None:
        parts = values * weights
        order = np.argsort(-np.abs(parts), kind="stable")
        self._columns, self._parts = columns[order], parts[order]
        self._numbers = (values[order], weights[order])
        self._source = (classifier.vectorizer_, classifier.feature_names_, text)
        self._made: list[Contribution] | None = None

    def strongest(self, count: int) -> list[tuple[str, float]]:
        """Up to so many terms with their contributions, those of 0 left out."""
        shown = np.flatnonzero(self._parts[:count])
        if self._source[1] is None:  # hashed: their words are found in the text
            return [(self[i].term, self[i].contribution) for i in shown.tolist()]
        names = _terms(self._source[1], self._columns[shown], {}, "")
        return list(zip(names, self._parts[shown].tolist(), strict=True))

    def _list(self) -> list[Contribution]:
        if self._made is None:
            vectorizer, names, text = self._source
            spans = _spans(vectorizer, text)
            terms = _terms(names, self._columns, spans, text)
            places = [spans.get(column, ()) for column in self._columns.tolist()]
            values, weights = (numbers.tolist() for numbers in self._numbers)
            rows = zip(terms, values, weights, self._parts.tolist(), map(tuple, places), strict=True)
            self._made = list(map(Contribution._make, rows))
        return self._made

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, at: Any) -> Any:
        return self._list()[at]

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._list())

    def __reduce__(self) -> Any:
        return list, (self._list(),)


@dataclass(frozen=True)
class Explanation:
    """A label's score for one text, term by term. ``str()`` is a table, `to_html` the text with its terms marked.

    ``score = bias + sum of contributions``, in double precision (`predict` adds up 32-bit numbers and can differ in the
    sixth decimal); terms that the label has no weight for contribute 0.
    """

    text: str
    label: str
    score: float
    probability: float | None
    bias: float
    contributions: Sequence[Contribution]  # largest absolute value first
    top: int = field(default=10, repr=False)

    @property
    def against(self) -> list[Contribution]:
        """The terms that lower the score, the strongest first: without them the label would rank higher."""
        return [c for c in self.contributions if c.contribution < 0][: self.top]

    def __str__(self) -> str:
        found = self.contributions
        if isinstance(found, Contributions):
            rows = found.strongest(self.top)
        else:  # unpickled
            rows = [(c.term, c.contribution) for c in found[: self.top] if c.contribution]
        rest = self.score - self.bias - sum(value for _, value in rows)
        rows += [("(other terms)", rest)] if abs(rest) > 1e-6 else []
        rows += [("(bias)", self.bias), ("score", self.score)]
        width = max(len(term) for term, _ in rows)
        lines = [f"{term:<{width}}  {value:+.4f}" for term, value in rows]
        shown = "" if self.probability is None else f", probability {self.probability:.3f}"
        return "\n".join([f"{self.label}: score {self.score:.4f}{shown}", *lines])

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        shown = [c._asdict() for c in self.contributions[: self.top]]
        names = ("label", "score", "probability", "bias")
        return {**{name: getattr(self, name) for name in names}, "contributions": shown}

    def to_html(self) -> str:
        """The text as HTML: terms for the label green, terms against it red, stronger ones darker."""
        largest = max((abs(c.contribution) for c in self.contributions), default=0.0) or 1.0
        strength = np.zeros(len(self.text))
        for c in self.contributions:
            for start, stop in c.spans:
                strength[start:stop] += c.contribution / largest
        parts, start = [], 0
        cuts = [*(np.flatnonzero(np.diff(strength)) + 1).tolist(), len(self.text)]
        for stop in cuts:
            value = float(strength[start]) if start < len(self.text) else 0.0
            piece = escape(self.text[start:stop])
            if abs(value) > 1e-3 and piece:
                colour = "46,160,67" if value > 0 else "218,54,51"
                shade = min(0.1 + 0.6 * abs(value), 0.7)
                piece = (
                    f'<mark style="background:rgba({colour},{shade:.2f});color:inherit"'
                    f' title="{value * largest:+.4f}">{piece}</mark>'
                )
            parts.append(piece)
            start = stop
        shown = "" if self.probability is None else f" &middot; probability {self.probability:.3f}"
        head = f"<p><b>{escape(self.label)}</b> &middot; score {self.score:.4f}{shown}</p>"
        return (
            f'<div class="xmc-explanation">{head}<p style="white-space:pre-wrap">{"".join(parts)}</p></div>'
        )

    def _repr_html_(self) -> str:
        return self.to_html()


@dataclass(frozen=True)
class PathExplanation:
    """A label's score in a label tree: the product of what the classifiers on its path give, each explained term by
    term. ``str()`` is a table per step, `to_html` the text with its terms marked, step by step."""

    text: str
    label: str
    score: float
    probability: float | None
    steps: list[Explanation]  # tree by tree, from the top down; the last one of a tree is the label's own
    factors: list[float]  # of the steps: their product is a tree's score, the mean of these ``score``

    def __str__(self) -> str:
        shown = "" if self.probability is None else f", probability {self.probability:.3f}"
        parts = [f"{self.label}: score {self.score:.4f}{shown}, a product of {len(self.steps)} steps"]
        for step, factor in zip(self.steps, self.factors, strict=True):
            parts.append(f"{step}\nfactor {factor:.4f}")
        return "\n\n".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        both = zip(self.steps, self.factors, strict=True)
        steps = [{**step.to_dict(), "factor": factor} for step, factor in both]
        return {**{name: getattr(self, name) for name in ("label", "score", "probability")}, "steps": steps}

    def to_html(self) -> str:
        """The text once per step, terms for it green, terms against it red."""
        return "\n".join(step.to_html() for step in self.steps)

    def _repr_html_(self) -> str:
        return self.to_html()


@dataclass(frozen=True)
class LabelDescription:
    """What a label has learned: terms with their weights, strongest first, and the labels most like it."""

    label: str
    rows: int | None  # training rows that have it
    positive: list[tuple[str, float]]
    negative: list[tuple[str, float]]
    similar: list[tuple[str, float]]  # cosine of the weight vectors (without bias)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return dict(vars(self))

    def __str__(self) -> str:
        def line(title: str, pairs: list[tuple[str, float]]) -> str:
            return f"{title:<9}" + (", ".join(f"{name} {value:+.2f}" for name, value in pairs) or "none")

        count = "" if self.rows is None else f": {self.rows:,} training rows"
        return "\n".join(
            [
                f"{self.label}{count}",
                line("for", self.positive),
                line("against", self.negative),
                line("similar", self.similar),
            ]
        )


def explain(
    classifier: TextClassifier, text: Any, label: str | None, top: int
) -> Explanation | PathExplanation:
    """See `TextClassifier.explain`."""
    model = _explained(classifier)
    columns, _ = row = one_row(classifier, text)
    if isinstance(text, dict):  # shown one below the other
        text = "\n".join(text.get(name) or "" for name in classifier.text_columns_)
    if label is None:
        best = model.predict_one(row, 1, **classifier._proba(None))[0]
        if not len(best):
            raise ValueError("the model suggests no label for this text: name one")
        number = int(best[0])
    else:
        number = label_number(classifier, label)
    name = classifier.label_names_[number]

    def contributions(values: Any, weights: Any) -> Contributions:
        return Contributions(classifier, text, columns, values, weights)

    if isinstance(model, LabelTree):
        return _explain_path(model, text, name, number, row, contributions, top)
    why = explain_columns(model, *row, number)
    parts = contributions(why.values, why.weights)
    return Explanation(text, name, why.score, why.probability, why.bias, parts, top)


def _explain_path(
    model: LabelTree, text: str, name: str, number: int, row: Any, contributions: Any, top: int
) -> PathExplanation:
    found = model.explain(row, number)
    depths = [len(levels) for levels, _ in model.trees_]
    steps, scores = [], np.ones(len(depths))
    for step in found:
        scores[step.tree] *= step.factor
        last = step.level + 1 == depths[step.tree]
        tree = f"tree {step.tree + 1}, " if len(depths) > 1 else ""
        title = f"{tree}{name}" if last else f"{tree}level {step.level + 1}, node {step.node}"
        parts = contributions(step.values, step.weights)
        steps.append(Explanation(text, title, step.score, None, step.bias, parts, top))
    score = float(scores.mean())
    probability = label_probability(model, number, float(model.margin(np.array([score], np.float32))[0]))
    return PathExplanation(text, name, score, probability, steps, [step.factor for step in found])


def describe_label(classifier: TextClassifier, label: str, top: int) -> LabelDescription:
    """See `TextClassifier.describe_label`."""
    model = _explained(classifier)
    number = label_number(classifier, label)
    if isinstance(model, LabelTree):
        columns, weights, similar = _in_leaf(classifier, model, number, min(top, 5))
    else:
        columns, weights = label_weights(model, number)
        own = columns < model.n_features
        columns, weights = columns[own], weights[own]
        similar = _similar(classifier, model, number, columns, weights, min(top, 5))
    order = np.argsort(-weights, kind="stable")
    counts = classifier.label_counts_

    def strongest(chosen: npt.NDArray[np.intp]) -> list[tuple[str, float]]:
        names = _terms(classifier.feature_names_, columns[chosen], {}, "")
        return [(name, float(weights[i])) for name, i in zip(names, chosen.tolist(), strict=True)]

    return LabelDescription(
        label,
        None if counts is None else int(counts[number]),
        strongest(order[weights[order] > 0][:top]),
        strongest(order[::-1][weights[order[::-1]] < 0][:top]),
        similar,
    )


def nearest_examples(
    classifier: TextClassifier, text: Any, label: str, texts: Any, labels: Any, top: int
) -> list[tuple[int, float]]:
    """See `TextClassifier.nearest_examples`."""
    number = label_number(classifier, label)
    has = classifier.encode(labels).Y[:, [number]].tocoo().row
    X = classifier.transform(texts)
    if X.shape[0] != classifier.encode(labels).Y.shape[0]:
        raise ValueError(f"texts has {X.shape[0]} rows, labels has {classifier.encode(labels).Y.shape[0]}")
    columns, values = one_row(classifier, text)
    vector = np.zeros(X.shape[1])
    vector[columns] = values / (np.linalg.norm(values) or 1.0)
    rows = np.sort(has)
    part = X[rows]
    norms = np.sqrt(np.asarray(part.multiply(part).sum(axis=1)).ravel())
    cosines = part @ vector / np.where(norms > 0, norms, 1)
    order = np.argsort(-cosines, kind="stable")[:top]
    return [(int(rows[i]), float(cosines[i])) for i in order.tolist()]


def label_number(classifier: TextClassifier, label: str) -> int:
    """The column of a label's name."""
    names = classifier.label_names_
    with _PLACES_LOCK:
        known = _PLACES.get(classifier)
    if known is None or known[0] is not names:
        known = (names, {name: place for place, name in enumerate(names)})
        with _PLACES_LOCK:
            _PLACES[classifier] = known
    try:
        return known[1][label]
    except (KeyError, TypeError):
        near = difflib.get_close_matches(label, names, 1)
        hint = f", did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"the model has no label {label!r}{hint}") from None


def _explained(classifier: TextClassifier) -> SparseModel | LabelTree:
    if not isinstance(classifier.model_, SparseModel | LabelTree):
        raise ValueError(
            f"only linear models and label trees are explained, got a {type(classifier.model_).__name__}"
        )
    return classifier.model_


def _in_leaf(
    classifier: TextClassifier, model: LabelTree, number: int, top: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], list[tuple[str, float]]]:
    """Features and weights of a label's own classifier in the first tree, and the labels most like it in its leaf."""
    levels, order = model.trees_[0]
    parent, node = path(levels, order, number)[-1]
    columns, weights = node_weights(levels[-1], parent, node)
    starts = levels[-1]["child_start"]
    found = []
    for other in range(int(starts[parent]), int(starts[parent + 1])):
        if other == node:
            continue
        theirs, values = node_weights(levels[-1], parent, other)
        _, mine, there = np.intersect1d(columns, theirs, assume_unique=True, return_indices=True)
        size = float(np.linalg.norm(weights) * np.linalg.norm(values))
        cosine = float(weights[mine] @ values[there]) / size if size else 0.0
        if cosine > 0:
            found.append((classifier.label_names_[int(order[other])], cosine))
    found.sort(key=lambda pair: (-pair[1], pair[0]))
    return columns, weights, found[:top]


def _similar(
    classifier: TextClassifier,
    model: SparseModel,
    number: int,
    columns: npt.NDArray[np.int64],
    weights: npt.NDArray[np.float64],
    top: int,
) -> list[tuple[str, float]]:
    vector = np.zeros(model.n_columns, np.float32)
    vector[columns] = weights
    W = model.to_csr()
    products = W @ vector
    squares = np.square(W.data, dtype=np.float64)
    if model.bias is not None:
        squares[W.indices == model.n_features] = 0
    sums = np.concatenate([[0], np.cumsum(squares)])
    norms = np.sqrt(sums[W.indptr[1:]] - sums[W.indptr[:-1]])
    cosines = products / np.maximum(norms * max(float(np.linalg.norm(weights)), 1e-30), 1e-30)
    cosines[number] = -2
    order = np.argsort(-cosines, kind="stable")[:top]
    return [(classifier.label_names_[i], float(cosines[i])) for i in order.tolist() if cosines[i] > 0]


def _spans(vectorizer: Any, text: str) -> dict[int, list[tuple[int, int]]]:
    """Column to the places of its term in the text, where the vectorizer tells them."""
    found: dict[int, list[tuple[int, int]]] = {}
    for start, stop, column in vectorizer.spans(text) if hasattr(vectorizer, "spans") else ():
        if column in found:
            found[column].append((start, stop))
        else:
            found[column] = [(start, stop)]
    return found


def _terms(
    names: list[str] | None, columns: Any, spans: dict[int, list[tuple[int, int]]], text: str
) -> list[str]:
    """Names of columns; of hashed ones their words in the text."""
    if names is not None:
        return [names[column] for column in columns.tolist()]
    out = []
    for column in np.asarray(columns).tolist():
        if column in spans:
            out.append(text[slice(*spans[column][0])].lower())
        else:
            out.append(f"column {column}")
    return out
