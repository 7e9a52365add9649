"""An extreme classifier whose output layer is sparse during the whole training: on features, or on texts.

Gradients through a sparse layer train what lies below it badly at first: a label sees few of its dimensions, and
those change. On features, an intermediate layer of many ReLU units helps (Schultheis and Babbar 2023). Under an
encoder there are two remedies: an auxiliary dense head on meta-labels (clusters of labels) whose weight falls to
zero and which is cut off after the first part of the training, or a dense head for the frequent labels (Ullah et
al. 2024).
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from xmc_fast import _validate
from xmc_fast._folder import ModelFormatError, count, opening, part_of
from xmc_fast.cluster import label_tree
from xmc_fast.nn._embed import FeatureEmbedding, TextEmbedding, dense_or_csr, own_copy, unit_variance_norm
from xmc_fast.nn._estimator import NeuralEstimator, module_bytes
from xmc_fast.nn._folder import check_ids, check_network, check_room, load_folder, save_folder
from xmc_fast.nn._outputs import (
    KINDS,
    LOSSES,
    make_output,
    output_loss,
    output_topk,
    ranked_csr,
    show_batch,
    top_precision,
)
from xmc_fast.nn.optim import classifier_optimizers
from xmc_fast.nn.rewire import Rewire, sparse_layers
from xmc_fast.nn.tokens import Encoder, load_encoder
from xmc_fast.nn.train import Callback, Run, autocast, to_device

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_FORMAT = "sparse_classifier"
# Defaults on features and on texts, where they differ.
_DEFAULTS = {"epochs": (20, 10), "batch_size": (128, 32), "lr": (1e-3, 2e-3), "dropout": (0.0, 0.1)}
_PREDICT_ROWS = (1024, 64)
_WARM_UP = (0.0, 0.05)
_CHOICES: dict[str, Collection[str]] = {
    "output": KINDS,
    "loss": LOSSES,
    "gradient": ("fused", "sparse"),
    "optimizer": ("adam", "sgd"),
    "dtype": tuple(_DTYPES),
    "pooling": ("mean", "cls"),
}


class Network(nn.Module):
    """Embedding -> output layer (and the head on meta-labels, while it is needed)."""

    def __init__(
        self, embed: FeatureEmbedding | TextEmbedding, output: nn.Module, meta: nn.Module | None
    ) -> None:
        super().__init__()
        self.embed, self.output, self.meta = embed, output, meta

    def forward(self, inputs: Any) -> Tensor:
        """Scores of all labels, (batch, labels)."""
        scores: Tensor = self.output(self.embed(inputs))
        return scores


class _Progress(Callback):
    """How far the training is, for the falling weight of the meta-labels; right also after a restart."""

    share = 0.0

    def on_start(self, run: Run) -> None:
        self.share = run.step / run.total_steps

    on_step = on_start


@dataclass(eq=False, repr=False, kw_only=True)
class SparseClassifier(NeuralEstimator):
    """Extreme classifier whose output layer is sparse from the first training step to the last.

    Every label sees ``fan_in`` inputs (see `xmc_fast.nn.FixedFanInLinear`), and `Rewire` exchanges
    the useless ones during training. Without an ``encoder`` rows are features, sparse or dense; with one they are
    texts, and the encoder is trained, too.

    Parameters
    ----------
    fan_in : int
        Inputs of each label.
    encoder : folder or name of a pretrained transformer, or an Encoder; optional
        See `xmc_fast.nn.load_encoder`. It is copied, then trained.
    output : {"fan_in", "head_tail", "dense", "bottleneck"}
        The output layer: fixed fan-in; dense for the ``head`` most frequent labels and fixed fan-in for the
        others; or, for comparison, ``nn.Linear`` and two dense layers through ``rank`` units.
    group_size : int
        Labels that share their inputs; they are then neighbours of a label tree.
    head : int
        Dense labels of "head_tail".
    rank : int, optional
        Of "bottleneck"; by default it has the bytes of ``fan_in``.
    rewire : Rewire or None
        How connections change (a copy is used); None keeps the first, random ones.
    loss : {"squared_hinge", "bce"}
    gradient : {"fused", "sparse"}
        "sparse": only labels with a violated margin get a gradient and an update (squared hinge).
    dtype : {"float32", "bfloat16"}
        Of the output layer's weights; bfloat16 ones are updated with stochastic rounding.
    dropout : float, optional
        Of what the output layer sees; by default 0 on features, 0.1 on texts.
    hidden : int, optional
        Features: units of a ReLU layer below the output layer, at the memory of features x hidden.
    normalize : bool
        Features: scale each row to one length, that at which its non-zero features have a variance of about 1.
    pooling : {"mean", "cls"}
        Texts: of the last hidden states.
    frozen_layers : int
        Texts: the embeddings and so many layers of the encoder are not trained (0: all are trained, -1: none).
    max_length : int
        Texts: tokens of each.
    meta : int or None
        Texts: labels of a meta-label (a cluster of `xmc_fast.cluster.label_tree`); None for no auxiliary head.
    meta_weight, meta_stop : float
        Weight of the auxiliary loss at the start, and the share of the training at which it has fallen to zero.
    optimizer : {"adam", "sgd"}
        Of everything but the encoder, which takes AdamW.
    lr, encoder_lr, weight_decay : float
        Rates of everything but the encoder (by default 1e-3 on features, 2e-3 on texts) and of the encoder.
    schedule : {"linear", "cosine", "constant"} or function
        Of the rates; on texts they rise over the first 5 % of the steps.
    epochs, batch_size : int, optional
        By default 20 epochs of batches of 128 on features, 10 of 32 on texts.
    precision, accumulate, clip_norm, swa_start, patience, monitor, callbacks, device, random_state
        As for `xmc_fast.nn.Trainer`.

    Attributes
    ----------
    network_ : Network
    history_ : list of dict, one per epoch
    n_labels_ : int
    n_features_in_ : int, on features

    Examples
    --------
    >>> from xmc_fast import data
    >>> d = data.make_synthetic(200, 100, 40)
    >>> model = SparseClassifier(fan_in=8, hidden=64, epochs=3, batch_size=32).fit(d.X, d.Y)
    >>> model.predict(d.X, k=3).shape
    (200, 40)

    >>> model = SparseClassifier(64, encoder="my-encoder", meta=16)  # doctest: +SKIP
    >>> model.fit(["green tea", "black coffee"], [[1, 0], [0, 1]]).predict(["tea"], k=1)  # doctest: +SKIP
    """

    fan_in: int = field(default=64, kw_only=False)
    encoder: str | os.PathLike[str] | Encoder | None = None
    output: str = "fan_in"
    group_size: int = 1
    head: int = 0
    rank: int | None = None
    rewire: Rewire | None = Rewire()  # noqa: RUF009 - a copy is used, this one never changes
    loss: str = "squared_hinge"
    gradient: str = "fused"
    dtype: str = "float32"
    dropout: float | None = None
    hidden: int | None = None
    normalize: bool = True
    pooling: str = "mean"
    frozen_layers: int = 0
    max_length: int = 128
    meta: int | None = 16
    meta_weight: float = 1.0
    meta_stop: float = 0.5
    optimizer: str = "adam"
    lr: float | None = None
    encoder_lr: float = 5e-5
    weight_decay: float = 0.0
    schedule: Any = "linear"
    epochs: int | None = None
    batch_size: int | None = None

    def fit(
        self,
        X: Any,
        Y: Any,
        *,
        validation: tuple[Any, Any] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int | None = None,
        log: str | os.PathLike[str] | None = None,
    ) -> SparseClassifier:
        """Train.

        Parameters
        ----------
        X : (n, D) features, dense or sparse; with an encoder n texts or their Tokens
        Y : (n, L) binary labels, sparse or dense
        validation : (X, Y) whose P@1, P@3 and P@5 enter the history after each epoch, optional
        checkpoint, checkpoint_every, log
            Files of the training, see `xmc_fast.nn.Trainer`; an interrupted fit goes on from its checkpoint.
        """
        self._check()
        with torch.random.fork_rng([]):
            embed = self._embedding(X)
        rows = embed.rows(X)
        y = _validate.labels(Y, n_rows=rows.n)
        self.n_labels_ = y.shape[1]
        targets = _validate.to_scipy(y.indptr, y.indices, np.ones(len(y.indices), bool), y.shape)
        meta = None if self.encoder is None else self.meta
        related = rows.features() if meta or self.group_size > 1 else None
        self.order_: npt.NDArray[np.int64] | None = None
        if self.group_size > 1:
            tree = label_tree(related, targets, max_leaf=self.group_size, random_state=self.random_state)
            self.order_ = tree.order.astype(np.int64)
            targets = targets[:, self.order_].tocsr()
            targets.sort_indices()
        meta_targets = None
        if meta:
            tree = label_tree(related, targets, max_leaf=meta, random_state=self.random_state)
            meta_targets = (targets.astype(np.float32) @ tree.matrix().T).tocsr() > 0
        frequency = np.bincount(targets.indices, minlength=self.n_labels_)
        head = np.argsort(-frequency, kind="stable")[: self.head]
        with torch.random.fork_rng([]):
            torch.manual_seed(self.random_state)
            self.network_ = self._network(embed, torch.from_numpy(head), meta_targets)
            embed.reset(rows)
        progress = _Progress()
        rewire = [copy.deepcopy(self.rewire)] if self.rewire and sparse_layers(self.network_) else []
        trainer = self._trainer(
            self._optimizers,
            warm_up=self._by_input(_WARM_UP),
            epochs=self._setting("epochs"),
            batch_size=self._setting("batch_size"),
            callbacks=[progress, *rewire, *self.callbacks],
            checkpoint=checkpoint,
            checkpoint_every=checkpoint_every,
            log=log,
        )

        def fetch(numbers: npt.NDArray[np.int64]) -> Any:
            meta = None if meta_targets is None else meta_targets[numbers]
            return rows.fetch(numbers), targets[numbers], meta, show_batch(numbers)

        def loss(network: Any, batch: Any) -> tuple[Tensor, dict[str, float]]:
            inputs, wanted, meta, show = batch
            h = network.embed(inputs)
            value = output_loss(network.output, h, wanted, loss=self.loss, gradient=self.gradient)
            weight = self.meta_weight * max(0.0, 1 - progress.share / self.meta_stop) if self.meta_stop else 0
            if meta is not None and weight > 0:
                value = value + weight * output_loss(network.meta, h, meta, loss=self.loss)
            return value, {"p@1": top_precision(network.output, h, wanted)} if show else {}

        self.history_ = trainer.fit(
            self.network_, loss, rows.n, fetch, self._validator(validation), rows.lengths
        )
        self.network_.meta = None  # only training needs it
        return self

    def predict(
        self, X: Any, k: int = 5, *, proba: bool = False, batch_size: int | None = None
    ) -> sp.csr_matrix:
        """The k best labels of each row: CSR (n, L) of scores, best first within a row.

        ``proba`` gives the sigmoid of the scores, for ``loss="bce"``.
        """
        network = self._fitted()
        if not 1 <= k <= self.n_labels_:
            raise ValueError(f"k must be in [1, {self.n_labels_}], got {k}")
        if proba and self.loss != "bce":
            raise ValueError(f'proba=True needs loss="bce", this model has {self.loss!r}')
        rows = network.embed.rows(X)
        scores, ids = np.empty((rows.n, k), np.float32), np.empty((rows.n, k), np.int32)
        order = np.arange(rows.n) if rows.lengths is None else np.argsort(rows.lengths, kind="stable")
        size = batch_size or self._by_input(_PREDICT_ROWS)
        training, device = network.training, next(network.parameters()).device
        network.eval()
        with torch.no_grad(), autocast(self.precision, device):
            for first in range(0, rows.n, size):
                part = order[first : first + size]
                top = output_topk(network.output, network.embed(to_device(rows.fetch(part), device)), k)
                scores[part], ids[part] = top[0].float().cpu().numpy(), top[1].cpu().numpy()
        network.train(training)
        if proba:
            scores = torch.from_numpy(scores).sigmoid().numpy()
        return ranked_csr(scores, ids, self.n_labels_, self.order_)

    def memory(self) -> dict[str, int]:
        """Bytes during training: of the output layer, of what lies below it, of the gradients and the optimizer
        state of both (a sparse gradient has only the rows it needs and is not counted)."""
        network = self._fitted()
        trained = [p for p in network.parameters() if p.requires_grad]
        gradients = network.embed if self.gradient == "sparse" else network
        return {
            "output": module_bytes(network.output),
            "hidden" if self.encoder is None else "encoder": module_bytes(network.embed),
            "gradients": module_bytes(gradients, trained=True),
            "state": sum(p.numel() for p in trained) * 4 * (2 if self.optimizer == "adam" else 1),
        }

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write the model into a folder: safetensors, a JSON manifest, the encoder as transformers writes it."""
        network = self._fitted()
        texts = isinstance(network.embed, TextEmbedding)
        tensors = (network.output if texts else network).state_dict(prefix="output." if texts else "")
        if self.order_ is not None:
            tensors["order"] = torch.from_numpy(self.order_)
        manifest = {
            "params": self._saved_params(),
            "rewire": None if self.rewire is None else self.rewire.options(),
            "texts": texts,
            "n_features": None if texts else network.embed.n_features,
            "row_norm": None if texts else network.embed.norm,
            "n_labels": self.n_labels_,
            "history": self.history_,
        }
        save_folder(directory, _FORMAT, manifest, tensors, network.embed.save if texts else None)

    @classmethod
    @opening
    def load(cls, directory: str | os.PathLike[str]) -> SparseClassifier:
        """The model that `save` wrote; it predicts the same bits."""
        manifest, tensors = load_folder(directory, _FORMAT)
        rewire = None if manifest["rewire"] is None else Rewire(**manifest["rewire"])
        if not isinstance(manifest["texts"], bool):
            raise ModelFormatError(f"damaged, texts must be true or false, got {manifest['texts']!r}")
        encoder = part_of(Path(directory), "encoder") if manifest["texts"] else None
        model = cls(encoder=encoder, rewire=rewire, **manifest["params"])
        model.n_labels_, model.history_ = count(manifest["n_labels"], "n_labels"), manifest["history"]
        model._check()
        model._check_room(tensors, manifest)
        order = tensors.pop("order", None)
        model.order_ = None if order is None else order.numpy()
        if order is not None:
            check_ids(model.order_, model.n_labels_, "order", size=model.n_labels_)
        head = tensors.get("output.head_labels", torch.empty(0, dtype=torch.int64))
        embed: FeatureEmbedding | TextEmbedding
        with torch.random.fork_rng([]):
            if encoder is not None:
                embed = model._texts(load_encoder(encoder))
            else:
                embed = model._features(manifest["n_features"], manifest["row_norm"])
            model.network_ = model._network(embed, head, None)
        if encoder is not None:
            tensors |= embed.state_dict(prefix="embed.")
        model.network_.load_state_dict(tensors)
        check_network(model.network_)
        model.network_.eval()
        return model

    def _check_room(self, tensors: dict[str, Tensor], manifest: dict[str, Any]) -> None:
        """The sizes that a manifest asks for, before anything of that size is made."""
        for name, value in (("hidden", self.hidden), ("rank", self.rank), ("fan_in", self.fan_in)):
            if value is not None:
                count(value, name, 1)
        count(self.group_size, "group_size", 1)
        if not manifest["texts"]:
            check_room(tensors, count(manifest["n_features"], "n_features") * (self.hidden or 0))
            norm = manifest["row_norm"]
            if norm is not None and not isinstance(norm, (int, float)):
                raise ModelFormatError(f"damaged, row_norm must be a number, got {norm!r}")
        check_room(
            tensors, self.n_labels_, self.n_labels_ * (self.rank or 0) if self.output == "bottleneck" else 0
        )
        if self.output == "fan_in":
            check_room(tensors, self.n_labels_ * self.fan_in)

    def _embedding(self, X: Any) -> FeatureEmbedding | TextEmbedding:
        """A new embedding for the rows of a fit."""
        if self.encoder is not None:
            return self._texts(own_copy(load_encoder(self.encoder), self.frozen_layers))
        x = dense_or_csr(X)
        return self._features(x.shape[1], unit_variance_norm(x) if self.normalize else None)

    def _features(self, n_features: int, norm: float | None) -> FeatureEmbedding:
        self.n_features_in_ = n_features
        return FeatureEmbedding(n_features, self.hidden, self._setting("dropout"), norm)

    def _texts(self, encoder: Encoder) -> TextEmbedding:
        return TextEmbedding(encoder, self.pooling, self.max_length, self._setting("dropout"))

    def _network(self, embed: FeatureEmbedding | TextEmbedding, head: Tensor, meta: Any) -> Network:
        output = make_output(
            self.output,
            embed.width,
            self.n_labels_,
            fan_in=self.fan_in,
            group_size=self.group_size,
            head=head,
            rank=self.rank,
            random_state=self.random_state,
            dtype=_DTYPES[self.dtype],
        )
        clusters = None if meta is None else make_output("dense", embed.width, meta.shape[1], fan_in=1)
        return Network(embed, output, clusters)

    def _optimizers(self, network: Any) -> list[torch.optim.Optimizer]:
        rates: dict[str, Any] = {"lr": self._setting("lr"), "weight_decay": self.weight_decay}
        if self.encoder is None:
            return classifier_optimizers(
                network.output, list(network.embed.parameters()), self.optimizer, **rates
            )
        meta = [] if network.meta is None else list(network.meta.parameters())
        optimizers = classifier_optimizers(network.output, meta, self.optimizer, **rates)
        trained = [p for p in network.embed.parameters() if p.requires_grad]
        if trained:
            optimizers.append(torch.optim.AdamW(trained, self.encoder_lr, weight_decay=self.weight_decay))
        return optimizers

    def _by_input(self, pair: tuple[Any, Any]) -> Any:
        return pair[self.encoder is not None]

    def _setting(self, name: str) -> Any:
        """A parameter, or its default for this kind of input."""
        value = getattr(self, name)
        return self._by_input(_DEFAULTS[name]) if value is None else value

    def _check(self) -> None:
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {tuple(known)}, got {getattr(self, name)!r}")
        if self.gradient == "sparse" and (self.output != "fan_in" or self.loss != "squared_hinge"):
            raise ValueError('gradient="sparse" needs output="fan_in" and loss="squared_hinge"')
        if not 0 <= self._setting("dropout") < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")
        if self.meta is not None and self.meta < 1:
            raise ValueError(f"meta must be at least 1 label, or None, got {self.meta}")
        if not 0 <= self.meta_stop <= 1:
            raise ValueError(f"meta_stop must be in [0, 1], got {self.meta_stop}")


def ExtremeClassifier(
    encoder: Any, fan_in: int = 64, *, lr: float = 5e-5, output_lr: float = 2e-3, **options: Any
) -> SparseClassifier:
    """Deprecated: ``SparseClassifier(fan_in, encoder=encoder, lr=output_lr, encoder_lr=lr)``.

    >>> ExtremeClassifier("my-encoder", fan_in=32).fan_in  # doctest: +SKIP
    32
    """
    warnings.warn("use SparseClassifier(..., encoder=encoder)", DeprecationWarning, stacklevel=2)
    return SparseClassifier(fan_in, encoder=encoder, lr=output_lr, encoder_lr=lr, **options)
