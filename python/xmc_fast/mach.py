"""MACH: merged-average classifiers via hashing, extreme classification in logarithmic memory.

R hash functions send L labels to B buckets each; R small models are trained for the buckets, without a word to
each other; a label's score is the mean (or min, or median) of its R buckets' scores.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted

from xmc_fast import _core
from xmc_fast._arrays import features, labels, to_scipy
from xmc_fast._files import write_text
from xmc_fast._progress import progress
from xmc_fast._threads import resolve_threads
from xmc_fast.model import SparseModel

_MANIFEST = "mach.json"
_AGGREGATES = {"mean": 0, "unbiased": 0, "min": 1, "median": 2}
_BATCH_BYTES = 256 << 20


class Mach(BaseEstimator):  # type: ignore[misc]
    """Merged-average classifiers via hashing.

    Parameters
    ----------
    n_buckets : int
        B, at most 65,536.
    n_repeats : int
        R, at most 256. Memory is R · B weight vectors; see `choose_buckets`.
    base : estimator, optional
        Cloned and fitted once per repetition on (X, bucket matrix). By default `xmc_fast.linear.OneVsAll`.
        Any other needs ``fit(X, Y)`` and ``decision_function(X)`` (n, B); it cannot be saved unless it has a
        ``model_`` that is a `SparseModel`.
    aggregate : "mean", "unbiased", "min" or "median"
        Of the R bucket scores of a label. "unbiased" is B/(B-1) · (mean - 1/B), for multiclass probabilities;
        "min" is the count-min estimate.
    outputs : "probability" or "logit"
        Aggregate sigmoid(score) or the score itself.
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

    def __init__(
        self,
        n_buckets: int = 1000,
        n_repeats: int = 16,
        *,
        base: Any = None,
        aggregate: str = "mean",
        outputs: str = "probability",
        n_jobs: int | None = None,
        random_state: int = 0,
    ) -> None:
        self.n_buckets = n_buckets
        self.n_repeats = n_repeats
        self.base = base
        self.aggregate = aggregate
        self.outputs = outputs
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(
        self,
        X: Any,
        Y: Any,
        *,
        repeats: tuple[int, int] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> Mach:
        """Train the repetitions.

        Parameters
        ----------
        X : (n, D) features, whatever the base takes
        Y : (n, L) binary labels, sparse or dense, or (n,) class ids
        repeats : (start, stop), optional
            Train these repetitions only, into the ``checkpoint``: a job of its own.
        checkpoint : path, optional
            Folder where repetitions are stored as they finish; those already there are not trained again. With
            all of them there it is a model folder for `load`.
        """
        self._check()
        y = _label_matrix(Y)
        start, stop = (0, self.n_repeats) if repeats is None else (int(repeats[0]), int(repeats[1]))
        if not 0 <= start < stop <= self.n_repeats:
            raise ValueError(f"repeats must be a range inside (0, {self.n_repeats}), got ({start}, {stop})")
        if checkpoint is None and (start, stop) != (0, self.n_repeats):
            raise ValueError("repeats needs a checkpoint folder to put them in")
        folder = None if checkpoint is None else Path(checkpoint)
        self.n_labels_, self.n_features_in_ = int(y.shape[1]), int(X.shape[1])
        if folder is not None:
            self._open(folder)
        self.models_: list[Any] = []
        with progress(stop - start, unit="repeat", desc="Mach") as bar:
            for r in range(start, stop):
                path = None if folder is None else folder / _name(r)
                if path is None or not path.is_dir():
                    buckets = bucket_matrix(
                        y, self.n_buckets, r, random_state=self.random_state, n_jobs=self.n_jobs
                    )
                    model = _fit_base(self.base, X, buckets)
                    if path is not None:
                        _sparse(model).save(path)
                if path is not None:
                    model = SparseModel.load(path)
                self.models_.append(model)
                bar.update(1)
        return self

    def predict(self, X: Any, k: int = 5, *, top_buckets: int | None = None) -> sp.csr_matrix:
        """The k best labels.

        Parameters
        ----------
        X : (n, D)
        k : int
        top_buckets : int, optional
            Score only labels in one of the so many best buckets of some repetition: faster, may miss labels.

        Returns
        -------
        scipy CSR (n, L) of the aggregated scores, k per row, best first.
        """
        self._check_fitted()
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        k = min(int(k), self.n_labels_)
        rows = int(X.shape[0])
        table = self._table()
        inverted = None
        if top_buckets is not None:
            if top_buckets < 1:
                raise ValueError(f"top_buckets must be at least 1, got {top_buckets}")
            inverted = _core.invert_table(table, self.n_buckets, resolve_threads(self.n_jobs))
        size = max(16, _BATCH_BYTES // (4 * self.n_repeats * self.n_buckets) // 16 * 16)
        parts = []
        matrix = X.tocsr() if sp.issparse(X) else X
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
        """What the R models say, (R, n, B): probabilities or logits, as ``outputs`` asks."""
        self._check_fitted()
        p = np.empty((self.n_repeats, int(X.shape[0]), self.n_buckets), np.float32)
        for r, model in enumerate(self.models_):
            p[r] = _scores(model, X, self.n_buckets)
        if self.outputs == "probability":
            with np.errstate(over="ignore"):
                np.negative(p, out=p)
                np.exp(p, out=p)
                p += 1
                np.reciprocal(p, out=p)
        return p

    @property
    def nbytes(self) -> int:
        """Bytes of the R models' weights."""
        self._check_fitted()
        return sum(_sparse(model).nbytes for model in self.models_)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write a folder: mach.json and a model folder per repetition (no pickle)."""
        self._check_fitted()
        models = [_sparse(model) for model in self.models_]
        target = Path(directory)
        _refuse_foreign(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
            folder = Path(scratch) / "new"
            self._open(folder)
            for r, model in enumerate(models):
                model.save(folder / _name(r))
            if target.is_dir():
                os.rename(target, Path(scratch) / "old")
            os.rename(folder, target)

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> Mach:
        """Open what `save`, or `fit` with a checkpoint, made; weights are mapped."""
        folder = Path(directory)
        path = folder / _MANIFEST
        if not path.is_file():
            raise ValueError(f"{folder} is not a Mach model: {_MANIFEST} is missing")
        settings = json.loads(path.read_text(encoding="utf-8"))
        if settings.pop("format") != 1:
            raise ValueError(f"{path} has a format this version does not know")
        n_labels, n_features = settings.pop("n_labels"), settings.pop("n_features")
        settings.pop("base")
        mach = cls(**settings)
        missing = [r for r in range(mach.n_repeats) if not (folder / _name(r)).is_dir()]
        if missing:
            raise ValueError(
                f"{folder} lacks {len(missing)} of {mach.n_repeats} repetitions, first {missing[0]}"
            )
        mach.n_labels_, mach.n_features_in_ = n_labels, n_features
        mach.models_ = [SparseModel.load(folder / _name(r)) for r in range(mach.n_repeats)]
        return mach

    def _table(self) -> npt.NDArray[np.uint16]:
        return bucket_table(
            self.n_labels_, self.n_buckets, self.n_repeats, random_state=self.random_state, n_jobs=self.n_jobs
        )

    def _check(self) -> None:
        _check_sizes(self.n_buckets, self.n_repeats)
        if self.aggregate not in _AGGREGATES:
            raise ValueError(f"aggregate must be one of {', '.join(_AGGREGATES)}, got {self.aggregate!r}")
        if self.outputs not in ("probability", "logit"):
            raise ValueError(f"outputs must be 'probability' or 'logit', got {self.outputs!r}")
        if self.aggregate == "unbiased" and self.outputs == "logit":
            raise ValueError("aggregate 'unbiased' is for probabilities, got outputs 'logit'")

    def _check_fitted(self) -> None:
        check_is_fitted(self, "models_")
        self._check()
        if len(self.models_) != self.n_repeats:
            raise ValueError(
                f"{len(self.models_)} of {self.n_repeats} repetitions are here: fit all, or load the checkpoint"
            )

    def _open(self, folder: Path) -> None:
        """Make the folder, or see that it is of the same model."""
        base = self.base if self.base is not None else "OneVsAll()"
        settings = {
            "format": 1,
            "n_buckets": int(self.n_buckets),
            "n_repeats": int(self.n_repeats),
            "aggregate": self.aggregate,
            "outputs": self.outputs,
            "random_state": int(self.random_state),
            "n_labels": self.n_labels_,
            "n_features": self.n_features_in_,
            "base": " ".join(str(base).split()),
        }
        path = folder / _MANIFEST
        if path.is_file():
            old = json.loads(path.read_text(encoding="utf-8"))
            for name, value in settings.items():
                if old.get(name) != value:
                    raise ValueError(
                        f"{folder} is of another fit: {name} is {old.get(name)!r} there, {value!r} here"
                    )
            return
        _refuse_foreign(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(settings, indent=1) + "\n")


def bucket_table(
    n_labels: int, n_buckets: int, n_repeats: int, *, random_state: int = 0, n_jobs: int | None = None
) -> npt.NDArray[np.uint16]:
    """The buckets of all labels, (R, L) uint16.

    With 64-bit unsigned arithmetic, s = mix64(seed), a = mix64(s + 2r), b = mix64(s + 2r + 1) (splitmix64's
    finaliser): bucket = (((a · label + b) >> 32) · B) >> 32, a 2-universal family.

    >>> bucket_table(5, 3, 2).shape
    (2, 5)
    """
    _check_sizes(n_buckets, n_repeats)
    threads = resolve_threads(n_jobs)
    return _core.mach_table(int(random_state) % 2**64, int(n_repeats), int(n_labels), int(n_buckets), threads)


def bucket_matrix(
    Y: Any, n_buckets: int, repeat: int, *, random_state: int = 0, n_jobs: int | None = None
) -> sp.csr_matrix:
    """The labels of each row hashed: (n, B) binary CSR, bucket b where one of the row's labels falls into b.

    >>> import numpy as np
    >>> bucket_matrix(np.eye(4), 8, 0).sum()
    np.float32(4.0)
    """
    _check_sizes(n_buckets, repeat + 1)
    y = labels(Y)
    indptr, indices = _core.bucket_matrix(
        y.shape[1],
        y.indptr,
        y.indices,
        int(random_state) % 2**64,
        int(repeat),
        int(n_buckets),
        resolve_threads(n_jobs),
    )
    return to_scipy(indptr, indices, np.ones(len(indices), np.float32), (y.shape[0], int(n_buckets)))


def aggregate_topk(
    p: npt.NDArray[np.float32],
    table: npt.NDArray[np.uint16],
    k: int,
    *,
    aggregate: str = "mean",
    top_buckets: int | None = None,
    inverted: tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]] | None = None,
    n_jobs: int | None = None,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """The k best labels by their aggregated bucket scores, exact, without an (n, L) array.

    Parameters
    ----------
    p : (R, n, B) scores of the buckets
    table : (R, L), see `bucket_table`
    k : int
    aggregate : as in `Mach`
    top_buckets : score only labels in one of the so many best buckets of some repetition
    inverted : the table by bucket, made when not given
    n_jobs : threads

    Returns
    -------
    ids (n, k) int32 and scores (n, k) float32, best first; with ``top_buckets`` missing ones are -1 and -inf.
    """
    if aggregate not in _AGGREGATES:
        raise ValueError(f"aggregate must be one of {', '.join(_AGGREGATES)}, got {aggregate!r}")
    p, table = np.ascontiguousarray(p, np.float32), np.ascontiguousarray(table, np.uint16)
    if p.ndim != 3 or table.ndim != 2 or p.shape[0] != table.shape[0]:
        raise ValueError(f"p must be (R, n, B) and table (R, L), got {p.shape} and {table.shape}")
    if not 1 <= k <= table.shape[1]:
        raise ValueError(f"k must be in 1..{table.shape[1]}, got {k}")
    if table.size and int(table.max()) >= p.shape[2]:
        raise ValueError(f"table has bucket {int(table.max())}, p has {p.shape[2]} buckets")
    threads, kind = resolve_threads(n_jobs), _AGGREGATES[aggregate]
    if top_buckets is None:
        ids, scores = _core.mach_topk(p, table, kind, int(k), threads)
    else:
        offsets, by_bucket = inverted or _core.invert_table(table, p.shape[2], threads)
        ids, scores = _core.mach_topk_candidates(
            p, table, offsets, by_bucket, kind, int(top_buckets), int(k), threads
        )
    if aggregate == "unbiased":
        B = p.shape[2]
        scores = ((scores - np.float32(1 / B)) * np.float32(B / max(B - 1, 1))).astype(np.float32)
    return ids, scores


class BucketChoice(NamedTuple):
    """B and R, what they cost and how often they fail."""

    n_buckets: int
    n_repeats: int
    nbytes: int
    error: float  # bound on the probability, see `error_bound`


def error_bound(n_labels: int, n_buckets: int, n_repeats: int, *, labels_per_row: float = 1) -> float:
    """A bound on the probability that R perfect bucket models do not tell a row's labels.

    The larger of two union bounds: some pair of labels shares all its buckets, L²/2 · B^-R (labels that no row
    could tell apart); and some other label has all its buckets among those of the row's m labels,
    L · (1 - (1 - 1/B)^m)^R (the count-min bound).

    >>> error_bound(670_091, 10_000, 4) < 1e-3 < error_bound(670_091, 10_000, 2)
    True
    """
    if n_buckets < 2:
        return 1.0
    pairs = 2 * math.log(max(n_labels, 1)) - math.log(2) - n_repeats * math.log(n_buckets)
    hit = -math.expm1(labels_per_row * math.log1p(-1 / n_buckets))
    false = math.log(max(n_labels, 1)) + n_repeats * math.log(hit)
    return min(1.0, math.exp(min(max(pairs, false), 0.0)))


def choose_buckets(
    n_labels: int,
    memory: int,
    *,
    bytes_per_bucket: float,
    error: float = 0.01,
    labels_per_row: float = 5,
    min_repeats: int = 1,
) -> BucketChoice:
    """B and R for a memory budget: the fewest repetitions (so the most buckets) that keep the error bound.

    Parameters
    ----------
    n_labels : L
    memory : bytes that R · B weight vectors may take
    bytes_per_bucket : of one weight vector: 4 · n_features if dense, 8 per weight if sparse
    error : the largest `error_bound`
    labels_per_row : mean number of labels of a row
    min_repeats : more repetitions average out the errors of the models, too

    Examples
    --------
    >>> choose_buckets(670_091, 2 << 30, bytes_per_bucket=8_000, min_repeats=8)[:2]
    (33554, 8)
    """
    if not 0 < error < 1:
        raise ValueError(f"error must be between 0 and 1, got {error}")
    for repeats in range(max(int(min_repeats), 1), 257):
        buckets = min(int(memory / bytes_per_bucket / repeats), n_labels, 65536)
        if buckets < 2:
            break
        bound = error_bound(n_labels, buckets, repeats, labels_per_row=labels_per_row)
        if bound <= error:
            return BucketChoice(buckets, repeats, int(buckets * repeats * bytes_per_bucket), bound)
    raise ValueError(
        f"no (B, R) within {memory} bytes keeps the error of {n_labels} labels below {error}: give more memory"
    )


def _check_sizes(n_buckets: int, n_repeats: int) -> None:
    if not 1 <= n_buckets <= 65536:
        raise ValueError(f"n_buckets must be in 1..65536, got {n_buckets}")
    if not 1 <= n_repeats <= 256:
        raise ValueError(f"n_repeats must be in 1..256, got {n_repeats}")


def _label_matrix(Y: Any) -> sp.csr_matrix:
    """A label matrix as it is, class ids as one-hot rows."""
    if sp.issparse(Y) or np.ndim(Y) != 1:
        y = labels(Y)
        return to_scipy(y.indptr, y.indices, np.ones(len(y.indices), np.float32), y.shape)
    classes = np.asarray(Y)
    if classes.dtype.kind not in "iu" or (classes.size and int(classes.min()) < 0):
        raise ValueError(f"Y must be a label matrix or class ids 0, 1, ..., got an array of {classes.dtype}")
    shape = (len(classes), int(classes.max()) + 1 if classes.size else 0)
    return to_scipy(
        np.arange(len(classes) + 1), classes.astype(np.int32), np.ones(len(classes), np.float32), shape
    )


def _fit_base(base: Any, X: Any, buckets: sp.csr_matrix) -> Any:
    model = importlib.import_module("xmc_fast.linear").OneVsAll() if base is None else clone(base)
    model.fit(X, buckets)
    own = getattr(model, "model_", None)
    return own if isinstance(own, SparseModel) else model


def _scores(model: Any, X: Any, n_buckets: int) -> npt.NDArray[np.float32]:
    if not isinstance(model, SparseModel):
        scores = np.asarray(model.decision_function(X), np.float32)
        if scores.shape != (X.shape[0], n_buckets):
            raise ValueError(
                f"the base gives scores of shape {scores.shape}, expected {(X.shape[0], n_buckets)}"
            )
        return scores
    x = features(X, n_features=model.n_features)
    rows = to_scipy(*x)
    if model.normalize:
        norms = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1), np.float64)).ravel()
        scale = (1 / np.where(norms > 0, norms, 1)).astype(np.float32)
        rows = to_scipy(x.indptr, x.indices, x.data * np.repeat(scale, np.diff(x.indptr)), x.shape)
    W = model.to_csr()
    if model.bias is None:
        return np.asarray((rows @ W.T).toarray(), np.float32)
    scores = np.asarray((rows @ W[:, :-1].T).toarray(), np.float32)
    scores += np.float32(model.bias) * W[:, -1].toarray().ravel().astype(np.float32)
    return scores


def _sparse(model: Any) -> SparseModel:
    if not isinstance(model, SparseModel):
        raise TypeError(
            f"a Mach of {type(model).__name__} cannot be stored: its base has no SparseModel in model_"
        )
    return model


def _refuse_foreign(folder: Path) -> None:
    if (
        folder.exists()
        and not (folder / _MANIFEST).is_file()
        and (not folder.is_dir() or any(folder.iterdir()))
    ):
        raise ValueError(f"{folder} exists and is not a Mach model: it is not overwritten")


def _name(repeat: int) -> str:
    return f"repeat_{repeat:04d}"
