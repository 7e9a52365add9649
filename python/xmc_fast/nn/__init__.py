"""Neural models and building blocks. Needs torch: ``pip install 'xmc-fast[nn]'``."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# ruff: noqa: F401
if TYPE_CHECKING:  # for type checkers and the documentation: all of them are imported on first use
    from xmc_fast.nn import (
        export,
        fanin,
        gather_dot,
        losses,
        ops,
        optim,
        quantize,
        rewire,
        schedule,
        sparse_input,
        tokens,
        train,
        weighted_topk,
    )
    from xmc_fast.nn._bucket_network import BucketNetwork
    from xmc_fast.nn._classifier import ExtremeClassifier, SparseClassifier
    from xmc_fast.nn._declare import Declare
    from xmc_fast.nn._lightxml import LightXML
    from xmc_fast.nn._lightxml_ensemble import LightXMLEnsemble
    from xmc_fast.nn._mining import mined_squared_hinge
    from xmc_fast.nn.fanin import (
        DenseHeadSparseTail,
        FixedFanInLinear,
        GroupSharedLinear,
        sparse_bce,
        sparse_squared_hinge,
    )
    from xmc_fast.nn.heads import EncoderForLabels, LabelLoss, pad_labels
    from xmc_fast.nn.quantize import Int8FanInLinear, quantize_
    from xmc_fast.nn.rewire import Rewire
    from xmc_fast.nn.sharded import ShardedFanInLinear
    from xmc_fast.nn.softmax import fused_cross_entropy
    from xmc_fast.nn.sparse_input import CsrBatches, CsrRows, RowAdam, SparseInputLinear, csr_batches
    from xmc_fast.nn.tokens import load_encoder, tokenize
    from xmc_fast.nn.train import Trainer

# Public name -> the module that defines it; modules are imported on first use.
_LAZY = {
    "BucketNetwork": "_bucket_network",
    "CsrBatches": "sparse_input",
    "CsrRows": "sparse_input",
    "Declare": "_declare",
    "DenseHeadSparseTail": "fanin",
    "EncoderForLabels": "heads",
    "ExtremeClassifier": "_classifier",
    "FixedFanInLinear": "fanin",
    "GroupSharedLinear": "fanin",
    "Int8FanInLinear": "quantize",
    "LabelLoss": "heads",
    "LightXML": "_lightxml",
    "LightXMLEnsemble": "_lightxml_ensemble",
    "Rewire": "rewire",
    "RowAdam": "sparse_input",
    "ShardedFanInLinear": "sharded",
    "SparseClassifier": "_classifier",
    "SparseInputLinear": "sparse_input",
    "Trainer": "train",
    "csr_batches": "sparse_input",
    "export": "",
    "fanin": "",
    "fused_cross_entropy": "softmax",
    "gather_dot": "",
    "load_encoder": "tokens",
    "losses": "",
    "mined_squared_hinge": "_mining",
    "ops": "",
    "optim": "",
    "pad_labels": "heads",
    "quantize": "",
    "quantize_": "quantize",
    "rewire": "",
    "schedule": "",
    "sparse_bce": "fanin",
    "sparse_input": "",
    "sparse_squared_hinge": "fanin",
    "tokenize": "tokens",
    "tokens": "",
    "train": "",
    "weighted_topk": "",
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
