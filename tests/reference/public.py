"""What is public: the functions and classes of the package's modules, and their methods."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from typing import Any

import xmc_fast


def getattr_of_package(name: str) -> Any:
    """A part of the package, or None where what it needs is not installed."""
    try:
        return getattr(xmc_fast, name)
    except ImportError:
        return None


def things() -> dict[str, Any]:
    """Public functions and classes by name: ``module.function``, ``Class``."""
    modules = [
        xmc_fast,
        *(m for m in map(getattr_of_package, xmc_fast.__all__) if isinstance(m, types.ModuleType)),
    ]
    found: dict[str, Any] = {}
    for module in modules:
        names = getattr(module, "__all__", None) or [
            name
            for name, thing in vars(module).items()
            if getattr(thing, "__module__", "") == module.__name__
        ]
        for name in (name for name in names if not name.startswith("_")):
            thing = getattr(module, name)
            if inspect.isfunction(thing):
                short = module.__name__.removeprefix("xmc_fast.")
                found[name if module is xmc_fast else f"{short}.{name}"] = thing
            elif inspect.isclass(thing) and thing.__module__.startswith("xmc_fast"):
                found.setdefault(name, thing)
    return found


def methods(of: type) -> Iterator[tuple[str, Any]]:
    """Public methods and ``__init__`` of a class, its own and those it has from others of the package."""
    seen = set()
    for c in (c for c in of.__mro__ if c.__module__.startswith("xmc_fast")):
        for name, function in vars(c).items():
            if name not in seen and (name == "__init__" or name[0] != "_"):
                seen.add(name)
                yield name, function


def public() -> dict[str, Any]:
    """Every public function and method by name: ``module.function``, ``Class.method``."""
    found: dict[str, Any] = {}
    for name, thing in things().items():
        if inspect.isfunction(thing):
            found[name] = thing
            continue
        for method, function in methods(thing):
            function = getattr(function, "__func__", function)
            if inspect.isfunction(function):
                found[f"{name}.{method}"] = function
    return found
