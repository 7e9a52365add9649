"""Every example in a docstring runs."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil

import pytest

import xmc_fast

NEEDS_TORCH = "xmc_fast.nn"


def modules():
    for info in pkgutil.walk_packages(xmc_fast.__path__, "xmc_fast."):
        name = info.name
        if not name.endswith(("._core", ".libxmc_cuda", ".__main__")):  # the second is no module of Python
            yield name


@pytest.mark.parametrize("name", sorted(modules()))
def test_examples_run(name, tmp_path, monkeypatch):
    if name.startswith(NEEDS_TORCH):
        pytest.importorskip("torch")
    if name == "xmc_fast.nn.tokens":
        pytest.importorskip("transformers")
    if name.startswith("xmc_fast.plots"):
        pytest.importorskip("matplotlib").use("Agg")
    if name.startswith("xmc_fast.serve"):
        pytest.importorskip("fastapi")
    if name.startswith("xmc_fast.annif"):
        pytest.importorskip("annif")
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert result.failed == 0


# What the API pages of the documentation list.
PUBLIC = "cluster data decide declare engine knn mach metrics nn planner plots propensity text texts"


@pytest.mark.parametrize("name", PUBLIC.split())
def test_public_functions_and_estimators_have_an_example(name):
    if name == "nn":
        pytest.importorskip("torch")
    if name == "plots":
        pytest.importorskip("matplotlib")
    module = importlib.import_module(f"xmc_fast.{name}")
    own = [n for n, thing in vars(module).items() if getattr(thing, "__module__", "") == module.__name__]
    missing = []
    for public in getattr(module, "__all__", [n for n in own if not n.startswith("_")]):
        thing = getattr(module, public)
        text = inspect.getdoc(thing) or ""
        if inspect.isfunction(thing) or hasattr(thing, "predict"):
            missing += [public] if ">>>" not in text and "See `" not in text else []
    assert missing == []
