"""Dense features (embeddings): part `dense` of bench_linear.py.

The features are the 256 leading singular directions of EURLex-4K's rows, a dense float32 matrix as an encoder
would give. Ours: all labels of a block. LIBLINEAR -s 2 and -s 1 and scikit-learn's LinearSVC on a sample from
head to tail; CPU time, one thread, interleaved; summed objective of the sample within 0.1 % of LIBLINEAR's.
"""

from __future__ import annotations

import time
from functools import partial

import numpy as np
import scipy.sparse as sp

from bench.common import Table, interleave, prepared_rows
from bench.speed.liblinear import Liblinear
from xmc_fast import OneVsAll


def dense(
    X: sp.csr_matrix, Y: sp.csr_matrix, labels: int = 256, peer_labels: int = 6, rounds: int = 2
) -> Table:
    from sklearn.decomposition import TruncatedSVD
    from sklearn.preprocessing import normalize
    from sklearn.svm import LinearSVC

    columns = ["rows", "features", "labels", "ms_per_label", "s2_ratio", "s1_ratio", "sklearn_ratio"]
    table = Table("linear_dense", [*columns, "objective_ratio"])
    D = TruncatedSVD(256, n_iter=2, random_state=0).fit_transform(normalize(X)).astype(np.float32)
    present = np.flatnonzero(np.asarray(Y.sum(axis=0)).ravel())
    Y = Y.tocsc()[:, present[:labels]].tocsr()
    model = OneVsAll(n_jobs=1)
    A = prepared_rows(D)
    order = np.argsort(-np.asarray(Y.sum(axis=0)).ravel(), kind="stable")
    sample = order[np.linspace(0, len(order) - 1, peer_labels).astype(int)]
    signs = {k: np.where(Y[:, [k]].toarray().ravel() > 0, 1.0, -1.0) for k in sample}
    peer = Liblinear(signs, A)

    def ours() -> None:
        model.fit(D, Y)

    def scikit() -> None:
        for s in signs.values():
            LinearSVC(C=1.0, dual=False, tol=0.01, fit_intercept=False).fit(A, s)

    ours()
    ratio = peer.objective_ratio(model)
    cases = {"ours": ours, "s2": partial(peer.train, 2), "s1": partial(peer.train, 1), "sklearn": scikit}
    t = interleave(cases, rounds=rounds, clock=time.process_time, warm_up=False, budget=80)
    mine = t["ours"] / labels
    table.add(
        rows=D.shape[0],
        features=A.shape[1],
        labels=labels,
        ms_per_label=1e3 * mine,
        s2_ratio=t["s2"] / peer_labels / mine,
        s1_ratio=t["s1"] / peer_labels / mine,
        sklearn_ratio=t["sklearn"] / peer_labels / mine,
        objective_ratio=ratio,
    )
    return table
