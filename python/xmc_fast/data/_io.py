"""Files as bytes: plain ones as a whole, .gz, .xz and .zst decompressed in blocks; standard input; encodings."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import importlib
import lzma
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from typing import IO, Any, NamedTuple, TypeAlias, cast

import numpy as np

from xmc_fast import _core

Path: TypeAlias = "str | os.PathLike[str]"

BLOCK = 64 << 20  # bytes of text that a stream holds in memory at a time
WHOLE = 1 << 30  # bytes of a plain file: a larger one is a stream
_STEP = 16 << 20  # bytes read at once: Ctrl-C comes through between them
SUFFIXES = (".gz", ".xz", ".zst")
_MAGIC = {b"\x1f\x8b": ".gz", b"\xfd7zXZ": ".xz", b"\x28\xb5\x2f\xfd": ".zst"}


def file_name(path: Path) -> str:
    """The name of a file in messages."""
    return "standard input" if path == "-" else os.fspath(path)


def plain_suffix(path: Path) -> str:
    """The ending of a name in lower case, without that of a compression."""
    stem, suffix = os.path.splitext(os.fspath(path).lower())
    return os.path.splitext(stem)[1] if suffix in SUFFIXES else suffix


def _zstd() -> Any:
    # Not the package zstandard: it reads a truncated file as if it had ended there.
    for name in ("compression.zstd", "backports.zstd"):
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
    raise ValueError(
        "a .zst file needs Python 3.14 or the package backports.zstd: pip install backports.zstd"
    )


def _compression(path: Path, head: bytes) -> str:
    """.gz, .xz, .zst or "", by the ending or by the first bytes."""
    suffix = os.path.splitext(os.fspath(path))[1].lower()
    return suffix if suffix in SUFFIXES else next((s for m, s in _MAGIC.items() if head.startswith(m)), "")


@contextlib.contextmanager
def open_binary(path: Path, mode: str = "rb", *, like: Path | None = None) -> Iterator[IO[bytes]]:
    """Open a file, decompressed; "-" is standard input. To write: compressed if ``like`` ends so."""
    with contextlib.ExitStack() as stack:
        if path == "-" and mode == "rb":
            file: Any = sys.stdin.buffer
        else:
            file = stack.enter_context(open(path, mode))
            if mode == "rb":
                stack.enter_context(_unchanged(file, path))
        suffix = _compression(path if like is None else like, file.peek(6) if mode == "rb" else b"")
        errors: tuple[type[Exception], ...] = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error)
        if suffix == ".gz":
            file = stack.enter_context(gzip.GzipFile("", mode, 6, file, 0))
        elif suffix == ".xz":
            file = stack.enter_context(lzma.LZMAFile(file, mode))
        elif suffix == ".zst":
            zstd = _zstd()
            errors = (*errors, zstd.ZstdError)
            file = stack.enter_context(zstd.open(file, mode))
        try:
            yield cast("IO[bytes]", file)
        except errors as error:
            raise ValueError(f"{file_name(path)}: damaged or truncated {suffix[1:]} file: {error}") from error


class Piece(NamedTuple):
    """Whole lines: text[begin:end]."""

    text: Any  # bytes, or a view of some
    begin: int
    end: int


@contextlib.contextmanager
def _unchanged(file: IO[bytes], path: Path) -> Iterator[os.stat_result]:
    """ValueError if a regular file has become another one by the end: part of it may have been read before that."""
    before = os.fstat(file.fileno())
    yield before
    now = os.fstat(file.fileno())
    if stat.S_ISREG(now.st_mode) and (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        sizes = f"{before.st_size} bytes before, {now.st_size} after"
        raise ValueError(f"{file_name(path)}: changed while it was read ({sizes})")


def read_whole(path: Path) -> memoryview | None:
    """The bytes of a plain file, or None if it must be read as a stream.

    They are read and not mapped: the system ends a process whose mapped file is cut short.
    """
    if path == "-" or not os.path.isfile(path):
        return None
    with open(path, "rb") as plain:
        if _compression(path, plain.peek(6)):
            return None
        with _unchanged(plain, path) as found:
            if found.st_size > WHOLE:
                return None
            whole = np.empty(found.st_size, np.uint8).data
            end = 0
            while more := plain.readinto(whole[end : end + _STEP]):
                end += more
            return whole[:end]


@contextlib.contextmanager
def text_pieces(path: Path, *, strip: bool = False, block: int | None = None) -> Iterator[Iterator[Piece]]:
    """The bytes of a file in pieces of whole lines; the last line may lack its end.

    A plain file is one piece if ``block`` is not given. Others come in pieces of about ``block``
    bytes (BLOCK if not given), or of one line if that is longer, so that the text is never in memory as a whole.
    ``strip`` leaves out blank lines at the very end.
    """
    whole = None if block is not None else read_whole(path)
    if whole is None:
        with open_binary(path) as file:
            yield _cut_at_lines(file, strip, block or BLOCK)
        return
    end = len(whole)
    while strip and end and whole[end - 1] in b" \t\r\n":
        end -= 1
    yield iter((Piece(whole, 0, end),) if end else ())


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


class Stream:
    """The bytes of a file as UTF-8 without a byte order mark; ``head`` is how it starts.

    ``blocks`` may be read once; the head is part of it.
    """

    HEAD = 4 << 20

    def __init__(self, file: IO[bytes], path: Path, encoding: str) -> None:
        self.name, self._file, self._path = file_name(path), file, path
        self._decoder: codecs.IncrementalDecoder | None = None
        self._lines = 0
        check_encoding(encoding)
        if codecs.lookup(encoding).name not in ("utf-8", "utf-8-sig"):
            self._decoder = codecs.getincrementaldecoder(encoding)()
        self.begin = 0
        self.head = self._recoded(file.read(self.HEAD))
        if self.head.startswith(codecs.BOM_UTF8):
            self.begin = 3
            self.head = self.head[3:]
        if self._decoder is None and self.head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise ValueError(f"{self.name}: looks like UTF-16, give encoding='utf-16'")

    def _recoded(self, raw: bytes, final: bool = False) -> bytes:
        if self._decoder is None:
            return raw
        try:
            text = self._decoder.decode(raw, final or not raw)
        except UnicodeDecodeError as error:
            line = 1 + self._lines + error.object[: error.start].count(b"\n")
            bad = error.object[error.start : error.start + 8]
            raise ValueError(f"{self.name}:{line}: {error.encoding} text expected, got {bad!r}") from None
        self._lines += text.count("\n")
        return text.encode()

    def blocks(self, size: int | None) -> Iterator[tuple[Any, int, bool]]:
        """(bytes, where to begin, whether they are the last); without a size as few blocks as possible."""
        whole = read_whole(self._path) if size is None and self._decoder is None else None
        if whole is not None:
            yield whole, self.begin, True
            return
        now, size = self.head, size or BLOCK
        while more := self._file.read(size):
            yield now, 0, False
            now = self._recoded(more)
        yield now + (self._recoded(b"", True) if self._decoder else b""), 0, True


def check_encoding(encoding: str) -> None:
    """An error unless Python has this encoding of text."""
    try:
        "".encode(encoding)
    except LookupError:
        raise ValueError(f"encoding must be one that Python has, got {encoding!r}") from None


@contextlib.contextmanager
def encoding_hint() -> Iterator[None]:
    """Say what to do where text is not UTF-8."""
    try:
        yield
    except ValueError as error:
        if "UTF-8 text expected" not in str(error):
            raise
        raise ValueError(f"{error}; name another encoding with encoding=") from None


@contextlib.contextmanager
def open_stream(path: Path, encoding: str = "utf-8") -> Iterator[Stream]:
    """Open a text file of any encoding, compressed or not."""
    with open_binary(path) as file:
        yield Stream(file, path, encoding)


def read_lines(path: Path, *, encoding: str = "utf-8") -> list[str]:
    """The lines of a text file (plain, .gz, .xz or .zst), without their ends; only newlines end lines.

    Examples
    --------
    >>> with open("texts.txt", "w") as file:
    ...     print("green tea", "iron ore", sep="\\n", file=file)
    >>> read_lines("texts.txt")
    ['green tea', 'iron ore']
    """
    lines: list[str] = []
    with open_stream(path, encoding) as stream:
        pending = b""
        for raw, begin, final in stream.blocks(None):
            text = pending + raw if pending else raw
            end = len(text) if final else text.rfind(b"\n") + 1
            data, offsets, *_ = _core.split_lines(text, begin, end, stream.name, len(lines) + 1, 1)
            lines += _core.decode_texts(data, offsets)
            pending = text[end:] if not final else b""
    return lines
