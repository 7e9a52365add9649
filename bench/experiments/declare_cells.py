"""The cells of bench/experiments/declare.py: their data, their settings, and how one is trained and measured."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.preprocessing import normalize

from bench.common import CACHE, data_dir
from bench.experiments.declare_trials import TRIALS, run_trial, trial_name
from xmc_fast import data, metrics
from xmc_fast.declare import LabelRecovery, LinearDeclare
from xmc_fast.text import TfidfVectorizer

CELLS = CACHE / "declare"
# outputs c and epochs of each set; the paper's c where it has one
SETS = {
    "bibtex": (100, 25),
    "eurlex57k": (200, 3),
    "eurlex57k-unigrams": (200, 4),
    "eurlex-4k": (200, 8),
    "stackex-cs": (100, 40),
    "stackex-cooking": (100, 40),
    "stackex-chess": (100, 60),
    "debtags": (100, 6),
    "debdeps": (200, 5),
    "tibkat-gnd": (200, 3),
}
BASELINES = ("uncompressed", "pruned")
# other numbers of epochs: the networks with an output per label learn more slowly
EPOCHS = {("eurlex57k", "uncompressed"): 3, ("eurlex57k", "pruned"): 4, ("bibtex", "held-out declare"): 40}
EPOCHS |= {("bibtex", "declare-length"): 18, ("eurlex57k", "declare-length"): 6}
EPOCHS |= {("bibtex", held + m): 40 for held in ("", "held-out ") for m in BASELINES}
# length of the rows of X; else one
TEXTS = ("eurlex57k", "eurlex57k-unigrams", "eurlex-4k", "debtags", "debdeps", "tibkat-gnd")
LENGTH = {(n, m): 4.0 for n in TEXTS for m in ("declare", "declare-length", "neighbour")}
LENGTH |= {(n, m): 12.0 for n in TEXTS for m in BASELINES} | {("bibtex", m): 4.0 for m in BASELINES}
# of the tf-idf of texts; the repository's EURLex-4.3K has 200,000 features, too
FEATURES = {"eurlex57k": {"ngram_range": (1, 2), "max_features": 200_000}}
# published P@1: DECLARE, pruned, uncompressed
PAPER = {"bibtex": (62.43, 62.73, 62.86), "eurlex57k": (83.24, 83.15, 86.65)}
MAIN = (*PAPER, "eurlex57k-unigrams")  # the sets of the first table
SEEDS = (0, 1, 2)
HELD_OUT = ("bibtex",)  # no development part of its own: a fifth of the training rows is held out


def load(name: str, length: float = 1.0) -> dict[str, sp.csr_matrix]:
    """Features X and labels Y of the parts: X, Y of the training part, Xt, Yt of the test part and, where the set has
    one beside a test part, Xd, Yd of the development part. Rows of X have this length."""
    folder, cache = data_dir(name.removesuffix("-unigrams")), CELLS / "data" / name
    if not cache.is_dir():
        matrices = {}
        if (folder / "train.txt.xz").is_file():
            for part, mark in (("train", ""), ("test", "t")):
                matrices["X" + mark], matrices["Y" + mark] = data.read_xmc(folder / f"{part}.txt.xz")[:2]
        else:
            n_labels = len(data.read_lines(folder / "label_names.txt.xz"))
            vectorizer = TfidfVectorizer(sublinear_tf=True, **FEATURES.get(name, {"min_df": 2}))
            found = [part for part in ("train", "test", "dev") if (folder / f"{part}_texts.txt.xz").is_file()]
            for part, mark in zip(found, ("", "t", "d"), strict=False):
                texts, Y = data.read_text(
                    folder / f"{part}_texts.txt.xz", folder / f"{part}_labels.txt.xz", n_labels=n_labels
                )
                step = vectorizer.transform if mark else vectorizer.fit_transform
                matrices["X" + mark], matrices["Y" + mark] = step(texts), Y
        cache.mkdir(parents=True)
        for key, matrix in matrices.items():
            sp.save_npz(cache / f"{key}.npz", matrix, compressed=False)
    parts = {path.stem: sp.load_npz(path) for path in cache.glob("*.npz")}
    return {
        key: (length * normalize(M)).astype(np.float32) if key[0] == "X" else M for key, M in parts.items()
    }


def hold_out(parts: dict[str, sp.csr_matrix], seed: int) -> dict[str, sp.csr_matrix]:
    """A random fifth of the training rows becomes the development part."""
    order = np.random.default_rng(seed).permutation(parts["X"].shape[0])
    held, rest = np.sort(order[: len(order) // 5]), np.sort(order[len(order) // 5 :])
    cut = {key: parts[key][rest] for key in "XY"} | {key + "d": parts[key][held] for key in "XY"}
    return parts | cut


def precisions(Y: sp.csr_matrix, top: sp.csr_matrix) -> list[float]:
    return [100 * float(p) for p in metrics.precision_at_k(Y, top, k=(1, 3, 5))]


def both_recoveries(model: Any, X: sp.csr_matrix, Y: sp.csr_matrix) -> dict[str, list[float]]:
    """P@k of a network with cosine and with inner-product recovery."""
    cosine = model.recovery_
    figures = {}
    try:
        for name in ("cosine", "inner"):
            model.recovery_ = LabelRecovery(cosine.Z, model.labels, similarity=name)
            figures[name] = precisions(Y, model.predict(X, 5))
    finally:
        model.recovery_ = cosine
    return figures


def run(name: str, kind: str, seed: int) -> dict[str, Any]:
    """Trains and tests one model: the result of a cell."""
    import torch

    from bench.experiments.declare_networks import PrunedNetwork, UncompressedNetwork
    from xmc_fast import nn
    from xmc_fast.nn.train import Callback

    class Clock(Callback):
        """CPU seconds of an epoch without its validation: those between its first and last step, scaled up."""

        def on_step(self, run: Any) -> None:
            if run.step % run.steps_per_epoch == 1:
                self.start = time.process_time()
            self.end = time.process_time()

        def on_epoch(self, run: Any) -> None:
            steps = run.steps_per_epoch
            run.history[-1]["cpu"] = (self.end - self.start) * steps / (steps - 1)

    class Declare(nn.Declare):
        """With the figures of both recoveries after each epoch."""

        def _figures(self, X: Any, Y: Any) -> dict[str, float]:
            found = both_recoveries(self, X, Y)
            return {"p@1": found["cosine"][0] / 100, "inner p@1": found["inner"][0] / 100}

    threads = int(os.environ.get("OMP_NUM_THREADS", "0"))
    if threads:
        torch.set_num_threads(threads)
    c, epochs = SETS[name]
    for trial_set, scaling, length, epochs_of_trial, _ in TRIALS:
        if (name, kind) == (trial_set, trial_name(scaling, length)):
            parts = load(name, length)
            parts = hold_out(parts, seed) if name in HELD_OUT else parts
            found = run_trial(parts, c, scaling, epochs_of_trial, seed)
            return {"set": name, "model": kind, "seed": seed, "epochs": epochs_of_trial, **found}
    epochs = EPOCHS.get((name, kind), epochs)
    kind, held = kind.removeprefix("held-out "), kind.startswith("held-out ")
    parts = load(name, LENGTH.get((name, kind), 1.0))
    if held:
        parts = hold_out(parts, seed)
    X, Y, Xt, Yt = (parts[key] for key in ("X", "Y", "Xt", "Yt"))
    c = min(c, Y.shape[1])
    options: dict[str, Any] = {"epochs": epochs, "random_state": seed, "callbacks": [Clock()]}
    start = time.process_time()
    if kind == "linear":
        model: Any = LinearDeclare(c, alpha=1.0, random_state=seed).fit(X, Y)
    else:
        model = {
            "declare": lambda: Declare(c, **options),
            "declare-length": lambda: Declare(c, label_scaling="length", **options),
            "neighbour": lambda: Declare(c, compression="neighbour", **options),
            "uncompressed": lambda: UncompressedNetwork(**options),
            "pruned": lambda: PrunedNetwork(c, **options),
        }[kind]()
        model.labels = Y
        # the curve of one seed: on the development part where there is one, on rows of the test part otherwise
        some = np.sort(np.random.default_rng(0).permutation(Xt.shape[0])[:3000])
        watch = (parts["Xd"], parts["Yd"]) if "Xd" in parts else (Xt[some], Yt[some])
        model.fit(X, Y, validation=watch if seed == 0 or held else None)
    fitted = time.process_time()
    history = getattr(model, "history_", [])
    result: dict[str, Any] = {
        "set": name, "model": "held-out " * held + kind, "seed": seed, "epochs": epochs,
        "labels": Y.shape[1], "features": X.shape[1],
        "watched": "development part" if "Xd" in parts else "test part",
        "outputs": Y.shape[1] if kind in ("uncompressed", "pruned") else c,
        "output_weights": c * 256 if kind == "pruned" else None,
        "p": precisions(Yt, model.predict(Xt, 5)),
        "seconds": sum(h["cpu"] for h in history) or fitted - start,
        "bytes": model.nbytes, "recovery_bytes": getattr(getattr(model, "recovery_", None), "nbytes", 0),
        "history": history,
    }  # fmt: skip
    if kind == "linear":
        result["bytes"] -= result["recovery_bytes"]
    if kind.startswith("declare") and not held:
        result["p_inner"] = both_recoveries(model, Xt, Yt)["inner"]
        if "Xd" in parts:
            result["held_out"] = both_recoveries(model, parts["Xd"], parts["Yd"])
    return result


def order() -> list[tuple[str, str, int]]:
    """The cells, the paper's sets first, one seed of everything before the others."""
    others = [n for n in SETS if n not in MAIN]
    first = [(n, "declare", s) for n in ("eurlex57k", "bibtex") for s in SEEDS]
    first += [(n, "declare-length", s) for n in PAPER for s in SEEDS]
    first += [(n, trial_name(scaling, length), s) for n, scaling, length, _, seeds in TRIALS for s in seeds]
    first += [(n, "held-out declare", s) for n in HELD_OUT for s in SEEDS]
    first += [(n, f"held-out {m}", 0) for n in HELD_OUT for m in BASELINES]
    first += [("bibtex", m, s) for m in BASELINES for s in SEEDS]
    first += [("eurlex57k", m, 0) for m in BASELINES]
    first += [(n, m, 0) for n in others for m in ("declare", "linear")]
    first += [(n, m, 0) for n in PAPER for m in ("linear", "neighbour")]
    first += [("eurlex57k", m, s) for s in SEEDS[1:] for m in BASELINES]
    first += [("eurlex57k-unigrams", "declare", s) for s in SEEDS]
    return first + [(n, m, 0) for n in others for m in BASELINES]
