"""What the neural estimators share: settings of the training, one row at a time, size, P@k on held-out rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from torch import nn

from xmc_fast._validate import dense_features, features, to_scipy
from xmc_fast.metrics import precision_at_k
from xmc_fast.nn import schedule as schedules
from xmc_fast.nn.train import Callback, Optimizers, Trainer

_OF_TRAINER = (
    *("epochs", "batch_size", "schedule", "precision", "accumulate", "clip_norm", "swa_start", "patience"),
    *("monitor", "callbacks", "device", "random_state"),
)
_NOT_SAVED = ("encoder", "rewire", "schedule", "callbacks", "device", "n_jobs", "token_cache")


@dataclass(eq=False, repr=False, kw_only=True)
class NeuralEstimator(BaseEstimator):  # type: ignore[misc]
    """Base of the neural estimators. Its fields are ``lr`` and settings of `xmc_fast.nn.Trainer`; ``schedule`` may
    also be "constant", "linear" or "cosine"."""

    epochs: Any = 10
    batch_size: Any = 128
    lr: Any = 1e-3
    schedule: str | Callable[[float], float] = "constant"
    precision: str = "fp32"
    accumulate: int = 1
    clip_norm: float | None = None
    swa_start: int | None = None
    patience: int | None = None
    monitor: str = "p@1"
    callbacks: Sequence[Callback] = ()
    device: str | torch.device = "auto"
    random_state: int = 0

    _network_name = "network_"

    def _trainer(
        self, optimizer: Callable[[nn.Module], Optimizers], *, warm_up: float = 0.0, **changes: Any
    ) -> Trainer:
        """The training loop with the settings of the estimator, except for ``changes``."""
        named = {"constant": None, "linear": schedules.linear(warm_up), "cosine": schedules.cosine(warm_up)}
        options = {name: getattr(self, name) for name in _OF_TRAINER} | changes
        if isinstance(options["schedule"], str):
            if options["schedule"] not in named:
                known = ", ".join(named)
                raise ValueError(f"schedule must be {known} or a function, got {options['schedule']!r}")
            options["schedule"] = named[options["schedule"]]
        return Trainer(optimizer, **options)

    def _fitted(self) -> Any:
        """The network, or an error if there is none yet."""
        if not hasattr(self, self._network_name):
            raise NotFittedError(f"this {type(self).__name__} is not fitted: call fit or load first")
        return getattr(self, self._network_name)

    def _saved_params(self) -> dict[str, Any]:
        """The parameters that a model folder keeps."""
        return {name: value for name, value in self.get_params(deep=False).items() if name not in _NOT_SAVED}

    def _validator(
        self, validation: tuple[Any, Any] | None
    ) -> Callable[[nn.Module], dict[str, float]] | None:
        """P@1, 3, 5 on held-out rows, for the trainer."""
        return None if validation is None else lambda _: self._figures(*validation)

    def _figures(self, X: Any, Y: Any) -> dict[str, float]:
        ks = tuple(k for k in (1, 3, 5) if k <= self.n_labels_)
        values = precision_at_k(Y, self.predict(X, ks[-1]), ks)
        return {f"p@{k}": float(v) for k, v in zip(ks, values, strict=True)}

    def predict_one(
        self, x: Any, k: int = 5, *, proba: bool = False
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """The ``k`` best labels of one row and their scores, best first.

        ``x`` is a text, or a row of features: 1 x D, of length D, or a pair (columns, values).
        """
        self._fitted()
        top = self.predict(one_row(x, getattr(self, "n_features_in_", 0)), k, proba=proba)
        if top.shape[0] != 1:
            raise ValueError(f"x must be one row, got {top.shape[0]}")
        return top.indices, top.data

    def predict(self, X: Any, k: int = 5, *, proba: bool = False) -> sp.csr_matrix:
        """The k best labels of each row: CSR (n, L) of scores, best first within a row."""
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        """Bytes of weights, biases and indices."""
        return module_bytes(self._fitted())


def one_row(x: Any, n_features: int) -> Any:
    """One text or one row of features as what ``predict`` takes.

    >>> one_row("green tea", 0)
    ['green tea']
    >>> one_row(([1], [2.0]), 3).toarray().tolist()
    [[0.0, 2.0, 0.0]]
    """
    if isinstance(x, str):
        return [x]
    if isinstance(x, tuple):
        columns, values = np.asarray(x[0], np.int64), np.asarray(x[1], np.float32)
        x = sp.csr_matrix((values, columns, [0, len(columns)]), (1, n_features))
    return to_scipy(*features(x, "x")) if sp.issparse(x) else dense_features(np.atleast_2d(x), "x")


def module_bytes(module: nn.Module, *, trained: bool = False) -> int:
    """Bytes of parameters and buffers; only of trained parameters with ``trained``."""
    tensors = [*module.parameters(), *module.buffers()]
    return sum(t.numel() * t.element_size() for t in tensors if t.requires_grad or not trained)
