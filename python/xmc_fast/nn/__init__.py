"""Neural models and building blocks. Needs torch: ``pip install 'xmc-fast[nn]'``."""

from __future__ import annotations

import importlib
from typing import Any

# Public name -> the module that defines it; modules are imported on first use.
_LAZY = {
    "CsrBatches": "sparse_input",
    "CsrRows": "sparse_input",
    "Declare": "declare",
    "DenseHeadSparseTail": "fanin",
    "ExtremeClassifier": "extreme",
    "FixedFanInLinear": "fanin",
    "GroupSharedLinear": "fanin",
    "LightXML": "lightxml",
    "LightXMLEnsemble": "lightxml_ensemble",
    "PrunedNetwork": "declare",
    "Rewire": "rewire",
    "RowAdam": "sparse_input",
    "SparseClassifier": "classifier",
    "SparseInputLinear": "sparse_input",
    "Trainer": "train",
    "UncompressedNetwork": "declare",
    "classifier": "",
    "csr_batches": "sparse_input",
    "connections": "",
    "cuda": "",
    "declare": "",
    "extreme": "",
    "fanin": "",
    "gather_dot": "",
    "lightxml": "",
    "load_encoder": "tokens",
    "losses": "",
    "masked": "",
    "mined_squared_hinge": "mining",
    "mining": "",
    "ops": "",
    "optim": "",
    "outputs": "",
    "rewire": "",
    "sparse_bce": "fanin",
    "sparse_input": "",
    "sparse_squared_hinge": "fanin",
    "tokenize": "tokens",
    "tokens": "",
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
