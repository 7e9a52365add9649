"""The estimator: R models of B buckets, fitted and stored, and the labels that they predict."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted

from xmc_fast import _core
from xmc_fast._folder import MOST_LABELS, opening
from xmc_fast._progress import progress
from xmc_fast._refit import at_once, of_one_model
from xmc_fast._threads import resolve_threads
from xmc_fast._validate import to_scipy, valid_csr
from xmc_fast._work import check_engine
from xmc_fast.mach import _engine, _repeats, _store
from xmc_fast.mach._aggregate import AGGREGATES, aggregate_topk
from xmc_fast.mach._hash import bucket_matrix, bucket_table, check_sizes, label_matrix
from xmc_fast.model import OneRow, SparseModel

_BATCH_BYTES = 256 << 20
_OUTPUTS = ("probability", "logit", "softmax")


@dataclass(eq=False, repr=False, kw_only=True)
class Mach(OneRow, BaseEstimator):  # type: ignore[misc]
    """Merged-average classifiers via hashing.

    Parameters
    ----------
    n_buckets : int
        B, at most 65,536.
    n_repeats : int
        R, at most 256. Memory is R · B weight vectors; see `choose_buckets`.
    base : estimator, "linear" or "network"
        Cloned and fitted once per repetition on (X, bucket matrix). "linear" is `xmc_fast.linear.OneVsAll`
        with its defaults, "network" `xmc_fast.nn.BucketNetwork` (needs torch). Any other needs
        ``fit(X, Y)`` and ``decision_function(X)`` (n, B); it cannot be saved unless it has a ``model_`` that
        is a `SparseModel`.
    aggregate : "mean", "unbiased", "min" or "median"
        Of the R bucket scores of a label. "unbiased" is B/(B-1) · (mean - 1/B), for multiclass probabilities;
        "min" is the count-min estimate.
    outputs : "probability", "softmax" or "logit"
        Aggregate sigmoid(score), softmax over the buckets (multiclass), or the score itself.
    n_jobs : int, optional
        Threads of hashing and prediction (the base has its own). Results are the same for any number.
    random_state : int
        Seed of the hash functions.

    Attributes
    ----------
    models_ : list of SparseModel (or of fitted estimators), one per repetition
    n_labels_, n_features_in_ : int

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.multiclass import OneVsRestClassifier
    >>> X, y = np.eye(8), np.arange(8)  # classes instead of a label matrix: multiclass
    >>> base = OneVsRestClassifier(LogisticRegression(C=100))
    >>> Mach(4, 6, base=base, random_state=1).fit(X, y).predict(X, k=1).indices.tolist()
    [0, 1, 2, 3, 4, 5, 6, 7]
    """

    n_buckets: int = field(default=1000, kw_only=False)
    n_repeats: int = field(default=16, kw_only=False)
    base: Any = "linear"
    aggregate: str = "mean"
    outputs: str = "probability"
    n_jobs: int | None = None
    random_state: int = 0

    @at_once
    def fit(
        self,
        X: Any,
        Y: Any,
        *,
        repeats: tuple[int, int] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        engine: Any = None,
    ) -> Mach:
        """Train the repetitions.

        Parameters
        ----------
        X : (n, D) features, whatever the base takes
        Y : (n, L) binary labels, sparse or dense, or (n,) class ids
        repeats : (start, stop), optional
            Train these repetitions only, into the ``checkpoint``: a job of its own.
        checkpoint : path, optional
            Folder where repetitions are stored as they finish; those already there are not trained again. It
            is bound to the data and the parameters. With all repetitions there it is a model folder for
            `load`.
        engine : from `xmc_fast.engine.connect`, optional
            Train the repetitions on its workers, with ``n_jobs`` threads each; X must be
            sparse or an array. They write into ``checkpoint``, which they must all see, or return their models.
        """
        engine = check_engine(engine)
        start, stop = self._range(repeats, checkpoint)
        y = label_matrix(Y)
        X = valid_csr(X, "X")[0] if sp.issparse(X) else X
        if y.shape[1] > MOST_LABELS:
            raise ValueError(f"Y has {y.shape[1]} columns, at most {MOST_LABELS} expected")
        self.n_labels_, self.n_features_in_ = int(y.shape[1]), int(X.shape[1])
        folder = None if checkpoint is None else Path(checkpoint)
        if folder is not None:
            _store.open_folder(folder, self._settings(), _store.fingerprint(X, y))
        self.models_: list[Any] = []
        if engine is not None:
            self.models_ = _engine.fit(engine, self, X, y, range(start, stop), folder)
            return self
        with progress(stop - start, unit="repeat", desc="Mach") as bar:
            for r in range(start, stop):
                path = None if folder is None else _store.repeat_path(folder, r)
                if path is None or not path.is_dir():
                    buckets = bucket_matrix(
                        y, self.n_buckets, r, random_state=self.random_state, n_jobs=self.n_jobs
                    )
                    model = _repeats.fitted(_repeats.new_base(self.base, r).fit(X, buckets))
                    if path is not None:
                        _repeats.save(model, path)
                if path is not None:
                    model = _repeats.load(path, (self.n_buckets, self.n_features_in_))
                self.models_.append(model)
                bar.update(1)
        return self

    @at_once
    def fit_stream(
        self,
        chunks: Callable[[], Iterable[tuple[Any, Any]]],
        *,
        n_features: int,
        n_labels: int,
        passes: int = 1,
        repeats: tuple[int, int] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> Mach:
        """Train on data larger than memory, piece by piece; the base must have ``partial_fit(X, Y)``.

        Each piece is read once per pass and given to all repetitions, so that memory is that of a piece and
        of the models.

        Parameters
        ----------
        chunks : function that gives (X, Y) piece by piece, from the start in each call
            For example ``lambda: xmc_fast.data.iter_xmc(path)``. X and Y as in `fit`.
        n_features, n_labels : D and L, columns of each X and Y (class ids are below L)
        passes : times the data are read
        repeats, checkpoint : as in `fit`; repetitions are stored when all passes are done
        """
        start, stop = self._range(repeats, checkpoint)
        if passes < 1:
            raise ValueError(f"passes must be at least 1, got {passes}")
        self.n_labels_, self.n_features_in_ = int(n_labels), int(n_features)
        folder = None if checkpoint is None else Path(checkpoint)
        paths = [None if folder is None else _store.repeat_path(folder, r) for r in range(start, stop)]
        if folder is not None:
            _store.open_folder(folder, self._settings(), f"stream of {passes} passes")
        todo = [start + i for i, path in enumerate(paths) if path is None or not path.is_dir()]
        models = {r: _repeats.new_base(self.base, r) for r in todo}
        for model in models.values():
            if not hasattr(model, "partial_fit"):
                raise TypeError(f"fit_stream needs a base with partial_fit, {type(model).__name__} has none")
        with progress(passes if models else 0, unit="pass", desc="Mach") as bar:
            for _ in range(passes if models else 0):
                for X, Y in chunks():
                    if X.shape[1] != n_features:
                        raise ValueError(f"X has {X.shape[1]} columns, expected {n_features}")
                    y = label_matrix(Y, int(n_labels))
                    for r, model in models.items():
                        model.partial_fit(
                            X,
                            bucket_matrix(
                                y, self.n_buckets, r, random_state=self.random_state, n_jobs=self.n_jobs
                            ),
                        )
                bar.update(1)
        self.models_ = []
        for r, path in zip(range(start, stop), paths, strict=True):
            if r in models:
                done = _repeats.fitted(models[r])
                if path is not None:
                    _repeats.save(done, path)
            shape = (self.n_buckets, self.n_features_in_)
            self.models_.append(done if path is None else _repeats.load(path, shape))
        return self

    @of_one_model
    def predict(
        self, X: Any, k: int = 5, *, top_buckets: int | None = None, engine: Any = None
    ) -> sp.csr_matrix:
        """The k best labels.

        Parameters
        ----------
        X : (n, D)
        k : int
        top_buckets : int, optional
            Score only labels in one of the so many best buckets of some repetition: faster, may miss labels.
        engine : from `xmc_fast.engine.connect`, optional
            Predict ranges of the rows on its workers; the models are shipped with X, once per machine.

        Returns
        -------
        scipy CSR (n, L) of the aggregated scores, k per row, best first.
        """
        self._check_fitted()
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        k = min(int(k), self.n_labels_)
        rows = int(X.shape[0])
        engine = check_engine(engine)
        if k == 0:
            return sp.csr_matrix((rows, 0), dtype=np.float32)
        if engine is not None and rows:
            return _engine.predict(engine, self, X, k, top_buckets)
        table = bucket_table(
            self.n_labels_, self.n_buckets, self.n_repeats, random_state=self.random_state, n_jobs=self.n_jobs
        )
        inverted = None
        if top_buckets is not None:
            if top_buckets < 1:
                raise ValueError(f"top_buckets must be at least 1, got {top_buckets}")
            inverted = _core.invert_table(table, self.n_buckets, resolve_threads(self.n_jobs))
        size = max(64, _BATCH_BYTES // (4 * self.n_repeats * self.n_buckets) // 64 * 64)
        parts = []
        matrix = valid_csr(X, "X")[0] if sp.issparse(X) else X
        for start in range(0, rows, size):
            p = self.bucket_scores(matrix[start : start + size])
            parts.append(
                aggregate_topk(
                    p, table, k, aggregate=self.aggregate, top_buckets=top_buckets, inverted=inverted,
                    n_jobs=self.n_jobs,
                )
            )  # fmt: skip
        if not parts:
            return sp.csr_matrix((0, self.n_labels_), dtype=np.float32)
        ids, scores = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        keep = ids >= 0
        indptr = np.concatenate([[0], np.cumsum(keep.sum(axis=1))])
        return to_scipy(indptr, ids[keep], scores[keep], (rows, self.n_labels_))

    def bucket_scores(self, X: Any) -> npt.NDArray[np.float32]:
        """What the R models say, (R, n, B): probabilities or logits, as ``outputs`` says."""
        self._check_fitted()
        p = np.empty((self.n_repeats, int(X.shape[0]), self.n_buckets), np.float32)
        for r, model in enumerate(self.models_):
            p[r] = _repeats.scores(model, X, self.n_buckets)
        if self.outputs == "probability":
            with np.errstate(over="ignore"):
                np.negative(p, out=p)
                np.exp(p, out=p)
                p += 1
                np.reciprocal(p, out=p)
        elif self.outputs == "softmax":
            p -= p.max(axis=2, keepdims=True)
            np.exp(p, out=p)
            p /= p.sum(axis=2, keepdims=True)
        return p

    def compress(
        self,
        *,
        keep_top: int | None = None,
        dtype: npt.DTypeLike = "float32",
        delta: float | None = None,
    ) -> Mach:
        """A fitted copy with at most ``keep_top`` weights per bucket, the largest, in float32 or float16; or with
        ``delta`` in the small form, without the weights below it (`SparseModel.compress`).

        For bases that leave a `SparseModel`. Bucket models are dense, so that this is what makes them small. The small
        form has the fewest bytes on disk and in memory.
        """
        self._check_fitted()
        for model in self.models_:
            if not isinstance(model, SparseModel):
                raise TypeError(f"compress needs models that are SparseModel, got {type(model).__name__}")
        small = clone(self)
        small.n_labels_, small.n_features_in_ = self.n_labels_, self.n_features_in_
        kept = [model if keep_top is None else model.keep_top(keep_top) for model in self.models_]
        if delta is None:
            small.models_ = [model.astype(dtype) for model in kept]
        else:
            small.models_ = [model.compress(delta=delta, n_jobs=self.n_jobs) for model in kept]
        return small  # type: ignore[no-any-return]

    @property
    def nbytes(self) -> int:
        """Bytes of the R models' weights."""
        self._check_fitted()
        return sum(_repeats.storable(model).nbytes for model in self.models_)

    @of_one_model
    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write a folder: a manifest and a model folder per repetition (no pickle)."""
        self._check_fitted()
        models = [_repeats.storable(model) for model in self.models_]
        with _store.new_folder(Path(directory), self._settings()) as folder:
            for r, model in enumerate(models):
                _repeats.save(model, _store.repeat_path(folder, r))

    @classmethod
    @opening
    def load(cls, directory: str | os.PathLike[str], *, mmap: bool = True, verify: bool = False) -> Mach:
        """Open what `save`, or `fit` with a checkpoint, made. ``mmap`` maps the weights; ``verify`` reads and checks
        every byte."""
        folder = Path(directory)
        settings, n_labels, n_features = _store.read_settings(folder)
        mach = cls(**settings)
        mach._check()
        missing = [r for r in range(mach.n_repeats) if not _store.repeat_path(folder, r).is_dir()]
        if missing:
            raise ValueError(
                f"{folder} lacks {len(missing)} of {mach.n_repeats} repetitions, first {missing[0]}"
            )
        mach.n_labels_, mach.n_features_in_ = n_labels, n_features
        shape = (mach.n_buckets, n_features)
        mach.models_ = [
            _repeats.load(_store.repeat_path(folder, r), shape, mmap=mmap, verify=verify)
            for r in range(mach.n_repeats)
        ]
        return mach

    def _range(
        self, repeats: tuple[int, int] | None, checkpoint: str | os.PathLike[str] | None
    ) -> tuple[int, int]:
        self._check()
        start, stop = (0, self.n_repeats) if repeats is None else (int(repeats[0]), int(repeats[1]))
        if not 0 <= start < stop <= self.n_repeats:
            raise ValueError(f"repeats must be a range inside (0, {self.n_repeats}), got ({start}, {stop})")
        if checkpoint is None and (start, stop) != (0, self.n_repeats):
            raise ValueError("repeats needs a checkpoint folder to put them in")
        return start, stop

    def _check(self) -> None:
        check_sizes(self.n_buckets, self.n_repeats)
        if self.aggregate not in AGGREGATES:
            raise ValueError(f"aggregate must be one of {', '.join(AGGREGATES)}, got {self.aggregate!r}")
        if self.outputs not in _OUTPUTS:
            raise ValueError(f"outputs must be one of {', '.join(_OUTPUTS)}, got {self.outputs!r}")
        if self.aggregate == "unbiased" and self.outputs == "logit":
            raise ValueError("aggregate 'unbiased' is for probabilities, got outputs 'logit'")

    def _check_fitted(self) -> None:
        check_is_fitted(self, "models_")
        self._check()
        if len(self.models_) != self.n_repeats:
            raise ValueError(
                f"{len(self.models_)} of {self.n_repeats} repetitions are here: fit all, or load the checkpoint"
            )

    def _settings(self) -> dict[str, Any]:
        return {
            "n_buckets": int(self.n_buckets),
            "n_repeats": int(self.n_repeats),
            "aggregate": self.aggregate,
            "outputs": self.outputs,
            "random_state": int(self.random_state),
            "n_labels": self.n_labels_,
            "n_features": self.n_features_in_,
            "base": " ".join(str(self.base).split()),
        }
