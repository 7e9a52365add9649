"""Linear one-vs-all models: one l2-regularised classifier per label, exact, pruned at once (DiSMEC)."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from xmc_fast import _core
from xmc_fast._arrays import Csr, features, labels, to_scipy, transpose
from xmc_fast._files import write_text
from xmc_fast._progress import progress
from xmc_fast._threads import resolve_threads
from xmc_fast.model import Block, SparseModel, block_indices, read_block, write_block, write_manifest

_REPORT = (
    "status",
    "outer_iterations",
    "inner_iterations",
    "active_rows",
    "objective",
    "gradient_norm",
    "seconds",
)
_CHECKPOINT = "fit.json"
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
        """
        self._check_parameters()
        x = _prepare_rows(X, bool(self.normalize), self.bias)
        y = _labels(Y, x.rows)
        start, stop = _label_range(labels, y.shape[1])
        seed = int(check_random_state(self.random_state).randint(1 << 31))
        if isinstance(self.random_state, (int, np.integer)):
            seed = int(self.random_state)
        store = _Store(checkpoint, self._settings(seed), x, y, (start, stop))
        batches = _batches(start, stop, int(self.block_labels))
        todo = [b for b in range(len(batches)) if b not in store.done]
        nodes = self._train(x, y, [batches[b] for b in todo], todo, batches, store, seed)
        self.n_features_in_ = x.features - (self.bias is not None)
        self.n_labels_ = stop - start
        params = {name: value for name, value in self._settings(seed).items() if name != "version"}
        model, report = store.finish(len(batches), x.features, self.bias, bool(self.normalize), params)
        self.model_ = model
        self.report_: dict[str, Any] = {
            **report,
            "placement": {"threads": resolve_threads(self.n_jobs), "nodes": nodes},
        }
        return self

    def predict(self, X: Any, k: int = 5) -> sp.csr_matrix:
        """The ``k`` best labels of each row: scipy CSR (n, L) of scores, stored best first."""
        check_is_fitted(self, "model_")
        return self.model_.predict(X, k, n_jobs=self.n_jobs)

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
        todo: list[tuple[int, int]],
        numbers: list[int],
        batches: list[tuple[int, int]],
        store: _Store,
        seed: int,
    ) -> list[dict[str, Any]]:
        positives = transpose(y)
        init, start = self._start(y.shape[1], (batches[0][0], batches[-1][1]), x.features)
        cost = _positive_cost(self.positive_weight, np.diff(positives.indptr), x.rows)
        total = sum(last - first for first, last in batches)
        with progress(total, unit="label", desc="OneVsAll") as bar:
            bar.update(total - sum(last - first for first, last in todo))

            def on_batch(k: int, indptr: Any, indices: Any, data: Any, report: dict[str, Any]) -> None:
                first, last = todo[k]
                block = Block(first - batches[0][0], x.features, indptr, indices, data)
                store.add(numbers[k], block, report)
                bar.update(last - first)

            return _core.linear_train(
                *x.csr[:3],
                x.features,
                x.dense if x.dense is not None else np.empty((0, 0), np.float32),
                positives.indptr,
                positives.indices,
                cost,
                _NO_FLOATS,
                *start[:3],
                np.array(todo, np.int64).ravel(),
                _SOLVERS.index(self._solver()),
                _LOSSES.index(self.loss),
                init,
                float(self.C),
                float(self.eps),
                int(self.max_iter),
                seed,
                float(self.prune),
                int(self.keep_top or 0),
                resolve_threads(self.n_jobs),
                on_batch,
            )

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


class _Rows:
    """Training rows as the core takes them: CSR, or dense."""

    def __init__(self, csr: Csr | None, dense: npt.NDArray[np.float32] | None) -> None:
        shape = csr.shape if csr is not None else dense.shape if dense is not None else (0, 0)
        self.rows, self.features = int(shape[0]), int(shape[1])
        self.dense = dense
        self.csr = csr or Csr(np.zeros(1, np.int64), np.empty(0, np.int32), _NO_FLOATS, (0, self.features))


def _prepare_rows(X: Any, normalize: bool, bias: float | None, *, n_features: int | None = None) -> _Rows:
    """Checked, scaled to length 1 if asked, with the bias column."""
    if not sp.issparse(X):
        return _Rows(None, _prepare_dense(X, normalize, bias, n_features))
    x = features(X, n_features=n_features)
    data = x.data
    counts = np.diff(x.indptr)
    if normalize:
        squares = np.concatenate([[0.0], np.cumsum(data.astype(np.float64) ** 2)])
        norms = np.sqrt(squares[x.indptr[1:]] - squares[x.indptr[:-1]])
        norms[counts == 0] = 1
        data = (data / np.repeat(np.where(norms > 0, norms, 1), counts)).astype(np.float32)
    if bias is None:
        return _Rows(Csr(x.indptr, x.indices, data, x.shape), None)
    n, D = x.shape
    ends = x.indptr[1:] + np.arange(n)  # where each row's bias goes
    keep = np.ones(len(data) + n, bool)
    keep[ends] = False
    values = np.full(len(keep), bias, np.float32)
    columns = np.full(len(keep), D, np.int32)
    values[keep] = data
    columns[keep] = x.indices
    return _Rows(Csr(x.indptr + np.arange(n + 1), columns, values, (n, D + 1)), None)


def _prepare_dense(
    X: Any, normalize: bool, bias: float | None, n_features: int | None
) -> npt.NDArray[np.float32]:
    array = np.asarray(X)
    if array.ndim != 2:
        raise ValueError(f"X must be two-dimensional, got shape {array.shape}")
    if array.dtype.kind not in "biuf":
        raise ValueError(f"X must hold real numbers, got dtype {array.dtype}")
    if n_features is not None and array.shape[1] != n_features:
        raise ValueError(f"X has {array.shape[1]} columns, expected {n_features}")
    x = np.empty((array.shape[0], array.shape[1] + (bias is not None)), np.float32)
    x[:, : array.shape[1]] = array
    bad = np.argwhere(~np.isfinite(x[:, : array.shape[1]]))
    if len(bad):
        row, col = bad[0]
        raise ValueError(
            f"X must be finite, got {x[row, col]} at row {row}, column {col} ({len(bad)} such values)"
        )
    if normalize:
        norms = np.linalg.norm(x[:, : array.shape[1]].astype(np.float64), axis=1)
        x[:, : array.shape[1]] /= np.where(norms > 0, norms, 1)[:, None]
    if bias is not None:
        x[:, -1] = bias
    return x


def _labels(Y: Any, n_rows: int, n_labels: int | None = None) -> Csr:
    return labels(Y, n_rows=n_rows, n_labels=n_labels)


def _label_range(given: tuple[int, int] | None, n_labels: int) -> tuple[int, int]:
    start, stop = (0, n_labels) if given is None else (int(given[0]), int(given[1]))
    if not 0 <= start < stop <= n_labels:
        raise ValueError(f"labels must be a range inside (0, {n_labels}), got ({start}, {stop})")
    return start, stop


def _batches(start: int, stop: int, size: int) -> list[tuple[int, int]]:
    """Cut at multiples of size, counted from label 0."""
    cuts = [start, *range((start // size + 1) * size, stop, size), stop]
    return list(itertools.pairwise(cuts))


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


class _Store:
    """Solved batches, in memory or in a checkpoint folder."""

    def __init__(
        self,
        folder: str | os.PathLike[str] | None,
        settings: dict[str, Any],
        x: _Rows,
        y: Csr,
        label_range: tuple[int, int],
    ) -> None:
        self.blocks: dict[int, Block] = {}
        self.reports: dict[int, dict[str, Any]] = {}
        self.done: set[int] = set()
        self.folder = None if folder is None else Path(folder)
        if self.folder is None:
            return
        fit = {**settings, "labels": list(label_range), "data": _fingerprint(x, y)}
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / _CHECKPOINT
        if path.exists():
            old = json.loads(path.read_text(encoding="utf-8"))
            for name in fit:
                if old.get(name) != fit[name]:
                    raise ValueError(
                        f"checkpoint {self.folder} is of another fit: {name} is {old.get(name)!r} there,"
                        f" {fit[name]!r} here"
                    )
            self.done = set(block_indices(self.folder))
        elif any(self.folder.iterdir()):
            raise ValueError(f"checkpoint {self.folder} is neither empty nor of an earlier fit")
        else:
            write_text(path, json.dumps(fit, indent=1) + "\n")

    def add(self, number: int, block: Block, report: dict[str, Any]) -> None:
        self.reports[number] = report
        if self.folder is None:
            self.blocks[number] = block
        else:
            extra = {name: report[name] for name in _REPORT if name != "seconds"}
            write_block(self.folder, number, block.first_label, block, extra)

    def finish(
        self, count: int, n_columns: int, bias: float | None, normalize: bool, params: dict[str, Any]
    ) -> tuple[SparseModel, dict[str, Any]]:
        if self.folder is None:
            blocks = [self.blocks[b] for b in range(count)]
            model = SparseModel(blocks, bias=bias, normalize=normalize, params=params)
        else:
            for b in self.done:
                _, report = read_block(self.folder, b)
                self.reports[b] = {**report, "seconds": np.full(len(report["status"]), np.nan)}
            write_manifest(self.folder, bias=bias, normalize=normalize, params=params, n_columns=n_columns)
            model = SparseModel.load(self.folder)
        return model, {
            name: np.concatenate([self.reports[b][name] for b in range(count)]) for name in _REPORT
        }


def _fingerprint(x: _Rows, y: Csr) -> str:
    digest = hashlib.blake2b(digest_size=16)
    arrays = [*x.csr[:3], *y[:2]] if x.dense is None else [x.dense, *y[:2]]
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    digest.update(repr((x.rows, x.features, y.shape)).encode())
    return digest.hexdigest()
