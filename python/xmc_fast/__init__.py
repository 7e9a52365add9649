"""xmc_fast: extreme multi-label classification, the k best of 100,000s of labels, fast and exact.

Sub-modules are imported on first use; importing the package loads neither torch nor matplotlib.
"""

from __future__ import annotations

import importlib
from typing import Any

from xmc_fast._threads import cpu_features

__version__ = "0.1.0"

# Public name -> the module that defines it. Sub-modules map to themselves.
_LAZY = {
    "cluster": "xmc_fast.cluster",
    "mach": "xmc_fast.mach",
    "Mach": "xmc_fast.mach",
    "data": "xmc_fast.data",
    "pipeline": "xmc_fast.pipeline",
    "plan": "xmc_fast.planner",
    "planner": "xmc_fast.planner",
    "engine": "xmc_fast.engine",
    "plots": "xmc_fast.plots",
    "TextModel": "xmc_fast.pipeline",
    "text": "xmc_fast.text",
    "linear": "xmc_fast.linear",
    "metrics": "xmc_fast.metrics",
    "nn": "xmc_fast.nn",
    "model": "xmc_fast.model",
    "OneVsAll": "xmc_fast.linear",
    "propensity": "xmc_fast.propensity",
    "SparseModel": "xmc_fast.model",
    "decide": "xmc_fast.decide",
    "declare": "xmc_fast.declare",
    "LinearDeclare": "xmc_fast.declare",
    "knn": "xmc_fast.knn",
}

__all__ = ["__version__", "cpu_features", *_LAZY]


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'xmc_fast' has no attribute {name!r}")
    loaded = importlib.import_module(module)
    return loaded if module == f"xmc_fast.{name}" else getattr(loaded, name)


def __dir__() -> list[str]:
    return sorted(__all__)
