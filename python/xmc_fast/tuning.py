"""The best setting of a linear model for a metric, by successive halving (Jamieson & Talwalkar 2016).

Every setting is trained on a small part of the rows and labels; the better third goes on to a larger part, and so on.
A fit costs about rows times labels, so all rounds together cost a few default fits however many settings there are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast import metrics
from xmc_fast._files import write_text
from xmc_fast._folder import check_same_fit, read_json
from xmc_fast._validate import features, fingerprint
from xmc_fast._validate import labels as labels_of
from xmc_fast.linear import OneVsAll
from xmc_fast.texts import TextClassifier
from xmc_fast.texts._fit import make_vectorizer
from xmc_fast.texts._inputs import Columns, text_columns
from xmc_fast.texts._labels import encode

TEXT_PARAMETERS = (
    "analyzer",
    "ngram_range",
    "min_df",
    "stop_words",
    "strip_accents",
    "sublinear_tf",
    "hashing",
)
# Share of the rows, share of the labels, settings that go on from the round before: about 0.6 + 0.9 + 1 fits.
ROUNDS = ((0.25, 0.1, 1.0), (0.5, 0.22, 1 / 3), (1.0, 1 / 3, 1 / 8))
_COST = 2.5
FEWEST_ROWS, FEWEST_LABELS = 500, 64  # smaller parts tell too little


@dataclass(frozen=True)
class Tuning:
    """What was tried. ``str()`` is a table, best first; `make` gives the estimator of the best setting."""

    best: dict[str, Any]
    metric: str
    trials: list[dict[str, Any]]  # round, rows, labels, setting, score
    texts: bool = field(repr=False, default=False)
    names: list[str] | None = field(repr=False, default=None)

    @property
    def last(self) -> list[dict[str, Any]]:
        """The last trial of each setting, the best first: those of later rounds before those of earlier ones."""
        newest: dict[str, dict[str, Any]] = {}
        for trial in self.trials:
            newest[_key(trial["setting"])] = trial
        return sorted(newest.values(), key=lambda t: (-t["round"], -t["score"], _key(t["setting"])))

    def make(self, **options: Any) -> Any:
        """An estimator with the best setting, not fitted: `TextClassifier` for texts, else `OneVsAll`."""
        return make_estimator(self.best, self.texts, options)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return {"best": self.best, "metric": self.metric, "trials": self.trials}

    def __str__(self) -> str:
        lines = [f"{'round':>5} {'rows':>9} {'labels':>8} {self.metric:>14}  setting"]
        for t in self.last:
            shown = ", ".join(f"{name}={value}" for name, value in t["setting"].items()) or "(default)"
            lines.append(
                f"{t['round']:>5} {t['rows']:>9,} {t['labels']:>8,} {100 * t['score']:>13.2f}%  {shown}"
            )
        return "\n".join(lines)


def default_settings(texts: bool) -> list[dict[str, Any]]:
    """The settings that `tune` tries: the default, C, positive weights, bias, pruning, and terms of texts.

    Examples
    --------
    >>> len(default_settings(texts=True)) >= 20
    True
    """
    out: list[dict[str, Any]] = []
    for C in (1.0, 0.25, 0.5, 2.0, 4.0):
        for weight in (None, "balanced^0.25", "balanced^0.5"):
            out.append({"C": C} | ({} if weight is None else {"positive_weight": weight}))
    out[0] = {}
    out += [{"C": 8.0}, {"bias": None}, {"C": 0.5, "bias": None}, {"C": 2.0, "bias": None}]
    out += [{"prune": 0.03}, {"prune": 0.1}]
    if texts:
        out += [{"min_df": 1}, {"min_df": 4}, {"ngram_range": [1, 2]}, {"ngram_range": [1, 2], "C": 2.0}]
    return out


def tune(
    X: Any,
    y: Any,
    *,
    metric: str = "ndcg@5",
    settings: Sequence[Mapping[str, Any]] | None = None,
    budget: float = 4.0,
    valid: float = 0.2,
    sep: str | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    n_jobs: int | None = None,
    random_state: int = 0,
) -> Tuning:
    """Find the setting of a linear model that is best for a metric.

    Parameters
    ----------
    X : (n, D) sparse or dense, or texts
        Features for `OneVsAll`; or texts as in `TextClassifier.fit`, whose terms are then settings too.
    y : (n, L) binary, or for texts labels of any form
    metric : str
        Of `xmc_fast.metrics.report`, with its k: "ndcg@5", "precision@1", "macro_f1@5".
    settings : sequence of dict, optional
        What to try: parameters of `OneVsAll` and, for texts, of `TextClassifier`. By default `default_settings`.
    budget : float
        What all trials may cost, in default fits: the shares of rows and labels follow from it.
    valid : float
        Share of the rows that settings are measured on and never trained on.
    sep : str, optional
        As in `TextClassifier.fit`.
    checkpoint : path, optional
        A JSON file of the trials; the same call goes on from there.
    n_jobs, random_state
        Threads; seed of the parts. The result is the same for any number of threads.

    Returns
    -------
    Tuning
        ``best`` is the setting; ``make().fit(X, y)`` trains it on all rows.

    Examples
    --------
    >>> texts = ["green tea", "black tea", "iron ore", "steel and iron"] * 20
    >>> tags = [["drink"], ["drink"], ["metal", "mining"], ["metal"]] * 20
    >>> found = tune(texts, tags, metric="precision@1", settings=[{}, {"C": 4.0}])
    >>> found.best in ({}, {"C": 4.0})
    True
    >>> model = found.make().fit(texts, tags)
    """
    if not 0 < valid < 1:
        raise ValueError(f"valid must be a share between 0 and 1, got {valid!r}")
    if budget <= 0:
        raise ValueError(f"budget must be above 0, got {budget!r}")
    tried = [
        dict(setting) for setting in (settings if settings is not None else default_settings(_is_text(X)))
    ]
    if not tried:
        raise ValueError("settings must hold at least one setting, got none")
    data = _Data(X, y, sep, valid, random_state, n_jobs)
    log = _Log(checkpoint, {"metric": metric, "budget": budget, "settings": tried, "data": data.key})
    scale = min(1.0, (budget / _COST) ** 0.5)
    left = tried
    trials: list[dict[str, Any]] = []
    for number, (rows, labels, share) in enumerate(ROUNDS, 1):
        if number > 1:
            keep = max(1, round(share * len(tried)))
            order = sorted(range(len(left)), key=lambda i: (-trials[len(trials) - len(left) + i]["score"], i))
            left = [left[i] for i in order[:keep]]
        part = data.part(min(1.0, rows * scale), min(1.0, labels * scale))
        for setting in left:
            score = log.get(number, setting)
            if score is None:
                score = log.add(number, setting, data.score(setting, part, metric))
            trials.append(
                {
                    "round": number,
                    "rows": len(part[0]),
                    "labels": len(part[1]),
                    "setting": setting,
                    "score": score,
                }
            )
        if len(left) == 1:
            break
    last = [trial for trial in trials if trial["round"] == trials[-1]["round"]]
    best = max(last, key=lambda trial: trial["score"])["setting"]
    return Tuning(best, metric, trials, data.texts is not None)


def make_estimator(setting: Mapping[str, Any], texts: bool, options: Mapping[str, Any]) -> Any:
    """The estimator of a setting."""
    linear = {name: value for name, value in setting.items() if name not in TEXT_PARAMETERS}
    shared = {name: value for name, value in options.items() if name in ("n_jobs", "random_state")}
    model = OneVsAll(**linear, **shared)
    return (
        TextClassifier(model=model, **_text_options(setting), **options)
        if texts
        else model.set_params(**options)
    )


class _Data:
    """Training and validation rows, and the features of each way to read texts."""

    def __init__(self, X: Any, y: Any, sep: str | None, valid: float, seed: int, n_jobs: int | None) -> None:
        self.texts: Columns | None = None
        self.n_jobs = n_jobs
        if _is_text(X):
            self.texts = text_columns(X)
            Y = encode(y, None, sep).Y
            usable = np.flatnonzero(self.texts.filled & (np.diff(Y.indptr) > 0))
            count = self.texts.n_rows
        else:
            x = features(X)
            self.X = sp.csr_matrix((x.data, x.indices, x.indptr), x.shape)
            given = labels_of(y, n_rows=x.shape[0])
            Y = sp.csr_matrix(
                (np.ones(len(given.indices), np.float32), given.indices, given.indptr), given.shape
            )
            count, usable = x.shape[0], np.arange(x.shape[0])
        if Y.shape[0] != count:
            raise ValueError(f"X has {count} rows, y has {Y.shape[0]}")
        self.Y = Y
        order = usable[np.random.default_rng(seed).permutation(len(usable))]
        held = max(1, round(valid * len(order)))
        self.valid, self.train = np.sort(order[:held]), order[held:]
        if not len(self.train):
            raise ValueError(f"{len(usable)} usable rows are too few to hold out {valid:.0%} of them")
        arrays = {"indptr": Y.indptr, "indices": Y.indices, "order": order}
        arrays |= {} if self.texts is not None else {"x": self.X.data}
        self.key = fingerprint(arrays)
        self._made: dict[str, tuple[sp.csr_matrix, sp.csr_matrix]] = {}

    def part(self, rows: float, labels: float) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The first rows of a fixed random order, and labels of every frequency that these rows have."""
        chosen = np.sort(self.train[: max(FEWEST_ROWS, round(rows * len(self.train)))])
        counts = np.bincount(self.Y[chosen].indices, minlength=self.Y.shape[1])
        present = np.flatnonzero(counts)
        by_count = present[np.argsort(-counts[present], kind="stable")]
        wanted = min(len(present), max(FEWEST_LABELS, round(labels * len(present))))
        some = by_count[np.unique(np.linspace(0, len(by_count) - 1, wanted).astype(int))]
        return chosen, np.sort(some)

    def rows(self, setting: Mapping[str, Any]) -> tuple[sp.csr_matrix, sp.csr_matrix]:
        """Features of all training rows (in their ascending order) and of the validation rows."""
        key = _key(_text_options(setting))
        if key not in self._made:
            if self.texts is None:
                made = self.X[np.sort(self.train)], self.X[self.valid]
            else:
                vectorizer = make_vectorizer(TextClassifier(n_jobs=self.n_jobs, **_text_options(setting)))
                made = (
                    vectorizer.fit_transform(self.texts.take(np.sort(self.train)).given),
                    vectorizer.transform(self.texts.take(self.valid).given),
                )
            self._made[key] = made
        return self._made[key]

    def score(self, setting: Mapping[str, Any], part: tuple[Any, Any], metric: str) -> float:
        """Of a model trained on a part, on the validation rows that have its labels."""
        chosen, some = part
        X, X_valid = self.rows(setting)
        at = np.searchsorted(np.sort(self.train), chosen)
        linear = make_estimator({k: v for k, v in setting.items() if k not in TEXT_PARAMETERS}, False, {})
        model = linear.set_params(n_jobs=self.n_jobs).fit(X[at], self.Y[chosen][:, some])
        truth = self.Y[self.valid][:, some]
        asked = np.flatnonzero(np.diff(truth.indptr))
        if not len(asked):
            return 0.0
        k = int(metric.rpartition("@")[2])
        top = model.predict(X_valid[asked], k)
        return round(float(metrics.report(truth[asked], top, k=[k])[metric]), 9)


class _Log:
    """Scores in memory and, if wanted, in a file."""

    def __init__(self, path: str | os.PathLike[str] | None, bound: dict[str, Any]) -> None:
        self.path = None if path is None else Path(path)
        self.content: dict[str, Any] = {**bound, "scores": {}}
        if self.path is not None and check_same_fit(self.path, json.loads(json.dumps(bound))):
            self.content = read_json(self.path)

    def get(self, number: int, setting: Mapping[str, Any]) -> float | None:
        found: float | None = self.content["scores"].get(f"{number} {_key(setting)}")
        return found

    def add(self, number: int, setting: Mapping[str, Any], score: float) -> float:
        self.content["scores"][f"{number} {_key(setting)}"] = score
        if self.path is not None:
            write_text(self.path, json.dumps(self.content, indent=1) + "\n")
        return score


def _is_text(X: Any) -> bool:
    if sp.issparse(X) or (isinstance(X, np.ndarray) and X.dtype.kind in "biuf"):
        return False
    return not (isinstance(X, (list, tuple)) and len(X) and not isinstance(X[0], (str, type(None))))


def _text_options(setting: Mapping[str, Any]) -> dict[str, Any]:
    chosen = {name: setting[name] for name in TEXT_PARAMETERS if name in setting}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in chosen.items()}


def _key(setting: Mapping[str, Any]) -> str:
    return json.dumps(dict(setting), sort_keys=True)
