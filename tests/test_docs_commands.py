"""The pages of the commands: what they show is what the commands print, up to the digits of numbers."""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
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


def prints(line, capsys):
    """What a command of a page prints."""
    program, *arguments = shlex.split(line)
    assert program == "xmc-fast"
    code = main(arguments)
    out, err = capsys.readouterr()
    assert code == 0, f"{line}\n{err}"
    return out


def check(line, shown, out):
    printed = [shape(text) for text in out.splitlines()]
    for text in shown:
        assert shape(text) in printed, f"{line}\n{text}\n{out}"


@contextlib.contextmanager
def running(line):
    """The server that a line of a page starts, on a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = [*shlex.split(line)[1:], "--port", str(port)]
    process = subprocess.Popen([sys.executable, "-m", "xmc_fast", *arguments])
    try:
        for _ in range(600):
            assert process.poll() is None
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/ready").read()
                break
            time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def test_every_command_has_a_page():
    assert {page.stem for page in PAGES.glob("*.md")} == set(COMMANDS)


def test_the_commands_of_the_pages_print_what_is_shown(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib").use("Agg")
    monkeypatch.chdir(tmp_path)
    for name in ORDER:
        for line, shown in sessions(PAGES / f"{name}.md") if name != "serve" else ():
            check(line, shown, prints(line, capsys))


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_page_of_the_server(tmp_path, monkeypatch, capsys):
    for package in ("starlette", "uvicorn"):
        pytest.importorskip(package, reason="xmc-fast[serve] is not installed")
    monkeypatch.chdir(tmp_path)
    for page in ("demo", "train"):
        prints(next(sessions(PAGES / f"{page}.md"))[0], capsys)
    (start, _), *requests = sessions(PAGES / "serve.md")
    with running(start) as address:
        for line, shown in requests:
            words = shlex.split(line.replace("127.0.0.1:8000", address))
            check(
                line, shown, subprocess.run([*words, "-s"], capture_output=True, text=True, check=True).stdout
            )
