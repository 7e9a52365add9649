"""Exact inner-product neighbours and label recovery."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from reference import knn as reference
from xmc_fast.knn import InnerProductIndex, recover_labels


@pytest.mark.parametrize(
    ("n", "m", "c", "q"),
    [
        (1, 1, 1, 1),
        (31, 11, 3, 5),
        (32, 12, 7, 32),
        (33, 13, 8, 40),
        (500, 97, 17, 25),
        (70, 200, 33, 70),
        (9, 0, 4, 3),
    ],
)
def test_search_equals_brute_force(simd, n, m, c, q):
    rng = np.random.default_rng(n + m)
    rows, queries = rng.standard_normal((n, c)), rng.standard_normal((m, c))
    rows, queries = rows.astype(np.float32), queries.astype(np.float32)
    ids, scores = InnerProductIndex(rows).search(queries, q)
    expected, values = reference.search(rows, queries, min(q, n))
    assert ids.shape == scores.shape == (m, min(q, n))
    np.testing.assert_allclose(scores, values, rtol=1e-4, atol=1e-5)
    assert m == 0 or (ids == expected).mean() > 0.999


def test_ties_go_to_the_lower_row(simd):
    rows = np.tile(np.array([[1.0], [2.0]], np.float32), (100, 1))
    ids, scores = InnerProductIndex(rows).search(np.ones((3, 1)), 5)
    assert ids.tolist() == [[1, 3, 5, 7, 9]] * 3
    assert (scores == 2).all()
    ids, _ = InnerProductIndex(np.zeros((50, 2))).search(np.ones((1, 2)), 4)
    assert ids.tolist() == [[0, 1, 2, 3]]


def test_same_bits_for_any_threads_and_batch():
    rng = np.random.default_rng(0)
    rows, queries = rng.standard_normal((140_000, 5)), rng.standard_normal((230, 5))
    index = InnerProductIndex(rows)
    ids, scores = index.search(queries, 9, n_jobs=1)
    for jobs in (2, 4):
        again = index.search(queries, 9, n_jobs=jobs)
        assert np.array_equal(ids, again[0])
        assert np.array_equal(scores, again[1])
    one = index.search(queries[100:101], 9)
    assert np.array_equal(one[0], ids[100:101])
    assert np.array_equal(one[1], scores[100:101])


def test_overflowing_scores_do_not_crash(simd):
    rows = np.full((40, 2), 3e38, np.float32)
    rows[::2] *= -1
    ids, scores = InnerProductIndex(rows).search(np.array([[3e38, 3e38], [3e38, -3e38]]), 40)
    assert sorted(ids[0].tolist()) == list(range(40))
    assert sorted(ids[1].tolist()) == list(range(40))
    assert np.isposinf(scores[0][:20]).all()


@pytest.mark.parametrize("k", [1, 3, 50])
def test_recover_equals_reference(k):
    rng = np.random.default_rng(3)
    Y = sp.random(60, 30, 0.1, format="csr", random_state=1)
    Y.data[:] = 1
    ids = np.stack([rng.permutation(60)[:7] for _ in range(300)]).astype(np.int32)
    similarity = rng.standard_normal((300, 7)).astype(np.float32)
    got = recover_labels(ids, similarity, Y, k)
    again = recover_labels(ids, similarity, Y, k, n_jobs=3)
    assert np.array_equal(got.data, again.data)
    for i, (labels, scores) in enumerate(reference.recover(ids, similarity, Y, k)):
        row = slice(got.indptr[i], got.indptr[i + 1])
        np.testing.assert_allclose(got.data[row], scores, rtol=1e-5, atol=1e-6)
        assert got.indices[row].tolist() == labels.tolist()


def test_recover_of_unlabelled_neighbours_is_empty():
    Y = sp.csr_matrix((3, 4))
    got = recover_labels(np.zeros((2, 1), np.int32), np.ones((2, 1), np.float32), Y, 2)
    assert got.shape == (2, 4)
    assert got.nnz == 0


def test_errors():
    index = InnerProductIndex(np.ones((3, 2)))
    with pytest.raises(ValueError, match="queries has 3 columns, the index has 2"):
        index.search(np.ones((1, 3)), 1)
    with pytest.raises(ValueError, match="q must be at least 1, got 0"):
        index.search(np.ones((1, 2)), 0)
    with pytest.raises(ValueError, match="rows must be finite, got nan at row 0, column 1"):
        InnerProductIndex(np.array([[0, np.nan]]))
    with pytest.raises(ValueError, match="ids must be rows of Y"):
        recover_labels(np.array([[5]]), np.ones((1, 1)), sp.csr_matrix((3, 4)), 1)
