"""How accurate an ensemble of texts is on library records, beside published figures; settings tried on held-out rows.

    python -m bench.experiments.accuracy trials    # members and blends on 5,000 rows held out of the train part
    python -m bench.experiments.accuracy dev       # the chosen ensemble on dev

tibkat-gnd is the task GermEval-2025 LLMs4Subjects. F1@5 is the mean over documents of 2PR / (P + R) at 5, nDCG is
over 100 labels; English and German documents apart, told by stop words. All settings were chosen by `trials`, where the
blend is fitted on every other held-out row and measured on the rest. `dev` has the same members, and their blend is
fitted on all held-out rows: that is `Ensemble(members, folds=1, blend_rows=5000)`. Models and lists are kept in
XMC_CACHE. Writes accuracy_*.json; bench.report makes the tables of docs/experiments/accuracy.md of them.
"""

from __future__ import annotations

import re
import time
from typing import Any

import numpy as np
import scipy.sparse as sp

from bench.common import CACHE, Table, arguments, data_dir, machine
from bench.sets import read_texts
from xmc_fast import (
    LabelTree,
    Lexical,
    Neighbours,
    OneVsAll,
    TextClassifier,
    data,
    ensemble,
    load,
)

Part = tuple[list[str], sp.csr_matrix]  # texts and labels
SET = "tibkat-gnd"
COLUMNS = ("model", "F1@5 en", "nDCG en", "F1@5 de", "nDCG de", "recall new", "training")
_ENGLISH = "the of and in to is for with on this that by are from as an at be it which or was book"
_GERMAN = "der die das und in von den des mit im zu eine ein ist für auf dem werden als sich auch wird bei"
ENGLISH, GERMAN = set(_ENGLISH.split()), set(_GERMAN.split())
PLURALS = ("e", "en", "er", "ern", "es", "em", "n", "s", "ies", "y")
CHARS = {"analyzer": "char_wb", "ngram_range": (5, 5), "min_df": 3}
PAIRS = {"ngram_range": (1, 2), "min_df": 3}
# What the ensemble of `dev` has, and what a trial blends.
CHOSEN = ("linear", "lexical", "neighbours, characters", "neighbours, word pairs", "tree, characters")
BLENDS = (
    CHOSEN[:1],
    ("linear", "neighbours"),
    ("linear", "lexical, names as given"),
    ("linear", "lexical"),
    ("linear", "lexical", "neighbours"),
    CHOSEN[:3],
    CHOSEN[:4],
    CHOSEN,
)


def make_members() -> dict[str, Any]:
    """Every member that was tried, by its title."""
    names = [line.split("\t")[-1] for line in data.read_lines(data_dir(SET) / "label_names.txt.xz")]

    def on_texts(model: Any, **features: Any) -> TextClassifier:
        return TextClassifier(model=model, calibrate=0, **features)

    return {
        "linear": on_texts(OneVsAll()),
        "tree": on_texts(LabelTree()),
        "tree, characters": on_texts(LabelTree(), **CHARS),
        "neighbours": on_texts(Neighbours(50, power=3.0)),
        "neighbours, 30": on_texts(Neighbours(30, power=2.0)),
        "neighbours, word pairs": on_texts(Neighbours(100, power=3.0), **PAIRS),
        "neighbours, characters": on_texts(Neighbours(100, power=4.0), **CHARS),
        "lexical": Lexical(names),
        "lexical, names as given": Lexical(names, learn_names=False),
        "lexical, own spelling": Lexical(names, learn_names=False, spellings=(), endings=PLURALS),
        "lexical, whole words": Lexical(names, learn_names=False, spellings=(), endings=()),
    }  # fmt: skip


def are_german(texts: list[str]) -> np.ndarray:
    """Whether texts have at least as many German stop words as English ones."""
    words = (re.findall(r"\w+", text.lower()[:3000]) for text in texts)
    return np.array([sum((w in GERMAN) - (w in ENGLISH) for w in found) >= 0 for found in words])


def measures(Y: sp.csr_matrix, top: sp.csr_matrix, german: np.ndarray, new: np.ndarray) -> dict[str, float]:
    """The columns of a row; ``new``: labels without training rows, whose recall at 100 is given."""
    f1, gain, found, there = np.zeros(Y.shape[0]), np.zeros(Y.shape[0]), 0, 0
    discount = 1 / np.log2(np.arange(2, 102))
    for i in range(Y.shape[0]):
        true = Y.indices[Y.indptr[i] : Y.indptr[i + 1]]
        hit = np.isin(top.indices[top.indptr[i] : top.indptr[i + 1]][:100], true)
        f1[i] = 2 * hit[:5].sum() / (5 + len(true))  # 2PR / (P + R)
        gain[i] = discount[: len(hit)][hit].sum() / discount[: len(true)].sum()
        of_new = true[new[true]]
        found += np.isin(of_new, top.indices[top.indptr[i] : top.indptr[i + 1]][:100]).sum()
        there += len(of_new)
    parts = (("en", ~german), ("de", german))
    out = {
        f"{m} {lang}": float(v[rows].mean())
        for lang, rows in parts
        for m, v in (("F1@5", f1), ("nDCG", gain))
    }
    return out | {"recall new": found / max(1, there)}


def best(member: Any, texts: list[str], k: int = 100) -> sp.csr_matrix:
    return member.predict(texts, k, **({"output": "csr"} if isinstance(member, TextClassifier) else {}))


class Members:
    """Members that are trained on the part "train", and what they say of other parts; both are kept in XMC_CACHE."""

    def __init__(self, folder: str, members: dict[str, Any], parts: dict[str, Part]) -> None:
        self.folder, self.members, self.parts = CACHE / folder, members, parts
        Y = parts["train"][1]
        self.counts = np.bincount(Y.indices, minlength=Y.shape[1])

    def seconds(self, name: str) -> float:
        """CPU seconds that the training of a member took."""
        return float((self.folder / f"{name}.seconds").read_text())

    def fitted(self, name: str) -> Any:
        folder = self.folder / name
        if not folder.exists():
            start = time.process_time()
            model = self.members[name].fit(*self.parts["train"])
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / f"{name}.seconds").write_text(str(time.process_time() - start))
            model.save(folder)
        return load(folder)

    def listed(self, name: str, part: str) -> sp.csr_matrix:
        """The best 100 labels of each row of a part."""
        path = self.folder / f"{name}.{part}.npz"
        if not path.exists():
            top = best(self.fitted(name), self.parts[part][0])
            sp.save_npz(path, top)
        return sp.load_npz(path)


class Split(Members):
    """The train part without 5,000 rows, these, and dev: texts and labels; what members say of them."""

    def __init__(self) -> None:
        texts, Y = read_texts(SET, "train")
        order = np.random.default_rng(27).permutation(len(texts))
        held, rest = np.sort(order[:5000]), np.sort(order[5000:])
        parts = {
            "train": ([texts[i] for i in rest], Y[rest].tocsr()),
            "held": ([texts[i] for i in held], Y[held].tocsr()),
            "dev": read_texts(SET, "test"),
        }
        super().__init__("accuracy", make_members(), parts)
        self.german = {part: are_german(parts[part][0]) for part in ("held", "dev")}

    def row(self, part: str, top: sp.csr_matrix, rows: Any = slice(None)) -> dict[str, float]:
        return measures(self.parts[part][1][rows], top, self.german[part][rows], self.counts == 0)


def trials() -> Table:
    """Each member alone and blends of them, on rows of the train part that members are not trained on."""
    split, table = Split(), Table("accuracy_trials", COLUMNS, machine(2))
    for name in split.members:
        row = split.row("held", split.listed(name, "held"))
        table.add(model=name, **row, training=split.seconds(name))
        print(table.rows[-1], flush=True)
    fit_on, rows = np.arange(0, 5000, 2), np.arange(1, 5000, 2)
    truth = split.parts["held"][1]
    for names in BLENDS:
        lists = [split.listed(name, "held") for name in names]
        top = blended([x[fit_on] for x in lists], truth[fit_on], [x[rows] for x in lists], split.counts)
        table.add(model="blend: " + " + ".join(names), **split.row("held", top, rows))
        print(table.rows[-1], flush=True)
    return table


def dev() -> Table:
    """The chosen ensemble and its members on dev."""
    split, table = Split(), Table("accuracy_dev", COLUMNS, machine(2))
    lists = {part: [split.listed(name, part) for name in CHOSEN] for part in ("held", "dev")}
    start = time.process_time()
    top = blended(lists["held"], split.parts["held"][1], lists["dev"], split.counts)
    seconds = time.process_time() - start + sum(map(split.seconds, CHOSEN))
    table.add(model="ensemble", **split.row("dev", top), training=seconds)
    for name, own in zip(CHOSEN, lists["dev"], strict=True):
        table.add(model=name, **split.row("dev", own), training=split.seconds(name))
    return table


def blended(
    fit_on: list[sp.csr_matrix], truth: sp.csr_matrix, lists: list[sp.csr_matrix], counts: np.ndarray
) -> sp.csr_matrix:
    """What an ensemble makes of its members' lists (the first 50 labels), fitted on lists of other rows."""
    pairs = ensemble._pairs([first_of(top, 50) for top in fit_on], counts)
    weights = ensemble._fit_weights(pairs, truth.astype(bool))
    parts = []
    for start in range(0, lists[0].shape[0], 4096):
        pairs = ensemble._pairs([first_of(top[start : start + 4096], 50) for top in lists], counts)
        score = pairs.numbers @ weights
        order = np.lexsort((pairs.label, -score, pairs.row))
        n = min(4096, lists[0].shape[0] - start)
        indptr = np.searchsorted(pairs.row, np.arange(n + 1))
        parts.append(sp.csr_matrix((score[order], pairs.label[order], indptr), (n, truth.shape[1])))
    return first_of(sp.vstack(parts, format="csr"), 100)


def first_of(top: sp.csr_matrix, k: int) -> sp.csr_matrix:
    """The first k entries of each row, in their order."""
    sizes = np.diff(top.indptr)
    keep = np.arange(top.nnz) - np.repeat(top.indptr[:-1], sizes) < k
    indptr = np.concatenate([[0], np.cumsum(np.minimum(sizes, k))])
    return sp.csr_matrix((top.data[keep], top.indices[keep], indptr), top.shape)


PARTS = {"dev": dev, "trials": trials}


def main() -> None:
    for part in arguments(__doc__, ("dev", "trials")):
        table = PARTS[part]()
        table.keep_others("model")
        table.save()
        print(table)


if __name__ == "__main__":
    main()
