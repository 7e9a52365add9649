"""Which settings of `TextClassifier` gain on every set of texts, and what they cost: rows held out of the train part.

    python -m bench.experiments.defaults [--sets debtags debdeps eurlex57k]

Each set gives some thousands of its training rows to train on and 3,000 others to measure on; rows of one Debian source
package are on one side. "As it was" trains on nine tenths of the rows, fits a probability for each label on the others
with a weak prior (5), and ranks by probability. One thread, CPU seconds of training. Writes defaults.json.
"""

from __future__ import annotations

import time
import zlib
from typing import Any

import numpy as np
import scipy.sparse as sp

from bench.common import Table, command_line, data_dir, machine
from bench.sets import read_texts
from xmc_fast import OneVsAll, data, metrics, propensity
from xmc_fast.text import TfidfVectorizer

SIZES = {"debtags": (16_000, 3000), "debdeps": (12_000, 3000), "eurlex57k": (8000, 3000)}
COLUMNS = ("set", "setting", "P@1", "P@3", "P@5", "nDCG@5", "macro-F1@5", "PSP@5", "log-loss", "training")
PAIRS = {"ngram_range": (1, 2)}
FEATURES: dict[str, dict[str, Any]] = {
    "words that one text has": {"min_df": 1},
    "word pairs": PAIRS,
    "word pairs, min_df 5": PAIRS | {"min_df": 5},
    "characters 5, min_df 3": {"analyzer": "char_wb", "ngram_range": (5, 5), "min_df": 3},
}
MODELS: dict[str, dict[str, Any]] = {
    "C = 0.5": {"C": 0.5},
    "C = 2": {"C": 2.0},
    "positives weighted by balanced^0.25": {"positive_weight": "balanced^0.25"},
}


class Part:
    """Rows to train on and rows to measure on."""

    def __init__(self, name: str, sizes: tuple[int, int] | None = None) -> None:
        texts, Y = read_texts(name, "train")
        n, held = sizes or SIZES[name]
        order = np.random.default_rng(1).permutation(len(texts))
        if name.startswith("deb"):  # packages of one source share much of their text
            source = [zlib.crc32(t.split(" ", 1)[0].split("-")[0].encode()) % 1000 for t in texts]
            order = np.argsort(np.random.default_rng(1).permutation(1000)[source], kind="stable")
        rest, rows = np.sort(order[held : held + n]), np.sort(order[:held])
        self.name = name
        self.texts, self.Y = [texts[i] for i in rest], Y[rest].astype(np.float32)
        self.asked, self.truth = [texts[i] for i in rows], Y[rows]
        lines = data.read_lines(data_dir(name) / "label_names.txt.xz")
        self.names = [line.split("\t")[-1] for line in lines]
        self.propensity = propensity.estimate(self.Y)

    def matrices(self, **options: Any) -> tuple[sp.csr_matrix, sp.csr_matrix, TfidfVectorizer, float]:
        start = time.process_time()
        vectorizer = TfidfVectorizer(**{"sublinear_tf": True, "min_df": 2, "n_jobs": 1} | options)
        X = vectorizer.fit_transform(self.texts)
        seconds = time.process_time() - start
        return X, vectorizer.transform(self.asked), vectorizer, seconds

    def measures(self, top: sp.csr_matrix) -> dict[str, float]:
        out = {f"P@{k}": metrics.precision_at_k(self.truth, top, k) for k in (1, 3, 5)}
        out |= {
            "nDCG@5": metrics.ndcg_at_k(self.truth, top, 5),
            "macro-F1@5": metrics.macro_f1_at_k(self.truth, top, 5),
            "PSP@5": metrics.psp_at_k(self.truth, top, self.propensity, 5),
        }
        return {name: 100 * float(value) for name, value in out.items()}

    def log_loss(self, proba: sp.csr_matrix) -> float:
        """Of the listed labels, a row."""
        row = np.repeat(np.arange(proba.shape[0]), np.diff(proba.indptr))
        right = np.asarray(self.truth[row, proba.indices]).ravel() > 0
        p = np.clip(proba.data.astype(np.float64), 1e-6, 1 - 1e-6)
        return float(-np.where(right, np.log(p), np.log(1 - p)).sum() / proba.shape[0])


def fit(X: sp.csr_matrix, Y: sp.csr_matrix, **options: Any) -> tuple[Any, float]:
    start = time.process_time()
    model = OneVsAll(n_jobs=1, **options).fit(X, Y).model_
    return model, time.process_time() - start


def measure(name: str, table: Table) -> None:
    part = Part(name)

    def add(setting: str, seconds: float, top: sp.csr_matrix, **more: float) -> None:
        table.add(set=name, setting=setting, **part.measures(top), training=seconds, **more)
        table.keep_others("set", "setting")
        table.save()
        print(setting, flush=True)

    X, asked, vectorizer, reading = part.matrices()
    order = np.random.default_rng(0).permutation(X.shape[0])
    held, rest = np.sort(order[: len(order) // 10]), np.sort(order[len(order) // 10 :])
    model, first = fit(X[rest], part.Y[rest])
    for setting, rows, options in (
        ("as it was", held, {"prior_strength": 5.0}),
        ("prior 20", held, {"prior_strength": 20.0}),
        ("prior 100", held, {"prior_strength": 100.0}),
        ("prior 100, 1,000 rows", held[:1000], {"prior_strength": 100.0}),
        ("one sigmoid for all labels", held, {"min_positives": 10**9}),
    ):
        model.calibrate(X[rows], part.Y[rows], n_jobs=1, **options)
        proba = model.predict(asked, 100, proba=True, n_jobs=1)
        add(
            setting,
            reading + first,
            model.predict(asked, 5, proba=True),
            **{"log-loss": part.log_loss(proba)},
        )
    model.calibrate(X[held], part.Y[held], n_jobs=1, prior_strength=100.0)
    whole, second = fit(X, part.Y)
    whole.calibration = model.calibration
    proba = whole.predict(asked, 100, proba=True, n_jobs=1)
    now = {"log-loss": part.log_loss(proba)}
    add(
        "prior 100, then trained on all rows",
        reading + first + second,
        whole.predict(asked, 5, proba=True),
        **now,
    )
    add("no probabilities, all rows", reading + second, whole.predict(asked, 5))
    named = vectorizer.transform(part.names)
    seen = np.flatnonzero(
        (np.diff(named.indptr) > 0) & (np.bincount(part.Y.indices, minlength=len(part.names)) > 0)
    )
    own = sp.identity(len(part.names), dtype=np.float32, format="csr")[seen]
    model, seconds = fit(sp.vstack([X, named[seen]]).tocsr(), sp.vstack([part.Y, own]).tocsr())
    add("all rows, names as texts", reading + seconds, model.predict(asked, 5))
    for setting, options in MODELS.items():
        model, seconds = fit(X, part.Y, **options)
        add(f"all rows, {setting}", reading + seconds, model.predict(asked, 5))
    for setting, options in FEATURES.items():
        if name == "eurlex57k" and "characters" in setting:
            continue  # several minutes
        X, asked, _, reading = part.matrices(**options)
        model, seconds = fit(X, part.Y)
        add(f"all rows, {setting}", reading + seconds, model.predict(asked, 5))


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--sets", nargs="*", default=SIZES)
    args = parser.parse_args()
    table = Table("defaults", COLUMNS, machine())
    for name in args.sets:
        measure(name, table)
    print(table)


if __name__ == "__main__":
    main()
