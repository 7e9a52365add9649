"""Sparse text, read the plain way: split lines, split fields, exact rational numbers."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

import numpy as np

NUMBER = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
LARGEST = Fraction(float(np.finfo(np.float32).max))


class Bad(ValueError):
    """Line and column (from 1) of the first bad token."""

    def __init__(self, line: int, column: int) -> None:
        super().__init__(f"{line}:{column}")
        self.line, self.column = line, column


class Missing(Bad):
    """Fewer points than there should be."""


@lru_cache(maxsize=100_000)
def exact_float(text: bytes) -> np.float32:
    """The float32 nearest to a decimal, ties to even; inf when it rounds above the largest."""
    sign = -1 if text.startswith(b"-") else 1
    mantissa, _, exponent = text.lstrip(b"+-").lower().partition(b"e")
    whole, _, fraction = mantissa.partition(b".")
    scale = int(exponent or 0) - len(fraction)
    digits = int(whole + fraction)
    if digits == 0:
        return np.float32(sign * 0.0)
    place = len(str(digits)) + scale
    if place > 60:
        return np.float32(sign * np.inf)
    if place < -60:
        return np.float32(sign * 0.0)
    value = Fraction(digits) * Fraction(10) ** scale
    power = -149  # value = m 2^power with m < 2^24: round m
    while value >= Fraction(2) ** (power + 24):
        power += 1
    m = round(value / Fraction(2) ** power)  # ties to even
    rounded = Fraction(m) * Fraction(2) ** power
    return np.float32(sign * (np.inf if rounded > LARGEST else float(rounded)))


def parse_lines(
    text: bytes,
    n_features: int,
    n_labels: int,
    *,
    points: int | None = None,
    first_line: int = 1,
    base: int = 0,
    label_field: bool = True,
    sum_duplicates: bool = False,
) -> list[tuple[list[int], dict[int, np.float32]]]:
    """Labels (sorted) and features of each line; with ``points``, only blank lines may follow them."""
    lines = text.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    out = []
    for number, line in enumerate(lines, first_line):
        line = line.removesuffix(b"\r")
        if points is not None and len(out) == points:
            if line.strip(b" \t"):
                raise Bad(number, 1)
            continue
        out.append(parse_line(line, number, n_features, n_labels, base, label_field, sum_duplicates))
    if points is not None and len(out) < points:
        raise Missing(first_line + len(lines), 1)
    return out


def parse_line(
    line: bytes, number: int, n_features: int, n_labels: int, base: int, label_field: bool, merge: bool
) -> tuple[list[int], dict[int, np.float32]]:
    tokens = [(m.start() + 1, m[0]) for m in re.finditer(rb"[^ \t]+", line)]
    labels: list[int] = []
    row: dict[int, np.float32] = {}
    last: dict[int, int] = {}
    if label_field and tokens and tokens[0][0] == 1 and (b":" not in tokens[0][1] or b"," in tokens[0][1]):
        column = 1
        for word in tokens.pop(0)[1].split(b","):
            if not re.fullmatch(rb"[0-9]+", word) or not 0 <= int(word) - base < n_labels:
                raise Bad(number, column)
            if int(word) - base in labels and not merge:
                raise Bad(number, column)
            labels.append(int(word) - base)
            column += len(word) + 1
    for column, token in tokens:
        feature, colon, word = token.partition(b":")
        if not colon or not re.fullmatch(rb"[0-9]+", feature) or not 0 <= int(feature) - base < n_features:
            raise Bad(number, column)
        if not NUMBER.fullmatch(word) or np.isinf(exact_float(word)):
            raise Bad(number, column)
        key = int(feature) - base
        if key in row and not merge:
            raise Bad(number, column)
        with np.errstate(all="ignore"):
            row[key] = row[key] + exact_float(word) if key in row else exact_float(word)
        last[key] = column
    overflow = [last[key] for key, value in row.items() if not np.isfinite(value)]
    if overflow:
        raise Bad(number, min(overflow))
    return sorted(set(labels)), dict(sorted(row.items()))
