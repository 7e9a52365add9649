"""Writes python/xmc_fast/_core.pyi from the signatures of the compiled module: ``python csrc/bind/make_stub.py``.

pybind11 puts a typed signature on the first line of each docstring; a stub line is that line with shorter
names. tests/test_stub.py compares the file with what this gives.
"""

from __future__ import annotations

import re
from pathlib import Path

from xmc_fast import _core

STUB = Path(__file__).parents[2] / "python" / "xmc_fast" / "_core.pyi"
HEAD = """\
# Made by csrc/bind/make_stub.py from the compiled module: do not edit.
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

Csr: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32], tuple[int, int]]
"""
SHORTER = [
    (r"typing\.SupportsInt \| typing\.SupportsIndex", "int"),
    (r"typing\.SupportsFloat \| typing\.SupportsIndex", "float"),
    (r'typing\.Annotated\[(.+?), "FixedSize\(\d+\)"\]', r"\1"),
    (r"typing\.Annotated\[numpy\.typing\.ArrayLike, numpy\.(\w+)\]", r"NDArray[np.\1]"),
    (r"numpy\.typing\.NDArray\[numpy\.(\w+)\]", r"NDArray[np.\1]"),
    (r"numpy\.ndarray", "NDArray[Any]"),
    (r"xmc_fast\._core\.|collections\.abc\.|typing_extensions\.|typing\.", ""),
    (r"tuple\[NDArray\[np.int64\], NDArray\[np.int32\], NDArray\[np.float32\], tuple\[int, int\]\]", "Csr"),
    (r"\btuple\b(?!\[)", "Any"),
    (r"\blist\b(?!\[)", "list[Any]"),
    (r"\bdict\b(?!\[)", "dict[str, Any]"),
    (r"\bCallable\b(?!\[)", "Callable[..., Any]"),
    (r"self: \w+", "self"),
]


def signature(function: object) -> str:
    """``name(argument: type, ...) -> type`` of a compiled function."""
    line = (function.__doc__ or "").strip().split("\n")[0]
    for pattern, short in SHORTER:
        line = re.sub(pattern, short, line)
    return line


def class_lines(cls: type) -> list[str]:
    """The stub of a class."""
    lines = [f"class {cls.__name__}:"]
    for name, member in vars(cls).items():
        if isinstance(member, property):
            returns = signature(member.fget).split(" -> ")[1]
            lines += ["    @property", f"    def {name}(self) -> {returns}: ..."]
        elif name == "__init__" or not name.startswith("_"):
            if isinstance(member, staticmethod):
                lines.append("    @staticmethod")
            text = signature(getattr(cls, name))
            if text.startswith(name + "("):  # not the __init__ of a class that Python cannot make
                lines.append(f"    def {text}: ...")
    return lines


def stub() -> str:
    """The text of _core.pyi."""
    names = sorted(name for name in vars(_core) if not name.startswith("__"))
    lines = []
    for name in names:
        member = getattr(_core, name)
        lines += class_lines(member) if isinstance(member, type) else [f"def {signature(member)}: ..."]
    return HEAD + "\n".join(["", *lines, ""])


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
