"""Decisions against xcolumns: utility and time of block coordinate ascent and Frank-Wolfe, scaling, threads.

    python bench/bench_decide.py [eurlex-4k eurlex57k tibkat-gnd] [--rounds 5]

bca          utility at both sides' defaults (must not be lower than xcolumns'); CPU time of one thread from the
             same start (top-k) with the same tolerance, and from our default start.
frank_wolfe  fitted on half of the test instances with their labels, measured on the other half.
threads      wall time of one and two threads, default start, equal bits.
scaling      time against instances x candidates (plot in results/).

Probabilities are made once (one-vs-all, calibrated on held-out rows; the larger sets train for minutes) and
kept in XMC_CACHE. Peer times exclude compilation: each function runs once before it is timed.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

from bench_linear import load
from common import CACHE, RESULTS, Table, interleave
from xmc_fast import OneVsAll, decide

TOP = 100
BUDGET = 12.0  # seconds of timing per case of a table
SETS = ("eurlex-4k", "eurlex57k", "tibkat-gnd")


def probabilities(name: str) -> tuple[Any, Any]:
    """Calibrated probabilities of the top labels of each test instance (made once, then cached), true labels.

    One-vs-all squared hinge trained on nine tenths of the training rows, sigmoids fitted on the last tenth.
    """
    files = [CACHE / f"decide_{name}_{part}.npz" for part in ("proba", "Y")]
    if not all(file.exists() for file in files):
        X, Y = load(name)
        X_test, Y_test = load(name, "test")
        held_out = np.random.default_rng(0).random(X.shape[0]) < 0.1
        model = OneVsAll(keep_top=2000).fit(X[~held_out], Y[~held_out]).model_
        model.calibrate(X[held_out], Y[held_out], candidates=TOP)
        for file, matrix in zip(files, (model.predict(X_test, TOP, proba=True), Y_test), strict=True):
            sp.save_npz(file, matrix)
    proba, Y = (sp.load_npz(file) for file in files)
    proba.sort_indices()
    return proba, sp.csr_matrix(Y, dtype=np.float32)


def peer_bca(metric: str, proba: Any, k: int, **options: Any) -> Any:
    """xcolumns at its defaults (or with the options given): prediction and meta data."""
    from xcolumns import block_coordinate as bc
    from xcolumns import metrics as xm

    if metric == "coverage":
        return bc.predict_optimizing_coverage_using_bc(proba, k, return_meta=True, **options)
    function = {
        "macro-precision": xm.binary_precision_on_conf_matrix,
        "macro-recall": xm.binary_recall_on_conf_matrix,
        "macro-f1": xm.binary_f1_score_on_conf_matrix,
        "macro-balanced-accuracy": xm.binary_balanced_accuracy_on_conf_matrix,
    }[metric]
    skip_tn = metric != "macro-balanced-accuracy"
    return bc.predict_using_bc_with_0approx(proba, function, k, skip_tn=skip_tn, return_meta=True, **options)


def timed_peer(metric: str, proba: Any, k: int, start: Any) -> Any:
    """From our start; xcolumns changes it in place, so it gets a copy."""
    return peer_bca(metric, proba, k, init_y_pred=start.copy(), seed=0)


BCA_METRICS = ["macro-precision", "macro-recall", "macro-f1", "macro-balanced-accuracy", "coverage"]


def bench_bca(names: list[str], rounds: int) -> Table:
    """Utility at both sides' defaults; time from the same start (top-k) with the same tolerance."""
    table = Table(
        "decide_bca",
        [
            "data",
            "metric",
            "k",
            "topk",
            "ours",
            "xcolumns",
            "higher",
            "ours_ms",
            "default_ms",
            "xcolumns_ms",
            "ratio",
            "default_ratio",
        ],
    )
    for name in names:
        proba, _ = probabilities(name)
        for metric in BCA_METRICS:
            for k in (1, 3, 5):
                start = decide.weighted_topk(proba, np.ones(proba.shape[1]), k)
                start.data[:] = 1
                start.sort_indices()
                prediction, info = decide.bca(proba, metric, k, n_jobs=1)
                reported = decide.expected_utility(proba, prediction, metric)
                assert abs(reported - info.utility) < 1e-9
                assert info.utility >= info.topk_utility - 1e-12
                peer, _ = peer_bca(metric, proba, k, seed=0)
                peer_utility = decide.expected_utility(proba, peer, metric)
                cases = {
                    "ours": partial(decide.bca, proba, metric, k, init="topk", n_jobs=1),
                    "default": partial(decide.bca, proba, metric, k, n_jobs=1),
                    "peer": partial(timed_peer, metric, proba, k, start),
                }
                times = interleave(cases, rounds=rounds, clock=time.process_time, budget=BUDGET)
                table.add(
                    data=name,
                    metric=metric,
                    k=k,
                    topk=info.topk_utility,
                    ours=info.utility,
                    xcolumns=peer_utility,
                    higher=info.utility >= peer_utility,
                    ours_ms=1e3 * times["ours"],
                    default_ms=1e3 * times["default"],
                    xcolumns_ms=1e3 * times["peer"],
                    ratio=times["peer"] / times["ours"],
                    default_ratio=times["peer"] / times["default"],
                )
    return table


def bench_frank_wolfe(names: list[str], rounds: int) -> Table:
    """Fitted on one half of the instances (with labels), measured with the true labels of the other half."""
    from xcolumns import frank_wolfe as xf
    from xcolumns import metrics as xm

    functions = {
        "macro-precision": xm.macro_precision_on_conf_matrix,
        "macro-recall": xm.macro_recall_on_conf_matrix,
        "macro-f1": xm.macro_f1_score_on_conf_matrix,
    }
    table = Table(
        "decide_frank_wolfe",
        [
            "data",
            "metric",
            "k",
            "ours",
            "expected",
            "xcolumns",
            "higher",
            "iterations",
            "peer_iterations",
            "ours_ms",
            "xcolumns_ms",
            "ratio_per_iteration",
        ],
    )
    for name in names:
        proba, Y = probabilities(name)
        half = np.random.default_rng(1).random(proba.shape[0]) < 0.5
        for metric, function in functions.items():
            for k in (1, 3, 5):
                fit = partial(decide.FrankWolfe(metric, k, n_jobs=1).fit, proba[half], Y[half])
                peer_fit = partial(
                    xf.find_classifier_using_fw,
                    Y[half],
                    proba[half],
                    function,
                    k,
                    skip_tn=True,
                    seed=0,
                    return_meta=True,
                )
                rule = fit()
                peers = [peer_fit(init_classifier=start) for start in ("top", "random")]
                held_out = [peer.predict(proba[~half], seed=0) for peer, _ in peers]
                best = max(decide.expected_utility(Y[~half], p, metric) for p in held_out)
                ours = decide.expected_utility(Y[~half], rule.predict(proba[~half]), metric)
                cases = {"ours": fit, "peer": partial(peer_fit, init_classifier="top")}
                times = interleave(
                    cases, rounds=rounds, clock=time.process_time, warm_up=False, budget=BUDGET
                )
                table.add(
                    data=name,
                    metric=metric,
                    k=k,
                    ours=ours,
                    expected=decide.expected_utility(
                        Y[~half], rule.predict(proba[~half], method="expected"), metric
                    ),
                    xcolumns=best,
                    higher=ours >= best,
                    iterations=rule.info_.iterations,
                    peer_iterations=len(peers[0][1]["alphas"]),
                    ours_ms=1e3 * times["ours"],
                    xcolumns_ms=1e3 * times["peer"],
                    # the last line search of either finds nothing and is not counted as an iteration
                    ratio_per_iteration=times["peer"]
                    / (len(peers[0][1]["alphas"]) + 1)
                    / (times["ours"] / (rule.info_.iterations + 1)),
                )
    return table


def bench_threads(names: list[str], rounds: int) -> Table:
    """Wall time with the default start; the best of the rounds beside the median, for busy machines."""
    table = Table("decide_threads", ["data", "metric", "k", "one_ms", "two_ms", "best_one_ms", "best_two_ms"])
    for name in names:
        proba, _ = probabilities(name)
        for metric, k in (("macro-f1", 5), ("coverage", 5), ("macro-f1", 1)):
            times: dict[int, list[float]] = {1: [], 2: []}
            for jobs in (1, 2) * rounds:
                start = time.perf_counter()
                decide.bca(proba, metric, k, n_jobs=jobs)
                times[jobs].append(1e3 * (time.perf_counter() - start))
            one, two = (decide.bca(proba, metric, k, n_jobs=jobs)[0] for jobs in (1, 2))
            assert (one.indices == two.indices).all()
            table.add(
                data=name,
                metric=metric,
                k=k,
                one_ms=float(np.median(times[1])),
                two_ms=float(np.median(times[2])),
                best_one_ms=min(times[1]),
                best_two_ms=min(times[2]),
            )
    return table


def bench_scaling(rounds: int, plot: bool = True) -> Table:
    """Time against n x candidates (ten passes each), and two threads against one."""
    table = Table(
        "decide_scaling", ["n", "candidates", "entries", "one_ms", "two_ms", "ns_per_entry_and_pass"]
    )
    rng = np.random.default_rng(0)
    passes = 10
    for n in (2_000, 5_000, 20_000, 50_000):
        for candidates in (25, 100):
            labels = 10_000
            indices = np.sort(
                (labels * rng.random((n, candidates)) ** 2).astype(np.int32) // candidates * candidates
                + np.arange(candidates, dtype=np.int32),
                axis=1,
            )
            values = rng.beta(0.1, 3.0, indices.shape).astype(np.float32) + np.float32(1e-6)
            indptr = np.arange(n + 1) * candidates
            proba = sp.csr_matrix(
                (np.minimum(values, 1).ravel(), indices.ravel(), indptr), (n, labels + candidates)
            )
            run = partial(decide.bca, proba, "macro-f1", 5, init="topk", tolerance=0, max_passes=passes)
            one, two = run(n_jobs=1), run(n_jobs=2)
            assert (one[0].indices == two[0].indices).all()
            times = interleave({"one": partial(run, n_jobs=1), "two": partial(run, n_jobs=2)}, rounds=rounds)
            entries = n * candidates
            table.add(
                n=n,
                candidates=candidates,
                entries=entries,
                one_ms=1e3 * times["one"],
                two_ms=1e3 * times["two"],
                ns_per_entry_and_pass=1e9 * times["one"] / entries / one[1].passes,
            )
    if plot:
        import matplotlib

        matplotlib.use("agg")
        from matplotlib import pyplot

        _, ax = pyplot.subplots(layout="constrained")
        for key, label in (("one_ms", "one thread"), ("two_ms", "two threads")):
            ax.loglog([r["entries"] for r in table.rows], [r[key] for r in table.rows], "o", label=label)
        ax.set_xlabel("instances x candidates")
        ax.set_ylabel(f"ms for {passes} passes")
        ax.legend()
        RESULTS.mkdir(parents=True, exist_ok=True)
        ax.figure.savefig(RESULTS / "decide_scaling.png", dpi=120)
    return table


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=SETS, help="data sets")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    names, rounds = list(arguments.names), arguments.rounds
    tables = (
        partial(bench_threads, names, 3 * rounds),
        partial(bench_scaling, rounds),
        partial(bench_frank_wolfe, names, rounds),
        partial(bench_bca, names, rounds),
    )
    for make in tables:
        table = make()
        print(table, flush=True)
        table.save()


if __name__ == "__main__":
    main()
