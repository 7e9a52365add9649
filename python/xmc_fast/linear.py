"""Linear one-vs-all models: one l2-regularised classifier per label, exact, pruned at once (DiSMEC)."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from xmc_fast import _core
from xmc_fast._arrays import Csr, features, labels, to_scipy, transpose
from xmc_fast._batches import Batches as _Batches
from xmc_fast._batches import Store, batches_of, expected_cost
from xmc_fast._progress import progress
from xmc_fast._rows import Rows as _Rows
from xmc_fast._rows import prepare_rows as _prepare_rows
from xmc_fast._threads import resolve_threads
from xmc_fast.engine import run
from xmc_fast.model import Block, SparseModel

_NO_FLOATS = np.empty(0, np.float32)
# In the order of the core's enums; a model as start comes after the named rules.
_SOLVERS = ("dual", "newton", "l1")
_LOSSES = ("squared_hinge", "logistic")
_INITS = ("zero", "mean", "multi-positive", "bias")


class OneVsAll(BaseEstimator):  # type: ignore[misc]
    """One-vs-all linear classifiers trained to LIBLINEAR's solution, many labels at a time.

    For each label, with s_i = +1 where row i has the label and -1 elsewhere::

        min_w  1/2 |w|² + C Σ_i c_i max(0, 1 - s_i w·x_i)²

    to LIBLINEAR's stopping rule |g(w)| <= eps · min(#pos, #neg) / n · |g(0)|, then drops weights below
    ``prune``. C has LIBLINEAR's meaning; the DiSMEC paper writes |w|² + C Σ(...)², so its C is twice this one.

    Parameters
    ----------
    C : float
        Weight of the loss against 1/2 |w|².
    loss : "squared_hinge" or "logistic"
        The logistic loss is log(1 + exp(-s_i w·x_i)) (LIBLINEAR -s 0), solved by "newton".
    penalty : "l2" or "l1"
        "l1" replaces 1/2 |w|² by Σ_j |w_j| (LIBLINEAR -s 5; squared hinge only), solved by coordinate descent.
    eps : float
        Tolerance of the stopping rule.
    init : "mean", "zero", "multi-positive", "bias" or a fitted SparseModel
        First weights of the Newton solver (the others have their own start; the optimum is the same):
        "mean" puts the mean positive at +1 and the mean negative at -2; "multi-positive" every positive of
        labels with at most 20; "bias" is the model without positives; a model must have these labels and
        features, and makes "auto" choose "newton".
    bias : float or None
        Value of a constant feature added to each row (its weight is regularised like the others).
    normalize : bool
        Scale rows to length 1 first, in fit and in predict.
    prune : float
        Weights of smaller absolute value are dropped (DiSMEC's Δ); 0 keeps all.
    keep_top : int, optional
        Keep at most so many weights per label, the largest.
    positive_weight : float, array of one per label, "balanced" or None
        Cost c_i of the positives (None: 1; "balanced": #neg / #pos). Negatives cost 1.
    block_labels : int
        Labels of one batch, the unit of storage and restart.
    solver : "auto", "dual" or "newton"
        "dual", blocked dual coordinate descent, is the fast one for the l2 squared hinge; "newton", blocked
        truncated Newton, the reference method. "auto" takes the fastest that can.
    max_iter : int
        Rounds (dual), Newton steps or sweeps (l1) per label; labels that hit it have status 1.
    n_jobs : int, optional
        Threads. The model has the same bits for any number.
    random_state : int, RandomState or None

    Attributes
    ----------
    model_ : SparseModel
        The weights, n_labels x (n_features + 1 with a bias).
    report_ : dict
        One entry per label: ``status`` (0 converged, 1 stopped by max_iter, 2 only one class),
        ``outer_iterations``, ``inner_iterations``, ``active_rows``, ``objective``, ``gradient_norm`` (both of
        the weights before pruning), ``seconds`` (nan when read from a checkpoint). And
        ``placement``: ``threads``, and for each memory node in use (``nodes``) its ``node`` id, its ``cpus``,
        the ``replica_bytes`` of X it holds for itself and, of a sample of ``pages_seen`` of those pages, how
        many are ``pages_local``. Thread t is pinned to node t modulo the nodes; with one node nothing is
        pinned and X is not copied.
    n_features_in_, n_labels_ : int

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    >>> Y = np.array([[1, 0], [1, 0], [0, 1], [0, 1]])
    >>> OneVsAll().fit(X, Y).predict([[0.8, 0.1]], k=1).indices
    array([0], dtype=int32)
    """

    def __init__(
        self,
        C: float = 1.0,
        *,
        loss: str = "squared_hinge",
        penalty: str = "l2",
        eps: float = 0.01,
        init: Any = "mean",
        bias: float | None = 1.0,
        normalize: bool = True,
        prune: float = 0.01,
        keep_top: int | None = None,
        positive_weight: Any = None,
        block_labels: int = 1000,
        solver: str = "auto",
        max_iter: int = 1000,
        n_jobs: int | None = None,
        random_state: Any = 0,
    ) -> None:
        self.C = C
        self.loss = loss
        self.penalty = penalty
        self.eps = eps
        self.init = init
        self.bias = bias
        self.normalize = normalize
        self.prune = prune
        self.keep_top = keep_top
        self.positive_weight = positive_weight
        self.block_labels = block_labels
        self.solver = solver
        self.max_iter = max_iter
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(
        self,
        X: Any,
        Y: Any,
        *,
        labels: tuple[int, int] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        engine: Any = None,
    ) -> OneVsAll:
        """Train.

        Parameters
        ----------
        X : (n, D) sparse or dense
        Y : (n, L) binary, sparse or dense, any dtype
        labels : (start, stop), optional
            Train these labels only; label ``start + i`` of Y is label i of ``model_``
            (`SparseModel.concat` joins parts). Give multiples of ``block_labels`` for the bits of a whole fit.
        checkpoint : path, optional
            Folder where batches are written as they finish. A later call with the same data and parameters
            goes on from there and ends with the same bytes; the folder is then a model `SparseModel.load`
            opens, and ``model_`` is mapped from it.
        engine : "dask", "ray", a joblib backend's name, or a client object, optional
            Solve the batches on its workers (see `xmc_fast.engine`); they write into ``checkpoint``, which they
            must all see, or without one return their batches. ``n_jobs`` is then the threads of a task. The
            model has the same bytes; ``report_["engine"]`` tells who did what. None: threads of this process.
        """
        if Y is None:
            raise ValueError("OneVsAll requires y to be passed, but the target y is None")
        self._check_parameters()
        x = _prepare_rows(X, bool(self.normalize), self.bias)
        y = _labels(Y, x.rows)
        start, stop = _label_range(labels, y.shape[1])
        seed = int(check_random_state(self.random_state).randint(1 << 31))
        if isinstance(self.random_state, (int, np.integer)):
            seed = int(self.random_state)
        store = Store(checkpoint, self._settings(seed), x, y, (start, stop))
        batches = batches_of(start, stop, int(self.block_labels))
        todo = [b for b in range(len(batches)) if b not in store.done]
        nodes = self._train(x, y, todo, batches, store, seed, engine)
        self.n_features_in_ = x.features - (self.bias is not None)
        self.n_labels_ = stop - start
        params = {name: value for name, value in self._settings(seed).items() if name != "version"}
        model, report = store.finish(len(batches), x.features, self.bias, bool(self.normalize), params)
        self.model_ = model
        self.report_: dict[str, Any] = {
            **report,
            **nodes,
        }
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        tags.target_tags.two_d_labels = True
        return tags

    def predict(self, X: Any, k: int = 5, *, engine: Any = None) -> sp.csr_matrix:
        """The ``k`` best labels of each row: scipy CSR (n, L) of scores, stored best first.

        With an ``engine`` (see `fit`) its workers predict shards of the labels.
        """
        check_is_fitted(self, "model_")
        return self.model_.predict(X, k, n_jobs=self.n_jobs, engine=engine)

    def decision_function(self, X: Any) -> npt.NDArray[np.float32]:
        """All scores, (n, L) dense: for small L."""
        check_is_fitted(self, "model_")
        x = _prepare_rows(X, self.model_.normalize, self.model_.bias, n_features=self.n_features_in_)
        W = self.model_.to_csr()
        if x.dense is not None:
            return np.asarray((W @ x.dense.T).T, np.float32)
        return np.asarray((to_scipy(*x.csr) @ W.T).toarray(), np.float32)

    def score(self, X: Any, Y: Any) -> float:
        """Precision at 1: the share of rows whose best label is right."""
        top = self.predict(X, k=1)
        truth = _labels(Y, top.shape[0], n_labels=self.n_labels_)
        rows = np.repeat(np.arange(top.shape[0]), np.diff(top.indptr))
        if not len(rows):
            return 0.0
        Yt = to_scipy(truth.indptr, truth.indices, np.ones(len(truth.indices), np.float32), truth.shape)
        return float(np.asarray(Yt[rows, top.indices]).sum() / top.shape[0])

    def _train(
        self,
        x: _Rows,
        y: Csr,
        todo: list[int],
        batches: list[tuple[int, int]],
        store: Store,
        seed: int,
        engine: Any,
    ) -> dict[str, Any]:
        positives = transpose(y)
        counts = np.diff(positives.indptr)
        init, start = self._start(y.shape[1], (batches[0][0], batches[-1][1]), x.features)
        arrays: dict[str, Any] = {
            "x_indptr": x.csr.indptr,
            "x_indices": x.csr.indices,
            "x_data": x.csr.data,
            "x_dense": x.dense if x.dense is not None else np.empty((0, 0), np.float32),
            "y_indptr": positives.indptr,
            "y_indices": positives.indices,
            "cost_positive": _positive_cost(self.positive_weight, counts, x.rows),
            "warm_indptr": start.indptr,
            "warm_indices": start.indices,
            "warm_data": start.data,
        }
        options = {
            "n_features": x.features,
            "solver": _SOLVERS.index(self._solver()),
            "loss": _LOSSES.index(self.loss),
            "init": init,
            "C": float(self.C),
            "eps": float(self.eps),
            "max_iterations": int(self.max_iter),
            "seed": seed,
            "threshold": float(self.prune),
            "keep_top": int(self.keep_top or 0),
        }
        work = _Batches(batches[0][0], batches[-1][1], int(self.block_labels), options, store.folder)
        total = batches[-1][1] - batches[0][0]
        with progress(total, unit="label", desc="OneVsAll") as bar:
            bar.update(total - sum(batches[b][1] - batches[b][0] for b in todo))

            def on_batch(number: int, solved: tuple[Block, dict[str, Any]]) -> None:
                store.add(number, *solved)
                bar.update(batches[number][1] - batches[number][0])

            def on_stored(number: int, result: Any) -> None:
                if store.folder is None:
                    store.add(number, *result)
                elif result is None:  # found there
                    store.done.add(number)
                else:
                    store.reports[number] = result
                bar.update(batches[number][1] - batches[number][0])

            if engine is not None:
                cost = expected_cost(counts, x.rows, [batches[b] for b in todo])
                return {
                    "engine": run(engine, work, arrays, todo, cost, n_jobs=self.n_jobs, on_block=on_stored)
                }
            threads = resolve_threads(self.n_jobs)
            return {"placement": {"threads": threads, "nodes": work.solve(arrays, todo, threads, on_batch)}}

    def _check_parameters(self) -> None:
        def fail(name: str, expected: str) -> None:
            raise ValueError(f"{name} must be {expected}, got {getattr(self, name)!r}")

        for name, choices in (
            ("loss", ("squared_hinge", "logistic")),
            ("penalty", ("l2", "l1")),
            ("solver", ("auto", "dual", "newton")),
        ):
            if getattr(self, name) not in choices:
                fail(name, f"one of {', '.join(map(repr, choices))}")
        for name in ("C", "eps"):
            if not (_is_number(getattr(self, name)) and getattr(self, name) > 0):
                fail(name, "a positive number")
        if not (_is_number(self.prune) and self.prune >= 0):
            fail("prune", "at least 0")
        if self.bias is not None and not _is_number(self.bias):
            fail("bias", "a finite number or None")
        if self.keep_top is not None and self.keep_top < 1:
            fail("keep_top", "at least 1 or None")
        for name in ("block_labels", "max_iter"):
            if getattr(self, name) < 1:
                fail(name, "at least 1")
        if isinstance(self.init, str) and self.init not in _INITS:
            fail("init", f"one of {', '.join(map(repr, _INITS))} or a SparseModel")
        if not isinstance(self.init, (str, SparseModel)):
            fail("init", "a name or a SparseModel")
        if self.penalty == "l1" and self.loss != "squared_hinge":
            fail("loss", "'squared_hinge' with penalty='l1'")
        if self.penalty == "l1" or self.loss == "logistic":
            able = ("auto",) if self.penalty == "l1" else ("auto", "newton")
            if self.solver not in able:
                given = f"loss={self.loss!r}, penalty={self.penalty!r}"
                fail("solver", f"one of {', '.join(map(repr, able))} with {given}")

    def _solver(self) -> str:
        """The core's name of the solver. A model to start from is for the Newton solver."""
        if self.penalty == "l1":
            return "l1"
        if self.solver != "auto":
            return self.solver
        return "newton" if self.loss == "logistic" or isinstance(self.init, SparseModel) else "dual"

    def _start(self, n_labels: int, label_range: tuple[int, int], n_columns: int) -> tuple[int, Csr]:
        """The rule's number and the CSR arrays of the first weights (n_labels x n_columns; empty: none)."""
        if isinstance(self.init, str):
            return _INITS.index(self.init), Csr(
                np.zeros(1, np.int64), np.empty(0, np.int32), _NO_FLOATS, (0, n_columns)
            )
        first, last = label_range
        W = features(self.init.to_csr(), "init", n_features=n_columns)
        if W.shape[0] == n_labels:
            return len(_INITS), W
        if W.shape[0] != last - first:
            raise ValueError(f"init has {W.shape[0]} labels, expected {last - first}")
        tail = np.full(n_labels - last, W.indptr[-1])
        indptr = np.concatenate([np.zeros(first, np.int64), W.indptr, tail])
        return len(_INITS), Csr(indptr, W.indices, W.data, (n_labels, n_columns))

    def _settings(self, seed: int) -> dict[str, Any]:
        """What decides the model's bits, beside the data."""
        weight = self.positive_weight
        if weight is not None and not isinstance(weight, (str, int, float)):
            weight = hashlib.blake2b(np.ascontiguousarray(weight, np.float32).tobytes()).hexdigest()[:16]
        return {
            "C": float(self.C),
            "loss": self.loss,
            "penalty": self.penalty,
            "eps": float(self.eps),
            "bias": None if self.bias is None else float(self.bias),
            "normalize": bool(self.normalize),
            "prune": float(self.prune),
            "keep_top": self.keep_top,
            "positive_weight": weight,
            "block_labels": int(self.block_labels),
            "solver": self._solver(),
            "init": self.init if isinstance(self.init, str) else _model_hash(self.init),
            "max_iter": int(self.max_iter),
            "seed": seed,
            "simd": _core.simd_level(),
        }


def _model_hash(model: SparseModel) -> str:
    W = features(model.to_csr(), "init")
    digest = hashlib.blake2b(digest_size=16)
    for array in W[:3]:
        digest.update(array.data)
    return digest.hexdigest()


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and bool(np.isfinite(value))


def _labels(Y: Any, n_rows: int, n_labels: int | None = None) -> Csr:
    return labels(Y, n_rows=n_rows, n_labels=n_labels)


def _label_range(given: tuple[int, int] | None, n_labels: int) -> tuple[int, int]:
    start, stop = (0, n_labels) if given is None else (int(given[0]), int(given[1]))
    if not 0 <= start < stop <= n_labels:
        raise ValueError(f"labels must be a range inside (0, {n_labels}), got ({start}, {stop})")
    return start, stop


def _positive_cost(weight: Any, counts: npt.NDArray[np.int64], n: int) -> npt.NDArray[np.float32]:
    """c+ per label, or empty for 1."""
    if weight is None:
        return _NO_FLOATS
    if isinstance(weight, str):
        if weight != "balanced":
            raise ValueError(f"positive_weight must be numbers, 'balanced' or None, got {weight!r}")
        return np.maximum((n - counts) / np.maximum(counts, 1), 1e-6).astype(np.float32)
    cost = np.broadcast_to(np.asarray(weight, np.float32), counts.shape) if np.ndim(weight) == 0 else None
    if cost is None:
        cost = np.asarray(weight, np.float32)
        if cost.shape != counts.shape:
            raise ValueError(f"positive_weight has shape {cost.shape}, expected ({len(counts)},)")
    if not np.all(np.isfinite(cost) & (cost > 0)):
        raise ValueError("positive_weight must be positive and finite")
    return np.ascontiguousarray(cost)
