"""xmc_fast: extreme multi-label classification, the k best of 100,000s of labels, fast and exact.

Sub-modules are imported on first use; importing the package loads neither torch nor matplotlib.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from xmc_fast._memory import release_memory
from xmc_fast._progress import set_progress
from xmc_fast._threads import cpu_features

if TYPE_CHECKING:  # for type checkers: all of them are imported on first use
    from xmc_fast import (
        cluster,
        data,
        decide,
        declare,
        engine,
        ensemble,
        knn,
        lexical,
        linear,
        mach,
        metrics,
        model,
        neighbours,
        nn,
        planner,
        plots,
        propensity,
        text,
        texts,
        tree,
    )
    from xmc_fast._folder import load
    from xmc_fast.declare import LinearDeclare
    from xmc_fast.ensemble import Ensemble
    from xmc_fast.lexical import Lexical
    from xmc_fast.linear import OneVsAll
    from xmc_fast.mach import Mach
    from xmc_fast.model import SparseModel
    from xmc_fast.neighbours import Neighbours
    from xmc_fast.planner import plan
    from xmc_fast.texts import TextClassifier
    from xmc_fast.tree import LabelTree
    from xmc_fast.tuning import tune

__version__ = "0.1.0"

__all__ = [
    "Ensemble",
    "LabelTree",
    "Lexical",
    "LinearDeclare",
    "Mach",
    "Neighbours",
    "OneVsAll",
    "SparseModel",
    "TextClassifier",
    "__version__",
    "cluster",
    "cpu_features",
    "data",
    "decide",
    "declare",
    "engine",
    "ensemble",
    "knn",
    "lexical",
    "linear",
    "load",
    "mach",
    "metrics",
    "model",
    "neighbours",
    "nn",
    "plan",
    "planner",
    "plots",
    "propensity",
    "release_memory",
    "set_progress",
    "text",
    "texts",
    "tree",
    "tune",
]

# The sub-module that defines a public name; the others are sub-modules themselves.
_DEFINED_IN = {
    "Ensemble": "ensemble",
    "LabelTree": "tree",
    "Lexical": "lexical",
    "LinearDeclare": "declare",
    "Mach": "mach",
    "Neighbours": "neighbours",
    "OneVsAll": "linear",
    "SparseModel": "model",
    "TextClassifier": "texts",
    "load": "_folder",
    "plan": "planner",
    "tune": "tuning",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'xmc_fast' has no attribute {name!r}")
    module = importlib.import_module(f"xmc_fast.{_DEFINED_IN.get(name, name)}")
    return getattr(module, name) if name in _DEFINED_IN else module


def __dir__() -> list[str]:
    return sorted(__all__)
