"""csrc/cluster: label vectors and the balanced label tree."""

from __future__ import annotations

import lzma

import numpy as np
import pytest
import scipy.sparse as sp

from reference import cluster as reference
from xmc_fast import cluster


def problem(n, d, n_labels, *, seed=0, per_row=3, topics=8, density=0.1):
    """Rows and labels that share topics; some rows and labels are empty."""
    rng = np.random.default_rng(seed)
    topic = rng.integers(topics, size=n)
    base = rng.random((topics, d)) * (rng.random((topics, d)) < 3 * density)
    X = base[topic] * (rng.random((n, d)) < 0.5) + 0.3 * rng.random((n, d)) * (
        rng.random((n, d)) < density / 3
    )
    X[rng.random(n) < 0.03] = 0
    rows = np.repeat(np.arange(n), per_row)
    cols = (topic[rows] + topics * rng.integers(max(n_labels // topics, 1), size=len(rows))) % n_labels
    Y = sp.csr_matrix((np.ones(len(rows)), (rows, cols)), (n, n_labels))
    Y.data[:] = 1
    return sp.csr_matrix(X, dtype=np.float32), Y


def sizes(tree):
    return np.diff(tree.offsets)


def check(tree, n_labels):
    assert sorted(tree.order.tolist()) == list(range(n_labels))
    assert tree.offsets[0] == 0
    assert tree.offsets[-1] == n_labels
    for c in range(tree.n_clusters):
        members = tree.order[tree.offsets[c] : tree.offsets[c + 1]]
        assert (np.diff(members) > 0).all()
        assert (tree.cluster[members] == c).all()


@pytest.mark.parametrize("n_labels", [1, 31, 32, 33, 200])
def test_centroids(n_labels):
    X, Y = problem(300, 50, n_labels)
    V = cluster.label_centroids(X, Y, n_jobs=2)
    assert V.shape == (n_labels, 50)
    assert V.has_sorted_indices
    np.testing.assert_allclose(V.toarray(), reference.label_centroids(X, Y).toarray(), atol=1e-6)


def test_centroids_sparse_rows_are_sorted():
    X = sp.random(60, 2000, 0.01, format="csr", random_state=1, dtype=np.float32)
    Y = sp.csr_matrix(np.eye(60)[:, :20])
    V = cluster.label_centroids(X, Y)
    assert (np.diff(V.indices)[np.diff(np.repeat(np.arange(20), np.diff(V.indptr))) == 0] > 0).all()
    np.testing.assert_allclose(V.toarray(), reference.label_centroids(X, Y).toarray(), atol=1e-6)


@pytest.mark.parametrize("max_leaf", [1, 2, 7, 10])
@pytest.mark.parametrize("n_labels", [2, 9, 64, 150])
def test_tree_equals_reference(n_labels, max_leaf):
    X, Y = problem(400, 60, n_labels, seed=n_labels)
    tree = cluster.label_tree(X, Y, max_leaf=max_leaf, random_state=5)
    order, offsets = reference.label_tree(X, Y, max_leaf=max_leaf, random_state=5)
    np.testing.assert_array_equal(tree.order, order)
    np.testing.assert_array_equal(tree.offsets, offsets)
    check(tree, n_labels)


@pytest.mark.parametrize("max_leaf", [3, 4, 8, 9, 80])
def test_balance(max_leaf):
    """Leaves have at most C and more than C/2 labels, whatever L; C + 1 with even C is the one exception."""
    for n_labels in [*range(max_leaf + 1, min(6 * max_leaf, 120)), 8 * max_leaf + 4, 1000]:
        Y = sp.eye(n_labels, format="csr")
        found = sizes(cluster.label_tree(Y, Y, max_leaf=max_leaf, max_iter=2))
        assert found.max() <= max_leaf
        if n_labels == max_leaf + 1 and max_leaf % 2 == 0:
            assert found.min() == max_leaf // 2
        else:
            assert 2 * found.min() > max_leaf, n_labels


@pytest.mark.parametrize("columns", [4, 500])  # many of them used, few of them used
def test_sums_that_cancel(columns):
    """A column whose sum is zero for a while counts once; one whose sum ends as zero does not count."""
    X = sp.csr_matrix(np.array([[1, 2, 0, 3.0], [-1, -2, 0, 0], [4, 0, 0, 0], [0, 0, 5, 0]]))
    X.resize(4, columns)
    Y = sp.csr_matrix(np.array([[1, 0], [1, 0], [1, 0], [0, 1]]))
    V = cluster.label_centroids(X, Y)
    np.testing.assert_allclose(V.toarray()[:, :4], [[0.8, 0, 0, 0.6], [0, 0, 1, 0]], rtol=1e-6)
    assert V.nnz == 3
    assert (np.diff(V.indices[:2]) > 0).all()


@pytest.mark.parametrize("seed", range(5))
def test_topics_are_found(seed):
    """Two groups of rows without a common feature, eight labels each: the leaves are the groups."""
    rng = np.random.default_rng(seed)
    X = sp.block_diag([rng.random((80, 10)) for _ in range(2)], format="csr")
    label = np.repeat(np.arange(2), 80) + 2 * rng.integers(8, size=160)  # the label's group is its parity
    Y = sp.csr_matrix((np.ones(160), (np.arange(160), label)), (160, 16))
    tree = cluster.label_tree(X, Y, max_leaf=8, random_state=seed)
    assert sorted(sizes(tree)) == [8, 8]
    assert len(set(tree.order[:8] % 2)) == 1


@pytest.mark.parametrize("n_labels", [511, 512, 513, 1300])
def test_large_nodes_agree_with_reference(n_labels, simd):
    """Sampled starts and cosines: the same leaves but for labels on the fence (rounding decides those)."""
    X, Y = problem(3000, 150, n_labels, topics=40, seed=n_labels)
    tree = cluster.label_tree(X, Y, max_leaf=100)
    order, offsets = reference.label_tree(X, Y, max_leaf=100)
    check(tree, n_labels)
    np.testing.assert_array_equal(tree.offsets, offsets)
    assert (tree.order == order).mean() > 0.9


def test_max_features():
    X, Y = problem(300, 50, 40)
    V = cluster.label_centroids(X, Y, max_features=5)
    assert np.diff(V.indptr).max() == 5
    np.testing.assert_allclose(V.toarray(), reference.label_centroids(X, Y, 5).toarray(), atol=1e-6)
    for max_features in (5, None):
        tree = cluster.label_tree(X, Y, max_leaf=4, max_features=max_features)
        order, _ = reference.label_tree(X, Y, max_leaf=4, max_features=max_features)
        np.testing.assert_array_equal(tree.order, order)
    with pytest.raises(ValueError, match="max_features must be at least 1, or None for all, got 0"):
        cluster.label_tree(X, Y, max_features=0)


def test_seed_and_determinism():
    X, Y = problem(500, 80, 120)
    first = cluster.label_tree(X, Y, max_leaf=10, random_state=1)
    again = cluster.label_tree(X, Y, max_leaf=10, random_state=1)
    other = cluster.label_tree(X, Y, max_leaf=10, random_state=2)
    np.testing.assert_array_equal(first.order, again.order)
    assert (first.order != other.order).any()
    np.testing.assert_array_equal(
        cluster.label_tree(X, Y, max_leaf=10, random_state=-1).offsets, first.offsets
    )


def test_same_for_any_threads(simd):
    X, Y = problem(2000, 200, 1000, topics=30)
    one = cluster.label_tree(X, Y, max_leaf=6, n_jobs=1)
    for n_jobs in (2, 3, 8):
        other = cluster.label_tree(X, Y, max_leaf=6, n_jobs=n_jobs)
        np.testing.assert_array_equal(one.order, other.order)
    a, b = (cluster.label_centroids(X, Y, n_jobs=n) for n in (1, 5))
    assert a.data.tobytes() == b.data.tobytes()


def test_large_nodes_same_for_any_threads():
    """More entries than one partial sum holds: sums in parts, nodes shared by the threads."""
    rng = np.random.default_rng(3)
    n, d, per_row = 22_000, 3000, 260
    topic = rng.integers(64, size=n)
    columns = (40 * topic[:, None] + (rng.standard_normal((n, per_row)) * 150).astype(int)) % d
    X = sp.csr_matrix((np.ones(n * per_row, np.float32), columns.ravel(), np.arange(n + 1) * per_row), (n, d))
    X.sum_duplicates()
    Y = sp.eye(n, format="csr")  # a label per row
    assert X.nnz > 2**22  # at least two parts
    trees = [cluster.label_tree(X, Y, max_leaf=600, max_iter=3, n_jobs=j) for j in (1, 2, 3)]
    for tree in trees[1:]:
        np.testing.assert_array_equal(trees[0].order, tree.order)
    mean = np.array(
        [np.cos(2 * np.pi * topic[trees[0].cluster == c] / 75).mean() for c in range(trees[0].n_clusters)]
    )
    assert np.std(mean) > 0.3  # leaves hold neighbouring topics


def test_labels_without_positives_come_last():
    X, Y = problem(200, 40, 30)
    Y = sp.hstack([sp.csr_matrix((200, 7)), Y, sp.csr_matrix((200, 20))]).tocsr()
    empty = np.flatnonzero(np.asarray(reference.label_centroids(X, Y).sum(axis=1)).ravel() == 0)
    assert len(empty) >= 27
    tree = cluster.label_tree(X, Y, max_leaf=8)
    check(tree, 57)
    np.testing.assert_array_equal(tree.order[-len(empty) :], empty)
    assert set(tree.cluster[empty]).isdisjoint(tree.cluster[np.setdiff1d(np.arange(57), empty)])
    assert sizes(tree).max() <= 8


def test_small_and_degenerate():
    X, Y = problem(50, 20, 5)
    tree = cluster.label_tree(X, Y, max_leaf=100)
    assert tree.offsets.tolist() == [0, 5]
    assert tree.order.tolist() == [0, 1, 2, 3, 4]
    none = cluster.label_tree(X, sp.csr_matrix((50, 0)))
    assert (none.n_clusters, len(none.order)) == (0, 0)
    empty = cluster.label_tree(sp.csr_matrix((0, 4)), sp.csr_matrix((0, 10)), max_leaf=4)
    assert sizes(empty).tolist() == [4, 3, 3]
    check(empty, 10)
    zero = cluster.label_tree(sp.csr_matrix((5, 4)), np.ones((5, 3)), max_leaf=2)
    check(zero, 3)


def test_duplicate_labels():
    """Identical labels: a tie on every score is broken by the label id."""
    X = sp.csr_matrix(np.tile([[1.0, 2.0]], (10, 1)))
    tree = cluster.label_tree(X, np.ones((10, 12)), max_leaf=3)
    assert tree.order.tolist() == list(range(12))
    assert sizes(tree).tolist() == [3, 3, 3, 3]


def test_duplicates_of_some_labels():
    """Three vectors that many labels share: one cut divides at most one of the three, and there by the id."""
    rng = np.random.default_rng(0)
    for n in range(6, 70):
        kind = rng.integers(0, 3, n)
        X = sp.csr_matrix(rng.random((3, 7)), dtype=np.float32)
        tree = cluster.label_tree(X, np.eye(3)[:, kind], max_leaf=(n + 1) // 2)
        assert tree.n_clusters == 2
        divided = 0
        for which in range(3):
            labels = tree.cluster[kind == which]
            assert (np.diff(labels) <= 0).all() or (np.diff(labels) >= 0).all()
            divided += len(set(labels.tolist())) > 1
        assert divided <= 1


def test_matrix():
    X, Y = problem(50, 20, 30)
    tree = cluster.label_tree(X, Y, max_leaf=8)
    M = tree.matrix()
    assert M.shape == (tree.n_clusters, 30)
    np.testing.assert_array_equal(M.toarray().argmax(axis=0), tree.cluster)


def test_errors():
    X, Y = problem(50, 20, 5)
    with pytest.raises(ValueError, match="max_leaf must be at least 1, got 0"):
        cluster.label_tree(X, Y, max_leaf=0)
    with pytest.raises(ValueError, match="max_iter must be at least 1, got 0"):
        cluster.label_tree(X, Y, max_iter=0)
    with pytest.raises(ValueError, match="tol must not be negative"):
        cluster.label_tree(X, Y, tol=float("nan"))
    with pytest.raises(ValueError, match="Y has 49 rows, expected 50"):
        cluster.label_tree(X, Y[1:])


def test_real_data_is_better_than_chance(data_dir):
    """Labels of a leaf are far closer to their mean than in a random order."""
    with lzma.open(data_dir("stackex-cooking") / "train.txt.xz", "rt") as file:
        n, d, n_labels = map(int, file.readline().split())
        rows = [line.partition(" ") for line in file]
    Y, X = sp.lil_matrix((n, n_labels)), sp.lil_matrix((n, d), dtype=np.float32)
    for i, (ids, _, rest) in enumerate(rows):
        for label in filter(None, ids.split(",")):
            Y[i, int(label)] = 1
        for pair in rest.split():
            column, _, value = pair.partition(":")
            X[i, int(column)] = float(value)
    X, Y = X.tocsr(), Y.tocsr()
    X.data /= np.repeat(np.sqrt(np.asarray(X.multiply(X).sum(axis=1)).ravel()), np.diff(X.indptr))
    tree = cluster.label_tree(X, Y, max_leaf=20)
    V = reference.label_centroids(X, Y)

    def cohesion(order):
        return (
            sum(
                np.linalg.norm(V[order[a:b]].sum(axis=0))
                for a, b in zip(tree.offsets[:-1], tree.offsets[1:], strict=True)
            )
            / n_labels
        )

    expected, _ = reference.label_tree(X, Y, max_leaf=20)
    random = cohesion(np.random.default_rng(0).permutation(n_labels))
    assert cohesion(tree.order) > 0.99 * cohesion(expected)
    assert cohesion(tree.order) > random + 0.03
