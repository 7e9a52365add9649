"""Files as bytes: plain ones mapped, .gz and .xz decompressed in blocks, always cut at line ends."""

from __future__ import annotations

import contextlib
import gzip
import lzma
import mmap
import os
import zlib
from collections.abc import Iterator
from typing import IO, Any, NamedTuple, TypeAlias, cast

Path: TypeAlias = "str | os.PathLike[str]"

BLOCK = 64 << 20  # bytes of text that a compressed file holds in memory at a time


def file_name(path: Path) -> str:
    """The name of a file in messages."""
    return os.fspath(path)


@contextlib.contextmanager
def open_binary(path: Path, mode: str = "rb", *, like: Path | None = None) -> Iterator[IO[bytes]]:
    """Open a file, compressed if ``like`` (else ``path``) ends in .gz or .xz; damage is a ValueError."""
    suffix = os.path.splitext(path if like is None else like)[1]
    opener: Any = {".gz": gzip.open, ".xz": lzma.open}.get(suffix, open)
    kwargs = {"compresslevel": 6} if suffix == ".gz" and "w" in mode else {}
    try:
        with opener(path, mode, **kwargs) as file:
            yield cast("IO[bytes]", file)
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise ValueError(f"{file_name(path)}: damaged or truncated {suffix[1:]} file: {error}") from error


class Piece(NamedTuple):
    """Whole lines: text[begin:end]."""

    text: Any  # bytes or a memory map
    begin: int
    end: int


@contextlib.contextmanager
def text_pieces(path: Path, *, strip: bool = False, block: int | None = None) -> Iterator[Iterator[Piece]]:
    """The bytes of a file in pieces of whole lines; the last line may lack its end.

    A plain file is one piece (a memory map). A compressed one comes in pieces of about ``block`` bytes (BLOCK
    if not given), or of one line if that is longer, so that its text is never in memory as a whole. ``strip``
    leaves out blank lines at the very end.
    """
    if os.path.splitext(path)[1] in (".gz", ".xz"):
        with open_binary(path) as file:
            yield _cut_at_lines(file, strip, block or BLOCK)
        return
    with open(path, "rb") as plain:
        if os.fstat(plain.fileno()).st_size == 0:
            yield iter(())
            return
        with mmap.mmap(plain.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            end = len(mapped)
            while strip and end and mapped[end - 1] in b" \t\r\n":
                end -= 1
            yield iter((Piece(mapped, 0, end),) if end else ())


def _cut_at_lines(file: IO[bytes], strip: bool, block: int) -> Iterator[Piece]:
    # The last line with text in it stays pending: blank lines after it may be the end or the middle.
    pending = b""
    while more := file.read(block):
        pending += more
        cut = pending.rfind(b"\n", 0, len(pending.rstrip(b" \t\r\n"))) + 1
        if cut:
            yield Piece(pending, 0, cut)
            pending = pending[cut:]
    end = len(pending.rstrip(b" \t\r\n")) if strip else len(pending)
    if end:
        yield Piece(pending, 0, end)


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 text file (plain, .gz or .xz), without their ends; only newlines end lines.

    Examples
    --------
    >>> with open("texts.txt", "w") as file:
    ...     print("green tea", "iron ore", sep="\\n", file=file)
    >>> read_lines("texts.txt")
    ['green tea', 'iron ore']
    """
    with open_binary(path) as file:
        raw = file.read()
    lines = raw.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    try:
        return [line.removesuffix(b"\r").decode() for line in lines]
    except UnicodeDecodeError:
        for number, line in enumerate(lines, 1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                bad = line[error.start : error.start + 8]
                where = f"{file_name(path)}:{number}:{error.start + 1}"
                raise ValueError(f"{where}: UTF-8 text expected, got {bad!r}") from None
        raise
