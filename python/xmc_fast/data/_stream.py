"""Reading sparse text in chunks, in constant memory."""

from __future__ import annotations

from collections.abc import Iterator

from xmc_fast.data._dataset import Matrices
from xmc_fast.data._io import Path
from xmc_fast.data._parse import XMC_HEADER, Format, sparse_parts


def iter_xmc(path: Path, *, chunk_bytes: int = 8 << 20, n_jobs: int | None = None) -> Iterator[Matrices]:
    """Read a file of `read_xmc`'s format in pieces of about ``chunk_bytes`` of text.

    Memory is bounded by the piece, or by the longest line, whatever the size of the file. A file that has
    fewer or more points than its header says is refused, the former when its end is reached.

    Yields
    ------
    Matrices
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
    for part in sparse_parts(path, Format(True, XMC_HEADER), n_jobs, chunk_bytes):
        yield part.matrices()
