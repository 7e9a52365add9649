"""The folder a model lives in: label blocks as safetensors files and one JSON manifest.

``block-00000.safetensors``  the weights of consecutive labels as CSR: ``indptr`` int64, ``indices`` uint16
where the columns allow (else int32), ``data`` float32 or float16, and any ``extra.<name>`` arrays.
``manifest.json``            format version, shapes, bias, normalisation, training parameters, and for each
block its file, label range, size and checksum. A folder of blocks becomes a model when it gets a manifest.
Blocks are what a fit with a checkpoint writes, models of 16-bit weights, and those of `Mach`. Other saved models have
one file instead, which predicts as it is: ``layout.safetensors`` (`xmc_fast.model._layout`), or
``packed.safetensors`` of a small one (`xmc_fast.model._packed`).
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast import _core, _folder
from xmc_fast._folder import ModelFormatError
from xmc_fast._threads import resolve_threads
from xmc_fast._validate import aligned, to_scipy, valid_csr
from xmc_fast.model._form import Form
from xmc_fast.model._tensors import Tensors, checksum

FORMAT_VERSION = 1
_BLOCK = Form("xmc_fast.sparse_model", FORMAT_VERSION, ("first_label", "n_columns"))
ONE_FILE = {"packed": 2, "layout": 3}  # version of a manifest with one such file instead of blocks
KINDS = ("sparse_model", "text_model")  # of a folder with label blocks
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
    def shape(self) -> tuple[int, int]:
        return self.n_labels, self.n_columns

    @property
    def nnz(self) -> int:
        return len(self.indices)

    @property
    def nbytes(self) -> int:
        return int(self.indptr.nbytes + self.indices.nbytes + self.data.nbytes)

    def to_csr(self) -> sp.csr_matrix:
        """The block as scipy CSR float32, n_labels x n_columns."""
        data = self.data.astype(np.float32, copy=False)
        return to_scipy(self.indptr, self.indices, data, self.shape)

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
        matrix, canonical = valid_csr(weights, "weights")
        if not canonical:
            matrix = matrix.copy()
            matrix.sum_duplicates()
        if not np.isfinite(matrix.data).all():
            raise ValueError("weights must be finite, got NaN or inf")
        return Block(
            int(first_label),
            int(matrix.shape[1]),
            aligned(matrix.indptr, np.int64),
            aligned(matrix.indices, np.int32),
            aligned(matrix.data, dtype or np.float32),
        )


def joined(weights: Any) -> list[Block]:
    """Matrices or blocks of consecutive labels, or one of them, as blocks."""
    parts = list(weights) if isinstance(weights, (list, tuple)) else [weights]
    if not parts:
        raise ValueError("weights must hold at least one block, got an empty list")
    blocks: list[Block] = []
    first = 0
    for part in parts:
        block = part if isinstance(part, Block) else Block.from_csr(part, first)
        if block.first_label != first:
            raise ValueError(f"a block starts at label {block.first_label}, expected {first}")
        blocks.append(block)
        if block.n_columns != blocks[0].n_columns:
            raise ValueError(
                f"a block has {block.n_columns} columns, the first one has {blocks[0].n_columns}"
            )
        first += block.n_labels
    return blocks


def check_block(block: Block, path: Path | None = None, n_jobs: int | None = None) -> None:
    """An error unless each label's columns are ascending and there are so many; ``path`` is where they are from."""
    try:
        _core.check_rows(block.indptr, block.indices, block.n_columns, resolve_threads(n_jobs))
    except (TypeError, ValueError) as error:
        where = "" if path is None else f"{path}: "
        last = block.first_label + block.n_labels - 1
        if isinstance(error, TypeError):
            types = f"{block.indptr.dtype} and {block.indices.dtype}"
            error = ValueError(f"indptr int64 and indices int32 or uint16 expected, got {types}")
        raise ModelFormatError(
            f"{where}the weights of labels {block.first_label} to {last} are damaged: {error}"
        ) from None


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
    path = block_path(directory, index)
    path.parent.mkdir(parents=True, exist_ok=True)
    _BLOCK.write(path, tensors, first_label, block.n_columns)
    return path


def read_block(
    directory: str | os.PathLike[str], index: int, *, mmap: bool = False, verify: bool | None = None
) -> tuple[Block, dict[str, npt.NDArray[Any]]]:
    """A block and its extra arrays. ``verify`` reads and checks every byte (default: unless mapped)."""
    path = block_path(directory, index)
    return _open_block(path, map_file=mmap, verify=not mmap if verify is None else verify)[:2]


def _open_block(
    path: Path, *, map_file: bool, verify: bool
) -> tuple[Block, dict[str, npt.NDArray[Any]], dict[str, str]]:
    """A block, checked, its extra arrays and its metadata."""
    with remembered(path) as known:
        return _read_block(path, map_file, verify, known)


def _read_block(
    path: Path, map_file: bool, verify: bool, known: bool
) -> tuple[Block, dict[str, npt.NDArray[Any]], dict[str, str]]:
    (first_label, n_columns), tensors, metadata = _BLOCK.read(path, map_file=map_file, verify=verify)
    extra = {name[6:]: array for name, array in tensors.items() if name.startswith("extra.")}
    try:
        block = Block(first_label, n_columns, tensors["indptr"], tensors["indices"], tensors["data"])
    except (KeyError, ValueError) as error:
        raise ModelFormatError(f"{path}: damaged, {error} is missing or bad") from None
    kinds = [
        array.dtype.kind if array.ndim == 1 else "" for array in (block.indptr, block.indices, block.data)
    ]
    fit = "".join(kinds) in ("iif", "iuf") and len(block.indptr) > 0
    if not fit or block.indptr[-1] != block.nnz or len(block.data) != block.nnz:
        raise ModelFormatError(f"{path}: damaged, indptr, indices and data do not fit together")
    if not known:
        check_block(block, path)
    return block, extra, metadata


# Files whose structure was found right by this process: device, number, size and time of the last change.
_checked: set[tuple[int, int, int, int]] = set()
_MOST_CHECKED = 10_000


@contextlib.contextmanager
def remembered(path: Path) -> Iterator[bool]:
    """Whether a file was checked before; if it was not, it is from the end of the block on, unless that raised."""
    identity = _identity(path)
    known = identity in _checked
    yield known
    if not known and identity is not None and identity == _identity(path):
        if len(_checked) >= _MOST_CHECKED:
            _checked.clear()
        _checked.add(identity)


def _identity(path: Path) -> tuple[int, int, int, int] | None:
    try:
        found = path.stat()
    except OSError:  # whoever opens it says so
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


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
    kind: str = "sparse_model",
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
    kind : str
        What `xmc_fast.load` opens the folder as.
    """
    folder = Path(directory)
    rows: list[dict[str, Any]] = []
    labels = 0
    for position, index in enumerate(block_indices(folder)):
        path = block_path(folder, index)
        if index != position:
            raise ModelFormatError(f"{block_path(folder, position)}: file is missing")
        block, metadata = _open_block(path, map_file=True, verify=False)[::2]
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
                "dtype": str(block.data.dtype),
                "bytes": path.stat().st_size,
                "crc32": metadata.get("crc32"),
            }
        )
    if n_columns is None:
        raise ModelFormatError(f"{folder}: holds no block")
    if n_labels is not None and labels != n_labels:
        raise ModelFormatError(f"{folder}: its blocks hold {labels} labels, expected {n_labels}")
    manifest = {
        "n_labels": labels,
        "n_features": n_columns - (bias is not None),
        "bias": bias,
        "normalize": bool(normalize),
        "params": params or {},
        "files": files or {},
        "blocks": rows,
    }
    return _folder.write_manifest(folder, kind, manifest, version=FORMAT_VERSION)


def write_one_file_manifest(
    folder: Path,
    weights: Any,
    form: str,
    *,
    bias: float | None,
    normalize: bool,
    params: dict[str, Any],
    files: dict[str, str],
    kind: str,
) -> Path:
    """The manifest of a folder with all weights in one file, of a form of `ONE_FILE`."""
    file = f"{form}.safetensors"
    entry = {
        "file": file,
        "nnz": weights.nnz,
        "bytes": (folder / file).stat().st_size,
        "crc32": checksum(weights.arrays),
    }
    if form == "layout":
        entry["ends"] = list(weights.ends)
    manifest = {
        "n_labels": weights.n_labels,
        "n_features": weights.n_columns - (bias is not None),
        "bias": bias,
        "normalize": bool(normalize),
        "params": params,
        "files": files,
        "blocks": [],
        form: entry,
    }
    return _folder.write_manifest(folder, kind, manifest, version=ONE_FILE[form])


def read_manifest(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """The manifest, its types, ranges and file names checked, and the presence and size of each file."""
    folder = Path(directory)
    path, found = _folder.read_any_manifest(folder)
    forms = [form for form in ONE_FILE if form in found]
    version = ONE_FILE[forms[0]] if forms else FORMAT_VERSION
    keys = ("n_labels", "n_features", "bias", "normalize", "params", "files", "blocks")
    manifest = _folder.read_manifest(folder, *KINDS, version=version, required=keys)

    def expect(holds: bool, what: str) -> None:
        if not holds:
            raise ModelFormatError(f"{path}: damaged, {what}")

    for name in ("n_labels", "n_features"):
        expect(_is_size(manifest[name], 1 << 31), f"{name} is {manifest[name]!r}")
    bias = manifest["bias"]
    expect(bias is None or _is_number(bias), f"bias is {bias!r}")
    expect(isinstance(manifest["normalize"], bool), f"normalize is {manifest['normalize']!r}")
    for name, kind in (("params", dict), ("files", dict), ("blocks", list), *((f, dict) for f in forms)):
        expect(isinstance(manifest.get(name, kind()), kind), f"{name} is no {kind.__name__}")
    rows = [*manifest["blocks"], *(manifest[form] for form in forms)]
    for row in rows:
        expect(isinstance(row, dict) and {"file", "bytes", "nnz"} <= row.keys(), "an entry of a file is bad")
        for name in {"bytes", "nnz", "first_label", "n_labels"} & row.keys():
            expect(_is_size(row[name], 1 << 62), f"{name} of {row['file']!r} is {row[name]!r}")
    for name in [*manifest["files"].values(), *(row["file"] for row in rows)]:
        expect(
            isinstance(name, str) and name not in ("", ".", "..") and "\0" not in name, f"a file is {name!r}"
        )
        expect(Path(name).name == name and "\\" not in name, f"{name!r} is not in the folder")
        file = folder / name
        if not file.is_file():
            raise ModelFormatError(f"{file}: file is missing")
        expect(file.resolve().parent == folder.resolve(), f"{name!r} leads out of the folder")
    for row in rows:
        size = (folder / row["file"]).stat().st_size
        if size != row["bytes"]:
            raise ModelFormatError(
                f"{folder / row['file']}: truncated or damaged, expected {row['bytes']} bytes, got {size}"
            )
    return manifest


def _is_size(value: Any, limit: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def read_blocks(
    directory: str | os.PathLike[str], manifest: dict[str, Any], *, mmap: bool, verify: bool
) -> list[Block]:
    """The blocks a manifest lists, each checked against its row."""
    folder = Path(directory)
    blocks = []
    for index, row in enumerate(manifest["blocks"]):
        path = block_path(folder, index)
        if row["file"] != path.name:
            raise ModelFormatError(
                f"{folder / _folder.MANIFEST}: damaged, {path.name} expected, got {row['file']!r}"
            )
        block, _, metadata = _open_block(path, map_file=mmap, verify=verify)
        got = (block.first_label, block.n_labels, block.nnz)
        expected = (row.get("first_label"), row.get("n_labels"), row["nnz"])
        if got != expected:
            raise ModelFormatError(
                f"{path}: damaged, (first_label, n_labels, nnz) is {got}, expected {expected}"
            )
        if verify and metadata.get("crc32") != row["crc32"]:
            raise ModelFormatError(f"{path}: damaged, checksum differs from the manifest")
        blocks.append(block)
    return blocks
