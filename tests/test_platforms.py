"""What is declared for platforms and versions agrees: pyproject.toml, the lowest pins, the recipe, the workflows."""

from __future__ import annotations

import re
import struct
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLATFORMS = ROOT / "tests" / "platforms"
tomllib = pytest.importorskip("tomllib")


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def declared():
    """Package -> lowest version, as numbers without zeros at the end."""
    bounds = dict(d.split(">=") for d in project()["project"]["dependencies"])
    return {name: numbers(low) for name, low in bounds.items()}


def numbers(version):
    parts = [int(part) for part in version.split(".")]
    while parts and parts[-1] == 0:
        parts.pop()
    return parts


def test_the_lowest_versions_are_those_that_are_tested():
    lines = (PLATFORMS / "lowest.txt").read_text("utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert {name: numbers(pin) for name, pin in pins.items()} == declared()


def test_the_recipe_has_the_same_bounds():
    text = (ROOT / ".conda" / "recipe.yaml").read_text("utf-8")
    found = dict(re.findall(r"- ([\w-]+) >=([\d.]+)$", text.split("  run:")[1], re.M))
    assert {name: numbers(low) for name, low in found.items()} == declared()
    assert f'version: "{project()["project"]["version"]}"' in text
    for name, target in project()["project"]["scripts"].items():
        assert f"- {name} = {target}" in text


def test_the_pythons_are_built_and_the_ends_are_tested():
    settings = project()
    named = [c.rsplit(" ", 1)[1] for c in settings["project"]["classifiers"] if re.search(r":: 3\.\d+$", c)]
    built = settings["tool"]["cibuildwheel"]["build"].split()
    assert [f"cp{v.replace('.', '')}-*" for v in named] == [b for b in built if not b.endswith("t-*")]
    assert settings["project"]["requires-python"] == f">={named[0]}"
    assert "musllinux" not in settings["tool"]["cibuildwheel"]["skip"]
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    assert f'"{named[0]}", part: versions.sh lowest' in workflow
    assert f'"{named[-1]}", part: versions.sh highest' in workflow


def test_every_part_of_the_workflow_exists():
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    parts = re.findall(r"part: ([\w.]+)(?: ([\w-]+))? }", text)
    assert len(parts) > 5
    for script, argument in parts:
        assert argument in (PLATFORMS / script).read_text("utf-8")
    sys.path.insert(0, str(PLATFORMS))
    try:
        from core_tests import files
    finally:
        sys.path.remove(str(PLATFORMS))
    assert set(files(short=True)) < set(files(short=False))
    assert all(Path(name).is_file() for name in files(short=False))


def test_the_release_names_what_exists():
    """cibuildwheel has no tag of a major version alone; wheels need what `test-requires` names on every platform."""
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8")
    assert re.search(r"pypa/cibuildwheel@v\d+\.\d+\b", workflow)
    needed = project()["tool"]["cibuildwheel"]["test-requires"]
    for script in ("free_threaded.sh", "versions.sh", "arm64.sh"):
        assert all(re.search(rf"\b{name}\b", (PLATFORMS / script).read_text("utf-8")) for name in needed), (
            script
        )


def test_names_that_no_library_has_are_found():
    """Of a Mach-O file with one table of symbols: those of a library (1) and of its own are not looked up."""
    sys.path.insert(0, str(PLATFORMS))
    try:
        from looked_up import looked_up
    finally:
        sys.path.remove(str(PLATFORMS))
    symbols = [("_PyList_New", 0x01, 0), ("_puts", 0x01, 1), ("_mine", 0x0F, 0), ("___missing", 0x01, 0xFE)]
    names, table = b"\0", b""
    for name, kind, library in symbols:
        table += struct.pack("<IBBHQ", len(names), kind, 0, library << 8, 0)
        names += name.encode() + b"\0"
    head = struct.pack("<8I", 0xFEEDFACF, 0, 0, 6, 1, 24, 0, 0)
    command = struct.pack("<6I", 2, 24, 56, len(symbols), 56 + len(table), len(names))
    assert looked_up(head + command + table + names) == ["_PyList_New", "___missing"]
