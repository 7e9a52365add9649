"""Decisions against xcolumns: utility and time of block coordinate ascent and Frank-Wolfe, scaling, threads.

    python -m bench.speed.bench_decide [eurlex-4k eurlex57k tibkat-gnd] [--tables bca ...] [--metrics ...] [--rounds 5]

bca          utility at both sides' defaults (must not be lower than xcolumns'); CPU time of one thread from the
             same start (top-k) with the same tolerance, and from our default start.
frank_wolfe  fitted on half of the test instances with their labels, measured on the other half. Times are of
             whole fits from the same start with the same number of iterations on both sides: the peer's at its
             defaults, and ours stopped there. An iteration is a best response and a line search; the peer makes one
             more than it counts, whose search finds nothing (`iterations` includes it, so that it is 1 where
             the peer stops at once). fit_ms is our fit at its own defaults.
starts       utility by start, no peer: also on sets that the default was not chosen on.
rules        held-out utility of Frank-Wolfe by its smoothing and shrinkage, the mean of three splits, beside
             xcolumns': on sets that they were not chosen on.
thresholds   k = None: fit time and held-out macro-F1 of per-label thresholds, with and without shrinkage.
gap          distance to the global optimum (brute force) of tiny random problems.
threads      wall time of one and two threads, default start, bit-identical results.
scaling      time against instances and against candidates, one thread.

Probabilities are made once (one-vs-all, calibrated on held-out rows; the larger sets train for minutes) and
kept in XMC_CACHE. Peer times exclude compilation: each function runs once before it is timed. Rows of a table
that a run does not renew (other sets, other metrics) are kept, so that long tables can be made in parts.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

from bench.common import CACHE, Table, command_line, interleave
from bench.sets import load
from xmc_fast import OneVsAll, decide

TOP = 100
BUDGET = 12.0  # seconds of timing per case of a table
SETS = ("eurlex-4k", "eurlex57k", "tibkat-gnd")
# our metric -> its name in xcolumns
PEER_NAMES = {
    "macro-precision": "precision",
    "macro-recall": "recall",
    "macro-f1": "f1_score",
    "macro-balanced-accuracy": "balanced_accuracy",
}
UNTOUCHED = ("bibtex", "stackex-cs", "stackex-cooking", "stackex-chess", "debtags", "debdeps")


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
    function = getattr(xm, f"binary_{PEER_NAMES[metric]}_on_conf_matrix")
    skip_tn = metric != "macro-balanced-accuracy"
    return bc.predict_using_bc_with_0approx(proba, function, k, skip_tn=skip_tn, return_meta=True, **options)


def timed_peer(metric: str, proba: Any, k: int, start: Any) -> Any:
    """From our start; xcolumns changes it in place, so it gets a copy."""
    return peer_bca(metric, proba, k, init_y_pred=start.copy(), seed=0)


METRICS = ("macro-precision", "macro-recall", "macro-f1", "macro-balanced-accuracy", "coverage")


def bench_bca(names: list[str], metrics: list[str], rounds: int) -> Table:
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
        for metric in metrics:
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


def peer_rules(metric: str, proba: Any, Y: Any, k: int, start: str) -> Any:
    """xcolumns' Frank-Wolfe at its defaults."""
    from xcolumns import frank_wolfe as xf
    from xcolumns import metrics as xm

    function = getattr(xm, f"macro_{PEER_NAMES[metric]}_on_conf_matrix")
    skip_tn = metric != "macro-balanced-accuracy"
    return xf.find_classifier_using_fw(
        Y, proba, function, k, init_classifier=start, skip_tn=skip_tn, seed=0, return_meta=True
    )


def halves(name: str, seed: int) -> Any:
    """Probabilities and labels to fit on, the same to measure on."""
    proba, Y = probabilities(name)
    half = np.random.default_rng(seed).random(proba.shape[0]) < 0.5
    return (proba[half], Y[half]), (proba[~half], Y[~half])


def bench_frank_wolfe(names: list[str], metrics: list[str], rounds: int) -> Table:
    """Fitted on one half of the instances (with labels), measured with the true labels of the other half."""
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
            "ours_ms",
            "xcolumns_ms",
            "ratio",
            "fit_iterations",
            "fit_ms",
        ],
    )
    for name in names:
        fitted, (proba, Y) = halves(name, 1)
        for metric in (m for m in metrics if m != "coverage"):
            for k in (1, 3, 5):
                fit = partial(decide.FrankWolfe(metric, k, n_jobs=1).fit, *fitted)
                rule = fit()
                peers = [peer_rules(metric, *fitted, k, start) for start in ("top", "random")]
                held_out = [peer.predict(proba, seed=0) for peer, _ in peers]
                best = max(decide.expected_utility(Y, p, metric) for p in held_out)
                ours = decide.expected_utility(Y, rule.predict(proba), metric)
                done = len(peers[0][1]["alphas"]) + 1
                same = decide.FrankWolfe(metric, k, n_jobs=1, max_iter=done, tol=0)
                cases = {
                    "ours": partial(same.fit, *fitted),
                    "fit": fit,
                    "peer": partial(peer_rules, metric, *fitted, k, "top"),
                }
                times = interleave(
                    cases, rounds=rounds, clock=time.process_time, warm_up=False, budget=BUDGET
                )
                table.add(
                    data=name,
                    metric=metric,
                    k=k,
                    ours=ours,
                    expected=decide.expected_utility(Y, rule.predict(proba, method="expected"), metric),
                    xcolumns=best,
                    higher=ours >= best,
                    iterations=done,
                    ours_ms=1e3 * times["ours"],
                    xcolumns_ms=1e3 * times["peer"],
                    ratio=times["peer"] / times["ours"],
                    fit_iterations=rule.info_.iterations,
                    fit_ms=1e3 * times["fit"],
                )
    return table


def bench_rules(names: list[str], metrics: list[str]) -> Table:
    """Held-out utility of Frank-Wolfe (mean of three splits) by smoothing and shrinkage; (1, 5) is the default."""
    choices = {
        "default": (1.0, 5.0),
        "no smoothing": (0.0, 5.0),
        "no shrinkage": (1.0, 0.0),
        "neither": (0.0, 0.0),
    }
    table = Table("decide_rules", ["data", "metric", "k", *choices, "xcolumns", "higher", "default_is_best"])
    for name in names:
        for metric in (m for m in metrics if m != "coverage"):
            for k in (1, 3, 5):
                found: dict[str, list[float]] = {key: [] for key in (*choices, "xcolumns")}
                for seed in (11, 12, 13):
                    fitted, (proba, Y) = halves(name, seed)
                    for key, (smoothing, shrinkage) in choices.items():
                        rule = decide.FrankWolfe(
                            metric, k, smoothing=smoothing, shrinkage=shrinkage, n_jobs=1
                        )
                        chosen = rule.fit(*fitted).predict(proba)
                        found[key].append(decide.expected_utility(Y, chosen, metric))
                    peers = [peer_rules(metric, *fitted, k, start)[0] for start in ("top", "random")]
                    found["xcolumns"].append(
                        max(decide.expected_utility(Y, p.predict(proba, seed=0), metric) for p in peers)
                    )
                mean = {key: float(np.mean(values)) for key, values in found.items()}
                best = mean["default"] >= max(mean[key] for key in choices) - 1e-12
                higher = mean["default"] >= mean["xcolumns"]
                table.add(data=name, metric=metric, k=k, **mean, higher=higher, default_is_best=best)
    return table


def bench_thresholds(names: list[str]) -> Table:
    """Any number of labels (k = None): a threshold per label for macro-F1, fitted on half of the instances with labels
    (CPU ms, one thread), measured on the other half; beside it the five most probable labels."""
    table = Table(
        "decide_thresholds", ["data", "labels", "fit_ms", "default", "no shrinkage", "without labels", "top5"]
    )
    for name in names:
        (proba, Y), (new, truth) = halves(name, 1)
        rule = decide.Thresholds("macro-f1", n_jobs=1)
        timed = interleave({"fit": partial(rule.fit, proba, Y)}, clock=time.process_time)
        rules = {
            "default": rule,
            "no shrinkage": decide.Thresholds("macro-f1", shrinkage=0).fit(proba, Y),
            "without labels": decide.Thresholds("macro-f1").fit(proba),
        }
        top5 = decide.weighted_topk(new, np.ones(new.shape[1]), 5)
        table.add(
            data=name,
            labels=new.shape[1],
            fit_ms=1e3 * timed["fit"],
            **{key: decide.expected_utility(truth, r.predict(new), "macro-f1") for key, r in rules.items()},
            top5=decide.expected_utility(truth, top5, "macro-f1"),
        )
    return table


def bench_gap(metrics: list[str]) -> Table:
    """Relative distance to the global optimum of 4 instances x 5 labels, k = 1 and 2, sixteen problems each."""
    import reference.decide as ref
    from reference.decide_data import random_proba

    table = Table("decide_gap", ["metric", "k", "problems", "solved", "mean_gap", "largest_gap"])
    for metric in metrics:
        for k in (1, 2):
            gaps = []
            for seed in range(16):
                eta = random_proba(4, 5, seed=100 + seed)
                _, info = decide.bca(eta, metric, k, tol=0)
                best = ref.global_optimum(eta.astype(float), metric, k)
                gaps.append((best - info.utility) / best)
            assert min(gaps) > -1e-12
            solved = int(sum(gap < 1e-9 for gap in gaps))
            table.add(
                metric=metric,
                k=k,
                problems=len(gaps),
                solved=solved,
                mean_gap=float(np.mean(np.maximum(gaps, 0))),
                largest_gap=float(max(*gaps, 0)),
            )
    return table


def bench_threads(names: list[str], rounds: int) -> Table:
    """Wall time with the default start; speedup is of the medians, best_speedup of the fastest rounds."""
    table = Table("decide_threads", ["data", "metric", "k", "one_ms", "two_ms", "speedup", "best_speedup"])
    for name in names:
        proba, _ = probabilities(name)
        for metric, k in (("macro-f1", 1), ("macro-f1", 5), ("coverage", 5)):
            times: dict[int, list[float]] = {1: [], 2: []}
            for jobs in (1, 2) * rounds:
                start = time.perf_counter()
                decide.bca(proba, metric, k, n_jobs=jobs)
                times[jobs].append(1e3 * (time.perf_counter() - start))
            (one, path), (two, other) = (decide.bca(proba, metric, k, n_jobs=jobs) for jobs in (1, 2))
            assert (one.indices == two.indices).all()
            assert path.utilities == other.utilities
            assert (np.diff([path.start_utility, *path.utilities]) >= -1e-12).all()
            median = {jobs: float(np.median(t)) for jobs, t in times.items()}
            table.add(
                data=name,
                metric=metric,
                k=k,
                one_ms=median[1],
                two_ms=median[2],
                speedup=median[1] / median[2],
                best_speedup=min(times[1]) / min(times[2]),
            )
    return table


def bench_starts(names: list[str], metrics: list[str]) -> Table:
    """Utility reached from each start, the mean of three orders of the instances."""
    starts = ("relaxed", "topk", "random", "greedy")
    table = Table("decide_starts", ["data", "metric", "k", *starts, "relaxed_is_best"])
    for name in names:
        proba, _ = probabilities(name)
        for metric in (m for m in metrics if not decide.metric(m).linear):
            for k in (1, 3, 5):
                reached = {
                    start: float(
                        np.mean(
                            [
                                decide.bca(proba, metric, k, init=start, random_state=seed)[1].utility
                                for seed in range(3)
                            ]
                        )
                    )
                    for start in starts
                }
                best = reached["relaxed"] >= max(reached.values()) - 1e-12
                table.add(data=name, metric=metric, k=k, **reached, relaxed_is_best=best)
    return table


def synthetic(n: int, candidates: int, labels: int = 20_000) -> sp.csr_matrix:
    """Probabilities of the shape of real ones: few frequent labels, most entries near 0."""
    rng = np.random.default_rng(0)
    groups = labels // candidates
    which = (groups * rng.random((n, candidates)) ** 2).astype(np.int32)  # the lower the more frequent
    indices = which * candidates + np.arange(candidates, dtype=np.int32)
    values = rng.beta(0.1, 3.0, indices.shape).astype(np.float32) + np.float32(1e-6)
    indptr = np.arange(n + 1) * candidates
    proba = sp.csr_matrix((np.minimum(values, 1).ravel(), indices.ravel(), indptr), (n, labels))
    proba.sort_indices()
    return proba


def bench_scaling(rounds: int) -> Table:
    """CPU time of five passes of the ascent (macro-F1@5) and of five iterations of Frank-Wolfe, one thread."""
    table = Table(
        "decide_scaling",
        ["grows", "n", "candidates", "bca_ms", "frank_wolfe_ms", "bca_ns", "frank_wolfe_ns"],
    )
    cells = [("n", n, 100) for n in (5_000, 10_000, 20_000, 40_000, 80_000)]
    cells += [("candidates", 20_000, c) for c in (25, 50, 100, 200, 400)]
    for grows, n, candidates in cells:
        proba = synthetic(n, candidates)
        ascent = partial(decide.bca, proba, "macro-f1", 5, init="topk", tol=0, max_iter=5, n_jobs=1)
        rule = decide.FrankWolfe("macro-f1", 5, tol=0, max_iter=5, n_jobs=1)
        cases = {"bca": ascent, "frank_wolfe": partial(rule.fit, proba)}
        times = interleave(cases, rounds=rounds, clock=time.process_time)
        passes = {"bca": ascent()[1].passes, "frank_wolfe": rule.info_.iterations}
        table.add(
            grows=grows,
            n=n,
            candidates=candidates,
            **{f"{key}_ms": 1e3 * t for key, t in times.items()},
            **{f"{key}_ns": 1e9 * t / proba.nnz / max(passes[key], 1) for key, t in times.items()},
        )
    return table


def keep_rest(table: Table) -> None:
    """Keeps the saved rows that this run did not measure; the large sets come last."""
    keys = [c for c in ("grows", "n", "candidates", "data", "metric", "k") if c in table.columns]
    table.keep_others(*keys)
    sets, metrics = list((*UNTOUCHED, *SETS)), list(METRICS)
    table.rows.sort(
        key=lambda r: [
            (o.index(r[k]) if r.get(k) in o else -1) for k, o in (("data", sets), ("metric", metrics))
        ]
    )


def main() -> None:
    parser = command_line(__doc__)
    every = ("threads", "scaling", "gap", "thresholds", "starts", "rules", "frank_wolfe", "bca")
    parser.add_argument("names", nargs="*", default=SETS, help="data sets")
    parser.add_argument("--tables", nargs="*", choices=every)
    parser.add_argument("--metrics", nargs="*", default=METRICS, choices=METRICS)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    names, metrics, rounds = list(arguments.names), list(arguments.metrics), arguments.rounds
    make = {
        "threads": partial(bench_threads, names, 3 * rounds),
        "scaling": partial(bench_scaling, rounds),
        "gap": partial(bench_gap, metrics),
        "thresholds": partial(bench_thresholds, names),
        "starts": partial(bench_starts, names, metrics),
        "rules": partial(bench_rules, names, metrics),
        "frank_wolfe": partial(bench_frank_wolfe, names, metrics, rounds),
        "bca": partial(bench_bca, names, metrics, rounds),
    }
    for key in arguments.tables or every:
        table = make[key]()
        print(table, flush=True)
        keep_rest(table)
        table.save()


if __name__ == "__main__":
    main()
