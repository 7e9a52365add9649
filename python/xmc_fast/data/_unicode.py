"""What this Python knows about characters, as tables for csrc/data/analyzer.h."""

from __future__ import annotations

import functools
import re
import sys
import unicodedata
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_PAGE = 256


class Fold(NamedTuple):
    """Replacements of single characters (FoldTable in csrc/data/analyzer.h)."""

    pages: npt.NDArray[np.uint16]
    cells: npt.NDArray[np.uint32]
    replacements: bytes


NO_FOLD = Fold(np.zeros(0, np.uint16), np.zeros(0, np.uint32), b"")


@functools.cache
def word_bits() -> npt.NDArray[np.uint8]:
    """Bit c: whether code point c is a word character (``\\w``)."""
    every = np.arange(sys.maxunicode + 1, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")
    word = np.zeros(len(every), bool)
    for run in re.finditer(r"\w+", every):
        word[run.start() : run.end()] = True
    return np.packbits(word, bitorder="little")


@functools.cache
def fold_table(lowercase: bool, strip_accents: str | None) -> Fold:
    """Lower case, then accents removed as scikit-learn does: by NFKD without combining marks, or only ASCII."""
    if not lowercase and strip_accents is None:
        return NO_FOLD
    pages, cells, place = [], [], {}  # type: tuple[list[int], list[tuple[int, ...]], dict[tuple[int, ...], int]]
    replacements = bytearray()
    for first in range(0, sys.maxunicode + 1, _PAGE):
        page = _page(first, lowercase, strip_accents, replacements)
        if page not in place:
            place[page] = len(cells)
            cells.append(page)
        pages.append(place[page])
    return Fold(np.array(pages, np.uint16), np.array(cells, np.uint32).ravel(), bytes(replacements))


_SAME = 0xFFFFFFFF


def _cell(character: str, replaced: str, replacements: bytearray) -> int:
    if replaced == character:
        return _SAME
    if not replaced:
        return 0
    encoded = replaced.encode("utf-8", "surrogatepass")
    at = len(replacements)
    replacements += encoded
    return at << 6 | len(encoded)


_UNCHANGED = (_SAME,) * _PAGE
_DROPPED = (0,) * _PAGE


def _page(first: int, lowercase: bool, strip_accents: str | None, replacements: bytearray) -> tuple[int, ...]:
    """The cells of one page; most pages need no look at single characters."""
    every = "".join(map(chr, range(first, first + _PAGE)))
    as_is = not lowercase or every.lower() == every
    if as_is and strip_accents is None:
        return _UNCHANGED
    lowered = every if not lowercase else [character.lower() for character in every]
    if strip_accents is not None:
        decomposed = as_is and unicodedata.is_normalized("NFKD", every)
        if decomposed and strip_accents == "ascii" and first:
            return _DROPPED
        if decomposed and strip_accents == "unicode" and not any(map(unicodedata.combining, every)):
            return _UNCHANGED
        lowered = [_stripped(text, strip_accents) for text in lowered]
    return tuple(_cell(c, replaced, replacements) for c, replaced in zip(every, lowered, strict=True))


def _stripped(text: str, strip_accents: str) -> str:
    decomposed = unicodedata.normalize("NFKD", text)
    if strip_accents == "ascii":
        return decomposed.encode("ascii", "ignore").decode()
    return "".join(c for c in decomposed if not unicodedata.combining(c))


def resolve_sigma(text: str) -> bytes:
    """Lower only the capital sigmas, whose lower case depends on whether they end a word."""
    if "Σ" not in text:
        return text.encode("utf-8", "surrogatepass")
    lowered = text.replace("İ", "i").lower()  # İ is the only character whose lower case has another length
    fixed = "".join(low if c == "Σ" else c for c, low in zip(text, lowered, strict=True))
    return fixed.encode("utf-8", "surrogatepass")
