"""What one-vs-all gains on EURLex-4K by other values of the features, which come as counts times idf.

    python -m bench.experiments.values trials    # on 2,500 rows held out of the train part
    python -m bench.experiments.values test      # the best of them, and the values as given, on test rows
    python -m bench.experiments.values confirm   # the same on other sets of counts, which were not looked at before

One thread; lists are kept in XMC_CACHE. Writes values_*.json; bench.report makes the tables of
docs/experiments/settings.md of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from bench.common import CACHE, Table, arguments, machine
from bench.sets import load
from xmc_fast import LabelTree, OneVsAll, metrics

COLUMNS = ("model", "P@1", "P@3", "P@5", "nDCG@5", "macro-F1@5")
MODELS: dict[str, tuple[str, Any]] = {
    "raw": ("one-vs-all, values as given", OneVsAll(n_jobs=1)),
    "sqrt": ("one-vs-all, square roots", OneVsAll(n_jobs=1)),
    "log": ("one-vs-all, log(1 + value)", OneVsAll(n_jobs=1)),
    "sub": ("one-vs-all, (1 + log count) idf", OneVsAll(n_jobs=1)),
    "sqrt C0.5": ("one-vs-all, square roots, C = 0.5", OneVsAll(C=0.5, n_jobs=1)),
    "sqrt C2": ("one-vs-all, square roots, C = 2", OneVsAll(C=2, n_jobs=1)),
    "tree sqrt": ("label tree, square roots", LabelTree(n_jobs=1)),
}
CHOSEN = "sqrt"
SET, OTHERS = "eurlex-4k", ("stackex-chess", "stackex-cooking", "stackex-cs")  # counts without idf


def values(X: sp.csr_matrix, form: str, least: np.ndarray) -> sp.csr_matrix:
    """The rows with other values; least is a column's value at a count of one."""
    out = X.astype(np.float32)
    if form == "sqrt":
        out.data = np.sqrt(out.data)
    elif form == "log":
        out.data = np.log1p(out.data)
    elif form == "sub":
        weight = least[X.indices]
        out.data = ((1 + np.log(np.maximum(X.data / weight, 1))) * weight).astype(np.float32)
    return out


def measured(name: str, part: str, train: Any, asked: Any, data: str = SET) -> dict[str, float]:
    """A model trained on (X, Y) and measured on others."""
    (X, Y), (X_asked, truth) = train, asked
    path = CACHE / "values" / f"{part} {name}{'' if data == SET else ' ' + data}.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        least = np.full(X.shape[1], np.inf)
        np.minimum.at(least, X.indices, X.data)
        least[~np.isfinite(least)] = 1
        form = name.replace("tree ", "").split(" ")[0]
        model = MODELS[name][1].fit(values(X, form, least), Y)
        sp.save_npz(path, model.predict(values(X_asked, form, least), 5))
    top = sp.load_npz(path)
    out = {f"P@{k}": metrics.precision_at_k(truth, top, k) for k in (1, 3, 5)}
    out |= {"nDCG@5": metrics.ndcg_at_k(truth, top, 5), "macro-F1@5": metrics.macro_f1_at_k(truth, top, 5)}
    return {key: 100 * float(value) for key, value in out.items()}


def table_of(part: str) -> Table:
    X, Y = load(SET)
    train, asked, names = (X, Y), None, ("raw", CHOSEN)
    if part == "test":
        asked = load(SET, "test")
    else:
        order = np.random.default_rng(3).permutation(X.shape[0])
        held, rest = np.sort(order[:2500]), np.sort(order[2500:])
        train, asked, names = (X[rest], Y[rest]), (X[held], Y[held]), tuple(MODELS)
    table = Table(f"values_{part}", COLUMNS, machine())
    for name in names:
        table.add(model=MODELS[name][0], **measured(name, part, train, asked))
    return table


def confirm() -> Table:
    table = Table("values_confirm", ("set", *COLUMNS), machine())
    for data in OTHERS:
        train, asked = load(data), load(data, "test")
        for name in ("raw", CHOSEN):
            table.add(set=data, model=MODELS[name][0], **measured(name, "confirm", train, asked, data))
    return table


def main() -> None:
    for part in arguments(__doc__, ("test", "trials", "confirm")):
        table = confirm() if part == "confirm" else table_of(part)
        table.save()
        print(table)


if __name__ == "__main__":
    main()
