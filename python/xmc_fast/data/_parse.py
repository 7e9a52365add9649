"""From a file of sparse text to CSR: header, pieces, and the compiled parser (csrc/data/text.h)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from xmc_fast import _core
from xmc_fast._threads import resolve_threads
from xmc_fast._validate import to_scipy
from xmc_fast.data._dataset import Matrices
from xmc_fast.data._io import Path, Piece, file_name, text_pieces

MAX_COLUMNS = int(np.iinfo(np.int32).max)
XMC_HEADER = ("points", "features", "labels")
Duplicates = Literal["error", "sum"]


@dataclass(frozen=True)
class Format:
    """How to read a file; see csrc/data/text.h."""

    label_field: bool
    header: tuple[str, ...]  # what the counts of the first line are; empty: there is no such line
    n_features: int | None = None  # None: from the header, or as many as the file has
    n_labels: int | None = None
    base: int = 0
    comments: bool = False
    sum_duplicates: bool = False
    blank: str = "point"


def is_sum(duplicates: str) -> bool:
    """Check the option ``duplicates``."""
    if duplicates not in ("error", "sum"):
        raise ValueError(f"duplicates must be 'error' or 'sum', got {duplicates!r}")
    return duplicates == "sum"


def check_count(name: str, value: int | None) -> int | None:
    """Check a number of columns that the caller gives."""
    if value is not None and not 0 <= value <= MAX_COLUMNS:
        raise ValueError(f"{name} must be in 0..{MAX_COLUMNS}, got {value}")
    return value


class Part(NamedTuple):
    """Some consecutive rows: what csrc/data/text.h parses, and the number of columns known so far."""

    sizes: npt.NDArray[np.int64]  # entries per row
    indices: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]
    label_sizes: npt.NDArray[np.int64]
    label_ids: npt.NDArray[np.int32]
    n_features: int
    n_labels: int

    def matrices(self) -> Matrices:
        rows, ones = len(self.sizes), np.ones(len(self.label_ids), np.float32)
        return Matrices(
            to_scipy(_indptr(self.sizes), self.indices, self.values, (rows, self.n_features)),
            to_scipy(_indptr(self.label_sizes), self.label_ids, ones, (rows, self.n_labels)),
        )


def sparse_parts(path: Path, form: Format, n_jobs: int | None, block: int | None = None) -> Iterator[Part]:
    """Read a file in parts of about ``block`` bytes, or raise ValueError for its first error."""
    name, threads = file_name(path), resolve_threads(n_jobs)
    points, n_features, n_labels = -1, _limit(form.n_features), _limit(form.n_labels)
    rows, line, max_feature, max_label = 0, 1, -1, -1
    with text_pieces(path, strip=form.blank != "point", block=block) as pieces:
        for piece in pieces:
            if form.header and line == 1:
                (points, n_features, *rest), piece = _header(piece, name, form.header)
                n_labels = rest[0] if rest else 0
                line = 2
                if block is not None and piece.begin == piece.end:
                    continue
            parsed: Any = _core.parse_text(
                *piece,
                name,
                line,
                rows,
                points,
                n_features,
                n_labels,
                form.base,
                form.label_field,
                form.comments,
                form.sum_duplicates,
                form.blank,
                threads,
            )
            *arrays, lines, top_feature, top_label = parsed
            rows, line = rows + len(arrays[0]), line + lines
            max_feature, max_label = max(max_feature, top_feature), max(max_label, top_label)
            wide = n_features if form.header or form.n_features is not None else max_feature + 1
            known = n_labels if form.header or form.n_labels is not None else max_label + 1
            yield Part._make([*arrays, wide, known])
    if line == 1 and not rows:
        raise ValueError(f"{name}:1:1: the file is empty")
    if rows < points:
        raise ValueError(f"{name}:{line}:1: truncated: the header says {points} points, the file has {rows}")


def read_sparse(path: Path, form: Format, n_jobs: int | None) -> Matrices:
    """Read a whole file, or raise ValueError for its first error."""
    parts = [*sparse_parts(path, form, n_jobs)]
    arrays: list[Any] = [_join(arrays) for arrays in zip(*(part[:5] for part in parts), strict=True)]
    return Part._make([*arrays, *parts[-1][5:]]).matrices()


def _limit(count: int | None) -> int:
    return MAX_COLUMNS if count is None else count


def _header(piece: Piece, name: str, fields: tuple[str, ...]) -> tuple[list[int], Piece]:
    """The counts of the first line, and the lines after it."""
    head, newline, _ = bytes(piece.text[piece.begin : min(piece.end, piece.begin + (1 << 16))]).partition(
        b"\n"
    )
    tokens = list(re.finditer(rb"[^ \t]+", head.removesuffix(b"\r")))
    expected = f"header of {len(fields)} counts ({' '.join(fields)}) expected"
    counts = []
    for token, field in zip(tokens, fields, strict=False):
        shown = f"{name}:1:{token.start() + 1}: {{}}, got {show(token[0])}"
        if not re.fullmatch(rb"[0-9]{1,18}", token[0]):
            raise ValueError(shown.format(expected))
        counts.append(int(token[0]))
        if field not in ("points", "rows") and counts[-1] > MAX_COLUMNS:
            raise ValueError(shown.format(f"at most {MAX_COLUMNS} {field} are supported"))
    if len(tokens) > len(fields):
        token = tokens[len(fields)]
        raise ValueError(f"{name}:1:{token.start() + 1}: {expected}, got {show(token[0])} after them")
    if len(tokens) < len(fields):
        raise ValueError(f"{name}:1:1: {expected}, got {len(tokens)}: {show(head)}")
    return counts, piece._replace(begin=piece.begin + len(head) + len(newline))


def show(token: bytes) -> str:
    """A token for a message: quoted, printable, not too long."""
    text = "".join(chr(c) if 0x20 <= c < 0x7F else f"\\x{c:02x}" for c in token[:40])
    return f"'{text}...'" if len(token) > 40 else f"'{text}'"


def _join(arrays: tuple[npt.NDArray[Any], ...]) -> npt.NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _indptr(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    indptr = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=indptr[1:])
    return indptr
