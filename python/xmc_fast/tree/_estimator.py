"""The estimator: trees of linear classifiers, trained level by level, searched with a beam."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from xmc_fast import _core
from xmc_fast._refit import at_once, of_one_model
from xmc_fast._row_ranges import predict_ranges
from xmc_fast._threads import resolve_threads
from xmc_fast._validate import Csr, at_least, features, labels, to_scipy
from xmc_fast._work import Engine, check_engine
from xmc_fast.model import Calibration, OneRow, is_relevant, merge_topk
from xmc_fast.model._calibrate import fit_calibration, sigmoid
from xmc_fast.model._estimator import SparseMultilabel
from xmc_fast.tree import _explain, _store
from xmc_fast.tree._store import Level
from xmc_fast.tree._training import TreeFit

_LEAST = np.float32(1e-37)  # of a score
_LISTED = 20  # labels of a row, at least, that trees or probabilities rank anew
_ROWS = 1024  # of a task of a prediction on an engine, at least


class LabelTree(OneRow, SparseMultilabel, BaseEstimator):  # type: ignore[misc]
    """A shallow tree of one-vs-all classifiers: training and prediction grow with the logarithm of the labels.

    Labels are clustered by their mean inputs (`xmc_fast.cluster.label_tree`), clusters again, until few are left.
    Each node's children are told apart by squared-hinge classifiers trained on the node's own rows only. A query
    follows the ``beam`` best nodes of each level; a label's score is the product of p(s) along its path, with
    p(s) = exp(-w max(0, 1 - s)^power), w = 1 for the label itself and ``decay`` times less with each level above.
    This is the family of Parabel, Bonsai, XR-Linear and PLT: ``max_leaf`` and ``branching`` set the arity and so the
    depth, ``n_trees`` averages trees of other clusterings.

    Weights are stored in one byte each (scale per node), features in buckets by node: small on disk, and what lies
    on disk is what predicts.

    Parameters
    ----------
    C : float
        Weight of the loss against 1/2 |w|², as in `xmc_fast.OneVsAll`.
    max_leaf : int
        Labels of a leaf, at most 256.
    branching : int
        Children of an inner node, at most 256.
    max_first : int
        Nodes of the first level, which every query looks at.
    beam : int
        Nodes of a level that a query follows.
    slack : float or None
        Nodes whose log score is so much below the row's best one of the level are not followed; None follows all
        of the beam.
    n_trees : int
        Trees; probabilities are averaged.
    power : 1, 2 or 3
        Of the penalty in p(s).
    decay : float
        How much less the level above counts in a score, in (0, 1]. 1 is the plain product of Parabel and
        XR-Linear; less than 1 is more accurate, as the levels' errors are not independent.
    matched : int
        Rows for which the levels above propose a node among their so many best are further negatives below it; 0
        takes the node's own rows only.
    tol, max_iter : float, int
        Stopping rule of the solver.
    bias : float or None
        Value of a constant feature.
    normalize : bool
        Scale rows to length 1 first, in fit and in predict.
    prune : float
        Weights of smaller absolute value are dropped.
    n_jobs : int, optional
        Threads. The model has the same bits for any number.
    random_state : int
        Seed of the clusterings and of the solver.

    Attributes
    ----------
    trees_ : list of (levels, order)
        Arrays of each level (csrc/tree/level.h), and the label of each node of the last one.
    calibration : Calibration or None
        Of probabilities, after `calibrate`: sigmoid(scale[l] * margin(score) + shift[l]).
    n_labels_, n_features_in_ : int

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    >>> Y = np.array([[1, 0], [1, 0], [0, 1], [0, 1]])
    >>> LabelTree(max_leaf=2).fit(X, Y).predict([[0.8, 0.1]], k=1).indices
    array([0], dtype=int32)
    """

    def __init__(
        self,
        C: float = 1.0,
        *,
        max_leaf: int = 50,
        branching: int = 128,
        max_first: int = 1200,
        beam: int = 15,
        slack: float | None = 5.0,
        n_trees: int = 1,
        power: int = 3,
        decay: float = 0.7,
        matched: int = 0,
        tol: float = 0.01,
        bias: float | None = 1.0,
        normalize: bool = True,
        prune: float = 0.1,
        max_iter: int = 1000,
        n_jobs: int | None = None,
        random_state: int = 0,
    ) -> None:
        self.C = C
        self.max_leaf = max_leaf
        self.branching = branching
        self.max_first = max_first
        self.beam = beam
        self.slack = slack
        self.n_trees = n_trees
        self.power = power
        self.decay = decay
        self.matched = matched
        self.tol = tol
        self.bias = bias
        self.normalize = normalize
        self.prune = prune
        self.max_iter = max_iter
        self.n_jobs = n_jobs
        self.random_state = random_state

    @at_once
    def fit(
        self,
        X: Any,
        Y: Any,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        engine: Any = None,
    ) -> LabelTree:
        """Train.

        Parameters
        ----------
        X : (n, D) sparse or dense
        Y : (n, L) binary, sparse or dense, any dtype
        checkpoint : path, optional
            Folder where blocks of nodes are written as they finish. A later call with the same data and
            parameters goes on from there and ends with the same bytes; the folder is then a model that `load`
            opens, and the trees are mapped from it.
        engine : from `xmc_fast.engine.connect`, optional
            Train the nodes of each level on its workers; they write into ``checkpoint``, which they must all
            see, or without one return their blocks. ``n_jobs`` is then the threads of a task. The model has the
            same bytes. None: threads of this process.
        """
        self._check_parameters()
        engine = check_engine(engine)
        x = features(X)
        y = labels(Y, n_rows=x.shape[0])
        run = TreeFit(self, x, y, checkpoint, engine)
        self.trees_ = run.run()
        self.n_features_in_, self.n_labels_ = x.shape[1], y.shape[1]
        self.calibration: Calibration | None = None
        if run.folder is not None:
            _store.finish(run.folder, self)
        return self

    @of_one_model
    def predict(
        self,
        X: Any,
        k: int = 5,
        *,
        proba: bool = False,
        beam: int | None = None,
        n_jobs: int | None = None,
        engine: Engine | None = None,
    ) -> sp.csr_matrix:
        """The ``k`` best labels of each row that the beam search finds.

        Parameters
        ----------
        X : (n, D) sparse or dense
        k : int
            Labels per row. Rows have fewer where the beam reaches fewer.
        proba : bool
            Probabilities, after `calibrate`; else scores, products of p(s) from 0 to 1.
        beam : int, optional
            Instead of the estimator's.
        n_jobs : int, optional
        engine : from `xmc_fast.engine.connect`, optional
            Its workers take ranges of the rows.

        Returns
        -------
        scipy CSR (n, L) of scores, best first.
        """
        check_is_fitted(self, "trees_")
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        width = self.beam if beam is None else int(beam)
        if width < 1:
            raise ValueError(f"beam must be at least 1, got {width}")
        if proba and self.calibration is None:
            raise ValueError("proba=True needs a calibrated model: call calibrate(X, Y) on held-out rows")
        x = features(X, n_features=self.n_features_in_)
        threads = self.n_jobs if n_jobs is None else n_jobs
        if (workers := check_engine(engine)) is not None:

            def part(model: LabelTree, rows: sp.csr_matrix, n_jobs: int) -> sp.csr_matrix:
                return model.predict(rows, k, proba=proba, beam=width, n_jobs=n_jobs)

            return predict_ranges(workers, self, to_scipy(*x), _ROWS, part, threads)
        width, k = min(width, max(1, self.n_labels_)), min(int(k), self.n_labels_)
        again = proba or len(self.trees_) > 1
        listed = min(max(4 * k, _LISTED), self.n_labels_) if again else k
        threads = resolve_threads(threads)
        found = [self._search(x, levels, order, listed, width, threads) for levels, order in self.trees_]
        top = found[0]
        if len(found) > 1:
            top = merge_topk(found, listed if proba else k, n_jobs=threads)
            top.data /= len(found)
        return self._probabilities(top, k) if proba else top

    def calibrate(
        self,
        X: Any,
        Y: Any,
        *,
        candidates: int = 50,
        min_positives: int = 5,
        prior_strength: float = 5.0,
        n_jobs: int | None = None,
    ) -> LabelTree:
        """Fit probabilities on held-out rows: one sigmoid of the `margin` of the score, and one for each label with
        enough positives (see `xmc_fast.model.Calibration`).

        Parameters
        ----------
        X, Y : (n, D), (n, L)
            Rows the model was not trained on, and their relevant labels.
        candidates : int
            Top labels of each row that the fit looks at.
        min_positives : int
            A label that is relevant at least so often among the candidates gets its own sigmoid.
        prior_strength : float
            How strongly that one is held at the common one.
        n_jobs : int, optional
        """
        check_is_fitted(self, "trees_")
        truth = labels(Y, n_labels=self.n_labels_)
        at_least(1, candidates=candidates)
        top = self.predict(X, candidates, n_jobs=n_jobs)
        if truth.shape[0] != top.shape[0]:
            raise ValueError(f"X has {top.shape[0]} rows, Y has {truth.shape[0]}")
        self.calibration = fit_calibration(
            self.margin(top.data),
            top.indices,
            is_relevant(top, truth),
            self.n_labels_,
            min_positives=min_positives,
            prior_strength=prior_strength,
        )
        return self

    def margin(self, score: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The classifier's score that alone would give these scores of labels: m with exp(-(1 - m)^power) = score.

        At most 1, and linear where the score itself hardly changes: what probabilities are fitted to.

        >>> import numpy as np
        >>> LabelTree(power=2).margin(np.exp(-np.array([0.0, 0.25, 1.0], np.float32))).round(3)
        array([1. , 0.5, 0. ], dtype=float32)
        """
        loss = -np.log(np.clip(score, _LEAST, 1))
        return (1 - np.power(loss, 1 / self.power)).astype(np.float32)

    def explain(self, x: Any, label: int) -> list[_explain.PathStep]:
        """Why a label gets its score for one row: the classifiers on its path, tree by tree from the top down.

        Parameters
        ----------
        x : a pair (columns ascending, values), a 1 x n_features matrix or an array of n_features
        label : int

        Returns
        -------
        list of PathStep. In each, ``bias`` and ``contributions`` add up to ``score``; the product of the ``factor``
        of a tree's steps is its score of the label, and their mean over the trees the model's. A search may still
        miss the label, where a node of its path is not among the ``beam`` best.

        Examples
        --------
        >>> import numpy as np
        >>> X = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> model = LabelTree(max_leaf=2).fit(X, [[1, 0], [1, 0], [0, 1], [0, 1]])
        >>> steps = model.explain([0.8, 0.1], 0)
        >>> bool(np.isclose(np.prod([s.factor for s in steps]), model.predict([[0.8, 0.1]], 1).data[0]))
        True
        """
        check_is_fitted(self, "trees_")
        return _explain.explain(self, x, label)

    @property
    def nbytes(self) -> int:
        """Bytes of the model in memory (mapped or not)."""
        check_is_fitted(self, "trees_")
        return sum(
            order.nbytes + sum(array.nbytes for level in levels for array in level.values())
            for levels, order in self.trees_
        )

    @property
    def nnz(self) -> int:
        """Weights of all nodes."""
        check_is_fitted(self, "trees_")
        return sum(len(level["weight"]) for levels, _ in self.trees_ for level in levels)

    @of_one_model
    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write the model as a folder; an older model there is replaced."""
        check_is_fitted(self, "trees_")
        _store.save(self, directory)

    @classmethod
    def load(cls, directory: str | os.PathLike[str], *, mmap: bool = True, verify: bool = False) -> LabelTree:
        """Open what `save`, or `fit` with a checkpoint, made. ``mmap`` maps the weights; ``verify`` reads and checks
        every byte."""
        model: LabelTree = _store.load(cls, directory, mmap=mmap, verify=verify)
        return model

    def _search(
        self, x: Csr, levels: list[Level], order: npt.NDArray[np.int32], k: int, beam: int, threads: int
    ) -> sp.csr_matrix:
        ids, scores = _core.tree_predict(
            x.shape[1], *x[:3], levels, self.normalize, beam, k, self.power, self.decay,
            np.inf if self.slack is None else float(self.slack), threads,
        )  # fmt: skip
        found = ids >= 0
        indptr = np.concatenate([[0], np.cumsum(found.sum(1), dtype=np.int64)])
        return to_scipy(indptr, order[ids[found]], np.exp(scores[found]), (x.shape[0], self.n_labels_))

    def _probabilities(self, top: sp.csr_matrix, k: int) -> sp.csr_matrix:
        """The k most probable of the labels of each row."""
        if self.calibration is None:
            raise RuntimeError("no calibration")
        own = self.calibration.scale[top.indices], self.calibration.shift[top.indices]
        p = sigmoid(own[0] * self.margin(top.data) + own[1])
        counts = np.diff(top.indptr)
        rows = np.repeat(np.arange(top.shape[0]), counts)
        order = np.lexsort((top.indices, -p, rows))
        best = order[np.arange(len(order)) - np.repeat(top.indptr[:-1], counts) < k]
        indptr = np.concatenate([[0], np.cumsum(np.minimum(counts, k), dtype=np.int64)])
        return to_scipy(indptr, top.indices[best], p[best], top.shape)

    def _check_parameters(self) -> None:
        def check(name: str, good: bool, expected: str) -> None:
            if not good:
                raise ValueError(f"{name} must be {expected}, got {getattr(self, name)!r}")

        for name in ("C", "tol"):
            check(name, np.isfinite(getattr(self, name)) and getattr(self, name) > 0, "a positive number")
        check("prune", self.prune >= 0, "at least 0")
        check("bias", self.bias is None or bool(np.isfinite(self.bias)), "a finite number or None")
        check("normalize", isinstance(self.normalize, bool | np.bool_ | int), "True or False")
        check("power", self.power in (1, 2, 3), "1, 2 or 3")
        check("decay", 0 < self.decay <= 1, "above 0 and at most 1")
        check("slack", self.slack is None or self.slack >= 0, "at least 0 or None")
        check("matched", self.matched >= 0, "at least 0")
        for name in ("max_leaf", "branching"):
            check(name, 2 <= getattr(self, name) <= 256, "from 2 to 256")
        for name in ("max_first", "beam", "n_trees", "max_iter"):
            check(name, getattr(self, name) >= 1, "at least 1")
