"""A linear model with few non-zero weights: scores = X Wᵀ, kept in blocks of labels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast import _core, _folder
from xmc_fast._threads import resolve_threads
from xmc_fast._validate import Csr, at_least, features, labels, to_scipy
from xmc_fast._work import check_engine
from xmc_fast.model._calibrate import Calibration, fit_calibration, is_relevant, sigmoid
from xmc_fast.model._compress import compress
from xmc_fast.model._concat import concat
from xmc_fast.model._files import load_model, write_model
from xmc_fast.model._layout import StoredLayout
from xmc_fast.model._names import ROLES, NamesFile, check_names, names_of
from xmc_fast.model._near import NearIndex, NearMixin, check_recall, near_topk
from xmc_fast.model._packed import Packed
from xmc_fast.model._predict import NONE, build_layout, one_row, padded_calibration, top_csr
from xmc_fast.model._storage import Block, block_path, check_block, joined


class SparseModel(NearMixin):
    """One weight vector per label, sparse, in blocks of consecutive labels.

    The score of label l for a row x is ``w_l · x``, with x l2-normalised first if ``normalize``, then
    extended by the constant feature ``bias`` if there is one.

    Parameters
    ----------
    weights : scipy sparse matrix or Block, or a list of them, or another model's ``weights``
        n_labels x n_columns, n_columns = n_features (+ 1 with a bias: the last column is its weight). A list
        holds consecutive labels.
    bias : float, optional
        Value of the constant feature.
    normalize : bool
        Whether rows are l2-normalised before scoring.
    params : dict, optional
        Training parameters, for the record; must be JSON.
    feature_names, label_names : sequence of str, optional
        Travel with the model.

    Examples
    --------
    >>> import numpy as np, scipy.sparse as sp
    >>> model = SparseModel(sp.csr_matrix(np.array([[1.0, 0.0], [0.5, 2.0], [0.0, -1.0]])))
    >>> top = model.predict(np.array([[1.0, 1.0]]), k=2)
    >>> top.indices, top.data
    (array([1, 0], dtype=int32), array([2.5, 1. ], dtype=float32))
    """

    def __init__(
        self,
        weights: Any,
        *,
        bias: float | None = None,
        normalize: bool = False,
        params: dict[str, Any] | None = None,
        feature_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        one = isinstance(weights, (Packed, StoredLayout))
        self.weights: Packed | StoredLayout | list[Block] = weights if one else joined(weights)
        self.bias = None if bias is None else float(bias)
        if self.bias is not None and not np.isfinite(self.bias):
            raise ValueError(f"bias must be finite, got {bias}")
        self.normalize = bool(normalize)
        self.params = dict(params or {})
        parts = self.weights if isinstance(self.weights, list) else [self.weights]
        self.n_labels = sum(part.n_labels for part in parts)
        self.n_columns = parts[0].n_columns
        self.n_features = self.n_columns - (self.bias is not None)
        if self.n_features < 0:
            raise ValueError("weights have no column for the bias")
        self.folder: Path | None = None  # it was loaded from there
        self._layout: _core.PredictLayout | None = None  # made at the first predict of blocks
        self._blocks: list[Block] | None = None  # checked, or made from the stored form
        self._calibration: Calibration | None = None
        self.near_index: NearIndex | None = None
        self._padded: tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]] | None = None
        self._names: dict[str, list[str] | NamesFile | None] = {
            "feature_names": check_names("feature_names", feature_names, self.n_features),
            "label_names": check_names("label_names", label_names, self.n_labels),
        }

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the prediction layout, which is built anew where it is needed."""
        names = {role: getattr(self, role) for role in ROLES}
        return {**self.__dict__, "_names": names, "_layout": None, "_blocks": None, "_padded": None}

    def __repr__(self) -> str:
        return (
            f"SparseModel(n_labels={self.n_labels}, n_features={self.n_features}, nnz={self.nnz},"
            f" bias={self.bias}, normalize={self.normalize}, compressed={self.compressed})"
        )

    @property
    def compressed(self) -> bool:
        """Whether the weights are in the small form (see `compress`)."""
        return isinstance(self.weights, Packed)

    @property
    def blocks(self) -> list[Block]:
        """The weights as blocks of labels. Those of a saved model are made from its file on first use and kept."""
        blocks = self._blocks
        if blocks is None:
            if isinstance(self.weights, list):
                blocks = self.weights
                for number, block in enumerate(blocks):  # not from a file, or mapped: it may have changed
                    check_block(block, None if self.folder is None else block_path(self.folder, number))
            else:
                blocks = self.weights.blocks()
            self._blocks = blocks
        return blocks

    @property
    def nnz(self) -> int:
        """Number of stored weights."""
        return (
            sum(block.nnz for block in self.weights) if isinstance(self.weights, list) else self.weights.nnz
        )

    @property
    def density(self) -> float:
        """Stored weights / all weights."""
        return self.nnz / max(1, self.n_labels * self.n_columns)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights in memory (mapped or not)."""
        if isinstance(self.weights, list):
            return sum(block.nbytes for block in self.weights)
        return self.weights.nbytes

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type the weights are stored in: float32, float16, or uint8 of a compressed model."""
        if isinstance(self.weights, list):
            return np.dtype(self.weights[0].data.dtype)
        return np.dtype(np.uint8 if self.compressed else np.float32)

    @property
    def feature_names(self) -> list[str] | None:
        """Name of each feature, if known (read from disk on first use)."""
        return names_of(self._names, "feature_names", self.n_features)

    @property
    def label_names(self) -> list[str] | None:
        """Name of each label, if known (read from disk on first use)."""
        return names_of(self._names, "label_names", self.n_labels)

    def to_csr(self) -> sp.csr_matrix:
        """All weights as one scipy CSR float32, n_labels x n_columns."""
        if len(self.blocks) == 1:
            return self.blocks[0].to_csr()
        starts = np.cumsum([0] + [block.nnz for block in self.blocks])
        indptr = [block.indptr[:-1] + start for block, start in zip(self.blocks, starts, strict=False)]
        return to_scipy(
            np.concatenate([*indptr, starts[-1:]]),
            np.concatenate([block.indices.astype(np.int32, copy=False) for block in self.blocks]),
            np.concatenate([block.data.astype(np.float32, copy=False) for block in self.blocks]),
            (self.n_labels, self.n_columns),
        )

    def astype(self, dtype: npt.DTypeLike) -> SparseModel:
        """The model with weights stored as float32 or float16."""
        wanted = np.dtype(dtype)
        if wanted not in (np.dtype(np.float32), np.dtype(np.float16)):
            raise ValueError(f"dtype must be float32 or float16, got {wanted}")
        blocks = [
            Block(b.first_label, b.n_columns, b.indptr, b.indices, b.data.astype(wanted)) for b in self.blocks
        ]
        model = self._with(blocks)
        model.calibration = self.calibration
        return model

    def prune(self, delta: float) -> SparseModel:
        """The model without weights of absolute value below ``delta`` (DiSMEC's Δ); the bias stays, a
        calibration does not (the scores are other ones)."""
        if not delta >= 0:
            raise ValueError(f"delta must be at least 0, got {delta}")
        return self._with([b.select(np.abs(b.data) >= delta, self._always()) for b in self.blocks])

    def keep_top(self, k: int) -> SparseModel:
        """The model with the ``k`` weights of largest absolute value per label; the bias stays besides, a
        calibration does not.

        Among equal ones the lower column is kept.
        """
        if k < 0:
            raise ValueError(f"k must be at least 0, got {k}")
        return self._with([b.select(b.largest(k, self._always()), self._always()) for b in self.blocks])

    @staticmethod
    def concat(models: Sequence[SparseModel]) -> SparseModel:
        """One model with the labels of several, in order (shards of labels trained apart)."""
        model: SparseModel = concat(models)
        return model

    def compress(
        self,
        X: Any = None,
        Y: Any = None,
        *,
        max_loss: float = 0.1,
        delta: float | None = None,
        max_bytes: int | None = None,
        n_jobs: int | None = None,
    ) -> SparseModel:
        """The model in the small form: fewer weights, one byte each, predicting as it is stored.

        Weights are rounded to multiples of 1/127 of their label's largest, values of a row to 1/32,767 of its largest.
        Weights below a threshold go: ``delta`` if given; else with ``max_bytes`` the smallest that fits; else with
        held-out rows the largest that costs at most ``max_loss``; else 0.03.

        Parameters
        ----------
        X, Y : n x n_features, n x n_labels, optional
            Rows the model was not trained on, and their relevant labels.
        max_loss : float
            Points (of 100) of P@1, of P@3 and of P@5 that may be lost, by the best rising curves through what these
            rows lose at twelve thresholds. A tenth of a point takes tens of thousands of rows to tell.
        delta : float, optional
            The threshold; the bias stays.
        max_bytes : int, optional
            The weights take at most so many bytes.

        Returns
        -------
        A new model. Its scores are other ones: a calibration is fitted anew on held-out rows, else it is dropped.
        ``params["compressed_at"]`` is the threshold: one that was chosen on a part of the rows suits a model of all.

        Examples
        --------
        >>> import numpy as np, scipy.sparse as sp
        >>> model = SparseModel(sp.csr_matrix(np.array([[1.0, 0.01], [0.5, 2.0]])))
        >>> small = model.compress()
        >>> small.nnz, small.to_csr().toarray().round(2)
        (3, array([[1. , 0. ], [0.5, 2. ]], dtype=float32))
        """
        options: dict[str, Any] = {"max_loss": max_loss, "delta": delta, "max_bytes": max_bytes}
        small: SparseModel = compress(self, X, Y, **options, n_jobs=n_jobs)
        return small

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write the model as a folder (docs/howto/file_format.md); an older model there is replaced."""
        with _folder.replace_folder(directory) as folder:
            self.write(folder)

    def write(
        self,
        folder: Path,
        *,
        feature_names: Sequence[str] | None = None,
        files: dict[str, str] | None = None,
        kind: str = "sparse_model",
        by_label: bool = False,
    ) -> None:
        """Write the model's files into an existing folder (`save` does it safely).

        ``feature_names`` replaces the model's; ``files`` (role -> name) are other files already there; ``kind``
        is what `xmc_fast.load` opens the folder as. ``by_label`` stores an exact model as blocks, for a reader that
        uses the weights by label.
        """
        write_model(self, folder, feature_names=feature_names, files=files, kind=kind, by_label=by_label)

    @classmethod
    @_folder.opening
    def load(
        cls, directory: str | os.PathLike[str], *, mmap: bool = True, verify: bool = False
    ) -> SparseModel:
        """Open a model folder.

        Parameters
        ----------
        directory : path
            What `save` or `write_manifest` made.
        mmap : bool
            Map the weights instead of reading them: opens at once, processes share the pages.
        verify : bool
            Read every byte and check it. Missing and truncated files are noticed in any case, and so is what
            could make prediction read wrong memory.
        """
        model: SparseModel = load_model(cls, directory, mmap=mmap, verify=verify)
        return model

    def prepare(self, *, n_jobs: int | None = None) -> SparseModel:
        """Build the prediction layout now instead of at the first `predict`; returns the model.

        A model that was saved in this version, or compressed, is stored as it predicts and needs none.
        """
        self._prepared(n_jobs)
        return self

    def _prepared(self, n_jobs: int | None) -> _core.PredictLayout | _core.PackedModel:
        if not isinstance(self.weights, list):
            return self.weights.opened
        layout = self._layout
        if layout is None:  # threads that come here at once make the same one
            layout = self._layout = build_layout(self.blocks, self.n_labels, self.n_columns, n_jobs)
        return layout

    def predict(
        self,
        X: Any,
        k: int = 5,
        *,
        proba: bool = False,
        recall: float = 1.0,
        n_jobs: int | None = None,
        engine: Any = None,
    ) -> sp.csr_matrix:
        """The ``k`` best labels of each row, exact or nearly so.

        Parameters
        ----------
        X : scipy sparse matrix or array, n x n_features
        k : int
            Labels per row; at most n_labels are given.
        proba : bool
            Rank by and return calibrated probabilities instead of scores (see `calibrate`).
        recall : float
            Below 1: faster, exact scores of at least this share of the exact labels, measured by `build_near_index`.
        n_jobs : int, optional
            Threads; results have the same bits for any number.
        engine : from `xmc_fast.engine.connect`, optional
            Predict shards of the labels on its workers and merge.

        Returns
        -------
        scipy CSR n x n_labels of scores, min(k, n_labels) entries per row, best first (score descending,
        then lower label; NaN last).

        Notes
        -----
        A batch's scores take at most 192 MiB, 32 to 96 MiB a thread (above six threads more), kept for the next call.
        """
        engine = check_engine(engine)
        check_recall(recall, proba, engine)
        if engine is not None:
            return engine.predict(self, X, k, proba=proba, n_jobs=n_jobs)
        x, threads = features(X, n_features=self.n_features), resolve_threads(n_jobs)
        given = near_topk(self, x, k, recall, threads) if recall < 1 else self._topk(x, k, proba, threads)
        return top_csr(*given, x.shape[0], self.n_labels)

    def predict_one(
        self, x: Any, k: int = 5, *, proba: bool = False
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """The ``k`` best labels of one row and their scores, with little overhead.

        ``x`` is a pair (columns ascending, values), a 1 x n_features matrix or an array of n_features.

        Examples
        --------
        >>> import numpy as np, scipy.sparse as sp
        >>> model = SparseModel(sp.csr_matrix(np.array([[1.0, 0.0], [0.5, 2.0]])))
        >>> model.predict_one(([1], [2.0]), k=1)
        (array([1], dtype=int32), array([4.], dtype=float32))
        """
        return self._topk(one_row(x, self.n_features), k, proba, 1)

    def _topk(
        self, x: Csr, k: int, proba: bool, threads: int
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        if k < 0:
            raise ValueError(f"k must be at least 0, got {k}")
        layout = self._prepared(threads)
        scale, shift = self._calibration_arrays() if proba else (NONE, NONE)
        ids, scores = layout.topk(x, self.normalize, self.bias, scale, shift, int(k), threads)
        return ids, (sigmoid(scores) if proba else scores)

    def calibrate(
        self,
        X: Any,
        Y: Any,
        *,
        candidates: int = 100,
        min_positives: int = 5,
        prior_strength: float = 5.0,
        n_jobs: int | None = None,
    ) -> SparseModel:
        """Fit probabilities on held-out rows (see `xmc_fast.model.calibrate`); returns the model.

        Parameters
        ----------
        X, Y : n x n_features, n x n_labels
            Rows the model was not trained on, and their relevant labels.
        candidates : int
            Top labels of each row that the fit looks at.
        min_positives : int
            A label that is relevant at least so often among the candidates gets its own sigmoid.
        prior_strength : float
            How strongly that one is held at the model's common one (precision of the Gaussian prior).
        """
        truth = labels(Y, n_labels=self.n_labels)
        at_least(1, candidates=candidates)
        top = self.predict(X, candidates, n_jobs=n_jobs)
        if truth.shape[0] != top.shape[0]:
            raise ValueError(f"X has {top.shape[0]} rows, Y has {truth.shape[0]}")
        self.calibration = fit_calibration(
            top.data,
            top.indices,
            is_relevant(top, truth),
            self.n_labels,
            min_positives=min_positives,
            prior_strength=prior_strength,
        )
        return self

    @property
    def calibration(self) -> Calibration | None:
        """The fitted calibration, if any."""
        return self._calibration

    @calibration.setter
    def calibration(self, calibration: Calibration | None) -> None:
        if calibration is not None and not len(calibration.scale) == len(calibration.shift) == self.n_labels:
            raise ValueError(
                f"calibration is for {len(calibration.scale)} labels, the model has {self.n_labels}"
            )
        self._calibration = calibration
        self._padded = None

    def _calibration_arrays(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        padded = self._padded
        if padded is None:
            stored = self._layout if isinstance(self.weights, list) else self.weights
            padded = self._padded = padded_calibration(self._calibration, stored)
        return padded

    def _always(self) -> int:
        """The column that pruning leaves alone, -1: none."""
        return -1 if self.bias is None else self.n_columns - 1

    def _with(self, weights: list[Block] | Packed | StoredLayout) -> SparseModel:
        """This model with other weights."""
        model = SparseModel(weights, bias=self.bias, normalize=self.normalize, params=self.params)
        model._names = dict(self._names)
        return model

    def set_names_file(self, role: str, path: Path) -> None:
        """Where the names of a role ("feature_names" or "label_names") are, for their first use."""
        self._names[role] = NamesFile.at(path)
