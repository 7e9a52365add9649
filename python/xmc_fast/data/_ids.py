"""Lines of ids, the companions of text files."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from xmc_fast.data._io import Path, file_name, open_binary
from xmc_fast.data._parse import show


def read_id_lines(
    path: Path, *, limits: tuple[int, ...], names: tuple[str, ...], base: int = 0
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Whole numbers separated by spaces, tabs or commas, as (numbers per line, all numbers).

    With one limit a line may hold any number of ids in [base, base + limit), none twice; with several, each
    line holds as many ids, each with a limit of its own.
    """
    with open_binary(path) as file:
        raw = file.read()
    if not raw and len(limits) == 1:
        raise ValueError(f"{file_name(path)}:1:1: the file is empty")
    lines = raw.replace(b",", b" ").split(b"\n")
    if lines[-1].strip(b" \t\r") == b"":
        lines.pop()
    sizes = np.fromiter((len(line.split()) for line in lines), np.int64, len(lines))
    tokens = b" ".join(lines).split()
    if re.fullmatch(rb"[0-9 \t\r\n]*", b" ".join(lines)) and max(map(len, tokens), default=0) <= 18:
        ids = np.fromiter(map(int, tokens), np.int64, len(tokens)) - base
        if _all_right(sizes, ids, limits):
            return sizes, ids
    raise ValueError(f"{file_name(path)}:{_first_error(lines, limits, names, base)}")


def _all_right(sizes: npt.NDArray[np.int64], ids: npt.NDArray[np.int64], limits: tuple[int, ...]) -> bool:
    if len(limits) > 1:
        if np.any(sizes != len(limits)):
            return False
        pairs = ids.reshape(-1, len(limits))
        return not np.any((pairs < 0) | (pairs >= np.array(limits)))
    if np.any((ids < 0) | (ids >= limits[0])):
        return False
    keys = np.sort(np.repeat(np.arange(len(sizes)), sizes) * limits[0] + ids)
    return not np.any(keys[1:] == keys[:-1])


def _first_error(lines: list[bytes], limits: tuple[int, ...], names: tuple[str, ...], base: int) -> str:
    for number, line in enumerate(lines, 1):
        seen = set()
        tokens = list(re.finditer(rb"[^ \t]+", line.removesuffix(b"\r")))
        for k, token in enumerate(tokens):
            where = f"{number}:{token.start() + 1}"
            if len(limits) > 1 and k >= len(limits):
                return f"{where}: {len(limits)} ids per line expected, got {show(token[0])} after them"
            limit, name = limits[k % len(limits)], names[k % len(limits)]
            if not re.fullmatch(rb"[0-9]+", token[0]):
                return f"{where}: {name} id expected (a whole number), got {show(token[0])}"
            value = int(token[0])
            if not base <= value < base + limit:
                top = base + limit - 1
                return f"{where}: {name} id out of range, expected {base}..{top}, got {show(token[0])}"
            if len(limits) == 1 and value in seen:
                return f"{where}: repeated {name}, got {show(token[0])}"
            seen.add(value)
        if len(limits) > 1 and len(tokens) < len(limits):
            return f"{number}:1: {len(limits)} ids per line expected, got {show(line)}"
    raise RuntimeError("the fast and the slow reader of ids disagree")
