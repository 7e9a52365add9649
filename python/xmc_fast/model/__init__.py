"""The sparse linear model: a small folder that opens at once and predicts exactly."""

from xmc_fast.model._tensors import ModelFormatError
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
    "ModelFormatError",
    "SparseModel",
    "block_indices",
    "read_block",
    "read_manifest",
    "write_block",
    "write_manifest",
]
