"""docs/howto/walk.md names functions that exist, at most ten hops a walk."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WALK = (ROOT / "docs" / "howto" / "walk.md").read_text(encoding="utf-8")


def find(name: str) -> object:
    """The object of a dotted name."""
    parts = name.split(".")
    for split in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        for part in parts[split:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize("name", re.findall(r"`((?:xmc_fast|_core)\.[\w.]+)`", WALK))
def test_python_names(name):
    assert callable(find(name if name.startswith("xmc_fast") else f"xmc_fast.{name}"))


@pytest.mark.parametrize(("name", "path"), re.findall(r"`([\w:]+)` \(`(csrc/[\w./]+)`\)", WALK))
def test_core_names(name, path):
    assert re.search(rf"\b{name}\b", (ROOT / path).read_text(encoding="utf-8"))


def test_ten_hops_at_most():
    for walk in WALK.split("\n## ")[1:]:
        assert 1 <= len(re.findall(r"^\d+\. ", walk, re.M)) <= 10
