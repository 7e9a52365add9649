"""Exact inner-product neighbours and label recovery."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from reference import knn as reference
from xmc_fast import _core
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


def test_ties_across_chunks_go_to_the_lower_row():
    index = InnerProductIndex(np.ones((400_000, 1), np.float32))
    for jobs in (1, 4):
        ids, _ = index.search(np.ones((2, 1)), 3, n_jobs=jobs)
        assert ids.tolist() == [[0, 1, 2]] * 2


def assert_filter_drops_nothing(rows, queries, q):
    """A list of all rows never fills, so nothing is dropped: the best q must be its beginning, to the bit."""
    index = _core.KnnIndex(rows)
    ids, scores = index.search(queries, q, 1)
    all_ids, all_scores = index.search(queries, len(rows), 1)
    assert np.array_equal(ids, all_ids[:, :q])
    assert np.array_equal(scores, all_scores[:, :q], equal_nan=True)
    return all_ids, all_scores


def _data(kind, n, m, c):
    rng = np.random.default_rng(n + c)
    rows, queries = rng.standard_normal((n, c)), rng.standard_normal((m, c))
    if kind == "nearly equal":
        rows = 1 + 1e-6 * rows
    elif kind == "one direction":
        rows = np.linspace(0.5, 1, n)[:, None] * np.ones(c)
        queries = np.ones((m, c)) * np.where(np.arange(m) % 2, 1, -1)[:, None]
    elif kind == "decaying":
        rows, queries = rows / np.arange(1, c + 1) ** 2, queries / np.arange(1, c + 1)
    elif kind == "few values":
        rows, queries = rows.round(), queries.round()
    elif kind == "sparse":
        rows, queries = rows * (rng.random((n, c)) < 0.1), queries * (rng.random((m, c)) < 0.1)
    elif kind == "all magnitudes":
        rows, queries = (
            rows * 10.0 ** rng.uniform(-44, 37, (n, 1)),
            queries * 10.0 ** rng.uniform(-44, 37, (m, 1)),
        )
    elif kind == "within a row":
        rows, queries = (
            rows * 10.0 ** rng.uniform(-9, 0, (n, c)),
            queries * 10.0 ** rng.uniform(-9, 0, (m, c)),
        )
    elif kind != "normal":
        rows, queries = rows * float(kind), queries * float(kind)
    return rows.astype(np.float32), queries.astype(np.float32)


KINDS = [
    "normal",
    "nearly equal",
    "one direction",
    "decaying",
    "few values",
    "sparse",
    "all magnitudes",
    "within a row",
    "1e-22",
    "1e-30",
    "1e-42",
    "1e18",
    "1e30",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("n", "m", "c", "q"), [(1200, 9, 1, 3), (1300, 5, 5, 1), (1100, 97, 33, 10), (900, 4, 200, 25)]
)
def test_filter_drops_nothing(simd, kind, n, m, c, q):
    rows, queries = _data(kind, n, m, c)
    ids, scores = assert_filter_drops_nothing(rows, queries, q)
    exact = (queries.astype(np.float64) @ rows.astype(np.float64).T)[np.arange(m)[:, None], ids]
    size = np.abs(queries).astype(np.float64) @ np.abs(rows).astype(np.float64).T
    safe = size[np.arange(m)[:, None], ids]  # rounding is relative to this
    fits = safe < 1e37
    assert (np.abs(scores - exact)[fits] <= (1e-6 * np.sqrt(c) * safe + c * 1e-44)[fits]).all()


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_filter_drops_nothing_of_any_floats(data):
    c = data.draw(st.integers(1, 9))
    floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
    values = data.draw(st.sampled_from([floats, st.floats(-1, 1, width=32), st.integers(-3, 3)]))
    rows = data.draw(hnp.arrays(np.float32, (130, c), elements=values, fill=values))
    queries = data.draw(hnp.arrays(np.float32, (3, c), elements=values, fill=values))
    assert_filter_drops_nothing(rows, queries, data.draw(st.integers(1, 5)))


@pytest.mark.parametrize("what", ["row", "query"])
def test_bound_is_reached(simd, what):
    """Rounding errors that lie along the other vector: the bound must take them in full to keep row 40."""
    rows = np.zeros((70, 8), np.float32)
    if what == "row":  # bytes 0, 63, 0 for 0.49, 63, 0.49; the others are exact
        query = np.array([127, 0, 127, 0, 0, 0, 0, 0], np.float32)
        rows[:, 0] = 124 / 127
        rows[40, :3] = 0.49, 63, 0.49
        best = 0.98 * 127
    else:  # integers 127, 0, ..., 0 for 127, 0.49, ..., 0.49
        query = np.array([127, *7 * [0.49]], np.float32)
        rows[:, 0] = 3.4 / 127
        rows[40] = [0, *7 * [1]]
        best = 0.49 * 7
    ids, scores = InnerProductIndex(rows).search(query[None], 1)
    assert ids.tolist() == [[40]]
    np.testing.assert_allclose(scores, [[best]], rtol=1e-6)


def test_bound_allows_for_rounding_of_the_score(simd):
    """Sums that round up nearly every time: the float32 score of row 40 is 2e-5 above the true one."""
    c, x = 32_000, 1 + 0.6 * 2**-13
    query = np.full(c, x, np.float32)
    query[:32] = [127 / 15 * x, *31 * [0]]  # makes all of it a multiple of the query's scale
    rows = np.zeros((70, c), np.float32)
    rows[:, 0] = (c - 32) * x * (1 + 1e-5) / query[0]
    rows[40] = query > 0
    rows[40, 0] = 0
    ids, scores = InnerProductIndex(rows).search(query[None], 1)
    assert ids.tolist() == [[40]]
    assert scores[0, 0] > (c - 32) * x * (1 + 1.5e-5)


def test_bound_allows_for_underflow_of_the_score(simd):
    """Products of 1.5 units of the smallest denormal round to 2: a score of 16 instead of 12."""
    unit = 2.0**-75
    rows = np.zeros((70, 8), np.float32)
    rows[:, 0] = 28 / 3 * unit
    rows[40] = unit
    ids, scores = InnerProductIndex(rows).search(np.full((1, 8), 3 * unit), 2)
    assert ids.tolist() == [[40, 0]]
    assert (scores / 2.0**-149).tolist() == [[16, 14]]


def test_sums_of_bytes_do_not_overflow(simd):
    """All products of one sign and as large as can be, for features around the segments summed in 16 bits."""
    for c in (31, 32, 33, 64, 1000):
        rows = np.repeat(np.linspace(0.5, 1, 100, dtype=np.float32)[:, None], c, 1)
        for sign in (1, -1):
            ids, _ = InnerProductIndex(sign * rows).search(np.full((1, c), sign), 3)
            assert ids.tolist() == [[99, 98, 97]]
            ids, _ = InnerProductIndex(-sign * rows).search(np.full((1, c), sign), 3)
            assert ids.tolist() == [[0, 1, 2]]


def test_not_finite_values_rank_as_scored(simd):
    """Python refuses them; the kernel must still not let them leak into other rows or queries."""
    rng = np.random.default_rng(5)
    rows, queries = rng.standard_normal((300, 7), np.float32), rng.standard_normal((6, 7), np.float32)
    plain_ids, plain_scores = _core.KnnIndex(rows).search(queries, 300, 1)
    rows[[50, 200], [0, 6]] = np.nan, np.inf
    ids, scores = assert_filter_drops_nothing(rows, queries, 20)
    for i in range(6):
        expected = dict(zip(plain_ids[i], plain_scores[i], strict=True))
        got = dict(zip(ids[i], scores[i], strict=True))
        assert np.isnan(got[50])
        assert np.isinf(got[200])
        assert all(got[r] == expected[r] for r in range(300) if r not in (50, 200))
        assert ids[i, -1] == 50
    queries[1, 2] = np.nan
    assert np.isnan(assert_filter_drops_nothing(rows, queries, 20)[1][1]).all()


def test_memory_is_rows_and_bytes():
    index = InnerProductIndex(np.ones((64, 6)))
    assert index.nbytes == 4 * (64 * 6 + 16) + 64 * 8 + 3 * 4 * 64  # float32, bytes of 8 features, 3 per row


def test_overflowing_scores_do_not_crash(simd):
    rows = np.full((40, 2), 3e38, np.float32)
    rows[::2] *= -1
    ids, scores = InnerProductIndex(rows).search(np.array([[3e38, 3e38], [3e38, -3e38]]), 40)
    assert sorted(ids[0].tolist()) == list(range(40))
    assert sorted(ids[1].tolist()) == list(range(40))
    assert np.isposinf(scores[0][:20]).all()


def test_sums_that_overflow_are_not_bounded(simd):
    """Features 0 and 16 share a sum, which overflows: the score is inf though the product is below 0."""
    rows = np.zeros((70, 17), np.float32)
    rows[:, 0] = 1e-19
    rows[40, [0, 16, 1, 2]] = 1.7e19, 1.7e19, -1.85e19, -1.85e19
    ids, scores = InnerProductIndex(rows).search(np.full((1, 17), 1.8e19), 1)
    assert ids.tolist() == [[40]]
    assert np.isposinf(scores).all()


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
