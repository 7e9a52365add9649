"""What every page is made of: results, the rows of a table, the machine they were measured on.

A part of a page (`Part`) is a table or a text made from the files of docs/results. `PARTS` of the modules in this
folder say which; pages.py puts them between the marks `<!-- NAME -->` and `<!-- end of NAME -->`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.common import KEPT, markdown
from bench.report.ahead import Rivals, said

Row = dict[str, Any]
Rows = list[Row]
Column = str | Callable[[Row], Any]  # the key of a row, or what is computed from it


class Results(dict[str, Any]):
    """The files of docs/results by name, read when they are needed."""

    def __missing__(self, name: str) -> Any:
        path = KEPT / f"{name}.json"
        if not path.exists():
            raise LookupError(name)
        self[name] = json.loads(path.read_text("utf-8"))
        return self[name]

    def rows(self, name: str, **where: Any) -> Rows:
        return [r for r in self[name]["rows"] if all(r.get(key) == value for key, value in where.items())]


@dataclass(frozen=True)
class Part:
    """A marked part of a page.

    result    the file of docs/results; its machine is named below a table
    command   what measures it; without one the part is text, or a table whose page names the command
    columns   title -> key or function of a row; all columns without it
    make      instead: the rows of the table, or the text, from all results
    rivals    how peers are compared: a sentence below the table says where one is ahead
    question, headline  of the summary table
    """

    result: str = ""
    command: str = ""
    columns: dict[str, Column] | None = None
    make: Callable[[Results], Rows | str] | None = None
    rivals: Rivals | None = None
    question: str = ""
    headline: Callable[[Results], str] | None = None

    def text(self, results: Results) -> str:
        try:
            made = self.make(results) if self.make else results.rows(self.result)
        except LookupError:
            return f"Not in `docs/results`: `{self.command}` makes this table."
        if isinstance(made, str):
            return made
        if self.columns:
            made = [{title: value(row, c) for title, c in self.columns.items()} for row in made]
        below = [self.behind(results)] if self.rivals else []
        if self.command:
            below.append(f"`{self.command}`" + machine_of(results[self.result]))
        return "\n\n".join([markdown(made), *below])

    def behind(self, results: Results) -> str:
        """Where a peer is ahead, by the titles of the columns."""
        text = said(results.rows(self.result), self.rivals) if self.rivals else ""
        titles = {key: title for title, key in (self.columns or {}).items()}
        return re.sub(r"`(\w+)`", lambda m: f"*{titles.get(m[1], m[1])}*", text)


def value(row: Row, column: Column) -> Any:
    return column(row) if callable(column) else row.get(column, "")


def machine_of(result: dict[str, Any]) -> str:
    """ ": CPU, instruction set, threads, limits (version, commits)" of all rows; one machine per table."""
    machines = [row.get("machine", result.get("machine")) for row in result["rows"]]
    machines = [m for m in machines if m]
    if not machines:
        return ""
    named = {(m["cpu"], m["simd"], m["threads"]) for m in machines}
    if len(named) > 1:
        raise ValueError(f"a table of several machines: {sorted(named)}")
    first = machines[0]
    commits = ", ".join(dict.fromkeys(m["commit"] for m in machines))

    def span(key: str) -> str:
        low, high = min(m[key] for m in machines), max(m[key] for m in machines)
        return f"{low:.0f}" if f"{low:.0f}" == f"{high:.0f}" else f"{low:.0f} to {high:.0f}"

    one = "one thread reaches" if first["threads"] == 1 else f"{first['threads']} threads reach"
    return (
        f": {first['cpu']}, {first['simd']}; {one} {span('fma_gflops')} GFLOP/s FMA, "
        f"{span('read_gbs')} GB/s read, {span('triad_gbs')} GB/s triad (commit {commits})"
    )


def spread(rows: Sequence[Row], key: str) -> str:
    """ "3.1 to 7.9": the range of a column."""
    values = [float(r[key]) for r in rows if r.get(key) not in ("", None)]
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"


def over(number: Any) -> str:
    """A ratio near one, with the digits that tell it from one: 1.0009, 1.00000027."""
    if number in ("", None):
        return ""
    return f"{1 + float(f'{number - 1:.2g}'):.10f}".rstrip("0").rstrip(".")
