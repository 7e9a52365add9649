"""A sparse classifier on fixed features: optional wide ReLU layer, then an output layer of fixed fan-in."""

from __future__ import annotations

import copy
import os
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from xmc_fast import _arrays
from xmc_fast.cluster import label_tree
from xmc_fast.metrics import precision_at_k
from xmc_fast.nn._folder import load_folder, save_folder
from xmc_fast.nn.optim import classifier_optimizers
from xmc_fast.nn.outputs import (
    KINDS,
    LOSSES,
    layer_bytes,
    make_output,
    output_loss,
    output_topk,
    ranked_csr,
    show_batch,
    top_precision,
)
from xmc_fast.nn.rewire import Rewire, sparse_layers
from xmc_fast.nn.schedule import linear
from xmc_fast.nn.sparse_input import CsrRows, SparseInputLinear, csr_batches
from xmc_fast.nn.train import Trainer

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_FORMAT = "xmc_fast.sparse_classifier"
_SAVED = (
    *("fan_in", "hidden", "output", "group_size", "head", "rank", "loss", "gradient"),
    *("normalize", "dropout"),
    *("optimizer", "lr", "weight_decay", "dtype", "epochs", "batch_size", "seed"),
)


class Network(nn.Module):
    """features -> (ReLU layer of ``hidden`` units, dropout) -> output layer."""

    def __init__(self, n_features: int, hidden: int | None, dropout: float, output: nn.Module) -> None:
        super().__init__()
        self.n_features = n_features
        self.hidden = SparseInputLinear(n_features, hidden) if hidden else None
        self.dropout = dropout
        self.output = output

    def embed(self, x: Tensor | CsrRows) -> Tensor:
        """What the output layer sees of a batch: (batch, hidden or n_features)."""
        if self.hidden is not None:
            h = F.relu(self.hidden(x))
        else:
            h = x if isinstance(x, Tensor) else _dense(x, self.n_features)
        return F.dropout(h, self.dropout, self.training)


class SparseClassifier:
    """Extreme classifier whose output layer is sparse from the first training step to the last.

    Every label sees ``fan_in`` inputs (see :class:`xmc_fast.nn.FixedFanInLinear`), and :class:`Rewire` exchanges
    the useless ones during training. On few generic features a small fan-in underfits: an intermediate layer of
    many ReLU units helps (Schultheis and Babbar 2023), at the memory of features x hidden.

    Parameters
    ----------
    fan_in : int
        Inputs of each label.
    hidden : int, optional
        Units of the intermediate layer.
    output : {"fan_in", "head_tail", "dense", "bottleneck", "masked"}
        The output layer, see :mod:`xmc_fast.nn.outputs`; the last three are for comparison.
    group_size : int
        Labels that share their inputs; they are then neighbours of a label tree.
    head : int
        Dense labels of "head_tail": so many of the most frequent ones.
    rank : int, optional
        Of "bottleneck"; by default it has the bytes of ``fan_in``.
    rewire : Rewire or None
        How connections change (a copy is used); None keeps the first, random ones.
    loss : {"squared_hinge", "bce"}
    gradient : {"fused", "sparse"}
        "sparse": only labels with a violated margin get a gradient and an update (squared hinge).
    normalize : bool
        Scale each row to one length, that at which its non-zero features have a variance of about 1.
    dropout : float
        Of the intermediate layer, or of the features without one.
    optimizer : {"adam", "sgd"}
    lr, weight_decay : float
        The rate falls linearly to zero.
    dtype : {"float32", "bfloat16"}
        Of the output layer's weights; bfloat16 ones are updated with stochastic rounding.
    epochs, batch_size, seed, **options
        As for :class:`xmc_fast.nn.Trainer` (``checkpoint``, ``log``, ``patience``, ``swa_start``, ``device``...).

    Attributes
    ----------
    network_ : Network
    history_ : list of dict, one per epoch
    n_features_, n_labels_ : int
    row_norm_ : float or None
        What rows are scaled to.

    Examples
    --------
    >>> from xmc_fast import data
    >>> d = data.make_synthetic(200, 100, 40)
    >>> model = SparseClassifier(fan_in=8, hidden=64, epochs=3, batch_size=32).fit(d.X, d.Y)
    >>> model.predict(d.X, k=3).shape
    (200, 40)
    """

    def __init__(
        self,
        fan_in: int = 64,
        *,
        hidden: int | None = None,
        output: str = "fan_in",
        group_size: int = 1,
        head: int = 0,
        rank: int | None = None,
        rewire: Rewire | None = Rewire(),  # noqa: B008 - a copy is used, this one never changes
        loss: str = "squared_hinge",
        gradient: str = "fused",
        normalize: bool = True,
        dropout: float = 0.0,
        optimizer: str = "adam",
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        dtype: str = "float32",
        epochs: int = 20,
        batch_size: int = 128,
        seed: int = 0,
        **options: Any,
    ) -> None:
        self.fan_in, self.hidden, self.output = fan_in, hidden, output
        self.group_size, self.head, self.rank = group_size, head, rank
        self.rewire = rewire
        self.loss, self.gradient = loss, gradient
        self.normalize, self.dropout = normalize, dropout
        self.optimizer, self.lr, self.weight_decay = optimizer, lr, weight_decay
        self.dtype = dtype
        self.epochs, self.batch_size, self.seed = epochs, batch_size, seed
        self.options = options

    def fit(self, X: Any, Y: Any, *, validation: tuple[Any, Any] | None = None) -> SparseClassifier:
        """Train.

        Parameters
        ----------
        X : (n, D) features: dense embeddings, or sparse tf-idf
        Y : (n, L) binary labels, sparse or dense
        validation : (X, Y) whose P@1, P@3 and P@5 enter the history after each epoch, optional
        """
        self._check()
        x = _features(X)
        y = _arrays.labels(Y, n_rows=x.shape[0])
        self.row_norm_ = (_nonzeros(x) / max(x.shape[0], 1)) ** 0.5 if self.normalize else None
        x = _normalized(x, self.row_norm_)
        self.n_features_, self.n_labels_ = x.shape[1], y.shape[1]
        targets = _arrays.to_scipy(y.indptr, y.indices, np.ones(len(y.indices), bool), y.shape)
        self.order_: npt.NDArray[np.int64] | None = None
        if self.group_size > 1:
            tree = label_tree(x, targets, max_leaf=self.group_size, random_state=self.seed)
            self.order_ = tree.order.astype(np.int64)
            targets = targets[:, self.order_].tocsr()
            targets.sort_indices()
        frequency = np.bincount(targets.indices, minlength=self.n_labels_)
        head = np.argsort(-frequency, kind="stable")[: self.head]
        with torch.random.fork_rng([]):
            torch.manual_seed(self.seed)
            self.network_ = self._build(torch.from_numpy(head))
        _scale_to(self.network_, x)
        rewire = copy.deepcopy(self.rewire) if sparse_layers(self.network_) else None
        own = {"schedule": linear(), **self.options}
        trainer = Trainer(
            self._optimizers,
            epochs=self.epochs,
            batch_size=self.batch_size,
            seed=self.seed,
            **{**own, "callbacks": [*([rewire] if rewire else []), *own.get("callbacks", ())]},
        )
        rows_of = _fetcher(x)

        def fetch(rows: npt.NDArray[np.int64]) -> Any:
            return rows_of(rows), targets[rows], show_batch(rows)

        def loss(network: Any, batch: Any) -> tuple[Tensor, dict[str, float]]:
            inputs, wanted, show = batch
            h = network.embed(inputs)
            value = output_loss(network.output, h, wanted, loss=self.loss, gradient=self.gradient)
            return value, {"p@1": top_precision(network.output, h, wanted)} if show else {}

        def validate(_: nn.Module) -> dict[str, float]:
            assert validation is not None
            top = self.predict(validation[0], min(5, self.n_labels_))
            values = precision_at_k(validation[1], top, (1, 3, 5))
            return {f"p@{k}": float(v) for k, v in zip((1, 3, 5), values, strict=True)}

        self.history_ = trainer.fit(
            self.network_, loss, x.shape[0], fetch, validate if validation is not None else None
        )
        return self

    def predict(self, X: Any, k: int = 5, *, batch_size: int = 1024) -> sp.csr_matrix:
        """The k best labels of each row: CSR (n, L) of scores, best first within a row."""
        self._fitted()
        x = _normalized(_features(X, self.n_features_), self.row_norm_)
        if not 1 <= k <= self.n_labels_:
            raise ValueError(f"k must be in [1, {self.n_labels_}], got {k}")
        n = x.shape[0]
        scores, ids = np.empty((n, k), np.float32), np.empty((n, k), np.int32)
        rows_of = _fetcher(x)
        training = self.network_.training
        self.network_.eval()
        device = next(self.network_.parameters()).device
        with torch.no_grad():
            for first in range(0, n, batch_size):
                batch = rows_of(np.arange(first, min(first + batch_size, n)))
                inputs = (
                    batch.to(device) if isinstance(batch, Tensor) else CsrRows(*(t.to(device) for t in batch))
                )
                top = output_topk(self.network_.output, self.network_.embed(inputs), k)
                scores[first : first + batch_size] = top[0].float().cpu().numpy()
                ids[first : first + batch_size] = top[1].cpu().numpy()
        self.network_.train(training)
        return ranked_csr(scores, ids, self.n_labels_, self.order_)

    def memory(self) -> dict[str, int]:
        """Bytes during training: of the output layer, of the intermediate layer, of the gradient and optimizer
        state of both (a sparse gradient has only the rows it needs and is not counted)."""
        self._fitted()
        hidden = 0 if self.network_.hidden is None else layer_bytes(self.network_.hidden)
        weights = sum(p.numel() for p in self.network_.parameters())
        momenta = 2 if self.optimizer == "adam" else 1
        output = layer_bytes(self.network_.output)
        gradients = sum(p.numel() * p.element_size() for p in self.network_.parameters())
        if self.gradient == "sparse":
            gradients = hidden
        return {"output": output, "hidden": hidden, "gradients": gradients, "state": weights * 4 * momenta}

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write the model into a folder (safetensors and a JSON manifest)."""
        self._fitted()
        manifest_params = {name: getattr(self, name) for name in _SAVED}
        tensors = self.network_.state_dict()
        if self.order_ is not None:
            tensors["order"] = torch.from_numpy(self.order_)
        manifest = {
            "params": manifest_params,
            "rewire": None if self.rewire is None else self.rewire.options(),
            "n_features": self.n_features_,
            "n_labels": self.n_labels_,
            "row_norm": self.row_norm_,
            "history": self.history_,
        }
        save_folder(directory, _FORMAT, manifest, tensors)

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> SparseClassifier:
        """The model that `save` wrote; it predicts the same bits."""
        manifest, tensors = load_folder(directory, _FORMAT)
        rewire = None if manifest["rewire"] is None else Rewire(**manifest["rewire"])
        model = cls(rewire=rewire, **manifest["params"])
        model.n_features_, model.n_labels_ = manifest["n_features"], manifest["n_labels"]
        model.row_norm_, model.history_ = manifest["row_norm"], manifest["history"]
        order = tensors.pop("order", None)
        model.order_ = None if order is None else order.numpy()
        head = tensors.get("output.head_labels", torch.empty(0, dtype=torch.int64))
        with torch.random.fork_rng([]):
            model.network_ = model._build(head)
        model.network_.load_state_dict(tensors)
        model.network_.eval()
        return model

    def _build(self, head: Tensor) -> Network:
        output = make_output(
            self.output,
            self.hidden or self.n_features_,
            self.n_labels_,
            fan_in=self.fan_in,
            group_size=self.group_size,
            head=head,
            rank=self.rank,
            seed=self.seed,
            dtype=_DTYPES[self.dtype],
        )
        return Network(self.n_features_, self.hidden, self.dropout, output)

    def _optimizers(self, network: Any) -> list[torch.optim.Optimizer]:
        return classifier_optimizers(
            network.output,
            [] if network.hidden is None else list(network.hidden.parameters()),
            self.optimizer,
            lr=self.lr,
            weight_decay=self.weight_decay,
        )

    def _check(self) -> None:
        for name, value, known in (
            ("output", self.output, KINDS),
            ("loss", self.loss, LOSSES),
            ("gradient", self.gradient, ("fused", "sparse")),
            ("optimizer", self.optimizer, ("adam", "sgd")),
            ("dtype", self.dtype, tuple(_DTYPES)),
        ):
            if value not in known:
                raise ValueError(f"{name} must be one of {known}, got {value!r}")
        if self.gradient == "sparse" and (self.output != "fan_in" or self.loss != "squared_hinge"):
            raise ValueError('gradient="sparse" needs output="fan_in" and loss="squared_hinge"')
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")

    def _fitted(self) -> None:
        if not hasattr(self, "network_"):
            raise ValueError("this SparseClassifier is not fitted: call fit or load first")


def _scale_to(network: Network, x: Any) -> None:
    """Start the intermediate layer as if the features had variance 1, whatever their scale (tf-idf: tiny)."""
    squares = float(np.square(x.data if sp.issparse(x) else x, dtype=np.float64).sum())
    if network.hidden is not None and squares > 0:
        with torch.no_grad():
            network.hidden.weight.mul_((x.shape[0] * x.shape[1] / squares) ** 0.5)


def _features(X: Any, n_features: int | None = None) -> Any:
    """Dense float32 as it is, sparse as CSR; finite, with the right number of columns."""
    if sp.issparse(X):
        return _arrays.to_scipy(*_arrays.features(X, n_features=n_features))
    x = np.ascontiguousarray(X, np.float32)
    if x.ndim != 2:
        raise ValueError(f"X must be two-dimensional, got shape {x.shape}")
    if not np.isfinite(x).all():
        raise ValueError("X must be finite, got NaN or inf")
    if n_features is not None and x.shape[1] != n_features:
        raise ValueError(f"X has {x.shape[1]} columns, expected {n_features}")
    return x


def _nonzeros(x: Any) -> int:
    return int(np.count_nonzero(x.data if sp.issparse(x) else x))


def _normalized(x: Any, norm: float | None) -> Any:
    """Rows scaled to that norm; rows of zeros stay."""
    if norm is None:
        return x
    if not sp.issparse(x):
        return (x * (norm / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-30))).astype(np.float32)
    norms = np.sqrt(np.asarray(x.multiply(x).sum(1), np.float64)).ravel()
    factors = np.repeat(norm / np.maximum(norms, 1e-30), np.diff(x.indptr))
    return _arrays.to_scipy(x.indptr, x.indices, (x.data * factors).astype(np.float32), x.shape)


def _fetcher(x: Any) -> Any:
    if sp.issparse(x):
        return csr_batches(x).fetch
    return lambda rows: torch.from_numpy(x[rows])


def _dense(rows: CsrRows, n_features: int) -> Tensor:
    n = len(rows.indptr) - 1
    out = rows.values.new_zeros(n, n_features)
    which = torch.repeat_interleave(torch.arange(n, device=out.device), rows.indptr.diff())
    out[which, rows.indices] = rows.values
    return out
