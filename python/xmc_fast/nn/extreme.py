"""From text to labels, end to end: a transformer under an output layer that is sparse during the whole training.

Gradients through a sparse layer train the encoder badly at first: a label sees few of its dimensions, and those
change. Two remedies: an auxiliary dense head on meta-labels (clusters of labels) whose weight falls to zero and
which is cut off after the first part of the training, or a dense head for the frequent labels (Ullah et al. 2024).
"""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from pathlib import Path
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
from xmc_fast.nn.tokens import Encoder, Tokens, load_encoder, tokenize
from xmc_fast.nn.train import Callback, Run, Trainer

_FORMAT = "xmc_fast.extreme_classifier"
_POOLING = ("mean", "cls")
_SAVED = (
    *("fan_in", "output", "head", "group_size", "rank", "meta", "meta_weight", "meta_stop", "pooling"),
    *("frozen_layers", "max_length", "loss", "dropout", "lr", "output_lr", "weight_decay", "epochs"),
    *("batch_size", "seed"),
)


class TextNetwork(nn.Module):
    """Tokens -> encoder -> pooled state -> output layer (and the meta-label head, while it is needed)."""

    def __init__(
        self,
        encoder: Any,
        output: nn.Module,
        meta: nn.Module | None,
        pooling: str,
        cls_last: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.output, self.meta = output, meta
        self.pooling, self.cls_last, self.dropout = pooling, cls_last, dropout

    def embed(self, tokens: dict[str, Tensor]) -> Tensor:
        """input_ids and attention_mask, (batch, length) -> (batch, hidden size), of norm sqrt(hidden size)."""
        states = self.encoder(**tokens).last_hidden_state
        if self.pooling == "cls":
            pooled = states[:, -1 if self.cls_last else 0]
        else:
            mask = tokens["attention_mask"].to(states.dtype)[:, :, None]
            pooled = (states * mask).sum(1) / mask.sum(1).clamp(min=1)
        pooled = F.layer_norm(pooled, pooled.shape[1:])  # output layers expect features of variance 1
        return F.dropout(pooled, self.dropout, self.training)


class _Progress(Callback):
    """How far the training is, for the decaying weight; right also after a restart."""

    share = 0.0

    def on_start(self, run: Run) -> None:
        self.share = run.step / run.total_steps

    on_step = on_start


class ExtremeClassifier:
    """Extreme classifier on texts: any encoder of transformers, and a sparse output layer.

    Parameters
    ----------
    encoder : folder or name of a pretrained transformer, or an Encoder
        See :func:`xmc_fast.nn.load_encoder`. It is copied, then trained.
    fan_in, output, head, group_size, rank
        The output layer, as for :class:`xmc_fast.nn.SparseClassifier`; ``output="head_tail"`` with ``head`` dense
        labels is the alternative to the meta-label head.
    meta : int or None
        Labels of a meta-label (a cluster of :func:`xmc_fast.cluster.label_tree`); None for no auxiliary head.
    meta_weight : float
        Weight of the auxiliary loss at the start; it falls linearly.
    meta_stop : float
        Share of the training after which the auxiliary head is off.
    rewire : Rewire or None
        How connections change (a copy is used).
    pooling : {"mean", "cls"}
        Of the last hidden states.
    frozen_layers : int
        The embeddings and so many layers of the encoder are not trained (0: all are trained, -1: none).
    max_length : int
        Tokens of a text.
    loss : {"squared_hinge", "bce"}
    dropout : float
        Of the pooled state.
    lr, output_lr, weight_decay : float
        Rates of the encoder and of the heads; both rise over the first 5 % and fall linearly to zero.
    epochs, batch_size, seed, **options
        As for :class:`xmc_fast.nn.Trainer`.

    Attributes
    ----------
    network_ : TextNetwork
    history_ : list of dict, one per epoch
    n_labels_ : int

    Examples
    --------
    >>> model = ExtremeClassifier("my-encoder", fan_in=64, meta=16)  # doctest: +SKIP
    >>> model.fit(["green tea", "black coffee"], [[1, 0], [0, 1]]).predict(["tea"], k=1)  # doctest: +SKIP
    """

    def __init__(
        self,
        encoder: str | os.PathLike[str] | Encoder,
        fan_in: int = 64,
        *,
        output: str = "fan_in",
        head: int = 0,
        group_size: int = 1,
        rank: int | None = None,
        meta: int | None = 16,
        meta_weight: float = 1.0,
        meta_stop: float = 0.5,
        rewire: Rewire | None = Rewire(),  # noqa: B008 - a copy is used, this one never changes
        pooling: str = "mean",
        frozen_layers: int = 0,
        max_length: int = 128,
        loss: str = "squared_hinge",
        dropout: float = 0.1,
        lr: float = 5e-5,
        output_lr: float = 2e-3,
        weight_decay: float = 0.0,
        epochs: int = 10,
        batch_size: int = 32,
        seed: int = 0,
        **options: Any,
    ) -> None:
        self.encoder = encoder
        self.fan_in, self.output, self.head, self.group_size, self.rank = (
            fan_in,
            output,
            head,
            group_size,
            rank,
        )
        self.meta, self.meta_weight, self.meta_stop = meta, meta_weight, meta_stop
        self.rewire = rewire
        self.pooling, self.frozen_layers, self.max_length = pooling, frozen_layers, max_length
        self.loss, self.dropout = loss, dropout
        self.lr, self.output_lr, self.weight_decay = lr, output_lr, weight_decay
        self.epochs, self.batch_size, self.seed = epochs, batch_size, seed
        self.options = options

    def fit(
        self, texts: Sequence[str] | Tokens, Y: Any, *, validation: tuple[Any, Any] | None = None
    ) -> ExtremeClassifier:
        """Train.

        Parameters
        ----------
        texts : list of n str, or their Tokens
        Y : (n, L) binary labels, sparse or dense
        validation : (texts, Y) whose P@1, P@3 and P@5 enter the history after each epoch, optional
        """
        self._check()
        loaded = load_encoder(self.encoder)
        self.encoder_ = Encoder(copy.deepcopy(loaded.model), loaded.tokenizer)
        tokens = self._tokens(texts)
        y = _arrays.labels(Y, n_rows=tokens.n_texts)
        self.n_labels_ = y.shape[1]
        targets = _arrays.to_scipy(y.indptr, y.indices, np.ones(len(y.indices), bool), y.shape)
        tree, self.order_ = None, None
        if self.meta is not None or self.group_size > 1:
            words = bag_of_tokens(tokens, len(loaded.tokenizer))
        if self.group_size > 1:
            related = label_tree(words, targets, max_leaf=self.group_size, random_state=self.seed)
            self.order_ = related.order.astype(np.int64)
            targets = targets[:, self.order_].tocsr()
            targets.sort_indices()
        meta_targets = None
        if self.meta is not None:
            tree = label_tree(words, targets, max_leaf=self.meta, random_state=self.seed)
            meta_targets = (targets.astype(np.float32) @ tree.matrix().T).tocsr() > 0
        frequency = np.bincount(targets.indices, minlength=self.n_labels_)
        head = torch.from_numpy(np.argsort(-frequency, kind="stable")[: self.head])
        with torch.random.fork_rng([]):
            torch.manual_seed(self.seed)
            self.network_ = self._build(head, 0 if tree is None else tree.n_clusters, tokens.cls_last)
        freeze(self.encoder_.model, self.frozen_layers)
        progress = _Progress()
        rewire = copy.deepcopy(self.rewire) if sparse_layers(self.network_) else None
        own = {"schedule": linear(0.05), **self.options}
        callbacks = [progress, *([rewire] if rewire else []), *own.pop("callbacks", ())]
        trainer = Trainer(
            self._optimizers,
            epochs=self.epochs,
            batch_size=self.batch_size,
            seed=self.seed,
            callbacks=callbacks,
            **own,
        )

        def fetch(rows: npt.NDArray[np.int64]) -> Any:
            meta = None if meta_targets is None else meta_targets[rows]
            return tokens.batch(rows), targets[rows], meta, show_batch(rows)

        def loss(network: Any, batch: Any) -> tuple[Tensor, dict[str, float]]:
            inputs, wanted, meta, show = batch
            h = network.embed(inputs).float()
            value = output_loss(network.output, h, wanted, loss=self.loss)
            weight = (
                self.meta_weight * max(0.0, 1 - progress.share / self.meta_stop) if self.meta_stop else 0.0
            )
            if meta is not None and weight > 0:
                value = value + weight * output_loss(network.meta, h, meta, loss=self.loss)
            return value, {"p@1": top_precision(network.output, h, wanted)} if show else {}

        def validate(_: nn.Module) -> dict[str, float]:
            assert validation is not None
            values = precision_at_k(
                validation[1], self.predict(validation[0], min(5, self.n_labels_)), (1, 3, 5)
            )
            return {f"p@{k}": float(v) for k, v in zip((1, 3, 5), values, strict=True)}

        self.history_ = trainer.fit(
            self.network_,
            loss,
            tokens.n_texts,
            fetch,
            validate if validation is not None else None,
            tokens.lengths,
        )
        self.network_.meta = None  # only training needs it
        return self

    def predict(self, texts: Sequence[str] | Tokens, k: int = 5, *, batch_size: int = 64) -> sp.csr_matrix:
        """The k best labels of each text: CSR (n, L) of scores, best first within a row."""
        self._fitted()
        if not 1 <= k <= self.n_labels_:
            raise ValueError(f"k must be in [1, {self.n_labels_}], got {k}")
        tokens = self._tokens(texts)
        n = tokens.n_texts
        scores, ids = np.empty((n, k), np.float32), np.empty((n, k), np.int32)
        by_size = np.argsort(tokens.lengths, kind="stable")  # little padding
        training, device = self.network_.training, next(self.network_.parameters()).device
        self.network_.eval()
        with torch.no_grad():
            for first in range(0, n, batch_size):
                rows = by_size[first : first + batch_size]
                batch = {name: t.to(device) for name, t in tokens.batch(rows).items()}
                top = output_topk(self.network_.output, self.network_.embed(batch).float(), k)
                scores[rows], ids[rows] = top[0].float().cpu().numpy(), top[1].cpu().numpy()
        self.network_.train(training)
        return ranked_csr(scores, ids, self.n_labels_, self.order_)

    def memory(self) -> dict[str, int]:
        """Bytes of the encoder and of the output layer."""
        self._fitted()
        return {
            "output": layer_bytes(self.network_.output),
            "encoder": layer_bytes(self.network_.encoder),
        }

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write the model into a folder: the encoder as transformers does, the rest as safetensors and JSON."""
        self._fitted()
        tensors = {f"output.{name}": t for name, t in self.network_.output.state_dict().items()}
        if self.order_ is not None:
            tensors["order"] = torch.from_numpy(self.order_)
        manifest = {
            "params": {name: getattr(self, name) for name in _SAVED},
            "rewire": None if self.rewire is None else self.rewire.options(),
            "n_labels": self.n_labels_,
            "history": self.history_,
        }

        def encoder(folder: Path) -> None:
            self.encoder_.model.save_pretrained(folder / "encoder")
            self.encoder_.tokenizer.save_pretrained(folder / "encoder")

        save_folder(directory, _FORMAT, manifest, tensors, encoder)

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> ExtremeClassifier:
        """The model that `save` wrote; it predicts the same bits."""
        manifest, tensors = load_folder(directory, _FORMAT)
        folder = Path(directory) / "encoder"
        rewire = None if manifest["rewire"] is None else Rewire(**manifest["rewire"])
        model = cls(folder, rewire=rewire, **manifest["params"])
        model.encoder_ = load_encoder(folder)
        model.n_labels_, model.history_ = manifest["n_labels"], manifest["history"]
        order = tensors.pop("order", None)
        model.order_ = None if order is None else order.numpy()
        head = tensors.get("output.head_labels", torch.empty(0, dtype=torch.int64))
        with torch.random.fork_rng([]):
            model.network_ = model._build(head, 0, model._tokens([]).cls_last)
        model.network_.output.load_state_dict({k.removeprefix("output."): v for k, v in tensors.items()})
        model.network_.eval()
        return model

    def _build(self, head: Tensor, clusters: int, cls_last: bool) -> TextNetwork:
        width = self.encoder_.model.config.hidden_size
        output = make_output(
            self.output,
            width,
            self.n_labels_,
            fan_in=self.fan_in,
            group_size=self.group_size,
            head=head,
            rank=self.rank,
            seed=self.seed,
        )
        meta = make_output("dense", width, clusters, fan_in=1) if clusters else None
        return TextNetwork(self.encoder_.model, output, meta, self.pooling, cls_last, self.dropout)

    def _optimizers(self, network: Any) -> list[torch.optim.Optimizer]:
        meta = [] if network.meta is None else list(network.meta.parameters())
        optimizers = classifier_optimizers(
            network.output, meta, "adam", lr=self.output_lr, weight_decay=self.weight_decay
        )
        trained = [p for p in network.encoder.parameters() if p.requires_grad]
        if trained:
            optimizers.append(torch.optim.AdamW(trained, self.lr, weight_decay=self.weight_decay))
        return optimizers

    def _tokens(self, texts: Sequence[str] | Tokens) -> Tokens:
        if isinstance(texts, Tokens):
            return texts
        return tokenize(texts, self.encoder_, max_length=self.max_length, warn=False)

    def _check(self) -> None:
        if self.pooling not in _POOLING:
            raise ValueError(f"pooling must be one of {_POOLING}, got {self.pooling!r}")
        if self.meta is not None and self.meta < 1:
            raise ValueError(f"meta must be at least 1 label, or None, got {self.meta}")
        if not 0 <= self.meta_stop <= 1:
            raise ValueError(f"meta_stop must be in [0, 1], got {self.meta_stop}")

    def _fitted(self) -> None:
        if not hasattr(self, "network_"):
            raise ValueError("this ExtremeClassifier is not fitted: call fit or load first")


def bag_of_tokens(tokens: Tokens, vocabulary: int) -> sp.csr_matrix:
    """tf-idf of token ids, rows of norm 1, (n, vocabulary): what label clusters are made of.

    >>> two = Tokens(np.array([5, 6, 5], np.int32), np.array([0, 2, 3]), 0, False, 0)
    >>> bag_of_tokens(two, 8).toarray()[1, 5]
    np.float32(1.0)
    """
    ones = np.ones(len(tokens.ids), np.float32)
    counts = sp.csr_matrix((ones, tokens.ids.astype(np.int64), tokens.offsets), (tokens.n_texts, vocabulary))
    counts.sum_duplicates()
    seen = np.bincount(counts.indices, minlength=vocabulary)
    counts.data = (1 + np.log(counts.data)) * (1 + np.log((1 + tokens.n_texts) / (1 + seen[counts.indices])))
    norms = np.sqrt(np.asarray(counts.multiply(counts).sum(1)).ravel())
    counts.data /= np.maximum(np.repeat(norms, np.diff(counts.indptr)), 1e-12)
    return counts.astype(np.float32)


def freeze(encoder: nn.Module, layers: int) -> None:
    """Stop the training of everything but the encoder's layers from number ``layers`` on (-1: of all layers)."""
    if layers == 0:
        return
    depth = int(getattr(encoder.config, "num_hidden_layers", 0))
    stack = next((m for m in encoder.modules() if isinstance(m, nn.ModuleList) and len(m) == depth), None)
    if stack is None or not -1 <= layers <= depth:
        raise ValueError(f"frozen_layers must be in [-1, {depth}], the encoder's layers, got {layers}")
    for parameter in encoder.parameters():
        parameter.requires_grad_(False)
    for layer in list(stack)[layers:] if layers > 0 else []:
        for parameter in layer.parameters():
            parameter.requires_grad_(True)
