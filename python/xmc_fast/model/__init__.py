"""The sparse linear model: a small folder that opens at once and predicts exactly."""

from xmc_fast.model._tensors import ModelFormatError
from xmc_fast.model.calibrate import Calibration
from xmc_fast.model.predict import merge_topk
from xmc_fast.model.sparse import SparseModel
from xmc_fast.model.storage import (
    Block,
    block_indices,
    read_block,
    read_manifest,
    write_block,
    write_manifest,
)

__all__ = [
    "Block",
    "Calibration",
    "ModelFormatError",
    "SparseModel",
    "block_indices",
    "merge_topk",
    "read_block",
    "read_manifest",
    "write_block",
    "write_manifest",
]
