"""Any number of labels per instance: a threshold per label."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast import _core
from xmc_fast._threads import resolve_threads
from xmc_fast._validate import to_scipy
from xmc_fast.decide._candidates import evidence, probabilities, truth_at_entries
from xmc_fast.decide._metric import AnyMetric, to_metric


class Thresholds:
    """Predict label j where its probability is at least θ_j, the θ chosen for a macro metric.

    For each label one scan down its sorted probabilities finds the best cut, so fitting costs about as
    much as sorting the probabilities once. Rare labels have too few examples for a cut of their own: with
    true labels given, counts are shrunk towards the probabilities, y ← (m_j y + s η) / (m_j + s) for a label
    with m_j positives and shrinkage s.

    Parameters
    ----------
    metric : str or Metric
        A metric without precision@k terms (those need a budget).
    shrinkage : float
        s above, in positives. 0: trust the labels alone.
    n_jobs : int, optional

    Attributes
    ----------
    thresholds_ : array of shape (labels,)
        Above 1: the label is never predicted.
    utility_ : float
        Expected metric on the sample it was fitted on (with shrunken counts if labels were given).

    Examples
    --------
    >>> import numpy as np
    >>> from xmc_fast import decide
    >>> proba = np.array([[0.9, 0.1], [0.6, 0.2], [0.1, 0.3]])
    >>> rule = decide.Thresholds("macro-f1").fit(proba)
    >>> rule.thresholds_.round(2)
    array([0.35, 0.15])
    >>> rule.predict(proba).indptr
    array([0, 1, 3, 4], dtype=int32)
    """

    def __init__(
        self,
        metric: AnyMetric = "macro-f1",
        *,
        shrinkage: float = 5.0,
        n_jobs: int | None = None,
    ) -> None:
        self.metric = metric
        self.shrinkage = shrinkage
        self.n_jobs = n_jobs

    def fit(self, proba: Any, Y: Any = None) -> Thresholds:
        """From probabilities of shape (n, labels), alone or with the true labels of the same shape."""
        m = to_metric(self.metric)
        if m.custom is not None or m.instance_wise:
            raise ValueError(f"thresholds (k=None) need a built-in macro metric, got {m.name}")
        threads = resolve_threads(self.n_jobs)
        csr = probabilities(proba, 0, threads)
        n, labels = csr.shape
        known = evidence(csr, Y, self.shrinkage)
        truth = truth_at_entries(csr, known, threads)
        goal = m.goal(known.positives, n)
        self.thresholds_: npt.NDArray[np.float64]
        self.thresholds_, self.utility_ = _core.decide_thresholds(csr, truth, goal, threads)
        self.empty_utility_ = _core.decide_utility(goal, n, 1, np.zeros(labels), np.zeros(labels))
        return self

    @property
    def nbytes(self) -> int:
        """Memory of the thresholds."""
        return int(self.thresholds_.nbytes)

    def predict(self, proba: Any) -> sp.csr_matrix:
        """Accepted labels of each instance, most probable first, with their probabilities."""
        csr = probabilities(proba, 0, resolve_threads(self.n_jobs))
        if csr.shape[1] != len(self.thresholds_):
            raise ValueError(
                f"proba has {csr.shape[1]} columns (labels), the thresholds are for {len(self.thresholds_)}"
            )
        accepted = csr.data >= self.thresholds_[csr.indices]
        rows = np.repeat(np.arange(csr.shape[0]), np.diff(csr.indptr))[accepted]
        indices, data = csr.indices[accepted], csr.data[accepted]
        order = np.lexsort((indices, -data, rows))
        indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=csr.shape[0]))])
        return to_scipy(indptr, indices[order], data[order], csr.shape)
