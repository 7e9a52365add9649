"""Every example in a docstring runs."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import xmc_fast

NEEDS_TORCH = "xmc_fast.nn"


def modules():
    for info in pkgutil.walk_packages(xmc_fast.__path__, "xmc_fast."):
        name = info.name
        if not name.endswith(("._core", ".__main__")):
            yield name


@pytest.mark.parametrize("name", sorted(modules()))
def test_examples_run(name, tmp_path, monkeypatch):
    if name.startswith(NEEDS_TORCH):
        pytest.importorskip("torch")
    if name.startswith("xmc_fast.plots"):
        pytest.importorskip("matplotlib").use("Agg")
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert result.failed == 0
