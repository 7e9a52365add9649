"""Where a peer is ahead of us in a table of results, said in words: `said(rows, rivals)`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.common import cell

OURS = ("xmc_fast", "ours")
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Rivals:
    """How a table is compared. With `name`, the column of the methods, each case (rows that agree in `case`) has a
    first row of ours and rows of peers, compared in columns where `lower` or `higher` is better. Otherwise each row
    is a comparison, and a peer is ahead where a column of `ratios` is below one or one of `flags` is false."""

    name: str = ""
    case: tuple[str, ...] = ()
    lower: tuple[str, ...] = ()
    higher: tuple[str, ...] = ()
    ratios: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()  # rows that are no method of a package


def cases(rows: Rows, rivals: Rivals) -> Iterator[tuple[dict[str, Any], Rows]]:
    """Our row and the peers' rows of each case."""
    for key in dict.fromkeys(tuple(r.get(c) for c in rivals.case) for r in rows):
        here = [r for r in rows if tuple(r.get(c) for c in rivals.case) == key]
        ours = [r for r in here if r[rivals.name].startswith(OURS)]
        peers = [r for r in here if r not in ours and r[rivals.name] not in rivals.left_out]
        if ours and peers:
            yield ours[0], peers


def number(row: dict[str, Any], column: str) -> float | None:
    value = row.get(column)
    return None if value in ("", None) else float(value)


def ahead(rows: Rows, rivals: Rivals) -> list[str]:
    """One text per column in which a peer is ahead."""
    found = []
    for column in (*rivals.lower, *rivals.higher):
        sign = 1 if column in rivals.lower else -1
        compared, wins = 0, []
        for mine, peers in cases(rows, rivals):
            own = number(mine, column)
            values = [(number(r, column), r[rivals.name]) for r in peers]
            better = sorted((sign * v, n, v) for v, n in values if v is not None and own is not None
                            and sign * v < sign * own and cell(v) != cell(own))  # fmt: skip
            compared += 1
            if better:
                _, name, value = better[0]
                more = f" and {len(better) - 1} more" if len(better) > 1 else ""
                wins.append((value / own if own else 0.0, f"{name} ({value:.4g} against {own:.4g}){more}"))
        if wins:
            text = min(wins, key=lambda w: sign * w[0])[1]
            many = f", in {len(wins)} of {compared} cases" if compared > 1 else ""
            found.append(f"`{column}`: {text}{many}")
    for column in rivals.ratios:
        values = [v for r in rows if (v := number(r, column)) is not None]
        below = [v for v in values if float(cell(v)) < 1]
        if below:
            found.append(f"`{column}`: down to {min(below):.3g}, in {len(below)} of {len(values)} rows")
    for column in rivals.flags:
        lost = sum(not r[column] for r in rows)
        if lost:
            found.append(f"`{column}`: in {lost} of {len(rows)} rows")
    return found


def said(rows: Rows, rivals: Rivals) -> str:
    """The sentence for the page."""
    found = ahead(rows, rivals)
    return f"A peer is ahead in {'; '.join(found)}." if found else "No peer is ahead in this table."
