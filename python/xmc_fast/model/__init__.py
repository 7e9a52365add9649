"""The sparse linear model: a small folder that opens at once and predicts exactly."""

from xmc_fast.model._tensors import ModelFormatError
from xmc_fast.model.calibrate import Calibration, is_relevant
from xmc_fast.model.describe import ModelDescription, describe_model, weight_counts
from xmc_fast.model.interop import from_liblinear, from_npz
from xmc_fast.model.predict import merge_topk
from xmc_fast.model.sparse import SparseModel
from xmc_fast.model.storage import (
    Block,
    block_indices,
    is_model_folder,
    read_block,
    read_manifest,
    write_block,
    write_manifest,
)
from xmc_fast.model.stream import predict_file, read_predictions, write_predictions

__all__ = [
    "Block",
    "Calibration",
    "ModelDescription",
    "ModelFormatError",
    "SparseModel",
    "block_indices",
    "describe_model",
    "from_liblinear",
    "from_npz",
    "is_model_folder",
    "is_relevant",
    "merge_topk",
    "predict_file",
    "read_block",
    "read_manifest",
    "read_predictions",
    "weight_counts",
    "write_block",
    "write_manifest",
    "write_predictions",
]
