"""Neural models and building blocks. Needs torch: ``pip install 'xmc-fast[nn]'``."""

from __future__ import annotations

import importlib
from typing import Any

# Public name -> the module that defines it; modules are imported on first use.
_LAZY = {
    "DenseHeadSparseTail": "fanin",
    "FixedFanInLinear": "fanin",
    "GroupSharedLinear": "fanin",
    "Trainer": "train",
    "cuda": "",
    "fanin": "",
    "losses": "",
    "ops": "",
    "sparse_bce": "fanin",
    "sparse_squared_hinge": "fanin",
    "train": "",
}

__all__ = list(_LAZY)


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'xmc_fast.nn' has no attribute {name!r}")
    try:
        module = importlib.import_module(f"xmc_fast.nn.{_LAZY[name] or name}")
    except ModuleNotFoundError as error:
        if error.name == "torch":
            raise ImportError("xmc_fast.nn needs torch: pip install 'xmc-fast[nn]'") from error
        raise
    return getattr(module, name) if _LAZY[name] else module


def __dir__() -> list[str]:
    return sorted(__all__)
