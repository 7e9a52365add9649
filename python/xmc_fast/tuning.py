"""The best setting of a linear model for a metric, by successive halving (Jamieson & Talwalkar 2016).

Every setting is trained on a small part of the rows and labels; the better third goes on to a larger part, and so on.
The default goes on in any case: what is chosen is not worse than it on the rows of the last round.
A fit costs about rows times labels, so all rounds together cost a few default fits however many settings there are.
Within a round, settings that differ in C or the positives' weight only start from the solution of the first of them
(`xmc_fast._trials`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from xmc_fast._trials import Data, Log, Part, groups_of, is_text, key_of, linear_options, scores, text_options
from xmc_fast._validate import seed
from xmc_fast.linear import OneVsAll
from xmc_fast.texts import TextClassifier

# Share of the rows, share of the labels, settings that go on from the round before: about 0.5 + 0.4 + 1.4 fits. The
# last round has all labels: with a part of them fewer compete for a row, and small differences are not those of all.
ROUNDS = ((0.2, 0.1, 1.0), (0.4, 0.15, 0.3), (0.4, 1.0, 0.1))
_COST = 3.0


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
            newest[key_of(trial["setting"])] = trial
        return sorted(newest.values(), key=lambda t: (-t["round"], -t["score"], key_of(t["setting"])))

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
    folds: int | None = None,
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
    folds : int, optional
        Instead of one such part, cut the rows into so many; a score is the mean over the folds. The budget stays, so
        that a fit of a fold sees fewer rows and labels.
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
    if not metric.rpartition("@")[2].isdecimal():
        raise ValueError(f"metric must be a name with its k, as 'precision@1', got {metric!r}")
    if budget <= 0:
        raise ValueError(f"budget must be above 0, got {budget!r}")
    tried = [
        dict(setting) for setting in (settings if settings is not None else default_settings(is_text(X)))
    ]
    if not tried:
        raise ValueError("settings must hold at least one setting, got none")
    if folds is not None and folds < 2:
        raise ValueError(f"folds must be at least 2 or None, got {folds!r}")
    data = Data(X, y, sep, valid, folds, seed(random_state), n_jobs)
    log = Log(checkpoint, {"metric": metric, "budget": budget, "settings": tried, "data": data.key})
    scale = min(1.0, (budget / _COST / len(data.folds)) ** 0.5)
    left = tried
    trials: list[dict[str, Any]] = []
    for number, (rows, labels, share) in enumerate(ROUNDS, 1):
        if number > 1:
            keep = max(1, round(share * len(tried)))
            order = sorted(range(len(left)), key=lambda i: (-trials[len(trials) - len(left) + i]["score"], i))
            left = [left[i] for i in range(len(left)) if i in order[:keep] or left[i] == {}]
        parts = [
            data.part(fold, min(1.0, rows * scale), min(1.0, labels * scale))
            for fold in range(len(data.folds))
        ]
        _try(data, left, parts, metric, number, log)
        for setting in left:
            found = [log.content["scores"][_name(number, fold, setting)] for fold in range(len(parts))]
            trials.append(
                {
                    "round": number,
                    "rows": len(parts[0].rows),
                    "labels": len(parts[0].labels),
                    "setting": setting,
                    "score": round(sum(found) / len(found), 9),
                }
            )
        if len(left) == 1:
            break
    last = [trial for trial in trials if trial["round"] == trials[-1]["round"]]
    best = max(last, key=lambda trial: trial["score"])["setting"]
    return Tuning(best, metric, trials, data.texts is not None)


def _try(
    data: Data, left: list[dict[str, Any]], parts: list[Part], metric: str, number: int, log: Log
) -> None:
    """Score the settings of a round that the log does not have."""
    for group in groups_of(left):
        for fold, part in enumerate(parts):
            lacking = [s for s in group if _name(number, fold, s) not in log.content["scores"]]
            if lacking:
                for setting, score in scores(data, group, lacking, part, metric):
                    log.add(_name(number, fold, setting), score)


def _name(number: int, fold: int, setting: Mapping[str, Any]) -> str:
    return f"{number} {fold} {key_of(setting)}"


def make_estimator(setting: Mapping[str, Any], texts: bool, options: Mapping[str, Any]) -> Any:
    """The estimator of a setting."""
    linear = linear_options(setting)
    shared = {name: value for name, value in options.items() if name in ("n_jobs", "random_state")}
    model = OneVsAll(**linear, **shared)
    return (
        TextClassifier(model=model, **text_options(setting), **options)
        if texts
        else model.set_params(**options)
    )
