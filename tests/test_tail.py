"""OneVsAll on many short rows, where rare labels are solved by searching rows: same stopping rule over all rows."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from reference import linear as reference
from xmc_fast import OneVsAll

N_ROWS = 131_072 + 77  # the search starts at 131,072 rows; not a whole number of row blocks


class Lanes(OneVsAll):
    """All labels in lane groups, without the search."""

    def _solver(self) -> str:
        return "lanes"


@pytest.fixture(scope="module")
def short_rows():
    """Rows of about six words drawn by Zipf's law, some empty; a label is on rows that share two words."""
    rng = np.random.default_rng(0)
    D, L = 3000, 24
    lengths = rng.integers(2, 11, N_ROWS)
    lengths[::5000] = 0
    words = np.minimum(rng.zipf(1.3, lengths.sum()) - 1, D - 1)
    rows = np.repeat(np.arange(N_ROWS), lengths)
    X = sp.csr_matrix((np.ones(len(rows), np.float32), (rows, words)), (N_ROWS, D))
    counts = np.maximum(np.diff(X.tocsc().indptr), 1)
    X.data = (X.data * np.log(1 + N_ROWS / counts)[X.indices]).astype(np.float32)
    Y = np.zeros((N_ROWS, L), np.int8)
    columns = X.tocsc()
    for label in range(L):
        rare = 60 + 11 * label
        mine = columns.indices[columns.indptr[rare] : columns.indptr[rare + 1]]
        Y[rng.choice(mine, 1 + label % 9, replace=False), label] = 1
    Y[0, L - 1] = 1  # an empty row
    Y[rng.choice(N_ROWS, 20_000, replace=False), L - 2] = 1  # too many positives for the search
    return X, sp.csr_matrix(Y)


def rows_as_trained(X):
    norms = np.sqrt(np.asarray(X.multiply(X).sum(axis=1), np.float64).ravel())
    scaled = sp.diags(1 / np.where(norms > 0, norms, 1)) @ X.astype(np.float64)
    return sp.hstack([scaled, np.ones((X.shape[0], 1))]).tocsr()


def test_the_stopping_rule_holds_over_all_rows(simd, short_rows):
    X, Y = short_rows
    model, plain = (kind(prune=0, n_jobs=1).fit(X, Y) for kind in (OneVsAll, Lanes))
    A = rows_as_trained(X)
    different = 0
    for label, w in enumerate(model.model_.to_csr().toarray().astype(float)):
        s = np.where(Y[:, [label]].toarray().ravel() > 0, 1.0, -1.0)
        f, g = reference.objective(w, A, s), np.linalg.norm(reference.gradient(w, A, s))
        report = {k: v[label] for k, v in model.report_.items() if k != "placement"}
        assert report["status"] == 0
        assert g <= reference.stop_limit(A, s, 0.01) * 1.001, label
        assert report["gradient_norm"] == pytest.approx(g, rel=0.02, abs=1e-4), label  # no row was missed
        assert report["objective"] == pytest.approx(f, rel=1e-5), label
        assert report["active_rows"] == pytest.approx(np.sum(s * (A @ w) < 1), abs=2), label
        assert f <= 1.001 * (f - g * g / 2), label  # f is 1-strongly convex
        assert f <= 1.001 * plain.report_["objective"][label], label
        different += report["objective"] != plain.report_["objective"][label]
    assert different >= 20  # the search was in use


def test_same_bits_for_any_number_of_threads(short_rows):
    X, Y = short_rows
    a, b = (OneVsAll(block_labels=5, n_jobs=jobs).fit(X, Y).model_.to_csr() for jobs in (1, 2))
    assert all(np.array_equal(getattr(a, k), getattr(b, k)) for k in ("indptr", "indices", "data"))


def test_rows_that_cannot_be_searched_are_solved_in_lanes(short_rows):
    X, Y = short_rows
    X = X.copy()
    X.data[0] *= -1  # a bound by postings needs values that are not negative
    Y = Y[:, :3]
    a, b = (kind(n_jobs=1).fit(X, Y).report_["objective"] for kind in (OneVsAll, Lanes))
    assert np.array_equal(a, b)
