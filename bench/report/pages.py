"""Write the tables of the documentation and of the README from docs/results, and draw the pictures.

    python -m bench.report.pages              # take over what bench/results has, then write pages and pictures
    python -m bench.report.pages --check      # only tell whether the pages agree with docs/results

Pages are written by hand except for what stands between `<!-- NAME -->` and `<!-- end of NAME -->`: NAME is one of
the PARTS of the other files (speed.py, declare.py, ..). The benches save into bench/results (not in git); tables that
a part is made of are copied to docs/results (in git), and every number of the pages is from there.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from bench.common import DOCS, KEPT, RESULTS, ROOT, command_line
from bench.report import accuracy, declare, dst, lightxml, mach, near, serve, small, speed, tree, update
from bench.report.pictures import draw
from bench.report.tables import Part, Results

PARTS: dict[str, Part] = speed.PARTS | declare.PARTS | dst.PARTS | mach.PARTS | accuracy.PARTS
PARTS |= serve.PARTS | small.PARTS | update.PARTS | tree.PARTS | near.PARTS | lightxml.PARTS
MARK = re.compile(r"(<!-- ([\w-]+)(?:: [^\n]*)? -->)\n.*?(<!-- end of \2 -->)", re.S)


def filled(page: str, results: Results) -> str:
    """The page with its marked parts rewritten."""

    def part(match: re.Match[str]) -> str:
        if match[2] not in PARTS:
            raise KeyError(f"no part {match[2]!r} in bench/report")
        return f"{match[1]}\n\n{PARTS[match[2]].text(results)}\n\n{match[3]}"

    return MARK.sub(part, page)


def pages() -> list[Path]:
    return [p for p in (ROOT / "README.md", *sorted(DOCS.rglob("*.md"))) if MARK.search(p.read_text("utf-8"))]


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    if not check:
        for name in {part.result for part in PARTS.values()}:
            if (RESULTS / f"{name}.json").exists():
                shutil.copy(RESULTS / f"{name}.json", KEPT / f"{name}.json")
    results = Results()
    wanted = {path: filled(path.read_text("utf-8"), results) for path in pages()}
    stale = [path for path, text in wanted.items() if path.read_text("utf-8") != text]
    names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
    if check:
        print(
            f"stale: {names}: run python -m bench.report.pages"
            if stale
            else "the pages agree with docs/results"
        )
        return bool(stale)
    for path in stale:
        path.write_text(wanted[path], encoding="utf-8")
    draw(results, DOCS / "img")
    print(f"written: {names or 'nothing new'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
