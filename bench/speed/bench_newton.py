"""Truncated Newton in label blocks against LIBLINEAR, one thread, equal objective.

``python -m bench.speed.bench_newton [--rows 15000] [--labels 300] [--peer-labels 24] [--cases ...]``

Data: tf-idf of the first rows of EURLEX57K (scikit-learn's TfidfVectorizer, sublinear, min_df 2), labels
drawn at random among those with a positive. Ours: OneVsAll(solver="newton", C=1, tol=0.01, no bias) on all
labels, everything included (label ordering, starts, pruning). LIBLINEAR: an evenly spread sample of the same
labels, time of its solver only. CPU time, interleaved. Before the clock counts, every sampled label's objective
must be at most LIBLINEAR's times 1.001.
"""

from __future__ import annotations

import lzma
import time
from itertools import islice

import numpy as np
import scipy.sparse as sp
from liblinear import liblinearutil as peer

from bench.common import CACHE, Table, command_line, data_dir, interleave
from xmc_fast import OneVsAll

# Ours -> LIBLINEAR's solver of the same problem.
CASES = {
    "squared_hinge": ({"solver": "newton", "loss": "squared_hinge"}, 2),
    "logistic": ({"solver": "newton", "loss": "logistic"}, 0),
    "l1": ({"penalty": "l1"}, 5),
}


def load(rows: int, labels: int) -> tuple[sp.csr_matrix, sp.csr_matrix]:
    """tf-idf rows and a random choice of labels, cached."""
    path = CACHE / f"bench_newton_{rows}_{labels}.npz"
    if not path.exists():
        from sklearn.feature_extraction.text import TfidfVectorizer

        folder = data_dir("eurlex57k")
        with lzma.open(folder / "train_texts.txt.xz", "rt", encoding="utf-8") as f:
            X = TfidfVectorizer(sublinear_tf=True, min_df=2, dtype=np.float32).fit_transform(islice(f, rows))
        with lzma.open(folder / "train_labels.txt.xz", "rt") as f:
            lists = [np.array(line.split(), np.int32) for line in islice(f, rows)]
        indptr = np.concatenate([[0], np.cumsum([len(a) for a in lists])])
        Y = sp.csr_matrix((np.ones(indptr[-1], np.int8), np.concatenate(lists), indptr))
        present = np.flatnonzero(np.asarray(Y.sum(0)).ravel())
        chosen = np.sort(np.random.default_rng(0).choice(present, labels, replace=False))
        path.parent.mkdir(parents=True, exist_ok=True)
        both = sp.hstack([X, Y[:, chosen].astype(np.float32)]).tocsr()
        sp.save_npz(path, both, compressed=False)
    both = sp.load_npz(path).tocsr()
    X, Y = both[:, :-labels].tocsr(), both[:, -labels:].tocsr()
    X.sum_duplicates()  # sorted, as a vectorizer gives it
    return X, Y


def objective(name: str, w: np.ndarray, X: sp.csr_matrix, s: np.ndarray) -> float:
    z = s * (X @ w)
    if name == "logistic":
        return float(0.5 * w @ w + np.logaddexp(0, -z).sum())
    penalty = np.abs(w).sum() if name == "l1" else 0.5 * w @ w
    return float(penalty + (np.maximum(0, 1 - z) ** 2).sum())


def bench(name: str, X: sp.csr_matrix, Y: sp.csr_matrix, peer_labels: int, rounds: int, table: Table) -> None:
    options, solver = CASES[name]
    model = OneVsAll(C=1.0, tol=0.01, bias=None, normalize=False, prune=0.01, n_jobs=1, **options)
    counts = np.asarray(Y.sum(0)).ravel()
    order = np.argsort(-counts, kind="stable")
    sample = order[np.linspace(0, len(order) - 1, peer_labels).astype(int)]
    Xd = X.astype(np.float64)
    signs = {k: np.where(np.asarray(Y[:, [k]].todense()).ravel() > 0, 1.0, -1.0) for k in sample}
    problems = {k: peer.problem(s, Xd) for k, s in signs.items()}
    flags = f"-s {solver} -c 1 -e 0.01 -q"

    def ours() -> None:
        model.fit(X, Y)

    def theirs() -> None:
        for k in sample:
            peer.train(problems[k], flags)

    ours()
    reached = model.report_["objective"]
    total = 0.0
    for k in sample:
        m = peer.train(problems[k], flags)
        w = np.array(m.w[: X.shape[1]]) * (1 if m.label[0] == 1 else -1)
        f = objective(name, w, Xd, signs[k])
        total += f
        if not reached[k] <= f * 1.001:
            raise RuntimeError(f"label {k}: objective {reached[k]}, LIBLINEAR {f}")
    cases = {"ours": ours, "peer": theirs}
    times = interleave(cases, rounds=rounds, clock=time.process_time, warm_up=False, budget=300)
    mine, its = 1e3 * times["ours"] / Y.shape[1], 1e3 * times["peer"] / peer_labels
    table.add(
        case=name,
        rows=X.shape[0],
        features=X.shape[1],
        labels=Y.shape[1],
        ms_per_label=mine,
        liblinear=f"-s {solver}",
        liblinear_ms_per_label=its,
        ratio=its / mine,
        objective_ratio=float(reached[sample].sum() / total),
        outer=float(model.report_["outer_iterations"].mean()),
        inner=float(model.report_["inner_iterations"].mean()),
    )


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--rows", type=int, default=15000)
    parser.add_argument("--labels", type=int, default=300)
    parser.add_argument("--peer-labels", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    args = parser.parse_args()
    X, Y = load(args.rows, args.labels)
    columns = ["case", "rows", "features", "labels", "ms_per_label", "liblinear", "liblinear_ms_per_label"]
    table = Table("newton", [*columns, "ratio", "objective_ratio", "outer", "inner"])
    for name in args.cases:
        bench(name, X, Y, args.peer_labels, args.rounds, table)
    print(table)
    table.save()


if __name__ == "__main__":
    main()
