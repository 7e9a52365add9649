"""Many texts in one block of bytes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from xmc_fast import _core


class TextColumn(Sequence[str]):
    """A read-only sequence of texts, stored as UTF-8 bytes with offsets.

    It behaves like a list of str, but str objects are made only when a text is looked at. The vectorizer reads
    the bytes directly. Slices share the bytes.

    Parameters
    ----------
    data : uint8 array
        UTF-8; lone surrogates as three bytes ("surrogatepass").
    offsets : int64 array of length n + 1
        Text i is ``data[offsets[i]:offsets[i + 1]]``.

    Examples
    --------
    >>> texts = TextColumn.from_texts(["green tea", "", "Öl"])
    >>> len(texts), texts[0], texts[-1], list(texts[1:])
    (3, 'green tea', 'Öl', ['', 'Öl'])
    """

    __slots__ = ("data", "offsets")

    def __init__(self, data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> None:
        self.data, self.offsets = data, offsets

    @classmethod
    def from_texts(cls, texts: Iterable[str]) -> TextColumn:
        """The column of some str objects."""
        encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
        return cls(np.frombuffer(b"".join(encoded), np.uint8), _offsets([*map(len, encoded)]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> TextColumn: ...
    def __getitem__(self, index: int | slice) -> str | TextColumn:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                return self.take(np.arange(start, stop, step))
            return TextColumn(self.data, self.offsets[start : max(start, stop) + 1])
        i = range(len(self))[index]
        return self.data[self.offsets[i] : self.offsets[i + 1]].tobytes().decode("utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str]:
        return iter(self.tolist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TextColumn):
            return self.tolist() == other.tolist()
        return self.tolist() == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(repr(text[:40]) for text in self[:3])
        return f"TextColumn of {len(self):,} texts: [{shown}{', ...' if len(self) > 3 else ''}]"

    def __reduce__(self) -> tuple[Any, ...]:
        packed = self.data[self.offsets[0] : self.offsets[-1]].copy()
        return TextColumn, (packed, self.offsets - self.offsets[0])

    @property
    def nbytes(self) -> int:
        """Bytes of the texts and their offsets."""
        return int(self.offsets[-1] - self.offsets[0]) + self.offsets.nbytes

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Bytes of each text."""
        return np.diff(self.offsets)

    @property
    def filled(self) -> npt.NDArray[np.bool_]:
        """Which texts have more than white space.

        Examples
        --------
        >>> TextColumn.from_texts(["tea", "", " \\n"]).filled.tolist()
        [True, False, False]
        """
        found: npt.NDArray[np.bool_] = self.sizes > 0
        first = self.data[self.offsets[:-1][found]]
        for i in np.flatnonzero(found)[_MAYBE_SPACE[first]].tolist():
            found[i] = not self[i].isspace()
        return found

    def tolist(self) -> list[str]:
        """All texts as str objects."""
        return _core.decode_texts(self.data, np.ascontiguousarray(self.offsets))

    def take(self, rows: npt.ArrayLike) -> TextColumn:
        """The texts of some rows (indices or a mask), in their order.

        Examples
        --------
        >>> list(TextColumn.from_texts(["a", "b", "c"]).take([2, 0]))
        ['c', 'a']
        """
        chosen = np.arange(len(self))[np.asarray(rows)]
        pieces = [self.data[a:b] for a, b in zip(self.offsets[chosen], self.offsets[chosen + 1], strict=True)]
        data = np.concatenate(pieces) if pieces else np.zeros(0, np.uint8)
        return TextColumn(data, _offsets(self.sizes[chosen]))

    @classmethod
    def concat(cls, columns: Sequence[TextColumn]) -> TextColumn:
        """Several columns, one after the other."""
        if len(columns) == 1:
            return columns[0]
        data = [c.data[c.offsets[0] : c.offsets[-1]] for c in columns]
        sizes = [c.sizes for c in columns]
        return cls(
            np.concatenate(data) if data else np.zeros(0, np.uint8),
            _offsets(np.concatenate(sizes) if sizes else []),
        )


# First bytes of white space in UTF-8: of ASCII, and of U+0085, U+00A0, U+1680, U+2000 and so on, U+3000.
_MAYBE_SPACE = np.isin(np.arange(256), [*range(9, 14), *range(28, 33), 0xC2, 0xE1, 0xE2, 0xE3])


def _offsets(sizes: npt.ArrayLike) -> npt.NDArray[np.int64]:
    sizes = np.asarray(sizes, np.int64)
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def rows_of(indptr: npt.NDArray[np.int64], values: list[Any]) -> list[list[Any]]:
    """values[indptr[i]:indptr[i + 1]] for every row i."""
    return [values[a:b] for a, b in itertools.pairwise(indptr.tolist())]
