"""DECLARE's network: sparse input → hidden ReLU → c outputs, the compressed labels."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from xmc_fast._folder import ModelFormatError
from xmc_fast._validate import features, labels, to_scipy
from xmc_fast.declare._estimator import CompressedLabels
from xmc_fast.model._tensors import Tensors
from xmc_fast.nn._estimator import NeuralEstimator
from xmc_fast.nn.sparse_input import CsrRows, SparseInputLinear, adam, csr_batches

_PREDICT_ROWS = 1024

Self = TypeVar("Self", bound="Declare")


class SparseMlp(nn.Module):
    """Sparse rows → hidden units with ReLU → outputs."""

    def __init__(self, in_features: int, hidden: int, out_features: int, *, sparse_grad: bool = True) -> None:
        super().__init__()
        self.input = SparseInputLinear(in_features, hidden, sparse_grad=sparse_grad)
        self.output = nn.Linear(hidden, out_features)

    def forward(self, x: CsrRows) -> Tensor:
        out: Tensor = self.output(F.relu(self.input(x)))
        return out


@dataclass(eq=False, repr=False, kw_only=True)
class Declare(NeuralEstimator, CompressedLabels):
    """Deep extreme compressed labelling and recovery estimation.

    Parameters
    ----------
    n_components : c, outputs of the network.
    hidden : hidden units.
    neighbours, similarity, search : of the recovery, see `xmc_fast.declare.LabelRecovery`.
    compression, label_scaling : "svd" or "neighbour"; "none", "length" or "sum": see `xmc_fast.declare.compress`.
    epochs, batch_size, lr : of the training with Adam on the mean squared error.
    sparse_grad : update only the input weights of columns that occur in a batch (`RowAdam`); False is plain
        Adam, whose steps cost time in proportion to all D columns.
    device : "auto" takes CUDA when there is one.
    n_jobs, random_state : threads of compression and recovery; seed of everything.

    Attributes
    ----------
    network_ : SparseMlp
    recovery_ : LabelRecovery, holds the compressed training rows and their labels
    history_ : a dict per epoch (loss, seconds, validation figures)

    Examples
    --------
    >>> X = Y = np.eye(8)
    >>> model = Declare(8, hidden=32, neighbours=1, epochs=60, batch_size=4, lr=0.01).fit(X, Y)
    >>> model.predict(X, k=1).indices.tolist()
    [0, 1, 2, 3, 4, 5, 6, 7]
    """

    hidden: int = 256
    epochs: int = 20
    lr: float = 5e-4
    sparse_grad: bool = True

    _kind = "declare"

    def fit(
        self: Self,
        X: Any,
        Y: Any,
        *,
        validation: tuple[Any, Any] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Train.

        Parameters
        ----------
        X : (n, D) features, sparse or dense; Y : (n, L) binary labels.
        validation : (X, Y), optional. P@1, 3 and 5 on it after each epoch enter ``history_``.
        checkpoint : file to save the state of the training to after each epoch, and to go on from.
        """
        x = features(X)
        y = labels(Y, n_rows=x.shape[0])
        if not y.shape[1]:
            raise ValueError("Y must have at least one label, got none")
        self.n_features_in_, self.n_labels_ = x.shape[1], y.shape[1]
        targets = self._compress(Y)
        self.network_ = self._network(int(targets.shape[1]))
        batches = csr_batches(X, targets)
        trainer = self._trainer(lambda m: adam(m, self.lr), checkpoint=checkpoint)
        validate = self._validator(validation)
        self.history_ = trainer.fit(self.network_, self._loss, batches.n, batches.fetch, validate)
        return self

    def predict(self, X: Any, k: int = 5, *, proba: bool = False) -> sp.csr_matrix:
        """(n, L) CSR of the k best labels per row, best first. Scores are not probabilities."""
        self._fitted()
        if proba:
            raise ValueError(f"{type(self).__name__} has no probabilities: proba must be False")
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        features(X, n_features=self.n_features_in_)
        self.network_.eval()
        parts = []
        with torch.no_grad():
            for x in csr_batches(X, None, _PREDICT_ROWS):
                parts.append(self._decode(self._outputs(x), min(k, self.n_labels_)))
        empty = sp.csr_matrix((0, self.n_labels_), dtype=np.float32)
        return _stack(parts) if parts else empty

    def _outputs(self, x: CsrRows) -> Tensor:
        device = self.network_.output.weight.device
        out: Tensor = self.network_(CsrRows(*(t.to(device) for t in x)))
        return out

    @property
    def nbytes(self) -> int:
        """Bytes of the network as saved."""
        self._fitted()
        return sum(array.nbytes for array in self._weights().values())

    def _network(self, outputs: int) -> SparseMlp:
        """The network before training."""
        with torch.random.fork_rng([]):
            torch.manual_seed(self.random_state)
            return SparseMlp(self.n_features_in_, self.hidden, outputs, sparse_grad=self.sparse_grad)

    def _loss(self, model: nn.Module, batch: Any) -> Tensor:
        x, z = batch
        return F.mse_loss(model(x), z)

    def _decode(self, out: Tensor, k: int) -> sp.csr_matrix:
        """The k best labels by the network's outputs."""
        return self.recovery_.predict(out.float().cpu().numpy(), k, n_jobs=self.n_jobs)

    def _weights(self) -> Tensors:
        return {name: value.detach().cpu().numpy() for name, value in self.network_.state_dict().items()}

    def _restore(self, tensors: Tensors) -> None:
        self.n_features_in_ = len(tensors["input.weight"])
        outputs = tensors["output.bias"].shape
        shapes = {"input.bias": (self.hidden,), "output.weight": (*outputs, self.hidden)}
        for name, shape in shapes.items():  # before anything of that size is made
            if tensors[name].shape != shape:
                raise ModelFormatError(f"damaged, {name} has shape {tensors[name].shape}, expected {shape}")
        if tensors["Z"].shape[1:] != outputs:
            raise ModelFormatError(f"damaged, Z has shape {tensors['Z'].shape}, outputs {outputs}")
        network = self._network(*outputs)
        network.load_state_dict({name: torch.from_numpy(tensors[name]) for name in network.state_dict()})
        self.network_ = network.eval()


def _stack(parts: list[sp.csr_matrix]) -> sp.csr_matrix:
    """Rows below each other, the order of the entries (best first) kept."""
    indptr = np.concatenate([[0], np.cumsum(np.concatenate([np.diff(p.indptr) for p in parts]))])
    indices, data = (np.concatenate([getattr(p, name) for p in parts]) for name in ("indices", "data"))
    return to_scipy(indptr, indices, data, (len(indptr) - 1, parts[0].shape[1]))
