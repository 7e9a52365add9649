"""Reading sparse text piece by piece, in constant memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from xmc_fast import _core
from xmc_fast._arrays import to_scipy
from xmc_fast._threads import resolve_threads
from xmc_fast.data._io import Path, _cut_at_lines, file_name, open_binary
from xmc_fast.data._parse import Dataset, _header, _indptr


def iter_xmc(path: Path, *, chunk_bytes: int = 8 << 20, n_jobs: int | None = None) -> Iterator[Dataset]:
    """Read a file of `read_xmc`'s format in pieces of about ``chunk_bytes`` of text.

    Memory is bounded by the piece, or by the longest line, whatever the size of the file. A file that has
    fewer or more points than its header says is refused, the former when its end is reached.

    Yields
    ------
    Dataset
        (X, Y) of some consecutive points, as `read_xmc` gives them for all.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "test.txt"
    >>> _ = path.write_text("3 4 3\\n0,2 0:0.5 3:1\\n 1:2.25\\n1 0:1\\n")
    >>> [X.shape[0] for X, Y in iter_xmc(path, chunk_bytes=24)]
    [1, 1, 1]
    """
    if chunk_bytes < 1:
        raise ValueError(f"chunk_bytes must be at least 1, got {chunk_bytes}")
    name, threads = file_name(path), resolve_threads(n_jobs)
    points, rows, line, n_features, n_labels = -1, 0, 1, 0, 0
    with open_binary(path) as file:
        for piece in _cut_at_lines(file, False, chunk_bytes):
            if line == 1:
                (points, n_features, n_labels), piece = _header(piece, name, ("points", "features", "labels"))
                line = 2
                if piece.begin == piece.end:
                    continue
            sizes, indices, values, label_sizes, label_ids, lines, *_ = _core.parse_text(
                *piece,
                name,
                line,
                rows,
                points,
                n_features,
                n_labels,
                0,
                True,
                False,
                False,
                "point",
                threads,
            )
            rows, line = rows + len(sizes), line + lines
            yield Dataset(
                to_scipy(_indptr(sizes), indices, values, (len(sizes), n_features)),
                to_scipy(
                    _indptr(label_sizes),
                    label_ids,
                    np.ones(len(label_ids), np.float32),
                    (len(sizes), n_labels),
                ),
            )
    if points < 0:
        raise ValueError(f"{name}:1:1: the file is empty")
    if rows < points:
        raise ValueError(f"{name}:{line}:1: truncated: the header says {points} points, the file has {rows}")
