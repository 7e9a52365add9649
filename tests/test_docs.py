"""Every code block of the documentation runs, page by page, in an empty folder.

`python` blocks share a namespace, `sh` blocks run in bash with `xmc-fast` on the path. Blocks of another kind
(`console`, `text`, `yaml`) are for reading: installing, other machines, outputs.
"""

from __future__ import annotations

import ast
import importlib.util
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
    if any("xmc_fast.serve" in code for _, code in blocks):
        pytest.importorskip("fastapi")
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


def tool(stem):
    """A script of docs/_tools as a module."""
    spec = importlib.util.spec_from_file_location(stem, ROOT / "docs" / "_tools" / f"{stem}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_command_line_page_is_that_of_the_parsers():
    script = tool("cli_page")
    assert script.PAGE.read_text("utf-8") == script.page(), "run python docs/_tools/cli_page.py"


def test_the_gallery_shows_every_plot():
    pytest.importorskip("matplotlib")
    from xmc_fast import plots

    page = (ROOT / "docs" / "guide" / "plots.md").read_text("utf-8")
    assert re.findall(r"img/plots/(\w+)\.png\)", page) == re.findall(r"^ax = plots\.(\w+)\(", page, re.M)
    pictures = {path.stem: path.stat().st_size for path in (ROOT / "docs" / "img" / "plots").iterdir()}
    assert set(pictures) == set(plots.__all__), "run python docs/_tools/gallery.py"
    assert sum(pictures.values()) < 1.5e6


def test_the_front_picture_shows_the_kept_results():
    script = tool("front_picture")
    assert script.digest().encode() in script.PICTURE.read_bytes(), "run python docs/_tools/front_picture.py"


def test_docstrings_and_pages_have_no_sphinx_roles():
    role = re.compile(r":(?:func|class|meth|mod|attr|data|exc|ref|obj):`")
    for path in [*(ROOT / "python").rglob("*.py"), *PAGES]:
        assert not role.search(path.read_text("utf-8")), path


def test_hooks_have_the_versions_of_the_constraints():
    pins = set((ROOT / "constraints.txt").read_text("utf-8").split())
    hooks = re.findall(
        r"additional_dependencies: \[(.*?)\]", (ROOT / ".pre-commit-config.yaml").read_text("utf-8")
    )
    assert hooks
    assert set(hooks) <= pins


def test_the_version_is_the_same_everywhere():
    import xmc_fast

    version = xmc_fast.__version__
    assert f'\nversion = "{version}"\n' in (ROOT / "pyproject.toml").read_text("utf-8")
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\n## {version}" in (ROOT / "docs" / "changelog.md").read_text("utf-8")


# Distributions of the imports whose name differs, and of those that a dependency brings along.
DISTRIBUTION = {
    "sklearn": "scikit-learn",
    "faiss": "faiss-cpu",
    "prometheus_client": "prometheus-client",
    "swagger_ui_bundle": "swagger-ui-bundle",
}
BROUGHT_ALONG = {"cloudpickle", "tokenizers", "pydantic", "starlette"}
NOT_IMPORTED = {"python-multipart", "httptools", "uvloop"}  # FastAPI and uvicorn use them where they are


def test_dependencies_are_the_imports():
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    lists = re.findall(
        r"^(dependencies|nn|plots|frames|faiss|dask|ray|serve|annif) = \[(.*?)\]$", project, re.S | re.M
    )
    declared = {name: set(re.findall(r'"([\w-]+)[>"]', items)) for name, items in lists}
    imported = set()
    for path in (ROOT / "python").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add(node.module.split(".")[0])
    imported -= {*sys.stdlib_module_names, "xmc_fast", *BROUGHT_ALONG}
    assert {DISTRIBUTION.get(name, name) for name in imported} == set().union(
        *declared.values()
    ) - NOT_IMPORTED
    said = re.search(r"The core needs (.*?) only\.", (ROOT / "README.md").read_text("utf-8"), re.S)[1]
    assert set(re.split(r",\s+|\s+and\s+", said)) == declared["dependencies"]


def test_performance_pages_agree_with_their_results():
    run = subprocess.run(
        [sys.executable, "-m", "bench.report.pages", "--check"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert run.returncode == 0, run.stdout + run.stderr
