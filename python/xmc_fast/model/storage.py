"""The folder a model lives in: label blocks as safetensors files and one JSON manifest.

``block-00000.safetensors``  the weights of consecutive labels as CSR: ``indptr`` int64, ``indices`` uint16
where the columns allow (else int32), ``data`` float32 or float16, and any ``extra.<name>`` arrays.
``manifest.json``            format version, shapes, bias, normalisation, training parameters, and for each
block its file, label range, size and checksum. A folder of blocks becomes a model when it gets a manifest.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast._arrays import to_scipy
from xmc_fast._files import naming, write_text
from xmc_fast.model._tensors import ModelFormatError, Tensors, read_tensors, write_tensors

FORMAT = "xmc_fast.sparse_model"
FORMAT_VERSION = 1
MANIFEST = "manifest.json"
_BLOCK_NAME = re.compile(r"block-(\d+)\.safetensors")


@dataclass(frozen=True)
class Block:
    """Weights of the labels ``first_label .. first_label + n_labels`` as CSR arrays (see the module)."""

    first_label: int
    n_columns: int
    indptr: npt.NDArray[np.int64]
    indices: npt.NDArray[Any]
    data: npt.NDArray[Any]

    @property
    def n_labels(self) -> int:
        return len(self.indptr) - 1

    @property
    def nnz(self) -> int:
        return len(self.indices)

    @property
    def nbytes(self) -> int:
        return int(self.indptr.nbytes + self.indices.nbytes + self.data.nbytes)

    def to_csr(self) -> sp.csr_matrix:
        """The block as scipy CSR float32, n_labels x n_columns."""
        data = self.data.astype(np.float32, copy=False)
        return to_scipy(self.indptr, self.indices, data, (self.n_labels, self.n_columns))

    def select(self, keep: npt.NDArray[np.bool_], always: int) -> Block:
        """The weights marked in ``keep`` (nnz) and those of the column ``always``."""
        keep = keep | (self.indices == always)
        kept = np.concatenate([[0], np.cumsum(keep, dtype=np.int64)])
        return Block(self.first_label, self.n_columns, kept[self.indptr], self.indices[keep], self.data[keep])

    def largest(self, k: int, besides: int) -> npt.NDArray[np.bool_]:
        """Which weights (nnz) are among their label's ``k`` largest by absolute value, among equal ones the
        lower column; the column ``besides`` does not count."""
        size = np.abs(self.data.astype(np.float32))
        size[self.indices == besides] = -1
        rows = np.repeat(np.arange(self.n_labels), np.diff(self.indptr))
        order = np.lexsort((self.indices, -size, rows))
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order)) - self.indptr[rows[order]]
        return rank < k

    @staticmethod
    def from_csr(weights: Any, first_label: int, dtype: npt.DTypeLike | None = None) -> Block:
        """Take a scipy matrix; columns are sorted and made unique, values become float32 (or ``dtype``)."""
        if not sp.issparse(weights) or weights.ndim != 2:
            raise ValueError(f"weights must be a two-dimensional scipy sparse matrix, got {type(weights)}")
        matrix = weights.tocsr()
        if matrix.dtype.kind not in "biuf":
            raise ValueError(f"weights must hold real numbers, got dtype {matrix.dtype}")
        if not matrix.has_canonical_format:
            matrix = matrix.copy()
            matrix.sum_duplicates()
        return Block(
            int(first_label),
            int(matrix.shape[1]),
            np.ascontiguousarray(matrix.indptr, np.int64),
            np.ascontiguousarray(matrix.indices, np.int32),
            np.ascontiguousarray(matrix.data, dtype or np.float32),
        )


def block_path(directory: str | os.PathLike[str], index: int) -> Path:
    """Where block number ``index`` lives."""
    return Path(directory) / f"block-{index:05d}.safetensors"


def write_block(
    directory: str | os.PathLike[str],
    index: int,
    first_label: int,
    weights: Any,
    extra: dict[str, npt.NDArray[Any]] | None = None,
) -> Path:
    """Write one label block atomically; the folder is made if needed.

    Parameters
    ----------
    directory, index
        The folder and the block's number in it. Numbers follow the label order.
    first_label : int
        The label of the block's row 0.
    weights : scipy sparse matrix or Block
        n_labels x n_columns.
    extra : dict of arrays, optional
        Stored beside the weights and given back by `read_block` (a trainer's status, for example).
    """
    block = weights if isinstance(weights, Block) else Block.from_csr(weights, first_label)
    narrow = np.uint16 if block.n_columns <= 1 << 16 else np.int32
    tensors: Tensors = {
        "indptr": block.indptr,
        "indices": block.indices.astype(narrow, copy=False),
        "data": block.data,
        **{f"extra.{name}": np.asarray(array) for name, array in (extra or {}).items()},
    }
    metadata = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "first_label": str(int(first_label)),
        "n_columns": str(block.n_columns),
    }
    path = block_path(directory, index)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(path, tensors, metadata)
    return path


def read_block(
    directory: str | os.PathLike[str], index: int, *, mmap: bool = False, verify: bool | None = None
) -> tuple[Block, dict[str, npt.NDArray[Any]]]:
    """A block and its extra arrays. ``verify`` reads and checks every byte (default: unless mapped)."""
    path = block_path(directory, index)
    tensors, metadata = read_tensors(path, map_file=mmap, verify=not mmap if verify is None else verify)
    _check_version(path, metadata.get("format"), metadata.get("format_version"))
    extra = {name[6:]: array for name, array in tensors.items() if name.startswith("extra.")}
    try:
        block = Block(
            int(metadata["first_label"]),
            int(metadata["n_columns"]),
            tensors["indptr"],
            tensors["indices"],
            tensors["data"],
        )
    except (KeyError, ValueError) as error:
        raise ModelFormatError(f"{path}: damaged, {error} is missing or bad") from None
    if not len(block.indptr) or block.indptr[-1] != block.nnz or len(block.data) != block.nnz:
        raise ModelFormatError(f"{path}: damaged, indptr, indices and data do not fit together")
    return block, extra


def block_indices(directory: str | os.PathLike[str]) -> list[int]:
    """Numbers of the blocks a folder holds, ascending (what a checkpoint has already got)."""
    matches = (_BLOCK_NAME.fullmatch(entry.name) for entry in Path(directory).iterdir())
    return sorted(int(match.group(1)) for match in matches if match)


def write_manifest(
    directory: str | os.PathLike[str],
    *,
    bias: float | None = None,
    normalize: bool = False,
    params: dict[str, Any] | None = None,
    n_columns: int | None = None,
    n_labels: int | None = None,
    files: dict[str, str] | None = None,
) -> Path:
    """Turn a folder of blocks into a model that `SparseModel.load` opens.

    Parameters
    ----------
    directory : path
        Holds the blocks. They must be numbered 0, 1, ... in label order, with no label missing.
    bias, normalize, params
        As for `SparseModel`. ``params`` must be JSON.
    n_columns : int, optional
        Expected columns of each block; needed when there is no block.
    n_labels : int, optional
        Expected number of labels.
    files : dict, optional
        Other files of the model, role -> name (label names, calibration).
    """
    folder = Path(directory)
    rows: list[dict[str, Any]] = []
    labels = 0
    for position, index in enumerate(block_indices(folder)):
        path = block_path(folder, index)
        if index != position:
            raise ModelFormatError(f"{block_path(folder, position)}: file is missing")
        tensors, metadata = read_tensors(path)
        block, _ = read_block(folder, index, mmap=True)
        if block.first_label != labels:
            raise ModelFormatError(f"{path}: starts at label {block.first_label}, expected {labels}")
        if n_columns is not None and block.n_columns != n_columns:
            raise ModelFormatError(f"{path}: has {block.n_columns} columns, expected {n_columns}")
        n_columns = block.n_columns
        labels += block.n_labels
        rows.append(
            {
                "file": path.name,
                "first_label": block.first_label,
                "n_labels": block.n_labels,
                "nnz": block.nnz,
                "dtype": str(tensors["data"].dtype),
                "bytes": path.stat().st_size,
                "crc32": metadata.get("crc32"),
            }
        )
    if n_columns is None:
        raise ModelFormatError(f"{folder}: holds no block")
    if n_labels is not None and labels != n_labels:
        raise ModelFormatError(f"{folder}: its blocks hold {labels} labels, expected {n_labels}")
    manifest = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "n_labels": labels,
        "n_features": n_columns - (bias is not None),
        "bias": bias,
        "normalize": bool(normalize),
        "params": params or {},
        "files": files or {},
        "blocks": rows,
    }
    path = folder / MANIFEST
    write_text(path, json.dumps(manifest, indent=1, allow_nan=False) + "\n")
    return path


def is_model_folder(directory: str | os.PathLike[str]) -> bool:
    """Whether a path is a folder with a model's manifest."""
    return (Path(directory) / MANIFEST).is_file()


def read_manifest(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """The manifest, checked for version and for the presence and size of each file."""
    folder = Path(directory)
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelFormatError(f"{path}: file is missing (not a model folder?)") from None
    except ValueError as error:
        raise ModelFormatError(f"{path}: truncated or damaged, not JSON ({error})") from None
    if not isinstance(manifest, dict):
        raise ModelFormatError(f"{path}: damaged, not a JSON object")
    _check_version(path, manifest.get("format"), manifest.get("format_version"))
    missing = {"n_labels", "n_features", "bias", "normalize", "params", "files", "blocks"} - set(manifest)
    if missing:
        raise ModelFormatError(f"{path}: damaged, {sorted(missing)} missing")
    for row in manifest["blocks"]:
        file = folder / row["file"]
        if not file.is_file():
            raise ModelFormatError(f"{file}: file is missing")
        if file.stat().st_size != row["bytes"]:
            raise ModelFormatError(
                f"{file}: truncated or damaged, expected {row['bytes']} bytes, got {file.stat().st_size}"
            )
    for name in manifest["files"].values():
        if not (folder / name).is_file():
            raise ModelFormatError(f"{folder / name}: file is missing")
    return manifest


def read_blocks(
    directory: str | os.PathLike[str], manifest: dict[str, Any], *, mmap: bool, verify: bool
) -> list[Block]:
    """The blocks a manifest lists, each checked against its row."""
    folder = Path(directory)
    blocks = []
    for index, row in enumerate(manifest["blocks"]):
        block, _ = read_block(folder, index, mmap=mmap, verify=verify)
        got = (block.first_label, block.n_labels, block.nnz)
        expected = (row["first_label"], row["n_labels"], row["nnz"])
        if got != expected:
            raise ModelFormatError(
                f"{folder / row['file']}: damaged, (first_label, n_labels, nnz) is {got}, expected {expected}"
            )
        if verify:
            _, metadata = read_tensors(block_path(folder, index))
            if metadata.get("crc32") != row["crc32"]:
                raise ModelFormatError(f"{folder / row['file']}: damaged, checksum differs from the manifest")
        blocks.append(block)
    return blocks


def check_replaceable(target: Path, manifest: str = MANIFEST) -> None:
    """An error unless a model can be saved there: nothing, an empty folder, or a model, a file named ``manifest``."""
    if target.exists() and not target.is_dir():
        raise ValueError(f"{target} exists and is not a folder")
    if target.is_dir() and any(target.iterdir()) and not (target / manifest).is_file():
        raise ValueError(f"{target} exists and is not a model folder: it is not overwritten")


@contextlib.contextmanager
def replace_folder(directory: str | os.PathLike[str], manifest: str = MANIFEST) -> Iterator[Path]:
    """A temporary folder beside ``directory`` that takes its place when the block ends well.

    An existing folder is replaced only if it is empty or holds a model, a file named ``manifest``.
    """
    target = Path(directory)
    check_replaceable(target, manifest)
    with naming(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
    try:
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o777 & ~umask)
        yield temporary
        if target.is_dir():
            old = temporary.with_suffix(".old")
            os.rename(target, old)
            os.rename(temporary, target)
            shutil.rmtree(old)
        else:
            os.rename(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _check_version(path: Path, name: Any, version: Any) -> None:
    if name != FORMAT:
        raise ModelFormatError(f"{path}: not a sparse model of this package (format {name!r})")
    if str(version) != str(FORMAT_VERSION):
        raise ModelFormatError(f"{path}: format version {version}, this package reads {FORMAT_VERSION}")
