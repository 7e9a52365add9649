"""Includes and imports go one way (csrc/README.md, and the module order in python/xmc_fast)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CSRC = ROOT / "csrc"
PACKAGE = ROOT / "python" / "xmc_fast"
SHARED = {"core", "cluster"}  # folders that others may include

# A module may import from its own layer and from lower ones.
LAYERS = [
    {
        "_core",
        "_threads",
        "_validate",
        "_files",
        "_folder",
        "_memory",
        "_progress",
        "_refit",
        "_row_ranges",
        "_work",
    },
    {"data", "metrics", "propensity", "cluster", "decide", "model"},
    {
        "linear",
        "_checkpoint",
        "_problem",
        "_screen",
        "_spill",
        "_state",
        "update",
        "texts",
        "tree",
        "mach",
        "text",
        "knn",
        "declare",
        "lexical",
        "neighbours",
        "ensemble",
    },
    {
        "engine",
        "planner",
        "tuning",
        "_trials",
    },  # models take an engine as argument (`_work.Engine`), they never import it
    {"plots", "nn", "serve", "annif"},
    {"cli", "__init__", "__main__"},
]


def level(module: str) -> int:
    return next(i for i, names in enumerate(LAYERS) if module in names)


@pytest.mark.parametrize("path", sorted(CSRC.glob("*/*.*")), ids=lambda p: f"{p.parent.name}/{p.name}")
def test_csrc_includes(path):
    folder = path.parent.name
    for included in re.findall(r'^#include "(\w+)/', path.read_text(), re.M):
        if folder == "bind":
            continue
        allowed = {folder, *SHARED} if folder != "core" else {"core"}
        allowed |= {"linear"} if folder == "tree" else set()  # its nodes are one-vs-all problems
        assert included in allowed, f"{folder} includes {included}"


def test_only_bind_sees_pybind11():
    for path in CSRC.glob("*/*.*"):
        if path.parent.name != "bind":
            assert "pybind11" not in path.read_text(), path


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_python_imports(path):
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "xmc_fast":
                names = [a.name for a in node.names]
            elif node.module.startswith("xmc_fast."):
                names = [node.module.split(".")[1]]
            elif node.module.split(".")[0] in ("torch", "transformers"):
                assert own == "nn", f"{path} imports {node.module} outside nn"
        elif isinstance(node, ast.Import):
            names = [a.name.split(".")[1] for a in node.names if a.name.startswith("xmc_fast.")]
        for name in names:
            if name in ("cpu_features", "load", "set_progress", "__version__"):
                continue
            assert level(name) <= level(own), f"{own} imports {name}, which is above it"


@pytest.mark.parametrize("folder", sorted({path.parent.name for path in CSRC.glob("*/*.*")}))
def test_files_named_in_comments_exist(folder):
    files = {str(path.relative_to(CSRC)) for path in CSRC.glob("*/*.*")}
    names = {name.split("/")[1] for name in files} | {"cuda_host.h"}  # of tests/cuda_host
    for path in CSRC.glob(f"{folder}/*.*"):
        for comment in re.findall(r"//.*", path.read_text()):
            for name in re.findall(r"(?<![\w.*>])[a-z_]+(?:/[a-z_]+)?(?:\.simd)?\.(?:h|cpp|cu)\b", comment):
                assert name in (files if "/" in name else names), f"{path.name} names {name}: {comment}"
