"""The pages of the commands: what they show is what the commands print, up to the digits of numbers."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from xmc_fast.cli import COMMANDS, main

PAGES = Path(__file__).parents[1] / "docs" / "commands"
ORDER = ("demo", "train", *(name for name in COMMANDS if name not in ("demo", "train")))
SESSION = re.compile(r"^```console\n(.*?)^```", re.S | re.M)


def shape(line):
    """A line without the digits of its numbers, signs and the width of gaps."""
    line = re.sub(r"[-+](?=\d)", "", re.sub(r"\s+", " ", line.strip()))
    return re.sub(r"(?<![\w.])\d[\d,]*(\.\d+)?", "0", line)


def sessions(page):
    """(command line, lines shown) of each command of a page."""
    for block in SESSION.findall(page.read_text("utf-8")):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            line, *shown = part.splitlines()
            yield line, [text for text in shown if text.strip() and text != "..."]


def test_the_commands_of_the_pages_print_what_is_shown(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib").use("Agg")
    monkeypatch.chdir(tmp_path)
    pages = {page.stem: page for page in PAGES.glob("*.md")}
    assert set(pages) <= set(COMMANDS)
    for name in ORDER:
        for line, shown in sessions(pages[name]) if name in pages else ():
            program, *arguments = shlex.split(line)
            assert program == "xmc-fast"
            code = main(arguments)
            out, err = capsys.readouterr()
            assert code == 0, f"{name}: {line}\n{err}"
            printed = [shape(text) for text in out.splitlines()]
            for text in shown:
                assert shape(text) in printed, f"{name}: {line}\n{text}\n{out}"
