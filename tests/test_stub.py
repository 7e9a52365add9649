"""_core.pyi says exactly what the compiled module has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import xmc_fast
from xmc_fast import _core

STUB = Path(xmc_fast.__file__).with_name("_core.pyi")


def parameters_in_stub(node: ast.FunctionDef) -> list[str]:
    return [a.arg for a in [*node.args.posonlyargs, *node.args.args] if a.arg != "self"]


def parameters_in_module(doc: str) -> list[str]:
    """Parameter names from pybind11's signature line, e.g. ``f(a: int, b: str) -> None``."""
    inside = doc.split("\n")[0].split("(", 1)[1].rsplit(") ->", 1)[0]
    inside = re.sub(r"\[[^\[\]]*(\[[^\[\]]*\][^\[\]]*)*\]", "", inside)
    names = re.findall(r"(\w+): ", inside)
    return [n for n in names if n != "self"]


def members(owner: object) -> dict[str, object]:
    return {n: getattr(owner, n) for n in vars(owner) if not n.startswith("_")}


def compare(where: str, nodes: list[ast.stmt], module: dict[str, object]) -> None:
    stub = {
        n.name: n
        for n in nodes
        if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and not n.name.startswith("_")
    }
    fields = {n.target.id for n in nodes if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
    assert set(stub) | fields == set(module), f"{where}: names differ"
    for name, node in stub.items():
        if isinstance(node, ast.ClassDef):
            compare(f"{where}.{name}", node.body, members(module[name]))
        elif not any(isinstance(d, ast.Name) and d.id == "property" for d in node.decorator_list):
            expected = parameters_in_module(module[name].__doc__ or "")
            assert parameters_in_stub(node) == expected, f"{where}.{name}: parameters differ"


def test_stub_matches_module():
    compare("_core", ast.parse(STUB.read_text()).body, members(_core))
