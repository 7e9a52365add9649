"""A linear model with few non-zero weights: scores = X Wᵀ, kept in blocks of labels."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast import _core, _folder
from xmc_fast._arrays import Csr, features, labels, to_scipy
from xmc_fast._files import write_text
from xmc_fast._folder import ModelFormatError
from xmc_fast._threads import resolve_threads
from xmc_fast._work import check_engine
from xmc_fast.model import _storage
from xmc_fast.model._calibrate import (
    Calibration,
    fit_calibration,
    is_relevant,
    read_calibration,
    sigmoid,
    write_calibration,
)
from xmc_fast.model._predict import FORMAT, NONE, build_layout, in_layout, one_row, top_csr
from xmc_fast.model._storage import Block
from xmc_fast.model._tensors import Tensors, read_tensors, write_tensors

_NAMES = ("feature_names", "label_names")


class SparseModel:
    """One weight vector per label, sparse, in blocks of consecutive labels.

    The score of label l for a row x is ``w_l · x``, with x l2-normalised first if ``normalize``, then
    extended by the constant feature ``bias`` if there is one.

    Parameters
    ----------
    weights : scipy sparse matrix or Block, or a list of them
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
        parts = list(weights) if isinstance(weights, (list, tuple)) else [weights]
        if not parts:
            raise ValueError("weights must hold at least one block, got an empty list")
        self.blocks: list[Block] = []
        first = 0
        for part in parts:
            block = part if isinstance(part, Block) else Block.from_csr(part, first)
            if block.first_label != first:
                raise ValueError(f"a block starts at label {block.first_label}, expected {first}")
            if block.n_columns != parts_columns(parts):
                raise ValueError(
                    f"a block has {block.n_columns} columns, the first one has {parts_columns(parts)}"
                )
            self.blocks.append(block)
            first += block.n_labels
        self.bias = None if bias is None else float(bias)
        if self.bias is not None and not np.isfinite(self.bias):
            raise ValueError(f"bias must be finite, got {bias}")
        self.normalize = bool(normalize)
        self.params = dict(params or {})
        self.n_labels = first
        self.n_columns = self.blocks[0].n_columns
        self.n_features = self.n_columns - (self.bias is not None)
        if self.n_features < 0:
            raise ValueError("weights have no column for the bias")
        self.folder: Path | None = None  # it was loaded from there
        self._layout: _core.PredictLayout | None = None  # made by prepare()
        self._stored: Tensors | None = None  # a layout's arrays on disk
        self._calibration: Calibration | None = None
        self._padded: tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]] | None = None
        self._names: dict[str, list[str] | Path | None] = {
            "feature_names": _check_names("feature_names", feature_names, self.n_features),
            "label_names": _check_names("label_names", label_names, self.n_labels),
        }

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the prediction layout, which is built anew where it is needed."""
        names = {role: getattr(self, role) for role in _NAMES}
        return {**self.__dict__, "_names": names, "_layout": None, "_stored": None, "_padded": None}

    def __repr__(self) -> str:
        return (
            f"SparseModel(n_labels={self.n_labels}, n_features={self.n_features}, nnz={self.nnz},"
            f" bias={self.bias}, normalize={self.normalize}, blocks={len(self.blocks)})"
        )

    @property
    def nnz(self) -> int:
        """Number of stored weights."""
        return sum(block.nnz for block in self.blocks)

    @property
    def density(self) -> float:
        """Stored weights / all weights."""
        return self.nnz / max(1, self.n_labels * self.n_columns)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights in memory (mapped or not)."""
        return sum(block.nbytes for block in self.blocks)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type the weights are stored in: float32 or float16."""
        return np.dtype(self.blocks[0].data.dtype)

    @property
    def feature_names(self) -> list[str] | None:
        """Name of each feature, if known (read from disk on first use)."""
        return self._read_names("feature_names", self.n_features)

    @property
    def label_names(self) -> list[str] | None:
        """Name of each label, if known (read from disk on first use)."""
        return self._read_names("label_names", self.n_labels)

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
        if not models:
            raise ValueError("models must hold at least one model, got none")
        first = models[0]
        blocks = []
        start = 0
        for position, model in enumerate(models):
            for name in ("n_features", "bias", "normalize"):
                if getattr(model, name) != getattr(first, name):
                    raise ValueError(
                        f"models[{position}] has {name}={getattr(model, name)},"
                        f" models[0] has {getattr(first, name)}"
                    )
            for b in model.blocks:
                blocks.append(Block(b.first_label + start, b.n_columns, b.indptr, b.indices, b.data))
            start += model.n_labels
        names = [model.label_names for model in models]
        known = [name for part in names if part is not None for name in part]
        return SparseModel(
            blocks,
            bias=first.bias,
            normalize=first.normalize,
            params=first.params,
            feature_names=first.feature_names,
            label_names=known if None not in names else None,
        )

    def save(self, directory: str | os.PathLike[str], *, prepared: bool = False) -> None:
        """Write the model as a folder (docs/howto/file_format.md); an older model there is replaced.

        ``prepared`` also stores the prediction layout: then a process that maps the model predicts at once,
        from pages it shares with others, at the price of a folder two to three times as large.
        """
        with _folder.replace_folder(directory) as folder:
            self.write(folder, prepared=prepared)

    def write(
        self,
        folder: Path,
        *,
        prepared: bool = False,
        feature_names: Sequence[str] | None = None,
        files: dict[str, str] | None = None,
        kind: str = "sparse_model",
    ) -> None:
        """Write the model's files into an existing folder (`save` does it safely).

        ``feature_names`` replaces the model's; ``files`` (role -> name) are other files already there; ``kind``
        is what `xmc_fast.load` opens the folder as.
        """
        for index, block in enumerate(self.blocks):
            _storage.write_block(folder, index, block.first_label, block)
        files = dict(files or {})
        given = {"feature_names": feature_names}
        for role in _NAMES:
            names = getattr(self, role) if given.get(role) is None else given[role]
            if names is not None:
                files[role] = f"{role}.json"
                write_text(folder / files[role], json.dumps(names, ensure_ascii=False))
        if self._calibration is not None:
            files["calibration"] = "calibration.safetensors"
            write_calibration(folder / files["calibration"], self._calibration)
        if prepared:
            files["layout"] = "layout.safetensors"
            write_tensors(folder / files["layout"], self._prepared(None).arrays(), {"format": FORMAT})
        _storage.write_manifest(
            folder,
            bias=self.bias,
            normalize=self.normalize,
            params=self.params,
            n_columns=self.n_columns,
            n_labels=self.n_labels,
            files=files,
            kind=kind,
        )

    @classmethod
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
            Read every byte and check it. Missing and truncated files are noticed in any case.
        """
        folder = Path(directory)
        manifest = _storage.read_manifest(folder)
        blocks = _storage.read_blocks(folder, manifest, mmap=mmap, verify=verify)
        model = cls(blocks, bias=manifest["bias"], normalize=manifest["normalize"], params=manifest["params"])
        model.folder = folder.absolute()
        for name in ("n_labels", "n_features"):
            if getattr(model, name) != manifest[name]:
                raise ModelFormatError(
                    f"{folder / _folder.MANIFEST}: damaged, {name} is {manifest[name]},"
                    f" the blocks hold {getattr(model, name)}"
                )
        files = manifest["files"]
        if "calibration" in files:
            model.calibration = read_calibration(folder / files["calibration"])
        if "layout" in files:
            tensors, metadata = read_tensors(folder / files["layout"], map_file=mmap, verify=verify)
            model._stored = tensors if metadata.get("format") == FORMAT else None
        for role in _NAMES:
            if role in files:
                model._names[role] = folder / files[role]
        return model

    def prepare(self, *, n_jobs: int | None = None) -> SparseModel:
        """Build the prediction layout now instead of at the first `predict`; returns the model."""
        self._prepared(n_jobs)
        return self

    def _prepared(self, n_jobs: int | None) -> _core.PredictLayout:
        if self._layout is None:
            if self._stored is None:
                self._layout = build_layout(self.blocks, self.n_labels, self.n_columns, n_jobs)
            else:
                self._layout = _core.PredictLayout.open(self.n_labels, self.n_columns, self._stored)
        return self._layout

    def predict(
        self, X: Any, k: int = 5, *, proba: bool = False, n_jobs: int | None = None, engine: Any = None
    ) -> sp.csr_matrix:
        """The ``k`` best labels of each row, exact.

        Parameters
        ----------
        X : scipy sparse matrix or array, n x n_features
        k : int
            Labels per row; at most n_labels are given.
        proba : bool
            Rank by and return calibrated probabilities instead of scores (see `calibrate`).
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
        Rows are taken in chunks whose scores for a block of labels take at most 96 MiB a thread and 192 MiB in
        all, or 32 MiB a thread; that memory is kept for the next call.
        """
        engine = check_engine(engine)
        if engine is not None:
            return engine.predict(self, X, k, proba=proba, n_jobs=n_jobs)
        x = features(X, n_features=self.n_features)
        ids, scores = self._topk(x, k, proba, resolve_threads(n_jobs))
        return top_csr(ids, scores, x.shape[0], self.n_labels)

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
        scale, shift = self._calibration_arrays(layout) if proba else (NONE, NONE)
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
        if calibration is not None and len(calibration.scale) != self.n_labels:
            raise ValueError(
                f"calibration is for {len(calibration.scale)} labels, the model has {self.n_labels}"
            )
        self._calibration = calibration
        self._padded = None

    def _calibration_arrays(
        self, layout: _core.PredictLayout
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        if self._calibration is None:
            raise ValueError("proba=True needs a calibrated model: call calibrate(X, Y) on held-out rows")
        if self._padded is None:
            both = self._calibration.scale, self._calibration.shift
            self._padded = in_layout(both[0], layout), in_layout(both[1], layout)
        return self._padded

    def _always(self) -> int:
        """The column that pruning leaves alone, -1: none."""
        return -1 if self.bias is None else self.n_columns - 1

    def _with(self, blocks: list[Block]) -> SparseModel:
        """This model with other weights."""
        model = SparseModel(blocks, bias=self.bias, normalize=self.normalize, params=self.params)
        model._names = dict(self._names)
        return model

    def _read_names(self, role: str, expected: int) -> list[str] | None:
        names = self._names[role]
        if isinstance(names, Path):
            try:
                names = _check_names(role, json.loads(names.read_text(encoding="utf-8")), expected)
            except (OSError, ValueError) as error:
                raise ModelFormatError(f"{names}: missing or damaged ({error})") from None
            self._names[role] = names
        return names


def parts_columns(parts: Sequence[Any]) -> int:
    first = parts[0]
    return int(first.n_columns if isinstance(first, Block) else first.shape[1])


def _check_names(role: str, names: Any, expected: int) -> list[str] | None:
    if names is None:
        return None
    result = [str(name) for name in names]
    if len(result) != expected:
        raise ValueError(f"{role} has {len(result)} entries, the model has {expected}")
    return result
