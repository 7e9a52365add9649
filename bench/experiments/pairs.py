"""What word pairs, neighbours and blends gain over one-vs-all on words: EURLEX57K, then a set that chose nothing.

    python -m bench.experiments.pairs trials     # members and blends on dev
    python -m bench.experiments.pairs test       # the best member and blend by nDCG@5, and the default, once on test
    python -m bench.experiments.pairs confirm    # the same three on yso-finna-en, which no setting was chosen on

Members are trained on the train part. `trials` fits blends on every other row of dev and measures everything on the
rest; `test` fits the blend on all of dev: that is `Ensemble(members, folds=1)` with dev as the rows kept for the blend.
`confirm` has 15,000 rows of the train part to train on, 3,000 for the blend and 3,000 to measure. One thread, CPU
seconds; models and lists are kept in XMC_CACHE. Writes pairs_*.json; bench.report makes the tables of
docs/experiments/settings.md of them.
"""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import scipy.sparse as sp

from bench.common import KEPT, RESULTS, Table, arguments, data_dir, machine
from bench.experiments.accuracy import Members, Part, blended
from bench.sets import read_texts
from xmc_fast import Neighbours, TextClassifier, data, metrics

DEFAULT, OTHER = "words, with probabilities", "yso-finna-en"
COLUMNS = ("model", "P@1", "P@3", "P@5", "nDCG@5", "macro-F1@5", "training", "MB")
MEMBERS = {
    DEFAULT: TextClassifier(n_jobs=1),
    "words": TextClassifier(calibrate=0, n_jobs=1),
    "word pairs, min_df 5": TextClassifier(calibrate=0, ngram_range=(1, 2), min_df=5, n_jobs=1),
    "neighbours": TextClassifier(model=Neighbours(n_jobs=1), calibrate=0, n_jobs=1),
}
CANDIDATES = (
    *((name,) for name in MEMBERS),
    ("words", "neighbours"),
    ("word pairs, min_df 5", "neighbours"),
    ("words", "word pairs, min_df 5"),
    ("words", "word pairs, min_df 5", "neighbours"),
)


def title(names: tuple[str, ...]) -> str:
    return "blend: " + " + ".join(names) if len(names) > 1 else names[0]


class Measured(Members):
    """Members and their blends, which are fitted on rows of "dev"."""

    def row(self, names: tuple[str, ...], part: str, fit_on: slice, rows: slice) -> dict[str, Any]:
        lists = [self.listed(name, part)[rows] for name in names]
        top, start = lists[0], time.process_time()
        if len(names) > 1:
            given = [self.listed(name, "dev")[fit_on] for name in names]
            top = blended(given, self.parts["dev"][1][fit_on], lists, self.counts)
        seconds = sum(map(self.seconds, names)) + time.process_time() - start
        size = sum(self.fitted(name).nbytes for name in names) / 1e6
        truth = self.parts[part][1][rows]
        found = {f"P@{k}": metrics.precision_at_k(truth, top, k) for k in (1, 3, 5)}
        found |= {
            "nDCG@5": metrics.ndcg_at_k(truth, top, 5),
            "macro-F1@5": metrics.macro_f1_at_k(truth, top, 5),
        }
        points = {key: 100 * float(value) for key, value in found.items()}
        return {"model": title(names), **points, "training": seconds, "MB": size}


def legal() -> Measured:
    return Measured(
        "pairs", MEMBERS, {part: read_texts("eurlex57k", part) for part in ("train", "dev", "test")}
    )


def library() -> Measured:
    folder = data_dir(OTHER)
    texts, Y = data.read_text(folder / "train_texts.txt.xz", folder / "train_labels.txt.xz")
    order = np.random.default_rng(27).permutation(len(texts))
    cuts = {"train": order[:15_000], "dev": order[15_000:18_000], "test": order[18_000:21_000]}
    parts: dict[str, Part] = {
        name: ([texts[i] for i in rows], sp.csr_matrix(Y[rows])) for name, rows in cuts.items()
    }
    return Measured(f"pairs-{OTHER}", MEMBERS, parts)


def trials() -> Table:
    split, table = legal(), Table("pairs_trials", COLUMNS, machine())
    for names in CANDIDATES:
        table.add(**split.row(names, "dev", slice(0, None, 2), slice(1, None, 2)))
        print(table.rows[-1], flush=True)
    return table


def chosen() -> list[tuple[str, ...]]:
    """The best member and the best blend of the trials by nDCG@5."""
    path = next(p for p in (folder / "pairs_trials.json" for folder in (RESULTS, KEPT)) if p.exists())
    found = {row["model"]: row["nDCG@5"] for row in json.loads(path.read_text("utf-8"))["rows"]}
    single = [names for names in CANDIDATES if len(names) == 1]
    several = [names for names in CANDIDATES if len(names) > 1]
    return [max(kind, key=lambda names: found[title(names)]) for kind in (single, several)]


def final(name: str, split: Measured) -> Table:
    """The default and the chosen candidates on the part "test"."""
    table = Table(name, COLUMNS, machine())
    for names in ((DEFAULT,), *chosen()):
        table.add(**split.row(names, "test", slice(None), slice(None)))
    return table


PARTS = {
    "trials": trials,
    "test": lambda: final("pairs_test", legal()),
    "confirm": lambda: final("pairs_confirm", library()),
}


def main() -> None:
    for part in arguments(__doc__, tuple(PARTS)):
        table = PARTS[part]()
        table.save()
        print(table)


if __name__ == "__main__":
    main()
