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

from xmc_fast._arrays import features, to_scipy
from xmc_fast._files import write_text
from xmc_fast.model import storage
from xmc_fast.model._tensors import ModelFormatError
from xmc_fast.model.storage import Block

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
        self._names: dict[str, list[str] | Path | None] = {
            "feature_names": _check_names("feature_names", feature_names, self.n_features),
            "label_names": _check_names("label_names", label_names, self.n_labels),
        }

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
        return self._with(blocks)

    def prune(self, delta: float) -> SparseModel:
        """The model without weights of absolute value below ``delta`` (DiSMEC's Δ); the bias stays."""
        if not delta >= 0:
            raise ValueError(f"delta must be at least 0, got {delta}")
        return self._with([self._select(b, np.abs(b.data) >= delta) for b in self.blocks])

    def keep_top(self, k: int) -> SparseModel:
        """The model with the ``k`` weights of largest absolute value per label; the bias stays besides.

        Among equal ones the lower column is kept.
        """
        if k < 0:
            raise ValueError(f"k must be at least 0, got {k}")
        return self._with([self._select(b, self._largest(b, k)) for b in self.blocks])

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

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write the model as a folder (see `xmc_fast.model.storage`); an older model there is replaced."""
        with storage.replace_folder(directory) as folder:
            self._write(folder)

    def _write(self, folder: Path) -> None:
        for index, block in enumerate(self.blocks):
            storage.write_block(folder, index, block.first_label, block)
        files = {}
        for role in _NAMES:
            names = getattr(self, role)
            if names is not None:
                files[role] = f"{role}.json"
                write_text(folder / files[role], json.dumps(names, ensure_ascii=False))
        storage.write_manifest(
            folder,
            bias=self.bias,
            normalize=self.normalize,
            params=self.params,
            n_columns=self.n_columns,
            n_labels=self.n_labels,
            files=files,
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
        manifest = storage.read_manifest(folder)
        blocks = storage.read_blocks(folder, manifest, mmap=mmap, verify=verify)
        model = cls(blocks, bias=manifest["bias"], normalize=manifest["normalize"], params=manifest["params"])
        for name in ("n_labels", "n_features"):
            if getattr(model, name) != manifest[name]:
                raise ModelFormatError(
                    f"{folder / storage.MANIFEST}: damaged, {name} is {manifest[name]},"
                    f" the blocks hold {getattr(model, name)}"
                )
        for role in _NAMES:
            if role in manifest["files"]:
                model._names[role] = folder / manifest["files"][role]
        return model

    def predict(self, X: Any, k: int, *, n_jobs: int | None = None) -> sp.csr_matrix:
        """The ``k`` best labels of each row, exact.

        Parameters
        ----------
        X : scipy sparse matrix or array, n x n_features
        k : int
            Labels per row; at most n_labels are given.
        n_jobs : int, optional
            Threads; results have the same bits for any number.

        Returns
        -------
        scipy CSR n x n_labels of scores, min(k, n_labels) entries per row, best first (score descending,
        then lower label).
        """
        matrix = features(X, n_features=self.n_features)
        dense = to_scipy(*matrix)
        if self.normalize:
            norms = np.sqrt(np.asarray(dense.multiply(dense).sum(axis=1)).ravel())
            dense = sp.diags(1 / np.where(norms > 0, norms, 1)) @ dense
        if self.bias is not None:
            dense = sp.hstack([dense, np.full((dense.shape[0], 1), self.bias, np.float32)])
        scores = np.asarray((dense @ self.to_csr().T).todense(), np.float32)
        k = min(int(k), self.n_labels)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        indptr = np.arange(len(scores) + 1, dtype=np.int64) * k
        data = np.take_along_axis(scores, order, axis=1).ravel()
        return to_scipy(indptr, order.astype(np.int32).ravel(), data, scores.shape)

    def _with(self, blocks: list[Block]) -> SparseModel:
        """This model with other weights."""
        model = SparseModel(blocks, bias=self.bias, normalize=self.normalize, params=self.params)
        model._names = dict(self._names)
        return model

    def _select(self, block: Block, keep: npt.NDArray[np.bool_]) -> Block:
        if self.bias is not None:
            keep = keep | (block.indices == self.n_columns - 1)
        kept = np.concatenate([[0], np.cumsum(keep, dtype=np.int64)])
        return Block(
            block.first_label,
            block.n_columns,
            kept[block.indptr],
            block.indices[keep],
            block.data[keep],
        )

    def _largest(self, block: Block, k: int) -> npt.NDArray[np.bool_]:
        size = np.abs(block.data.astype(np.float32))
        if self.bias is not None:
            size[block.indices == self.n_columns - 1] = -1
        rows = np.repeat(np.arange(block.n_labels), np.diff(block.indptr))
        order = np.lexsort((block.indices, -size, rows))
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order)) - block.indptr[rows[order]]
        return rank < k

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
