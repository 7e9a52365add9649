"""How accurate ensembles are on legal texts, beside their members and the defaults; which were tried.

    python -m bench.experiments.legal trials    # blends on rows that no member was trained on, other than test rows
    python -m bench.experiments.legal test      # the chosen ensembles, their members and the defaults on test rows

EURLEX57K has texts: members are trained on the train part, blends are chosen on one half of the dev part, fitted on the
other, and for `test` fitted on the whole dev part. EURLex-4K has features only, counts times idf: members differ in
what they make of the values; blends are fitted on half of the train rows, which three folds of the members have not
seen, chosen on the other half, and for `test` fitted on all of them, with members trained on all. One thread; lists are
kept in XMC_CACHE. Writes legal_*.json; bench.report makes the tables of docs/experiments/settings.md of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

from bench.common import CACHE, Table, arguments, data_dir, machine
from bench.experiments.accuracy import blended, first_of
from bench.sets import load
from xmc_fast import Neighbours, OneVsAll, data, metrics
from xmc_fast.text import TfidfVectorizer

COLUMNS = ("set", "model", "P@1", "P@3", "P@5", "nDCG@5", "macro-F1@5", "training")
LISTED = 100
MOST = 10_000  # rows that a blend is fitted on
VECTORIZERS: dict[str, dict[str, Any]] = {
    "words": {"min_df": 2},
    "word pairs": {"min_df": 5, "ngram_range": (1, 2)},
    "first words": {"min_df": 2, "ngram_range": (1, 2)},
    "neighbours": {"min_df": 5, "ngram_range": (1, 2)},
}
BLENDS = {
    "eurlex57k": (
        ("word pairs",),
        ("words", "word pairs"),
        ("word pairs", "neighbours"),
        ("words", "word pairs", "neighbours"),
        ("words", "word pairs", "first words"),
        ("words", "word pairs", "first words", "neighbours"),
    ),
    "eurlex-4k": (
        ("roots",),
        ("roots", "neighbours"),
        ("roots", "logarithms"),
        ("roots", "logarithms", "neighbours"),
        ("roots", "logarithms", "as given", "neighbours"),
    ),
}
CHOSEN = {
    "eurlex57k": ("words", "word pairs", "first words", "neighbours"),
    "eurlex-4k": ("roots", "logarithms", "as given", "neighbours"),
}
DEFAULT = {"eurlex57k": "words", "eurlex-4k": "as given"}


def measures(Y: sp.csr_matrix, top: sp.csr_matrix) -> dict[str, float]:
    out = {f"P@{k}": metrics.precision_at_k(Y, top, k) for k in (1, 3, 5)}
    out |= {"nDCG@5": metrics.ndcg_at_k(Y, top, 5), "macro-F1@5": metrics.macro_f1_at_k(Y, top, 5)}
    return {name: 100 * float(value) for name, value in out.items()}


def kept(name: str, make: Callable[[], sp.csr_matrix]) -> sp.csr_matrix:
    """A list, from the cache or made now."""
    path = CACHE / "legal" / f"{name}.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        sp.save_npz(path, make())
    return sp.load_npz(path)


def trained(model: Any, X: sp.csr_matrix, Y: sp.csr_matrix, name: str) -> Any:
    """The fitted model; its CPU seconds are kept."""
    start = time.process_time()
    fitted = model.fit(X, Y)
    (CACHE / "legal").mkdir(parents=True, exist_ok=True)
    (CACHE / "legal" / f"{name}.seconds").write_text(str(time.process_time() - start))
    return getattr(fitted, "model_", fitted)


def seconds(name: str) -> float:
    return float((CACHE / "legal" / f"{name}.seconds").read_text())


class Texts:
    """EURLEX57K: members on features of their own; blends see the dev part."""

    name = "eurlex57k"
    members = ("words", "word pairs", "first words", "neighbours")
    first = 60  # words of "first words"

    def texts(self, part: str, shortened: bool) -> list[str]:
        lines = data.read_lines(data_dir(self.name) / f"{part}_texts.txt.xz")
        return [" ".join(line.split(" ", self.first)[: self.first]) if shortened else line for line in lines]

    def labels(self, part: str) -> sp.csr_matrix:
        folder = data_dir(self.name)
        paths = folder / f"{part}_texts.txt.xz", folder / f"{part}_labels.txt.xz"
        return data.read_text(*paths, n_labels=len(data.read_lines(folder / "label_names.txt.xz")))[1]

    def fit(self, name: str) -> None:
        """The lists of a member for dev and test."""
        short = name == "first words"
        vectorizer = TfidfVectorizer(sublinear_tf=True, **VECTORIZERS[name])
        X, Y = vectorizer.fit_transform(self.texts("train", short)), self.labels("train")
        own = Neighbours(50, power=3.0, n_jobs=1) if name == "neighbours" else OneVsAll(n_jobs=1)
        model = trained(own, X, Y, f"{self.name}.{name}")
        for part in ("dev", "test"):
            rows = vectorizer.transform(self.texts(part, short))
            kept(f"{self.name}.{name}.{part}", lambda rows=rows: model.predict(rows, LISTED, n_jobs=1))

    def lists(self, name: str, part: str) -> sp.csr_matrix:
        if not (CACHE / "legal" / f"{self.name}.{name}.test.npz").exists():
            self.fit(name)
        return kept(f"{self.name}.{name}.{part}", lambda: sp.csr_matrix((0, 0)))

    def blend_rows(self, names: tuple[str, ...]) -> tuple[list[sp.csr_matrix], sp.csr_matrix]:
        return [self.lists(name, "dev") for name in names], self.labels("dev")

    def test(self, names: tuple[str, ...]) -> tuple[list[sp.csr_matrix], sp.csr_matrix]:
        return [self.lists(name, "test") for name in names], self.labels("test")

    def counts(self) -> np.ndarray:
        Y = self.labels("train")
        return np.bincount(Y.indices, minlength=Y.shape[1])

    def seconds(self, names: tuple[str, ...]) -> float:
        return sum(seconds(f"{self.name}.{name}") for name in names)


class Features:
    """EURLex-4K: members on functions of the values; blends see the train rows that folds of the members have not."""

    name = "eurlex-4k"
    members = ("as given", "roots", "logarithms", "neighbours")
    folds = 3

    def __init__(self) -> None:
        (X, self.Y), (X_test, self.Y_test) = load(self.name), load(self.name, "test")
        self.X = {part: rows.astype(np.float32) for part, rows in (("train", X), ("test", X_test))}
        least = np.full(X.shape[1], np.inf)  # of a column: its weight at a count of one
        np.minimum.at(least, X.indices, X.data)
        self.least = np.where(np.isfinite(least), least, 1)
        self.idf = 1 + np.log((1 + X.shape[0]) / (1 + np.bincount(X.indices, minlength=X.shape[1])))
        self.fold = np.random.default_rng(0).permutation(X.shape[0]) % self.folds

    def form(self, name: str, part: str) -> sp.csr_matrix:
        """The rows as a member sees them."""
        X = self.X[part].copy()
        if name == "roots":
            X.data = np.sqrt(X.data)
        elif name in ("logarithms", "neighbours"):
            count = np.maximum(X.data / self.least[X.indices], 1)
            weight = self.idf if name == "logarithms" else self.least
            X.data = ((1 + np.log(count)) * weight[X.indices]).astype(np.float32)
        return X

    def model(self, name: str) -> Any:
        return Neighbours(50, power=3.0, n_jobs=1) if name == "neighbours" else OneVsAll(n_jobs=1)

    def unseen(self, name: str) -> sp.csr_matrix:
        """The lists of all train rows, each of a model that has not seen the row."""
        X, parts, order = self.form(name, "train"), [], []
        for fold in range(self.folds):
            rest, rows = np.flatnonzero(self.fold != fold), np.flatnonzero(self.fold == fold)
            model = trained(self.model(name), X[rest], self.Y[rest], f"{self.name}.{name}.{fold}")
            parts.append(model.predict(X[rows], LISTED, n_jobs=1))
            order.append(rows)
        return sp.vstack(parts, format="csr")[np.argsort(np.concatenate(order))]

    def blend_rows(self, names: tuple[str, ...]) -> tuple[list[sp.csr_matrix], sp.csr_matrix]:
        lists = [kept(f"{self.name}.{name}.unseen", lambda name=name: self.unseen(name)) for name in names]
        return lists, self.Y

    def test(self, names: tuple[str, ...]) -> tuple[list[sp.csr_matrix], sp.csr_matrix]:
        def make(name: str) -> sp.csr_matrix:
            model = trained(self.model(name), self.form(name, "train"), self.Y, f"{self.name}.{name}")
            return model.predict(self.form(name, "test"), LISTED, n_jobs=1)

        return [kept(f"{self.name}.{name}.test", lambda name=name: make(name)) for name in names], self.Y_test

    def counts(self) -> np.ndarray:
        return np.bincount(self.Y.indices, minlength=self.Y.shape[1])

    def seconds(self, names: tuple[str, ...]) -> float:
        own = sum(seconds(f"{self.name}.{name}") for name in names)
        if len(names) == 1:
            return own
        return own + sum(
            seconds(f"{self.name}.{name}.{fold}") for name in names for fold in range(self.folds)
        )


SETS: dict[str, Callable[[], Texts | Features]] = {"eurlex57k": Texts, "eurlex-4k": Features}


def trials() -> Table:
    table = Table("legal_trials", COLUMNS, machine())
    for name, make in SETS.items():
        split = make()
        counts = split.counts()
        for names in [(member,) for member in split.members] + [("", *names) for names in BLENDS[name]]:
            used = tuple(filter(None, names))  # of a blend the first is empty
            lists, Y = split.blend_rows(used)
            fit_on, rows = np.arange(0, Y.shape[0], 2)[:MOST], np.arange(1, Y.shape[0], 2)
            top, title = lists[0][rows], used[0]
            if used != names:
                top = blended([x[fit_on] for x in lists], Y[fit_on], [x[rows] for x in lists], counts)
                title = "blend: " + " + ".join(used)
            table.add(set=name, model=title, **measures(Y[rows], first_of(top, 5)))
            print(table.rows[-1], flush=True)
    return table


def test() -> Table:
    table = Table("legal_test", COLUMNS, machine())
    for name, make in SETS.items():
        split, names = make(), CHOSEN[name]
        fit_on, truth = split.blend_rows(names)
        lists, Y = split.test(names)
        some = np.sort(np.random.default_rng(0).permutation(truth.shape[0])[:MOST])
        start = time.process_time()
        top = blended([x[some] for x in fit_on], truth[some], lists, split.counts())
        blending = time.process_time() - start
        table.add(set=name, model="ensemble", **measures(Y, top), training=split.seconds(names) + blending)
        for member, own in zip(names, lists, strict=True):
            title = member + (" (default)" if member == DEFAULT[name] else "")
            table.add(set=name, model=title, **measures(Y, own), training=split.seconds((member,)))
        print(table, flush=True)
    return table


def main() -> None:
    for part in arguments(__doc__, ("test", "trials")):
        table = {"test": test, "trials": trials}[part]()
        table.save()
        print(table)


if __name__ == "__main__":
    main()
