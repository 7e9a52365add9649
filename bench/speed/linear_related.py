"""Many rare labels on many short rows: part `related` of bench_linear.py.

A sample of the labels against all rows of `XMC_CACHE/related` (X_train.npz, Y_train.npz), with the search for rare
labels (csrc/linear/tail.h) and in lane groups alone; CPU time, one thread, interleaved. Summed objectives must agree.
"""

from __future__ import annotations

import time

import numpy as np
import scipy.sparse as sp

from bench.common import CACHE, Table, interleave
from xmc_fast import OneVsAll


class Lanes(OneVsAll):
    def _solver(self) -> str:
        return "lanes"


def related(labels: int = 1000, rounds: int = 2) -> Table:
    columns = ["rows", "features", "labels", "ms_per_label", "lanes_ms_per_label", "lanes_ratio"]
    table = Table("linear_related", [*columns, "objective_ratio", "rounds", "active_rows"])
    X = sp.load_npz(CACHE / "related" / "X_train.npz").tocsr()
    Y = sp.load_npz(CACHE / "related" / "Y_train.npz").tocsc()
    chosen = np.random.default_rng(0).choice(Y.shape[1], labels, replace=False)
    Y = Y[:, np.sort(chosen)].tocsr()
    ours, lanes = OneVsAll(n_jobs=1), Lanes(n_jobs=1)
    cases = {"ours": lambda: ours.fit(X, Y), "lanes": lambda: lanes.fit(X, Y)}
    t = interleave(cases, rounds=rounds, clock=time.process_time, warm_up=False, budget=600)
    ratio = float(ours.report_["objective"].sum() / lanes.report_["objective"].sum())
    if abs(ratio - 1) > 1e-3:
        raise RuntimeError(f"summed objective {ratio} times that of lane groups")
    table.add(
        rows=X.shape[0],
        features=X.shape[1],
        labels=labels,
        ms_per_label=1e3 * t["ours"] / labels,
        lanes_ms_per_label=1e3 * t["lanes"] / labels,
        lanes_ratio=t["lanes"] / t["ours"],
        objective_ratio=ratio,
        rounds=float(ours.report_["outer_iterations"].mean()),
        active_rows=float(ours.report_["active_rows"].mean()),
    )
    return table
