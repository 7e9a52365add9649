"""Label tree against numpy/scikit-learn implementations of the same algorithm, and PECOS where installed.

    python -m bench.speed.bench_cluster [tibkat] [synthetic]

`synthetic` has the shape of Amazon-670K (490,449 rows, 135,909 features, 670,091 labels); there we are alone. Two
peers: `scikit-learn` is balanced 2-means as it is usually written (two dense centres, cosines to both, argsort, the
sums of the halves normalised); `numpy, tuned` computes one product a round and takes the second sum from the total.
Both read whole label vectors, ours the 256 largest entries (the default). Cohesion is the mean cosine of the labels
to the centre of their leaf (whole vectors): the same for the same algorithm, higher is better. Seconds are medians
of interleaved runs; ratios are to our wall time with two threads and to our CPU time with one.
"""

from __future__ import annotations

import lzma
import time

import numpy as np
import scipy.sparse as sp
from sklearn.preprocessing import normalize

from bench.common import CACHE, Table, arguments, data_dir, machine
from reference.cluster import mix64, side_one
from xmc_fast import cluster

COLUMNS = [
    "data",
    "labels",
    "what",
    "max_leaf",
    "threads",
    "wall_s",
    "cpu_s",
    "cohesion",
    "wall_ratio",
    "cpu_ratio",
]


def tibkat() -> tuple[sp.csr_matrix, sp.csr_matrix]:
    """tf-idf of the library records (cached) and their subject headings."""
    CACHE.mkdir(parents=True, exist_ok=True)
    cached = [CACHE / f"bench_cluster_tibkat_{name}.npz" for name in "XY"]
    if not all(path.exists() for path in cached):
        from sklearn.feature_extraction.text import TfidfVectorizer

        folder = data_dir("tibkat-gnd")
        with lzma.open(folder / "train_texts.txt.xz", "rt", encoding="utf-8", newline="\n") as file:
            X = TfidfVectorizer(sublinear_tf=True, min_df=2, dtype=np.float32).fit_transform(file)
        with lzma.open(folder / "train_labels.txt.xz", "rt") as file:
            rows = [sorted({int(label) for label in line.split()}) for line in file]
        indptr = np.concatenate([[0], np.cumsum([len(r) for r in rows])])
        indices = np.concatenate([np.asarray(r, np.int32) for r in rows])
        Y = sp.csr_matrix((np.ones(len(indices), np.float32), indices, indptr), (len(rows), 41_218))
        for path, matrix in zip(cached, (X, Y), strict=True):
            sp.save_npz(path, matrix)
    X, Y = (sp.load_npz(path) for path in cached)
    X.sum_duplicates()
    return X, Y


def synthetic(
    n: int = 490_449,
    d: int = 135_909,
    n_labels: int = 670_091,
    per_row: int = 76,
    labels_per_row: float = 5.45,
) -> tuple[sp.csr_matrix, sp.csr_matrix]:
    """Rows of topics: half of a row's features from its topic, half Zipf-like; labels near each other in id."""
    rng = np.random.default_rng(0)
    topic = rng.random(n)  # a place on a line; labels and topic features lie near it
    near = (topic[:, None] + 0.01 * rng.standard_normal((n, per_row // 2))) % 1
    columns = np.concatenate(
        [(near * d).astype(np.int32), (d ** rng.random((n, per_row - per_row // 2)) - 1).astype(np.int32)],
        axis=1,
    )
    values = rng.random(columns.size, dtype=np.float32) + 0.1
    X = sp.csr_matrix((values, columns.ravel(), np.arange(n + 1) * per_row), (n, d))
    X.sum_duplicates()
    count = rng.poisson(labels_per_row, n)
    rows = np.repeat(np.arange(n), count)
    ids = (
        ((topic[rows] + 0.002 * rng.standard_normal(len(rows))) % 1 * n_labels).astype(np.int64)
        * 7919
        % n_labels
    )
    Y = sp.csr_matrix((np.ones(len(rows), np.float32), (rows, ids)), (n, n_labels))
    Y.data[:] = 1
    return normalize(X), Y


def numpy_tree(X, Y, *, max_leaf: int, max_iter: int = 20, tol: float = 1e-4, random_state: int = 0):
    """The same tree with scipy products, numpy's argpartition and scikit-learn's normalize; (order, offsets)."""
    V = normalize(sp.csr_matrix(Y.T) @ X)
    filled = np.diff(V.indptr) > 0
    order = np.concatenate([np.flatnonzero(filled), np.flatnonzero(~filled)])
    clustered, starts = int(filled.sum()), []
    stack = [(clustered, len(order) - clustered, 0, None), (0, clustered, 0, V[order[:clustered]])]
    while stack:
        first, size, depth, own = stack.pop()
        if size <= max_leaf:
            starts.extend([first] if size else [])
            continue
        ones = side_one(size, max_leaf)
        halves = (None, None)
        if own is not None:
            rng = np.random.default_rng(mix64(random_state ^ mix64(first << 8 | depth)))
            p, q = rng.choice(size, 2, replace=False)
            w = (own[p] - own[q]).toarray().ravel()
            side, objective = np.zeros(size, np.float32), 0.0
            total = np.asarray(own.sum(axis=0)).ravel()
            for iteration in range(max_iter):
                new = np.zeros(size, np.float32)
                new[np.argpartition(-(own @ w), ones)[:ones]] = 1
                if iteration and (new == side).all():
                    break
                side = new
                one = side @ own
                two = total - one
                norms = np.linalg.norm(one), np.linalg.norm(two)
                if sum(norms) - objective <= tol * objective:
                    break
                objective = sum(norms)
                w = one / max(norms[0], 1e-30) - two / max(norms[1], 1e-30)
            chosen = side > 0
            labels = order[first : first + size]
            order[first : first + size] = np.concatenate([labels[chosen], labels[~chosen]])
            if size - ones > max_leaf or ones > max_leaf:
                halves = own[chosen], own[~chosen]
        stack.append((first + ones, size - ones, depth + 1, halves[1]))
        stack.append((first, ones, depth + 1, halves[0]))
    return order, np.array([*sorted(starts), len(order)])


def plain_tree(X, Y, *, max_leaf: int, tol: float = 1e-4, random_state: int = 0):
    """Balanced 2-means with scikit-learn's normalize and two dense centres; (order, offsets)."""
    V = normalize(sp.csr_matrix(Y.T) @ X)
    filled = np.diff(V.indptr) > 0
    rng = np.random.default_rng(random_state)
    stack, leaves = [np.flatnonzero(filled)], []
    while stack:
        labels = stack.pop()
        if len(labels) <= max_leaf:
            leaves.append(labels)
            continue
        own, half = V[labels], len(labels) // 2
        centres = own[rng.choice(len(labels), 2, replace=False)].toarray()
        last = -np.inf
        while True:
            cosines = own @ centres.T
            order = np.argsort(cosines[:, 0] - cosines[:, 1])
            sides = order[half:], order[:half]
            mean = sum(cosines[side, k].sum() for k, side in enumerate(sides)) / len(labels)
            if mean - last < tol:
                break
            last = mean
            centres = normalize(np.vstack([np.asarray(own[side].sum(axis=0)) for side in sides]))
        stack.extend(labels[np.sort(side)] for side in sides)
    leaves.extend(np.array_split(np.flatnonzero(~filled), -(-int((~filled).sum()) // max_leaf) or 1))
    return np.concatenate(leaves), np.cumsum([0, *(len(leaf) for leaf in leaves)])


def pecos_tree(X, Y, *, max_leaf: int, threads: int):
    """PECOS' balanced spherical 2-means on the same label vectors, or None where it does not run."""
    try:
        from pecos.xmc import Indexer
    except ImportError:
        return None
    V = normalize(sp.csr_matrix(Y.T) @ X)
    try:
        chain = Indexer.gen(
            V,
            indexer_type="hierarchicalkmeans",
            max_leaf_size=max_leaf,
            nr_splits=2,
            threads=threads,
            seed=0,
        )
    except (AttributeError, ValueError) as error:  # PECOS 1 with scipy 1.14 or numpy 2
        print(f"PECOS fails here: {error}")
        return None
    leaves = sp.csc_matrix(chain[-1])
    return leaves.indices, leaves.indptr


def cohesion(V: sp.csr_matrix, order: np.ndarray, offsets: np.ndarray) -> float:
    leaves = sp.csr_matrix((np.ones(len(order), np.float32), order, offsets), (len(offsets) - 1, V.shape[0]))
    S = leaves @ V
    return float(np.sqrt(np.asarray(S.multiply(S).sum(axis=1))).sum() / V.shape[0])


def bench(name: str, X, Y, *, max_leaf: int, peers: bool) -> Table:
    table = Table(f"cluster_{name}", COLUMNS, machine())
    V = cluster.label_centroids(X, Y)
    runs = {
        ("xmc_fast", j): lambda j=j: cluster.label_tree(X, Y, max_leaf=max_leaf, n_jobs=j) for j in (1, 2)
    }
    if peers:
        runs["numpy, tuned", 1] = lambda: numpy_tree(X, Y, max_leaf=max_leaf)
        runs["scikit-learn", 1] = lambda: plain_tree(X, Y, max_leaf=max_leaf)
        runs["PECOS", 1] = lambda: pecos_tree(X, Y, max_leaf=max_leaf, threads=1)
    seconds: dict = {}
    mean_cosine, order_of_ours = {}, None
    rounds = {"xmc_fast": 3, "numpy, tuned": 3} if peers else {}  # of the others one is enough
    for key in [key for turn in range(3) for key in runs if turn < rounds.get(key[0], 1)]:
        wall, cpu = time.perf_counter(), time.process_time()
        tree = runs[key]()
        elapsed = time.perf_counter() - wall, time.process_time() - cpu
        if tree is None:
            continue
        seconds.setdefault(key, []).append(elapsed)
        order, offsets = tree[0], tree[-1]
        assert np.diff(offsets).max() <= max_leaf
        if key[0] == "xmc_fast":
            order_of_ours = order if order_of_ours is None else order_of_ours
            np.testing.assert_array_equal(order, order_of_ours)
        if key not in mean_cosine:
            mean_cosine[key] = cohesion(V, order, offsets)
    medians = {key: np.median(times, axis=0) for key, times in seconds.items()}
    for (what, threads), (wall, cpu) in medians.items():
        table.add(
            data=name,
            labels=Y.shape[1],
            what=what,
            max_leaf=max_leaf,
            threads=threads,
            wall_s=wall,
            cpu_s=cpu,
            cohesion=mean_cosine[what, threads],
            wall_ratio=wall / medians["xmc_fast", 2][0],
            cpu_ratio=cpu / medians["xmc_fast", 1][1],
        )
    return table


def main() -> None:
    sets = {"tibkat": (tibkat, 64, True), "synthetic": (synthetic, 80, False)}
    for name in arguments(__doc__, list(sets)):
        make, max_leaf, peers = sets[name]
        table = bench(name, *make(), max_leaf=max_leaf, peers=peers)
        table.save()
        print(table)


if __name__ == "__main__":
    main()
