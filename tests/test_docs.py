"""Every code block of the documentation runs, page by page, in an empty folder.

`python` blocks share a namespace, `sh` blocks run in bash with `xmc-fast` on the path. Blocks of another kind
(`console`, `text`, `yaml`) are for reading: installing, other machines, outputs.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.S | re.M)
PAGES = sorted((ROOT / "docs").rglob("*.md"))
NEEDS_TORCH = re.compile(r"^\s*(?:import torch|from transformers|from xmc_fast\.nn)", re.M)


def name(page):
    return page.relative_to(ROOT / "docs").as_posix()


@pytest.fixture
def command(tmp_path):
    """A folder with an `xmc-fast` that runs this interpreter and this package."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "xmc-fast"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m xmc_fast "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return folder


@pytest.mark.parametrize("page", [p for p in PAGES if BLOCK.search(p.read_text("utf-8"))], ids=name)
def test_blocks_run(page, command, tmp_path, monkeypatch, request):
    blocks = BLOCK.findall(page.read_text("utf-8"))
    if any(kind == "python" and NEEDS_TORCH.search(code) for kind, code in blocks):
        assert "xmc-fast[nn]" in page.read_text("utf-8"), "the page does not say what its blocks need"
        request.getfixturevalue("one_torch_thread")
    if any(kind == "python" and "plots" in code for kind, code in blocks):
        pytest.importorskip("matplotlib").use("Agg")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("PATH", f"{command}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(p for p in sys.path if p))
    namespace: dict = {"__name__": "__main__"}
    for kind, code in blocks:
        assert kind in ("python", "sh", "console", "text", "yaml"), f"{name(page)}: a block of kind {kind!r}"
        if kind == "python":
            exec(compile(code, name(page), "exec"), namespace)
        elif kind == "sh":
            run = subprocess.run(["bash", "-e"], input=code, text=True, capture_output=True, timeout=120)
            assert run.returncode == 0, f"{code}\n{run.stdout}\n{run.stderr}"


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+?)(?:#[^)]*)?\)", page.read_text("utf-8")):
            if not target.startswith(("http:", "https:")):
                assert (page.parent / target).exists(), f"{name(page)} links to {target}"


def test_every_page_is_in_the_menu():
    menu = set(re.findall(r"[\w/]+\.md", (ROOT / ".mkdocs.yml").read_text("utf-8")))
    assert menu == {name(page) for page in PAGES}


def test_performance_pages_agree_with_their_results():
    run = subprocess.run(
        [sys.executable, ROOT / "bench" / "report.py", "--check"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert run.returncode == 0, run.stdout + run.stderr
