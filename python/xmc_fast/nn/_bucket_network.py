"""A network with one hidden layer on sparse rows: MACH's base learner where torch is installed."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn
from torch.nn import functional as F

from xmc_fast._folder import ModelFormatError, count, file_in, opening, replace_folder
from xmc_fast._validate import features, to_scipy
from xmc_fast.mach import bucket_table
from xmc_fast.model._tensors import read_tensors, write_tensors
from xmc_fast.nn.sparse_input import CsrRows, SparseInputLinear, adam, csr_batches

_FILE = "network.safetensors"
_LOSSES = ("bce", "softmax")


@dataclass(eq=False, repr=False, kw_only=True)
class BucketNetwork(BaseEstimator):  # type: ignore[misc]
    """x → ReLU(x W₁ + b₁) W₂ + b₂ for sparse x, one output per bucket.

    Parameters
    ----------
    hidden : int
        Units of the hidden layer.
    n_hashed : int, optional
        Features are hashed to so many columns first (at most 65,536), by a hash function of the seed: in `Mach`
        each repetition has its own. The first layer then has n_hashed · hidden weights.
    loss : "bce" (multilabel) or "softmax" (multiclass; a row with m buckets has the target 1/m for each)
    epochs : passes over the data in `fit`
    batch_size : int
    lr : float
        Learning rate of Adam (`RowAdam` for the first layer: columns that a batch does not have cost nothing).
    random_state : int
        Seed of the weights, of the order of rows and of the feature hash.

    Attributes
    ----------
    network_ : torch module
    n_features_in_, n_outputs_ : int

    Examples
    --------
    >>> import numpy as np
    >>> net = BucketNetwork(8, epochs=60, lr=0.05).fit(np.eye(4), np.eye(4)[:, :3])
    >>> net.decision_function(np.eye(4)).argmax(axis=1)[:3].tolist()
    [0, 1, 2]
    """

    hidden: int = field(default=256, kw_only=False)
    n_hashed: int | None = None
    loss: str = "bce"
    epochs: int = 10
    batch_size: int = 128
    lr: float = 5e-3
    random_state: int = 0

    seeded = True  # Mach adds the repetition to random_state

    def fit(self, X: Any, Y: Any) -> BucketNetwork:
        """Train from scratch on X (n, D) and binary Y (n, B)."""
        self._start(int(X.shape[1]), int(Y.shape[1]))
        batches = csr_batches(self._rows(X), _targets(Y), self.batch_size, random_state=self.random_state)
        for _ in range(self.epochs):
            self._pass(batches)
        return self

    def partial_fit(self, X: Any, Y: Any) -> BucketNetwork:
        """One pass over more data; the first call fixes D and B."""
        if not hasattr(self, "network_"):
            self._start(int(X.shape[1]), int(Y.shape[1]))
        if (X.shape[1], Y.shape[1]) != (self.n_features_in_, self.n_outputs_):
            raise ValueError(
                f"X and Y have {X.shape[1]} and {Y.shape[1]} columns, expected {self.n_features_in_}"
                f" and {self.n_outputs_}"
            )
        order = self.random_state + self._calls
        self._calls += 1
        self._pass(csr_batches(self._rows(X), _targets(Y), self.batch_size, random_state=order))
        return self

    def decision_function(self, X: Any) -> npt.NDArray[np.float32]:
        """Logits, (n, B)."""
        check_is_fitted(self, "network_")
        if X.shape[1] != self.n_features_in_:
            raise ValueError(f"X has {X.shape[1]} columns, expected {self.n_features_in_}")
        with torch.no_grad():
            parts = [self.network_(x).numpy() for x in csr_batches(self._rows(X), batch_size=1024)]
        return np.concatenate([np.empty((0, self.n_outputs_), np.float32), *parts])

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        check_is_fitted(self, "network_")
        return sum(p.numel() * p.element_size() for p in self.network_.parameters())

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write a folder with the weights and parameters (safetensors, no pickle)."""
        check_is_fitted(self, "network_")
        target = Path(directory)
        tensors = {name: t.detach().numpy() for name, t in self.network_.state_dict().items()}
        shape = {"n_features": self.n_features_in_, "n_outputs": self.n_outputs_}
        text = json.dumps({"format": 1, **shape, "params": self.get_params()}, sort_keys=True)
        if (target / _FILE).is_file():
            write_tensors(target / _FILE, tensors, {"bucket_network": text})
            return
        with replace_folder(target) as folder:
            write_tensors(folder / _FILE, tensors, {"bucket_network": text})

    @classmethod
    @opening
    def load(cls, directory: str | os.PathLike[str]) -> BucketNetwork:
        """Open what `save` made."""
        path = file_in(Path(directory), _FILE)
        tensors, metadata = read_tensors(path, map_file=False, verify=True)
        about = json.loads(metadata.get("bucket_network", "{}"))
        if about.get("format") != 1:
            raise ModelFormatError(f"{path} has a format this version does not know")
        model = cls(**about["params"])
        width = model.n_hashed or count(about["n_features"], "n_features")
        expected = {"0.weight": (width, model.hidden), "2.weight": (about["n_outputs"], model.hidden)}
        for name, shape in expected.items():  # before anything of that size is made
            if tensors[name].shape != shape:
                raise ModelFormatError(f"{path}: {name} has shape {tensors[name].shape}, expected {shape}")
        model._start(about["n_features"], about["n_outputs"])
        model.network_.load_state_dict({name: torch.from_numpy(array) for name, array in tensors.items()})
        return model

    def _start(self, n_features: int, n_outputs: int) -> None:
        if self.loss not in _LOSSES:
            raise ValueError(f"loss must be one of {', '.join(_LOSSES)}, got {self.loss!r}")
        self.n_features_in_, self.n_outputs_ = n_features, n_outputs
        self._columns: npt.NDArray[np.uint16] | None = None
        width = n_features
        if self.n_hashed is not None:
            width = self.n_hashed
            self._columns = bucket_table(n_features, width, 1, random_state=self.random_state)[0]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.random_state)
            first = SparseInputLinear(width, self.hidden, sparse_grad=True)
            self.network_ = nn.Sequential(first, nn.ReLU(), nn.Linear(self.hidden, n_outputs))
            # One row of few non-zeros: the bound of dense inputs would start it near zero.
            nn.init.normal_(first.weight, std=(2 / self.hidden) ** 0.5)
            if first.bias is not None:
                nn.init.zeros_(first.bias)
        self._optimizers = adam(self.network_, self.lr)
        self._calls = 0

    def _rows(self, X: Any) -> sp.csr_matrix:
        x = features(X)
        if self._columns is None:
            return to_scipy(*x)
        hashed = to_scipy(x.indptr, self._columns[x.indices].astype(np.int32), x.data.copy(), x.shape)
        hashed.resize(x.shape[0], self.n_hashed)
        hashed.sum_duplicates()
        return hashed

    def _pass(self, batches: Any) -> None:
        for x, y in batches:
            loss = self._loss(self.network_(x), y)
            for optimizer in self._optimizers:
                optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            for optimizer in self._optimizers:
                optimizer.step()

    def _loss(self, logits: Tensor, y: CsrRows) -> Tensor:
        counts = y.indptr.diff()
        target = torch.zeros_like(logits)
        target[torch.repeat_interleave(torch.arange(len(counts)), counts), y.indices] = 1.0
        if self.loss == "softmax":
            return F.cross_entropy(logits, target / counts.clamp(min=1)[:, None])
        return F.binary_cross_entropy_with_logits(logits, target, reduction="sum") / len(logits)


def _targets(Y: Any) -> sp.csr_matrix:
    return to_scipy(*features(Y, "Y"))
