"""Trials of `xmc_fast.tune`: parts of the data, fits that share their start, and the log of scores."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast import metrics
from xmc_fast._files import write_text
from xmc_fast._folder import check_same_fit, read_json
from xmc_fast._validate import features, fingerprint, to_scipy
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
STARTS_FROM = ("C", "positive_weight", "prune")  # settings that differ in these only share a start
BY_LABEL = ("macro", "coverage")  # metrics for which labels compete for the places of a row
FEWEST_ROWS, FEWEST_LABELS = 500, 64  # smaller parts tell too little


@dataclass(frozen=True)
class Part:
    """Training rows (ascending), labels and validation rows of a trial; which share of the rows' labels these are."""

    fold: int
    rows: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    valid: npt.NDArray[np.int64]
    share: float


class Data:
    """Training and validation rows, and the features of each way to read texts."""

    def __init__(
        self,
        X: Any,
        y: Any,
        sep: str | None,
        valid: float,
        folds: int | None,
        seed: int,
        n_jobs: int | None,
    ) -> None:
        self.texts: Columns | None = None
        self.n_jobs = n_jobs
        if is_text(X):
            self.texts = text_columns(X)
            Y = encode(y, None, sep).Y
            usable = np.flatnonzero(self.texts.filled & (np.diff(Y.indptr) > 0))
            count = self.texts.n_rows
        else:
            x = features(X)
            self.X = sp.csr_matrix((x.data, x.indices, x.indptr), x.shape)
            given = labels_of(y, "y", n_rows=x.shape[0])
            Y = sp.csr_matrix(
                (np.ones(len(given.indices), np.float32), given.indices, given.indptr), given.shape
            )
            count, usable = x.shape[0], np.arange(x.shape[0])
        if Y.shape[0] != count:
            raise ValueError(f"X has {count} rows, y has {Y.shape[0]}")
        self.Y = Y
        order = usable[np.random.default_rng(seed).permutation(len(usable))]
        cuts = [order[: max(1, round(valid * len(order)))]] if folds is None else np.array_split(order, folds)
        # of each fold the training rows in a random order, and the validation rows
        self.folds = [(order[~np.isin(order, held)], np.sort(held)) for held in cuts]
        if min(len(part) for fold in self.folds for part in fold) == 0:
            asked = f"{valid:.0%} of them" if folds is None else f"{folds} folds"
            raise ValueError(f"{len(usable)} usable rows are too few to hold out {asked}")
        arrays = {"indptr": Y.indptr, "indices": Y.indices, "order": order}
        arrays |= {"folds": np.array([len(held) for _, held in self.folds])}
        arrays |= {} if self.texts is not None else {"x": self.X.data}
        self.key = fingerprint(arrays)
        self._made: tuple[str, Any] = ("", None)

    def part(self, fold: int, rows: float, labels: float) -> Part:
        """The first rows of a fixed random order, and labels of every frequency that these rows have."""
        train, valid = self.folds[fold]
        chosen = np.sort(train[: max(FEWEST_ROWS, round(rows * len(train)))])
        counts = np.bincount(self.Y[chosen].indices, minlength=self.Y.shape[1])
        present = np.flatnonzero(counts)
        by_count = present[np.argsort(-counts[present], kind="stable")]
        wanted = min(len(present), max(FEWEST_LABELS, round(labels * len(present))))
        some = by_count[np.unique(np.linspace(0, len(by_count) - 1, wanted).astype(int))]
        return Part(fold, chosen, np.sort(some), valid, len(some) / max(len(present), 1))

    def matrix(self, options: Mapping[str, Any], fold: int) -> sp.csr_matrix:
        """Features of all rows; of texts with the terms of the fold's training rows. The last one is kept."""
        if self.texts is None:
            return self.X
        key = f"{fold} {key_of(options)}"
        if self._made[0] != key:
            vectorizer = make_vectorizer(TextClassifier(n_jobs=self.n_jobs, **options))
            vectorizer.fit(self.texts.take(np.sort(self.folds[fold][0])).given)
            self._made = (key, vectorizer.transform(self.texts.given))
        return self._made[1]


def groups_of(settings: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Settings that can start from the same solution, in their order."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for setting in settings:
        shared = {name: value for name, value in setting.items() if name not in STARTS_FROM}
        groups.setdefault(key_of(shared), []).append(setting)
    return list(groups.values())


def scores(
    data: Data, group: list[dict[str, Any]], wanted: list[dict[str, Any]], part: Part, metric: str
) -> Iterator[tuple[dict[str, Any], float]]:
    """The scores of some settings of a group. The group's first fit is from nothing, the others start there.

    What is fitted does not depend on which scores are ``wanted``: a tuning that goes on ends as one in one go.
    """
    X = data.matrix(text_options(group[0]), part.fold)
    truth = data.Y[part.valid][:, part.labels]
    by_label = metric.startswith(BY_LABEL)
    asked = np.arange(len(part.valid)) if by_label else np.flatnonzero(np.diff(truth.indptr))
    truth, X_valid = truth[asked], X[part.valid[asked]]
    X_train, Y_train = X[part.rows], data.Y[part.rows][:, part.labels]
    k = int(metric.rpartition("@")[2])
    usual = OneVsAll().prune
    # weights that a setting of the group drops are dropped after the fit
    smallest = min([usual, *(s.get("prune", usual) for s in group)])
    first = OneVsAll(**linear_options(_unpruned(group[0])), prune=smallest, n_jobs=data.n_jobs)
    first.fit(X_train, Y_train, keep_state=True)
    fitted: tuple[str, Any] = ("", None)  # the last model, of all that differ in pruning only
    for setting in sorted(wanted, key=lambda s: key_of(_unpruned(s)) != key_of(_unpruned(group[0]))):
        same = key_of(_unpruned(setting))
        if fitted[0] != same:
            fitted = (same, _from_first(first, group[0], setting, X_train, Y_train))
        if not len(asked):
            yield setting, 0.0
            continue
        delta = setting.get("prune", usual)
        model = fitted[1] if delta == first.prune else fitted[1].prune(delta)
        top = model.predict(X_valid, k, n_jobs=data.n_jobs)
        if by_label:
            top = shortened(top, k * part.share)
        yield setting, round(float(metrics.report(truth, top, k=[k])[metric]), 9)


def shortened(top: sp.csr_matrix, k: float) -> sp.csr_matrix:
    """The k best of each row on average, k a fraction: of 1.5, one and two alternately.

    Of k places for all labels, a share of the labels (of every frequency) gets that share. With all k places for them
    rare labels would never have to win a place, and settings that help them would seem useless.
    """
    cuts = np.floor(k * np.arange(top.shape[0] + 1) + 1e-9).astype(np.int64)
    count = np.minimum(np.diff(cuts), np.diff(top.indptr))
    starts = np.concatenate([[0], np.cumsum(count)])
    kept = np.repeat(top.indptr[:-1] - starts[:-1], count) + np.arange(starts[-1])
    return to_scipy(starts, top.indices[kept], top.data[kept], top.shape)


def _from_first(first: OneVsAll, start: dict[str, Any], setting: dict[str, Any], X: Any, Y: Any) -> Any:
    """The model of a setting, from the solution of the group's first one."""
    if key_of(_unpruned(setting)) == key_of(_unpruned(start)):
        return first.model_
    usual = {name: OneVsAll().get_params()[name] for name in STARTS_FROM if name != "prune"}
    mine = copy.copy(first).set_params(**{**usual, **linear_options(_unpruned(setting))})
    return (mine.update(remove_rows=[]) if mine._solver() == "dual" else mine.fit(X, Y)).model_


def _unpruned(setting: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in setting.items() if name != "prune"}


class Log:
    """Scores in memory and, if wanted, in a file."""

    def __init__(self, path: str | os.PathLike[str] | None, bound: dict[str, Any]) -> None:
        self.path = None if path is None else Path(path)
        self.content: dict[str, Any] = {**bound, "scores": {}}
        if self.path is not None and check_same_fit(self.path, json.loads(json.dumps(bound))):
            self.content = read_json(self.path)

    def add(self, name: str, score: float) -> None:
        self.content["scores"][name] = score
        if self.path is not None:
            write_text(self.path, json.dumps(self.content, indent=1) + "\n")


def is_text(X: Any) -> bool:
    """Whether X is texts, not features."""
    if sp.issparse(X) or (isinstance(X, np.ndarray) and (X.ndim != 1 or X.dtype.kind in "biuf")):
        return False
    return not (isinstance(X, (list, tuple)) and len(X) and not isinstance(X[0], (str, type(None))))


def text_options(setting: Mapping[str, Any]) -> dict[str, Any]:
    """What a setting says about reading texts."""
    chosen = {name: setting[name] for name in TEXT_PARAMETERS if name in setting}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in chosen.items()}


def linear_options(setting: Mapping[str, Any]) -> dict[str, Any]:
    """What it says about the linear model."""
    return {name: value for name, value in setting.items() if name not in TEXT_PARAMETERS}


def key_of(setting: Mapping[str, Any]) -> str:
    """A setting as text."""
    return json.dumps(dict(setting), sort_keys=True)
