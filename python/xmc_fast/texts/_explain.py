"""Why a label: the contribution of each term of a text to the score, exact for a linear model."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from xmc_fast.model import SparseModel

if TYPE_CHECKING:
    from xmc_fast.texts._classifier import TextClassifier


class Contribution(NamedTuple):
    """One term's part of a score: ``value`` (of the normalised row) times ``weight``."""

    term: str
    value: float
    weight: float
    contribution: float
    spans: tuple[tuple[int, int], ...]  # where it stands in the text, [start, stop)


@dataclass(frozen=True)
class Explanation:
    """A label's score for one text, term by term. ``str()`` is a table, `to_html` the text with its terms marked.

    ``score = bias + sum of contributions``; terms that the label has no weight for contribute 0.
    """

    text: str
    label: str
    score: float
    probability: float | None
    bias: float
    contributions: list[Contribution]  # largest absolute value first
    top: int = field(default=10, repr=False)

    def __str__(self) -> str:
        rows = [(c.term, c.contribution) for c in self.contributions if c.contribution][: self.top]
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


def explain(classifier: TextClassifier, text: Any, label: str | None, top: int) -> Explanation:
    """See `TextClassifier.explain`."""
    model = _linear(classifier)
    row, text = _one_text(classifier, text)
    if label is None:
        best = model.predict_one((row.indices, row.data), 1, **classifier._proba(None))[0]
        number = int(best[0])
    else:
        number = label_number(classifier, label)
    columns, weights = _label_weights(model, number)
    values = row.data.astype(np.float64)
    if model.normalize and len(values):
        values /= np.sqrt(np.square(values).sum()) or 1.0
    bias = 0.0
    if model.bias is not None:
        has = len(columns) and columns[-1] == model.n_features
        bias = float(model.bias) * float(weights[-1]) if has else 0.0
    at = np.searchsorted(columns, row.indices)
    at[at == len(columns)] = 0
    matched = columns[at] == row.indices if len(columns) else np.zeros(len(at), bool)
    weight = np.where(matched, weights[at], 0.0) if len(columns) else np.zeros(len(at))
    parts = values * weight
    spans = _spans(classifier.vectorizer_, text)
    names = _terms(classifier, row.indices, spans, text)
    order = np.argsort(-np.abs(parts), kind="stable")
    contributions = [
        Contribution(
            names[i], float(values[i]), float(weight[i]), float(parts[i]), spans.get(int(row.indices[i]), ())
        )
        for i in order.tolist()
    ]
    score = bias + float(parts.sum())
    probability = None
    if model.calibration is not None:
        z = float(model.calibration.scale[number]) * score + float(model.calibration.shift[number])
        probability = float(1 / (1 + np.exp(-np.clip(z, -80, 80))))
    name = classifier.label_names_[number]
    return Explanation(text, name, score, probability, bias, contributions, top)


def _one_text(classifier: TextClassifier, text: Any) -> tuple[Any, str]:
    """The tf-idf row, and the text to show: the columns one below the other."""
    if not isinstance(text, dict):
        return classifier.transform([text]), text
    row = classifier.transform({name: [value] for name, value in text.items()})
    return row, "\n".join(text.get(name) or "" for name in classifier.text_columns_)


def describe_label(classifier: TextClassifier, label: str, top: int) -> LabelDescription:
    """See `TextClassifier.describe_label`."""
    model = _linear(classifier)
    number = label_number(classifier, label)
    columns, weights = _label_weights(model, number)
    own = columns < model.n_features
    columns, weights = columns[own], weights[own]
    order = np.argsort(-weights, kind="stable")
    counts = classifier.label_counts_

    def strongest(chosen: npt.NDArray[np.intp]) -> list[tuple[str, float]]:
        names = _terms(classifier, columns[chosen], {}, "")
        return [(name, float(weights[i])) for name, i in zip(names, chosen.tolist(), strict=True)]

    return LabelDescription(
        label,
        None if counts is None else int(counts[number]),
        strongest(order[weights[order] > 0][:top]),
        strongest(order[::-1][weights[order[::-1]] < 0][:top]),
        _similar(classifier, model, number, columns, weights, min(top, 5)),
    )


def label_number(classifier: TextClassifier, label: str) -> int:
    """The column of a label's name."""
    try:
        return classifier.label_names_.index(label)
    except ValueError:
        raise ValueError(f"the model has no label {label!r}") from None


def _linear(classifier: TextClassifier) -> SparseModel:
    if not isinstance(classifier.model_, SparseModel):
        raise ValueError(f"only linear models are explained, got a {type(classifier.model_).__name__}")
    return classifier.model_


def _label_weights(model: SparseModel, label: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Columns (ascending) and weights of one label."""
    block = next(b for b in model.blocks if b.first_label <= label < b.first_label + b.n_labels)
    at = label - block.first_label
    rows = slice(int(block.indptr[at]), int(block.indptr[at + 1]))
    return block.indices[rows].astype(np.int64), block.data[rows].astype(np.float64)


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


def _spans(vectorizer: Any, text: str) -> dict[int, tuple[tuple[int, int], ...]]:
    """Column to the places of its term in the text, where the vectorizer tells them."""
    if not hasattr(vectorizer, "spans"):
        return {}
    found: dict[int, list[tuple[int, int]]] = {}
    for start, stop, column in vectorizer.spans(text):
        found.setdefault(int(column), []).append((int(start), int(stop)))
    return {column: tuple(places) for column, places in found.items()}


def _terms(
    classifier: TextClassifier, columns: Any, spans: dict[int, tuple[tuple[int, int], ...]], text: str
) -> list[str]:
    """Names of columns; of hashed ones their words in the text."""
    names = classifier.feature_names_
    out = []
    for column in np.asarray(columns).tolist():
        if names is not None:
            out.append(names[column])
        elif column in spans:
            out.append(text[slice(*spans[column][0])].lower())
        else:
            out.append(f"column {column}")
    return out
