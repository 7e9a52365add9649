"""What `Lexical` knows of a label named in a text: the numbers of its regression, and how they are weighed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from xmc_fast._validate import Csr, to_scipy

Counts = npt.NDArray[np.int32]


class Matches(NamedTuple):
    """The labels named in each row (CSR) and how; see NameMatches in csrc/data/names.h."""

    indptr: npt.NDArray[np.int64]
    labels: Counts
    times: Counts
    first: Counts
    in_head: Counts
    exact: Counts
    words: Counts
    ambiguity: Counts
    row_words: Counts

    @property
    def rows(self) -> npt.NDArray[np.intp]:
        """Row of each entry."""
        return np.repeat(np.arange(len(self.row_words)), np.diff(self.indptr))

    def csr(self, values: npt.NDArray[Any], n_labels: int) -> sp.csr_matrix:
        """A number of each entry as a matrix."""
        return to_scipy(self.indptr, self.labels, values, (len(self.row_words), n_labels))


class Seen(NamedTuple):
    """What training rows say of labels: numbers of rows, as arrays of one shape."""

    named: npt.NDArray[np.float64]  # that name the label
    both: npt.NDArray[np.float64]  # that name it and have it
    having: npt.NDArray[np.float64]  # that have it

    def of(self, labels: Any) -> Seen:
        return Seen(*(part[labels] for part in self))


def relevant(found: Matches, y: Csr) -> npt.NDArray[np.bool_]:
    """Whether the row of each entry has the label."""
    at = found.rows * np.int64(max(1, y.shape[1])) + found.labels
    having = np.repeat(np.arange(y.shape[0]), np.diff(y.indptr)) * np.int64(max(1, y.shape[1])) + y.indices
    relevant: npt.NDArray[np.bool_] = np.isin(at, having)
    return relevant


def some(rows: npt.NDArray[np.bool_], most: int) -> npt.NDArray[np.bool_]:
    """So many of the marked rows, at most, evenly."""
    marked = np.flatnonzero(rows)
    some = np.zeros(len(rows), bool)
    some[marked[:: max(1, -(-len(marked) // most))]] = True
    return some


def count_rows(found: Matches, y: Csr, relevant: npt.NDArray[np.bool_], fold: npt.NDArray[np.intp]) -> Seen:
    """`Seen`, folds x labels."""
    folds, n = int(fold.max(initial=0)) + 1, y.shape[1]

    def counted(rows: npt.NDArray[np.intp], ids: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
        flat = np.bincount(fold[rows] * np.int64(n) + ids, minlength=folds * n)
        return flat.reshape(folds, n).astype(np.float64)

    rows = found.rows
    of_y = np.repeat(np.arange(y.shape[0]), np.diff(y.indptr))
    return Seen(
        counted(rows, found.labels),
        counted(rows[relevant], found.labels[relevant]),
        counted(of_y, y.indices),
    )


def numbers(
    found: Matches,
    at: npt.NDArray[np.intp],
    seen: Seen,
    n_rows: float,
    sizes: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    """The regression's numbers of the entries ``at``."""
    row = found.rows[at]
    named = np.log((seen.named + 1) / (n_rows + 2))
    rate = np.log((seen.both + 0.3) / (seen.named - seen.both + 3))  # of naming to having, as log-odds
    known = np.log1p(seen.named)
    unseen = (seen.having == 0).astype(float)
    times = np.log(found.times[at])
    first = np.log1p(found.first[at])
    head = (found.in_head[at] > 0).astype(float)
    labels_named = np.log1p(np.diff(found.indptr))[row]
    columns = [
        rate,
        rate * np.minimum(known, 4),
        rate * unseen,
        np.maximum(rate, 0),
        named,
        named * unseen,
        named * named,
        np.log1p(seen.having),
        unseen,
        times,
        times * unseen,
        times * named,
        first,
        found.first[at] / np.maximum(1, found.row_words[row]),
        head,
        head * unseen,
        head * rate,
        found.exact[at] / found.times[at],
        np.minimum(found.words[at], 3).astype(float),
        np.log(np.minimum(sizes[found.labels[at]], 64)),
        np.log(found.ambiguity[at]),
        np.log1p(found.row_words[row]),
        labels_named,
    ]
    return np.stack(columns, axis=1)


def prior_alone() -> npt.NDArray[np.float64]:
    """Weights where nothing can be learned: the rate."""
    weights = np.zeros(24)
    weights[0] = 1
    return weights


def fit_weights(z: npt.NDArray[np.float64], relevant: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Logistic regression; scaling is folded into the weights, the constant is the last."""
    with threadpool_limits(1):  # sums in one order: the same bits on any machine load
        scaler = StandardScaler().fit(z)
        model = LogisticRegression(max_iter=300).fit(scaler.transform(z), relevant)
    weights = model.coef_[0] / scaler.scale_
    return np.append(weights, model.intercept_[0] - weights @ scaler.mean_)
