"""Linear one-vs-all models: one l2-regularised classifier per label, exact, pruned at once (DiSMEC)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from xmc_fast._checkpoint import Checkpoint, LabelBlocks, blocks_of, expected_cost
from xmc_fast._folder import replace_folder
from xmc_fast._problem import (
    INITS,
    check_parameters,
    label_range_of,
    problem_of,
    seed_of,
    settings_of,
    size_of,
)
from xmc_fast._progress import progress
from xmc_fast._refit import at_once, of_one_model
from xmc_fast._spill import least_memory
from xmc_fast._state import FOLDER as STATE
from xmc_fast._state import FitState, state_of
from xmc_fast._threads import resolve_threads
from xmc_fast._validate import Csr, dense_features, features, fingerprint, matrix_of, to_scipy
from xmc_fast._validate import labels as labels_of
from xmc_fast._work import Arrays, Engine, check_engine
from xmc_fast.model import RowExplanation, SparseModel, explain_row
from xmc_fast.model._compress import DELTA
from xmc_fast.model._estimator import SparseMultilabel


class OneVsAll(SparseMultilabel, BaseEstimator):  # type: ignore[misc]
    """One-vs-all linear classifiers trained to LIBLINEAR's solution, many labels at a time.

    For each label, with s_i = +1 where row i has the label and -1 elsewhere::

        min_w  1/2 |w|² + C Σ_i c_i max(0, 1 - s_i w·x_i)²

    to LIBLINEAR's stopping rule |g(w)| <= tol · min(#pos, #neg) / n · |g(0)|, then drops weights below
    ``prune``. C has LIBLINEAR's meaning; the DiSMEC paper writes |w|² + C Σ(...)², so its C is twice this one.

    Parameters
    ----------
    C : float
        Weight of the loss against 1/2 |w|².
    loss : "squared_hinge" or "logistic"
        The logistic loss is log(1 + exp(-s_i w·x_i)) (LIBLINEAR -s 0), solved by "newton".
    penalty : "l2" or "l1"
        "l1" replaces 1/2 |w|² by Σ_j |w_j| (LIBLINEAR -s 5; squared hinge only), solved by coordinate descent.
    tol : float
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
    size : "exact", "small", "auto" or int
        "small": the model in the small form (`SparseModel.compress` at its default threshold), about a tenth of the
        bytes; "auto": that, unless an exact model of so many labels and features takes at most 4 MB in any case; a
        number: the small form in at most so many bytes.
    positive_weight : float, array of one per label, "balanced", "balanced^0.5" or None
        Cost c_i of the positives (None: 1; "balanced": #neg / #pos, or a power of that). Negatives cost 1.
    block_labels : int
        Labels of one block, the unit of storage and restart.
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
        the weights before pruning), ``gap`` (the objective is at most so much above its minimum; "dual" only),
        ``seconds`` (nan when read from a checkpoint). And
        ``placement``: ``threads``, and for each memory node in use (``nodes``) its ``node`` id, its ``cpus``,
        the ``replica_bytes`` of X it holds for itself and, of a sample of ``pages_seen`` of those pages, how
        many are ``pages_local``. Thread t is pinned to node t modulo the nodes; with one node nothing is
        pinned.
    state_ : FitState or None
        What `update` starts from, if ``fit`` was told to keep it.
    n_features_in_, n_labels_ : int

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    >>> Y = np.array([[1, 0], [1, 0], [0, 1], [0, 1]])
    >>> OneVsAll().fit(X, Y).predict([[0.8, 0.1]], k=1).indices
    array([0], dtype=int32)
    """

    state_: FitState | None = None
    update_: dict[str, Any]

    def __init__(
        self,
        C: float = 1.0,
        *,
        loss: str = "squared_hinge",
        penalty: str = "l2",
        tol: float = 0.01,
        init: Any = "mean",
        bias: float | None = 1.0,
        normalize: bool = True,
        prune: float = 0.01,
        keep_top: int | None = None,
        size: str | int = "exact",
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
        self.tol = tol
        self.init = init
        self.bias = bias
        self.normalize = normalize
        self.prune = prune
        self.keep_top = keep_top
        self.size = size
        self.positive_weight = positive_weight
        self.block_labels = block_labels
        self.solver = solver
        self.max_iter = max_iter
        self.n_jobs = n_jobs
        self.random_state = random_state

    @at_once
    def fit(
        self,
        X: Any,
        Y: Any,
        *,
        labels: tuple[int, int] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        engine: Any = None,
        keep_state: bool = False,
        memory: int | None = None,
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
            Folder where blocks are written as they finish. A later call with the same data and parameters
            goes on from there and ends with the same bytes; the folder is then a model `SparseModel.load`
            opens, and ``model_`` is mapped from it (with a ``size`` the folder has the exact model).
        engine : from `xmc_fast.engine.connect`, optional
            Solve the blocks on its workers; they write into ``checkpoint``, which they must all see, or without
            one return their blocks. ``n_jobs`` is then the threads of a task. The model has the same bytes;
            ``report_["engine"]`` tells who did what. None: threads of this process.
        keep_state : bool
            Keep what `update` needs (``state_``): X and Y, and 8 bytes for every row inside a label's margin.
            Saved beside the model.
        memory : int, optional
            Bytes that the fit may take beside X and Y. Blocks that do not fit are handed to temporary files, from
            which ``model_`` is mapped, and removed with it; the model has the same bytes. Smaller ``block_labels``
            leave more room. A ``checkpoint`` keeps no blocks in memory anyway.
        """
        if Y is None:
            raise ValueError("OneVsAll requires y to be passed, but the target y is None")
        check_parameters(self)
        engine = check_engine(engine)
        x = features(X) if sp.issparse(X) else dense_features(X)
        y = labels_of(Y, n_rows=x.shape[0])
        label_range = label_range_of(labels, y.shape[1])
        if keep_state and labels is not None:
            raise ValueError("keep_state needs all labels, got labels=" + repr(labels))
        if keep_state and self.size != "exact":
            raise ValueError(f"keep_state needs all weights: size must be 'exact', got {self.size!r}")
        seed = seed_of(self)
        arrays, options = problem_of(self, x, y, label_range, seed)
        options["keep_multipliers"] = bool(keep_state) and self._solver() == "dual"
        size = size_of(self, label_range[1] - label_range[0], options["n_features"] + (self.bias is not None))
        if size == "small" and checkpoint is None and self.keep_top is None:
            options["threshold"] = max(
                options["threshold"], DELTA
            )  # what `compress` would drop; the bias stays
        settings = settings_of(self, seed)
        fit = {**settings, "labels": list(label_range)}
        with Checkpoint(
            checkpoint,
            lambda: {**fit, "data": fingerprint(arrays)},
            self._memory_of_blocks(memory, x, label_range),
        ) as store:
            work = LabelBlocks(label_range, int(self.block_labels), options, store.folder)
            work.key = store.data
            placement = self._solve(work, arrays, store, engine)
            self.n_features_in_ = x.shape[1]
            self.n_labels_ = label_range[1] - label_range[0]
            self.model_, report = store.finish(
                len(blocks_of(*label_range, work.block_size)),
                n_columns=x.shape[1] + (self.bias is not None),
                bias=self.bias,
                normalize=bool(self.normalize),
                params=settings,
            )
        self.report_: dict[str, Any] = {**report, **placement}
        self.state_ = None
        if keep_state:
            count = len(blocks_of(*label_range, work.block_size))
            rows = matrix_of(x) if isinstance(x, Csr) else x
            self.state_ = state_of(rows, matrix_of(y), store.with_multipliers(count), settings)
            store.add_state(self.state_)
        if size != "exact":
            most = size if isinstance(size, int) else None
            self.model_ = self.model_.compress(max_bytes=most, n_jobs=self.n_jobs)
        if self.size != "exact":
            self.model_.params["size"] = size if isinstance(size, int) else self.size
        return self

    @at_once
    def update(
        self,
        X: Any = None,
        Y: Any = None,
        *,
        old_labels: Any = None,
        remove_rows: Any = None,
        remove_labels: Any = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> OneVsAll:
        """Bring a model that was trained with ``keep_state`` to the optimum of changed data.

        Parameters
        ----------
        X : (m, D') sparse or dense, optional
            New rows. More columns than before are new features.
        Y : (m, L') binary, optional
            Their labels. More columns than before are new labels.
        old_labels : (n, L') binary, optional
            Labels of the n rows that the model has, if they change or get new labels. By default as they are.
        remove_rows, remove_labels : arrays of int, optional
            Rows (of the n) and labels (of the L') to take out; the numbers of the others close up.
        checkpoint : path, optional
            Folder where solved labels are written as they finish; the same update goes on from there.

        Returns
        -------
        The estimator: ``model_`` and ``state_`` are new, ``update_`` counts what was done, and the history is in
        ``model_.params["updates"]``.

        Notes
        -----
        New labels alone: only they are trained, with those of the last block if it is not full, and the weights
        have the same bytes as those of a fit of all. Changed rows: labels whose old solution still meets the
        stopping rule are left alone, the others start from it and end at the optimum of the new data (other last
        bits than those of a fit). A calibration is dropped.

        Examples
        --------
        >>> import numpy as np
        >>> X = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> Y = np.array([[1, 0], [1, 0], [0, 1], [0, 1]])
        >>> model = OneVsAll().fit(X, Y, keep_state=True)
        >>> model.update(np.array([[0.5, 0.5]]), np.array([[1, 1]])).update_["rows_added"]
        1
        """
        from xmc_fast.update import update_labels

        check_is_fitted(self, "model_")
        return update_labels(self, X, Y, old_labels, remove_rows, remove_labels, checkpoint)

    def predict(
        self, X: Any, k: int = 5, *, proba: bool = False, engine: Engine | None = None
    ) -> sp.csr_matrix:
        """The ``k`` best labels of each row: scipy CSR (n, L) of scores, stored best first.

        ``proba`` gives probabilities (after ``model_.calibrate``). With an ``engine`` (see `fit`) its workers
        predict shards of the labels.
        """
        check_is_fitted(self, "model_")
        return self.model_.predict(X, k, proba=proba, n_jobs=self.n_jobs, engine=engine)

    def predict_one(
        self, x: Any, k: int = 5, *, proba: bool = False
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """The ``k`` best labels of one row and their scores (see `SparseModel.predict_one`)."""
        check_is_fitted(self, "model_")
        return self.model_.predict_one(x, k, proba=proba)

    def explain(self, x: Any, label: int | None = None) -> RowExplanation:
        """What each feature of one row adds to a label's score, by default the best label's.

        Examples
        --------
        >>> import numpy as np
        >>> X = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> model = OneVsAll().fit(X, np.array([[1, 0], [1, 0], [0, 1], [0, 1]]))
        >>> why = model.explain(X[1], 0)
        >>> bool(abs(why.bias + why.contributions.sum() - why.score) < 1e-9)
        True
        """
        check_is_fitted(self, "model_")
        return explain_row(self.model_, x, label)

    def decision_function(self, X: Any) -> npt.NDArray[np.float32]:
        """All scores, (n, L) dense: for small L."""
        check_is_fitted(self, "model_")
        return np.asarray(self.model_.predict(X, self.n_labels_, n_jobs=self.n_jobs).toarray(), np.float32)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights in memory."""
        check_is_fitted(self, "model_")
        return self.model_.nbytes

    @of_one_model
    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write ``model_`` as a folder (see `SparseModel.save`), and ``state_`` if it was kept; the parameters are
        in its manifest."""
        check_is_fitted(self, "model_")
        with replace_folder(directory) as folder:
            self.model_.write(folder)
            if self.state_ is not None:
                self.state_.write(folder / STATE)

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> OneVsAll:
        """Open what `save`, or `fit` with a checkpoint, made; weights are mapped.

        Arrays and models that were given as parameters are not stored: those are back at their defaults, and
        there is no ``report_``.
        """
        estimator = cls.from_model(SparseModel.load(directory))
        if (Path(directory) / STATE).is_dir():
            estimator.state_ = FitState.read(Path(directory) / STATE)
        return estimator

    @classmethod
    def from_model(cls, model: SparseModel) -> OneVsAll:
        """The estimator of a model that it trained, with the parameters that the model has noted."""
        names = cls().get_params()
        params = {name: value for name, value in model.params.items() if name in names}
        params["random_state"] = model.params.get("seed", 0)
        if params.get("solver") == "l1":
            params["solver"] = "auto"
        if params.get("init") not in INITS:
            params.pop("init", None)
        if not str(params.get("positive_weight", "")).startswith("balanced") and isinstance(
            params.get("positive_weight"), str
        ):
            del params["positive_weight"]
        estimator = cls(**params)
        estimator.model_ = model
        estimator.n_features_in_, estimator.n_labels_ = model.n_features, model.n_labels
        return estimator

    def score(self, X: Any, Y: Any) -> float:
        """Precision at 1: the share of rows whose best label is right."""
        top = self.predict(X, k=1)
        truth = labels_of(Y, n_rows=top.shape[0], n_labels=self.n_labels_)
        rows = np.repeat(np.arange(top.shape[0]), np.diff(top.indptr))
        if not len(rows):
            return 0.0
        Yt = to_scipy(truth.indptr, truth.indices, np.ones(len(truth.indices), np.float32), truth.shape)
        return float(np.asarray(Yt[rows, top.indices]).sum() / top.shape[0])

    def _solve(
        self, work: LabelBlocks, arrays: Arrays, store: Checkpoint, engine: Engine | None
    ) -> dict[str, Any]:
        """Solve what the checkpoint lacks; returns where that was done."""
        blocks = blocks_of(work.start, work.stop, work.block_size)
        todo = [b for b in range(len(blocks)) if b not in store.done]
        total = work.stop - work.start
        with progress(total, unit="label", desc="OneVsAll") as bar:
            bar.update(total - sum(blocks[b][1] - blocks[b][0] for b in todo))

            def on_block(number: int, result: Any) -> None:
                store.add(work, number, result, stored=engine is not None and store.folder is not None)
                bar.update(blocks[number][1] - blocks[number][0])

            if engine is None:
                threads = resolve_threads(self.n_jobs)
                return {
                    "placement": {"threads": threads, "nodes": work.solve(arrays, todo, threads, on_block)}
                }
            rows = len(arrays["x_dense"]) or len(arrays["x_indptr"]) - 1
            cost = expected_cost(np.diff(arrays["y_indptr"]), rows, [blocks[b] for b in todo])
            return {"engine": engine.run(work, arrays, todo, cost, n_jobs=self.n_jobs, on_block=on_block)}

    def _memory_of_blocks(self, memory: int | None, x: Any, labels: tuple[int, int]) -> int | None:
        """What the budget of a fit leaves for solved blocks."""
        if memory is None:
            return None
        least = least_memory(x, labels[1] - labels[0], resolve_threads(self.n_jobs))
        if memory < least:
            raise ValueError(
                f"memory must be at least {least} bytes for these data and threads, got {memory}"
            )
        return int(memory) - least

    def _solver(self) -> str:
        """The core's name of the solver. A model to start from is for the Newton solver."""
        if self.penalty == "l1":
            return "l1"
        if self.solver != "auto":
            return self.solver
        return "newton" if self.loss == "logistic" or isinstance(self.init, SparseModel) else "dual"
