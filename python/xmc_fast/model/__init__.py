"""The sparse linear model: a small folder that opens at once and predicts exactly."""

from xmc_fast._folder import ModelFormatError, is_model_folder
from xmc_fast.model._calibrate import Calibration, is_relevant
from xmc_fast.model._estimator import OneRow
from xmc_fast.model._explain import RowExplanation, explain_row
from xmc_fast.model._interop import from_liblinear, from_npz
from xmc_fast.model._predict import merge_topk, top_csr
from xmc_fast.model._sparse import SparseModel
from xmc_fast.model._storage import (
    Block,
    block_indices,
    block_path,
    read_block,
    read_manifest,
    write_block,
    write_manifest,
)
from xmc_fast.model._stream import predict_file, read_predictions, write_pieces, write_predictions
from xmc_fast.model._summary import ModelDescription, describe_model, weight_counts

__all__ = [
    "Block",
    "Calibration",
    "ModelDescription",
    "ModelFormatError",
    "OneRow",
    "RowExplanation",
    "SparseModel",
    "block_indices",
    "block_path",
    "describe_model",
    "explain_row",
    "from_liblinear",
    "from_npz",
    "is_model_folder",
    "is_relevant",
    "merge_topk",
    "predict_file",
    "read_block",
    "read_manifest",
    "read_predictions",
    "top_csr",
    "weight_counts",
    "write_block",
    "write_manifest",
    "write_pieces",
    "write_predictions",
]
