"""One-vs-all training against LIBLINEAR at equal objective; quality, threads, scaling, projection.

``python bench/bench_linear.py [peers quality threads scaling amazon] [--sets eurlex-4k ...]``

peers    CPU ms per label, one thread, ours on all labels of a block (ordering, base solution and pruning
         included) and LIBLINEAR's -s 2 and -s 1 (solver time only) on a sample from head to tail, in turns.
         The sampled labels' summed objective must be within 0.1 % of LIBLINEAR -s 2's, or better.
quality  P@1/3/5 with the default parameters, and the whole model's training time.
threads  wall time with one and two threads, equal bits.
scaling  seconds per label against rows, entries and the label's frequency (plot in results/).
amazon   a synthetic problem of Amazon-670K's shape, projected to 670,091 labels from a sample of blocks.

Text sets are tf-idf (scikit-learn's TfidfVectorizer, sublinear, min_df 2), cached in XMC_CACHE.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from common import CACHE, RESULTS, Table, data_dir, interleave
from xmc_fast import OneVsAll, data, linear

SETS = ("eurlex-4k", "eurlex57k", "debdeps", "tibkat-gnd")
TEXT = {"eurlex57k": "test", "tibkat-gnd": "dev"}  # name -> the part used for testing
# DiSMEC's figures on the standard split (LightXML, table 3).
PUBLISHED = {"eurlex-4k": (83.21, 70.39, 58.73)}


def load(name: str, part: str = "train") -> tuple[sp.csr_matrix, sp.csr_matrix]:
    """Features and labels of a data set's part ("train" or "test"), cached."""
    path = CACHE / f"linear_{name}_{part}.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = data_dir(name)
        if name in TEXT:
            from sklearn.feature_extraction.text import TfidfVectorizer

            n_labels = len(data.read_lines(folder / "label_names.txt.xz"))
            vectorizer = TfidfVectorizer(sublinear_tf=True, min_df=2, dtype=np.float32)
            for target, stem in (("train", "train"), ("test", TEXT[name])):
                texts, Y = data.read_text(
                    folder / f"{stem}_texts.txt.xz", folder / f"{stem}_labels.txt.xz", n_labels=n_labels
                )
                X = vectorizer.fit_transform(texts) if target == "train" else vectorizer.transform(texts)
                _save(CACHE / f"linear_{name}_{target}.npz", X, Y)
        else:
            X, Y = data.read_xmc(folder / f"{part}.txt.xz")[:2]
            _save(path, X, Y)
    both = sp.load_npz(path).tocsr()
    n_labels = int(np.load(path.with_suffix(".labels.npy")))
    return both[:, :-n_labels].tocsr(), both[:, -n_labels:].tocsr()


def _save(path: Path, X: sp.csr_matrix, Y: sp.csr_matrix) -> None:
    np.save(path.with_suffix(".labels.npy"), Y.shape[1])
    sp.save_npz(path, sp.hstack([X, Y.astype(np.float32)]).tocsr(), compressed=False)


def block_of_labels(Y: sp.csr_matrix, count: int) -> sp.csr_matrix:
    """The first `count` labels that have a positive (a block of the whole fit, without its free labels)."""
    present = np.flatnonzero(np.asarray(Y.sum(axis=0)).ravel())
    return Y.tocsc()[:, present[:count]].tocsr()


def signs(Y: sp.csr_matrix, label: int) -> np.ndarray:
    return np.where(np.asarray(Y[:, [label]].todense()).ravel() > 0, 1.0, -1.0)


def peers(sets: tuple[str, ...] = SETS, labels: int = 1000, peer_labels: int = 12, rounds: int = 3) -> Table:
    from liblinear import liblinearutil as peer

    columns = ["set", "bias", "rows", "features", "labels", "ms_per_label", "s2_ms", "s1_ms", "s2_ratio"]
    table = Table("linear_peers", [*columns, "s1_ratio", "objective_ratio", "rounds", "active_rows"])
    for name in sets:
        X, Y = load(name)
        Y = block_of_labels(Y, labels)
        counts = np.asarray(Y.sum(axis=0)).ravel()
        order = np.argsort(-counts, kind="stable")
        sample = order[np.linspace(0, len(order) - 1, peer_labels).astype(int)]
        s = {k: signs(Y, k) for k in sample}
        for bias in (None, 1.0):
            model = OneVsAll(bias=bias, n_jobs=1)
            A = linear._prepare_rows(X, True, bias).csr
            Xd = sp.csr_matrix((A.data.astype(np.float64), A.indices, A.indptr), shape=A.shape)
            problems = {k: peer.problem(s[k], Xd) for k in sample}

            def ours(model: OneVsAll = model, X: sp.csr_matrix = X, Y: sp.csr_matrix = Y) -> None:
                model.fit(X, Y)

            def theirs(solver: int, problems: dict = problems) -> list:
                return [peer.train(p, f"-s {solver} -c 1 -e 0.01 -q") for p in problems.values()]

            ours()
            value = 0.0
            for k, m in zip(sample, theirs(2), strict=True):
                w = np.array(m.w[: Xd.shape[1]]) * (1 if m.label[0] == 1 else -1)
                value += 0.5 * w @ w + np.sum(np.maximum(0, 1 - s[k] * (Xd @ w)) ** 2)
            ratio = float(model.report_["objective"][sample].sum() / value)
            if ratio > 1.001:
                raise RuntimeError(f"{name}: summed objective {ratio} times LIBLINEAR's")
            cases = {"ours": ours, "s2": lambda: theirs(2), "s1": lambda: theirs(1)}
            t = interleave(cases, rounds=rounds, clock=time.process_time, warm_up=False, budget=90)
            mine = 1e3 * t["ours"] / Y.shape[1]
            s2, s1 = (1e3 * t[k] / peer_labels for k in ("s2", "s1"))
            table.add(
                set=name,
                bias=str(bias),
                rows=X.shape[0],
                features=X.shape[1],
                labels=Y.shape[1],
                ms_per_label=mine,
                s2_ms=s2,
                s1_ms=s1,
                s2_ratio=s2 / mine,
                s1_ratio=s1 / mine,
                objective_ratio=ratio,
                rounds=float(model.report_["outer_iterations"].mean()),
                active_rows=float(model.report_["active_rows"].mean()),
            )
            print(table.rows[-1], flush=True)
    return table


def precision(model: OneVsAll, X: sp.csr_matrix, Y: sp.csr_matrix) -> list[float]:
    top = model.predict(X, k=5)
    hits = np.asarray(Y[np.repeat(np.arange(X.shape[0]), 5), top.indices]).reshape(-1, 5)
    return [round(100 * float(hits[:, :k].mean()), 2) for k in (1, 3, 5)]


def quality(sets: tuple[str, ...] = ("eurlex-4k", "bibtex", "eurlex57k"), n_jobs: int | None = None) -> Table:
    table = Table("linear_quality", ["set", "bias", "seconds", "cpu_seconds", "P1", "P3", "P5", "published"])
    for name in sets:
        X, Y = load(name)
        for bias in (1.0, None):
            wall, cpu = time.perf_counter(), time.process_time()
            model = OneVsAll(bias=bias, n_jobs=n_jobs).fit(X, Y)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            p = precision(model, *load(name, "test"))
            known = "/".join(map(str, PUBLISHED.get(name, ())))
            table.add(
                set=name,
                bias=str(bias),
                seconds=wall,
                cpu_seconds=cpu,
                P1=p[0],
                P3=p[1],
                P5=p[2],
                published=known,
            )
            print(table.rows[-1], flush=True)
    return table


def threads(name: str = "eurlex-4k", labels: int = 2048, rounds: int = 3) -> Table:
    table = Table("linear_threads", ["set", "labels", "one", "two", "ratio"])
    X, Y = load(name)
    Y = block_of_labels(Y, labels)
    models = {jobs: OneVsAll(n_jobs=jobs).fit(X, Y).model_.to_csr() for jobs in (1, 2)}
    if not np.array_equal(models[1].data, models[2].data):
        raise RuntimeError("models differ between one and two threads")
    cases = {jobs: (lambda jobs=jobs: OneVsAll(n_jobs=jobs).fit(X, Y)) for jobs in (1, 2)}
    t = interleave({str(k): v for k, v in cases.items()}, rounds=rounds, warm_up=False)
    table.add(set=name, labels=Y.shape[1], one=t["1"], two=t["2"], ratio=t["1"] / t["2"])
    return table


def scaling(name: str = "eurlex-4k", labels: int = 512) -> Table:
    """Cost against rows and entries (by taking fewer rows) and against the label's positives."""
    table = Table("linear_scaling", ["set", "rows", "nnz", "ms_per_label", "ns_per_nnz"])
    X, Y = load(name)
    Y = block_of_labels(Y, labels)
    for share in (0.125, 0.25, 0.5, 1.0):
        rows = np.sort(np.random.default_rng(0).permutation(X.shape[0])[: int(share * X.shape[0])])
        part, targets = X[rows].tocsr(), Y[rows].tocsr()
        cpu = time.process_time()
        model = OneVsAll(n_jobs=1).fit(part, targets)
        ms = 1e3 * (time.process_time() - cpu) / Y.shape[1]
        table.add(set=name, rows=len(rows), nnz=part.nnz, ms_per_label=ms, ns_per_nnz=1e6 * ms / part.nnz)
    counts = np.asarray(targets.sum(axis=0)).ravel()
    _plot_scaling(table, counts, 1e3 * model.report_["seconds"])
    return table


def _plot_scaling(table: Table, counts: np.ndarray, ms: np.ndarray) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    left.plot([r["nnz"] for r in table.rows], [r["ms_per_label"] for r in table.rows], "o-")
    left.set(xlabel="entries of X", ylabel="ms per label", xscale="log", yscale="log")
    right.loglog(counts, ms, ".", alpha=0.5)
    right.set(xlabel="positives of the label", ylabel="ms")
    RESULTS.mkdir(parents=True, exist_ok=True)
    figure.savefig(RESULTS / "linear_scaling.png", dpi=120)
    plt.close(figure)


def amazon(labels: int = 100_000, sample_blocks: int = 1, block: int = 256) -> Table:
    """n = 490,449, D = 135,909, 75 entries per row; blocks of labels spread over the label range."""
    table = Table("linear_amazon", ["rows", "features", "nnz", "labels", "ms_per_label", "core_hours_670k"])
    X, Y = data.make_synthetic(490_449, 135_909, labels, features_per_point=75.0, labels_per_point=5.45)[:2]
    present = np.flatnonzero(np.asarray(Y.sum(axis=0)).ravel())
    chosen = np.random.default_rng(0).choice(present, sample_blocks * block, replace=False)
    Y = Y.tocsc()[:, np.sort(chosen)].tocsr()
    cpu = time.process_time()
    model = OneVsAll(n_jobs=1, block_labels=block).fit(X, Y)
    whole = time.process_time() - cpu
    ms = 1e3 * float(model.report_["seconds"].sum()) / Y.shape[1]
    print(f"set-up {whole - 1e-3 * ms * Y.shape[1]:.1f} s of {whole:.1f} s")
    hours = ms * 670_091 / 3.6e6
    table.add(
        rows=X.shape[0],
        features=X.shape[1],
        nnz=X.nnz,
        labels=Y.shape[1],
        ms_per_label=ms,
        core_hours_670k=hours,
    )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ["peers", "quality", "threads", "scaling", "amazon"]
    parser.add_argument("parts", nargs="*", default=["peers", "quality", "threads"], metavar="part")
    parser.add_argument("--sets", nargs="+", default=None)
    parser.add_argument("--labels", type=int, default=1000)
    args = parser.parse_args()
    for part in args.parts:
        if part not in names:
            parser.error(f"unknown part {part!r}, expected one of {', '.join(names)}")
        options: dict = {}
        if args.sets and part in ("peers", "quality"):
            options["sets"] = tuple(args.sets)
        if part == "peers":
            options["labels"] = args.labels
        table = globals()[part](**options)
        print(table)
        table.save()


if __name__ == "__main__":
    main()
