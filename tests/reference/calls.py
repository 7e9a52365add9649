"""What is public and takes a matrix or a vector: how it is called, and with what."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

import xmc_fast
from xmc_fast import cluster, data, decide, declare, engine, knn, mach, metrics, model, propensity
from xmc_fast.model import SparseModel
from xmc_fast.propensity import Richards, surrogate_weights

N, D, L = 12, 7, 5
TORCH = importlib.util.find_spec("torch") is not None
PLOTS = importlib.util.find_spec("matplotlib") is not None

ROWS = np.random.default_rng(1).integers(0, 3, (N, D)).astype(np.float32) / 4
TRUTH = (np.random.default_rng(2).random((N, L)) < 0.4).astype(np.float32)
SCORES = np.random.default_rng(3).random((N, L)).astype(np.float32)
SCORES[SCORES < 0.3] = 0
Z = np.random.default_rng(4).random((N, 3)).astype(np.float32)
COUNTS = np.array([9, 4, 3, 2, 1], np.int64)
CHANCES = np.array([0.9, 0.5, 0.5, 0.25, 0.25], np.float32)
TEXTS = [" ".join(f"w{j}" for j in np.flatnonzero(row)) or "none" for row in ROWS]


class Argument(NamedTuple):
    """A good value, what it is, and the sizes of its axes by letter (those of one letter change together)."""

    good: np.ndarray
    kind: str  # features, labels, scores (sparse or dense); dense; vector
    axes: str


X = Argument(ROWS, "features", "nd")
Y = Argument(TRUTH, "labels", "nl")
P = Argument(SCORES, "scores", "nl")
LABELS, WEIGHTS = Argument(COUNTS, "vector", "l"), Argument(CHANCES, "vector", "l")
TARGETS = Argument(TRUTH, "features", "nl")
ONE = Argument(ROWS[:1], "features", "1d")


@functools.cache
def fitted(name: str) -> Any:
    """A fitted estimator; its methods do not change it."""
    return make(name).fit(ROWS, TRUTH)


def make(name: str) -> Any:
    """A small estimator."""
    if name in ("SparseClassifier", "Declare", "BucketNetwork"):
        from xmc_fast import nn

        return {
            "SparseClassifier": lambda: nn.SparseClassifier(hidden=8, fan_in=4, epochs=1, device="cpu"),
            "Declare": lambda: nn.Declare(3, hidden=4, neighbours=4, epochs=1),
            "BucketNetwork": lambda: nn.BucketNetwork(hidden=4, epochs=1),
        }[name]()
    options: dict[str, Any] = {
        "LabelTree": {"max_leaf": 2},
        "LinearDeclare": {"n_components": 3},
        "Mach": {"n_buckets": 3, "n_repeats": 2},
        "Neighbours": {"n_neighbours": 3},
        "Ensemble": {"members": [xmc_fast.Neighbours(3, n_jobs=1)], "folds": 2},
    }
    return getattr(xmc_fast, name)(**options.get(name, {}), n_jobs=1)


def fitted_then(name: str, X: Any, Y: Any) -> Any:
    """What an estimator of these predicts."""
    return make(name).fit(X, Y).predict(ROWS[:, : np.shape(X)[1]], 3)


def weights() -> SparseModel:
    return SparseModel(sp.csr_matrix(ROWS[:L]))


def kept_state() -> Any:
    return xmc_fast.OneVsAll(n_jobs=1).fit(ROWS, TRUTH, keep_state=True)


def written(write: Any, *matrices: Any) -> bytes:
    """What a function writes into a file."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "out", *matrices)
        return (Path(folder) / "out").read_bytes()


def figure(draw: str, *args: Any, **options: Any) -> Any:
    """What a plot of an array has: the data of its lines."""
    import matplotlib.pyplot as plt

    from xmc_fast import plots

    figure, ax = plt.subplots()
    try:
        getattr(plots, draw)(*args, ax=ax, **options)
        return [np.nan_to_num(np.asarray(line.get_data(), float)) for line in ax.get_lines()]
    finally:
        plt.close(figure)


def of_pairs(metric: Any, has_k: bool) -> Any:
    """A call of a metric by the names of its arguments."""
    if has_k:
        return lambda k=2, **given: metric(**given, k=k, n_jobs=1)
    return lambda **given: metric(**given, n_jobs=1)


# Name -> (a call of the arguments by name, the arguments). Names as `public` gives them.
Table = dict[str, tuple[Any, dict[str, Argument]]]
CALLS: Table = {}
NETWORKS = ("SparseClassifier", "Declare") if TORCH else ()
for name in ("OneVsAll", "LabelTree", "LinearDeclare", "Mach", "Neighbours", "Ensemble", *NETWORKS):
    CALLS |= {
        f"{name}.fit": (lambda X, Y, name=name: fitted_then(name, X, Y), {"X": X, "Y": Y}),
        f"{name}.predict": (lambda X, k=3, name=name: fitted(name).predict(X, k), {"X": X}),
        f"{name}.predict_one": (lambda x, k=3, name=name: fitted(name).predict_one(x, k), {"x": ONE}),
    }
CALLS |= {
    "OneVsAll.explain": (lambda x: fitted("OneVsAll").explain(x), {"x": ONE}),
    "OneVsAll.decision_function": (lambda X: fitted("OneVsAll").decision_function(X), {"X": X}),
    "OneVsAll.score": (lambda X, Y: fitted("OneVsAll").score(X, Y), {"X": X, "Y": Y}),
    "OneVsAll.update": (lambda X, Y: kept_state().update(X, Y).predict(ROWS, 3), {"X": X, "Y": Y}),
    "OneVsAll.update(old)": (
        lambda old_labels: kept_state().update(ROWS[:3], TRUTH[:3], old_labels=old_labels).predict(ROWS, 3),
        {"old_labels": Argument(TRUTH[:, :1], "labels", "n1")},
    ),
    "LabelTree.explain": (lambda x: fitted("LabelTree").explain(x, 1), {"x": ONE}),
    "LabelTree.calibrate": (
        lambda X, Y: make("LabelTree").fit(ROWS, TRUTH).calibrate(X, Y, n_jobs=1).predict(ROWS, 3, proba=True),
        {"X": X, "Y": Y},
    ),
    "LinearDeclare.transform": (lambda X: fitted("LinearDeclare").transform(X), {"X": X}),
    "Mach.bucket_scores": (lambda X: fitted("Mach").bucket_scores(X), {"X": X}),
    "Ensemble.contributions": (lambda X: fitted("Ensemble").contributions(X, 1), {"X": X}),
    "SparseModel.__init__": (
        lambda weights: SparseModel(weights).predict(ROWS, 3), {"weights": Argument(ROWS[:L], "csr", "ld")}
    ),
    "SparseModel.predict": (lambda X, k=3: weights().predict(X, k, n_jobs=1), {"X": X}),
    "SparseModel.predict_one": (lambda x, k=3: weights().predict_one(x, k), {"x": ONE}),
    "SparseModel.calibrate": (
        lambda X, Y: weights().calibrate(X, Y, n_jobs=1).predict(ROWS, 3, proba=True), {"X": X, "Y": Y}
    ),
    "SparseModel.build_near_index": (
        lambda X, k=3: weights().build_near_index(X, k, n_jobs=1).predict(ROWS, min(k, 3)), {"X": X}
    ),
    "SparseModel.compress": (lambda X, Y: weights().compress(X, Y, n_jobs=1).predict(ROWS, 3), {"X": X, "Y": Y}),
    "Lexical.fit": (
        lambda Y: xmc_fast.Lexical([f"w{j}" for j in range(L)], n_jobs=1).fit(TEXTS, Y).predict(TEXTS, 3), {"Y": Y}
    ),
    "TextClassifier.fit": (
        lambda labels: xmc_fast.TextClassifier(min_df=1, n_jobs=1).fit(TEXTS, labels).predict(TEXTS, 3, output="csr"),
        {"labels": Y},
    ),
    "tune": (
        lambda X, y: xmc_fast.tune(X, y, settings=[{}], n_jobs=1).best,
        {"X": X, "y": Y},
    ),
    "cluster.label_tree": (lambda X, Y: cluster.label_tree(X, Y, max_leaf=2, n_jobs=1).order, {"X": X, "Y": Y}),
    "cluster.label_centroids": (lambda X, Y: cluster.label_centroids(X, Y, n_jobs=1), {"X": X, "Y": Y}),
    "data.describe": (lambda X, Y: data.describe(X, Y).to_dict(), {"X": X, "Y": Y}),
    "data.filter_labels": (data.filter_labels, {"M": P, "pairs": Argument(TRUTH, "scores", "nl")}),
    "data.fit_power_law": (data.fit_power_law, {"counts": LABELS}),
    "decide.bca": (
        lambda proba, k=2: decide.bca(proba, "macro-f1", k, random_state=0, n_jobs=1)[0], {"proba": P}
    ),
    "decide.optimize": (
        lambda proba, k=2: decide.optimize(proba, metric="macro-f1", k=k, n_jobs=1)[0], {"proba": P}
    ),
    "decide.expected_utility": (
        lambda proba, predictions, k=2: decide.expected_utility(proba, predictions, "macro-f1", k=k),
        {"proba": P, "predictions": Argument(TRUTH, "scores", "nl")},
    ),
    "decide.weighted_topk": (
        lambda proba, gains, k=2: decide.weighted_topk(proba, gains, k, n_jobs=1), {"proba": P, "gains": WEIGHTS}
    ),
    "decide.log_gains": (lambda label_counts: decide.log_gains(label_counts, 20), {"label_counts": LABELS}),
    "decide.power_law_gains": (decide.power_law_gains, {"label_counts": LABELS}),
    "decide.propensity_gains": (decide.propensity_gains, {"propensity": WEIGHTS}),
    "decide.metric": (
        lambda propensity: decide.metric("psp", propensity=propensity).label_weights, {"propensity": WEIGHTS}
    ),
    "decide.metric(weights)": (
        lambda weights: decide.metric("weighted-precision", weights=weights).label_weights, {"weights": WEIGHTS}
    ),
    "FrankWolfe.fit": (
        lambda proba, Y: decide.FrankWolfe(k=2, n_jobs=1).fit(proba, Y).predict(SCORES), {"proba": P, "Y": Y}
    ),
    "FrankWolfe.predict": (
        lambda proba: decide.FrankWolfe(k=2, n_jobs=1).fit(SCORES, TRUTH).predict(proba), {"proba": P}
    ),
    "Thresholds.fit": (
        lambda proba, Y: decide.Thresholds(n_jobs=1).fit(proba, Y).predict(SCORES), {"proba": P, "Y": Y}
    ),
    "Thresholds.predict": (
        lambda proba: decide.Thresholds(n_jobs=1).fit(SCORES, TRUTH).predict(proba), {"proba": P}
    ),
    "declare.ridge": (
        lambda X, Z: declare.ridge(X, Z, n_jobs=1), {"X": X, "Z": Argument(Z, "dense", "nc")}
    ),
    "declare.compress": (lambda Y: declare.compress(Y, 3, n_jobs=1), {"Y": Y}),
    "declare.truncated_svd": (lambda Y: tuple(declare.truncated_svd(Y, 3, n_jobs=1)), {"Y": Y}),
    "declare.neighbour_pairs": (lambda Y: declare.neighbour_pairs(Y, 3, n_jobs=1), {"Y": Y}),
    "declare.neighbour_embedding": (
        lambda Y, start: declare.neighbour_embedding(Y, start, neighbours=3, steps=2, n_jobs=1)[0],
        {"Y": Y, "start": Argument(Z, "dense", "nc")},
    ),
    "LabelRecovery.__init__": (
        lambda Z, Y: declare.LabelRecovery(Z, Y, neighbours=3).predict(Z[:2] if len(Z) else Z, 3, n_jobs=1),
        {"Z": Argument(Z, "dense", "nc"), "Y": Y},
    ),
    "LabelRecovery.predict": (
        lambda z, k=3: declare.LabelRecovery(Z, TRUTH, neighbours=3).predict(z, k, n_jobs=1),
        {"z": Argument(Z, "dense", "nc")},
    ),
    "engine.predict": (lambda X, k=3: engine.predict("threading", weights(), X, k, n_jobs=1), {"X": X}),
    "InnerProductIndex.__init__": (
        lambda rows: knn.InnerProductIndex(rows).search(Z, 3, n_jobs=1), {"rows": Argument(Z, "dense", "nc")}
    ),
    "InnerProductIndex.search": (
        lambda queries: knn.InnerProductIndex(Z).search(queries, 3, n_jobs=1),
        {"queries": Argument(Z, "dense", "nc")},
    ),
    "knn.recover_labels": (
        lambda ids, similarity, Y, k=3: knn.recover_labels(ids, similarity, Y, k, n_jobs=1),
        {
            "ids": Argument(np.array([[0, 3], [2, 1]]), "integers", "mq"),
            "similarity": Argument(np.array([[1.0, 0.5], [0.5, 2.0]]), "dense", "mq"),
            "Y": Y,
        },
    ),
    "mach.bucket_matrix": (lambda Y: mach.bucket_matrix(Y, 3, 0, n_jobs=1), {"Y": Y}),
    "mach.bucket_matrices": (lambda Y: list(mach.bucket_matrices(Y, 3, 2, n_jobs=1)), {"Y": Y}),
    "mach.aggregate_topk": (
        lambda p, table, k=3: mach.aggregate_topk(p, table, k, n_jobs=1),
        {
            "p": Argument(np.random.default_rng(5).random((2, 4, 3), np.float32), "tensor", "rmb"),
            "table": Argument(np.array([[0, 1, 2, 0, 1], [2, 2, 0, 1, 0]]), "integers", "rl"),
        },
    ),
    "metrics.frequency_bins": (lambda counts: metrics.frequency_bins(counts, [2, 4]), {"counts": LABELS}),
    "metrics.report": (
        lambda Y_true, pred, propensity: repr(metrics.report(Y_true, pred, propensity=propensity, n_jobs=1).values),
        {"Y_true": Y, "pred": P, "propensity": WEIGHTS},
    ),
    "metrics.suggest": (
        lambda Y_true, proba: metrics.suggest(Y_true, proba, n_jobs=1), {"Y_true": Y, "proba": P}
    ),
    "model.merge_topk": (
        lambda predictions, k=3: model.merge_topk([predictions, sp.csr_matrix(SCORES)], k, n_jobs=1),
        {"predictions": Argument(SCORES, "csr", "nl")},
    ),
    "model.explain_row": (lambda x: model.explain_row(weights(), x, 1), {"x": ONE}),
    "propensity.direct": (propensity.direct, {"Y_observed": Y, "Y_controlled": Argument(TRUTH, "labels", "ml")}),
    "propensity.estimate": (propensity.estimate, {"Y": Y}),
    "propensity.rebalancing_weights": (lambda counts: propensity.rebalancing_weights(counts, 0.9), {"counts": LABELS}),
    "propensity.surrogate_weights": (
        lambda propensity, counts: surrogate_weights(propensity, counts=counts, beta=0.9),
        {"propensity": WEIGHTS, "counts": LABELS},
    ),
    "Richards.fit": (
        lambda counts, propensity, weights: Richards.fit(counts, propensity, weights=weights)._parameters(),
        {"counts": LABELS, "propensity": WEIGHTS, "weights": WEIGHTS},
    ),
    "Vector.__init__": (lambda p: propensity.estimate(TRUTH, propensity.Vector(p)), {"p": WEIGHTS}),
    "Block.from_csr": (
        lambda weights: SparseModel([model.Block.from_csr(weights, 0)]).predict(ROWS, 3),
        {"weights": Argument(ROWS[:L], "csr", "ld")},
    ),
    "model.write_predictions": (
        lambda predictions: [
            sorted(line.split()) for line in written(model.write_predictions, predictions).splitlines()
        ],
        {"predictions": Argument(SCORES, "csr", "nl")},
    ),
    "data.write_xmc": (lambda X, Y: written(data.write_xmc, X, Y), {"X": X, "Y": Y}),
}  # fmt: skip
if TORCH:

    def batches(X: Any, Y: Any) -> Any:
        from xmc_fast import nn

        return [[np.asarray(part) for rows in batch for part in (rows if isinstance(rows, tuple) else [rows])]
                for batch in nn.csr_batches(X, Y, 5, random_state=0)]  # fmt: skip

    CALLS |= {
        "BucketNetwork.fit": (
            lambda X, Y: make("BucketNetwork").fit(X, Y).decision_function(ROWS), {"X": X, "Y": TARGETS}
        ),
        "BucketNetwork.partial_fit": (
            lambda X, Y: make("BucketNetwork").fit(ROWS, TRUTH).partial_fit(X, Y).decision_function(ROWS),
            {"X": X, "Y": TARGETS},
        ),
        "BucketNetwork.decision_function": (lambda X: fitted("BucketNetwork").decision_function(X), {"X": X}),
        "nn.csr_batches": (batches, {"X": X, "Y": TARGETS}),
    }  # fmt: skip
if PLOTS:
    CALLS |= {
        "plots.label_distribution": (lambda Y: figure("label_distribution", Y), {"Y": Y}),
        "plots.plot_propensity": (
            lambda Y, propensity: figure("plot_propensity", Y, propensity=propensity),
            {"Y": Y, "propensity": WEIGHTS},
        ),
        "plots.plot_tradeoff": (
            lambda proba, Y, label_counts: figure(
                "plot_tradeoff", proba, 2, Y=Y, label_counts=label_counts, lambdas=[0.5], exponents=[0.5], n_jobs=1
            ),
            {"proba": P, "Y": Y, "label_counts": LABELS},
        ),
        "plots.pruning_curve": (
            lambda X, Y: figure("pruning_curve", weights(), X, Y, deltas=[0.1], k=(2,), n_jobs=1), {"X": X, "Y": Y}
        ),
        "plots.reliability": (
            lambda X, Y: figure("reliability", weights().calibrate(ROWS, TRUTH), X, Y, k=2, n_jobs=1),
            {"X": X, "Y": Y},
        ),
    }  # fmt: skip


for name in metrics.__all__:
    function = getattr(metrics, name)
    names = list(inspect.signature(function).parameters) if inspect.isfunction(function) else []
    if names[:2] == ["Y_true", "pred"] and f"metrics.{name}" not in CALLS:
        given = {"Y_true": Y, "pred": P}
        if names[2:3] == ["propensity"]:
            given["propensity"] = WEIGHTS
        CALLS[f"metrics.{name}"] = (of_pairs(function, "k" in names), given)
