"""DECLARE: an output layer that does not grow with the labels. This part needs no torch.

The label matrix is compressed to a few dimensions per row (`truncated_svd`, `neighbour_embedding`), a model
learns the compressed row from the features (`LinearDeclare` here, the network in `xmc_fast.nn.Declare`), and
labels are recovered from the training rows that lie nearest to the prediction (`LabelRecovery`).
"""

from xmc_fast.declare._linear import LinearDeclare, ridge
from xmc_fast.declare._neighbour import neighbour_embedding, neighbour_pairs
from xmc_fast.declare._recovery import LabelRecovery, compress
from xmc_fast.declare._svd import TruncatedSvd, truncated_svd

__all__ = [
    "LabelRecovery",
    "LinearDeclare",
    "TruncatedSvd",
    "compress",
    "neighbour_embedding",
    "neighbour_pairs",
    "ridge",
    "truncated_svd",
]
