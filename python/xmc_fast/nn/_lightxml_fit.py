"""LightXML's training: batches, losses by kind of negatives, optimizers, all through the common loop."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from xmc_fast._validate import Csr, to_scipy
from xmc_fast.nn import _lightxml_start as heads
from xmc_fast.nn._layers import States, fingerprint, frozen, low_rank, lower_parts
from xmc_fast.nn._lightxml_net import LightXMLNet, cluster_scores
from xmc_fast.nn.tokens import Tokens, pad_rows
from xmc_fast.nn.train import Trainer, Validate, autocast, gradients_as_before

History = list[dict[str, float]]
_AT_ONCE = 128  # texts that the encoder reads at a time where nothing is trained


def by_place(y: Csr, order: npt.NDArray[np.int32]) -> Csr:
    """Labels renumbered by their place in ``order``, ascending in each row."""
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    moved = to_scipy(y.indptr, place[y.indices], np.ones(len(y.indices), np.int8), y.shape)
    moved.sort_indices()
    indptr, indices = moved.indptr.astype(np.int64), moved.indices.astype(np.int32)
    return Csr(indptr, indices, np.empty(0, np.float32), y.shape)


@dataclass(frozen=True)
class Data:
    """Texts as tokens and their positives by place.

    With ``static`` (n, beam; best first) the negatives of each text come from these clusters. With ``vectors`` or
    ``states`` batches hold those in place of the tokens. ``fresh`` are the vectors of the encoder as it comes.
    """

    tokens: Tokens
    y: Csr
    offsets: npt.NDArray[np.int64]
    beam: int
    static: npt.NDArray[np.int64] | None = None
    vectors: Vectors | None = None
    fresh: Vectors | None = None
    states: States | None = None

    @property
    def n_clusters(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def cluster_firsts(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """The cluster of each positive, and whether it is the first of its cluster in its row."""
        cluster = np.searchsorted(self.offsets[1:], self.y.indices, side="right")
        first = np.ones(len(cluster), np.bool_)
        first[1:] = cluster[1:] != cluster[:-1]
        first[self.y.indptr[:-1][np.diff(self.y.indptr) > 0]] = True
        return cluster, first

    @cached_property
    def cluster_counts(self) -> npt.NDArray[np.int64]:
        """Texts of each cluster."""
        cluster, first = self.cluster_firsts
        return np.bincount(cluster[first], minlength=self.n_clusters)

    @cached_property
    def true_clusters(self) -> npt.NDArray[np.int64]:
        """Clusters of each text."""
        sums = np.concatenate([[0], np.cumsum(self.cluster_firsts[1])])
        counts: npt.NDArray[np.int64] = sums[self.y.indptr[1:]] - sums[self.y.indptr[:-1]]
        return counts

    def fetch(self, rows: npt.NDArray[np.int64]) -> dict[str, Any]:
        """A batch; ``k`` clusters are enough for the ``beam`` best and for every positive."""
        positives, _ = pad_rows(self.y.indices, self.y.indptr, rows, -1)
        if self.vectors is not None:
            inputs = {"vectors": self.vectors[rows]}
        else:
            inputs = (self.tokens if self.states is None else self.states).batch(rows)
        batch: dict[str, Any] = {"inputs": inputs, "positives": torch.from_numpy(positives)}
        batch["k"] = max(self.beam, int(self.true_clusters[rows].max()))
        if self.static is not None:
            batch["static"] = torch.from_numpy(self.static[rows])
        return batch


class Vectors:
    """The text vectors of a frozen encoder, (n, width); each computed when first needed, in memory or in ``folder``.

    There a file of the same tokens and weights is taken as it is, also one that was not finished.
    """

    def __init__(
        self,
        net: LightXMLNet,
        data: Data,
        precision: str,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        self.net, self.precision = net, precision
        self.texts: Tokens | States = data.tokens if data.states is None else data.states
        self.lengths = data.tokens.lengths
        n, width = data.tokens.n_texts, net.generator.in_features
        if folder is None:
            self.known, self.rows = np.zeros(n, bool), np.empty((n, width), np.float32)
            return
        frozen_layers = 0 if data.states is None else data.states.count
        name = fingerprint(data.tokens, [net.encoder], frozen_layers, net.layers, net.pooling, precision)
        path = Path(folder) / f"vectors-{name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        self.known = _kept(path.with_suffix(".known"), np.bool_, (n,))
        self.rows = _kept(path.with_suffix(".f32"), np.float32, (n, width))

    @torch.no_grad()
    def __getitem__(self, rows: npt.NDArray[np.int64]) -> Tensor:
        new = rows[~self.known[rows]]
        new = new[np.argsort(self.lengths[new], kind="stable")]
        training, device = self.net.training, self.net.offsets.device
        for first in range(0, len(new), _AT_ONCE):
            part = new[first : first + _AT_ONCE]
            inputs = {name: t.to(device) for name, t in self.texts.batch(part).items()}
            with autocast(self.precision, device):
                self.rows[part] = self.net.eval().represent(inputs).float().cpu().numpy()
            self.known[part] = True  # after its rows
        self.net.train(training)
        return torch.from_numpy(self.rows[rows])


def _kept(path: Path, dtype: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """A file as an array, zeros where there is none."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    there = path.is_file() and path.stat().st_size == size
    return np.memmap(path, dtype, "r+" if there else "w+", shape=shape)


def both_losses(
    net: Any, batch: dict[str, Any], rank_weight: float = 1.0
) -> tuple[Tensor, dict[str, Tensor]]:
    """L = L_g + rank_weight L_d."""
    result: tuple[Tensor, dict[str, Tensor]] = net(batch, rank_weight)
    return result


def recall_only(net: Any, batch: dict[str, Any]) -> Tensor:
    """L_g."""
    loss: Tensor = net.recall_loss(net.recall(net.represent(batch["inputs"])), batch["positives"])
    return loss


def rank_only(net: Any, batch: dict[str, Any]) -> Tensor:
    """L_d on the batch's fixed clusters."""
    e = net.represent(batch["inputs"], rank=True)
    empty = torch.zeros(len(e), len(net.offsets) - 1, device=e.device)
    chosen = net.choose(cluster_scores(batch, empty), batch["k"], batch["positives"])
    loss: Tensor = net.rank_loss(e, chosen, batch["positives"])
    return loss


def optimizers(net: Any, *, lr: float, head_lr: float, weight_decay: float) -> list[torch.optim.Optimizer]:
    """AdamW without decay on biases and normalisation, SparseAdam for the label table; frozen parts left out."""
    sparse = net.table is not None and net.table.sparse_grad and net.table.weight.requires_grad
    table = [net.table.weight] if sparse else []
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in net.named_parameters():
        if not parameter.requires_grad or any(parameter is t for t in table):
            continue
        pretrained = name.startswith(("encoder.", "rank_encoder.")) and ".parametrizations." not in name
        rate = lr if pretrained else head_lr
        decay = 0.0 if parameter.dim() < 2 else weight_decay
        groups.setdefault((rate, decay), []).append(parameter)
    made = [{"params": group, "lr": rate, "weight_decay": decay} for (rate, decay), group in groups.items()]
    result: list[torch.optim.Optimizer] = [torch.optim.AdamW(made)]
    if table:
        result.append(torch.optim.SparseAdam(table, lr=head_lr))
    return result


@dataclass(frozen=True)
class Recipe:
    """How to train; ``trainer`` makes the training loop for (optimizers, name of the phase, changed settings)."""

    trainer: Callable[..., Trainer]
    negatives: str
    epochs: int
    warmup_epochs: int
    cooldown_epochs: int
    lr: float
    head_lr: float
    weight_decay: float
    precision: str
    batch_size: int
    random_state: int
    rank_weight: float
    frozen_layers: int
    lora: int | None
    gradient_checkpointing: bool
    layer_cache: str | os.PathLike[str] | None
    head_start: str


@gradients_as_before()
def run(net: LightXMLNet, data: Data, how: Recipe, validate: Validate | None) -> History:
    """Train the network in place, phase by phase."""
    heads.at_frequencies(net, data)
    if how.negatives == "random" and not net.flat:
        draws = np.random.default_rng(how.random_state).random((data.tokens.n_texts, data.beam))
        data = replace(data, static=_distinct(draws, data.n_clusters))
    phases = _together if net.flat or how.negatives in ("dynamic", "random") else _one_after_the_other
    with contextlib.ExitStack() as stack:
        if how.frozen_layers:
            folder = how.layer_cache or stack.enter_context(TemporaryDirectory())
            options: dict[str, Any] = {"precision": how.precision, "batch_size": how.batch_size}
            states = States(net.encoder, how.frozen_layers, data.tokens, folder=folder, **options)
            data = replace(data, states=states)
            trained = int(net.encoder.config.num_hidden_layers) - how.frozen_layers
            if net.pooling == "mean" and net.layers > trained + 1:
                raise ValueError(
                    f'layers must be at most {trained + 1} with pooling="mean" and frozen layers, got {net.layers}'
                )
        if how.warmup_epochs or how.head_start == "centroids":
            fresh = Vectors(net, data, how.precision, how.layer_cache)
            if how.head_start == "centroids":
                heads.at_centroids(net, data, fresh)
            data = replace(data, fresh=fresh)
        return phases(net, data, how, validate)


def _together(net: LightXMLNet, data: Data, how: Recipe, validate: Validate | None) -> History:
    """Generator and discriminator, with the heads alone before and after."""
    loss = partial(both_losses, rank_weight=how.rank_weight)
    history = _heads(net, data, how, loss, None if how.epochs else validate, "warmup", how.warmup_epochs)
    history += _whole(net, data, how, loss, validate, "")
    cooldown = how.cooldown_epochs if how.epochs else 0
    return history + _heads(net, data, how, loss, validate, "cooldown", cooldown)


def _one_after_the_other(net: LightXMLNet, data: Data, how: Recipe, validate: Validate | None) -> History:
    """Static negatives: the generator first, then the discriminator on the clusters that it recalls."""
    history = _heads(
        net, data, how, recall_only, None if how.epochs else validate, "warmup", how.warmup_epochs
    )
    history += _whole(net, data, how, recall_only, None, "recall")
    vectors = Vectors(net, data, how.precision) if how.epochs or data.fresh is None else data.fresh
    data = replace(data, static=_recalled(net, data, vectors, 4 * how.batch_size))
    if how.negatives == "static_copy":
        net.add_rank_encoder()
    else:
        data = replace(data, vectors=vectors)  # the encoder does not change any more
    workers: dict[str, int] = {} if how.negatives == "static_copy" else {"workers": 0}
    with frozen(net.encoder, net.generator):
        epochs = how.warmup_epochs + how.epochs
        return history + _train(net, data, how, rank_only, validate, "", epochs, **workers)


def _whole(
    net: LightXMLNet, data: Data, how: Recipe, loss: Any, validate: Validate | None, phase: str
) -> History:
    """The encoder and the heads: all of it, its upper layers on the states of the frozen ones, or a low rank."""
    if not how.epochs:
        return []
    encoder = net.encoder
    if how.gradient_checkpointing:
        encoder.gradient_checkpointing_enable({"use_reentrant": False})
    lower = lower_parts(encoder, how.frozen_layers) if how.frozen_layers else []
    try:
        with frozen(*lower), low_rank(encoder, how.lora, how.frozen_layers):
            return _train(net, data, how, loss, validate, phase, how.epochs)
    finally:
        if how.gradient_checkpointing:
            encoder.gradient_checkpointing_disable()


def _heads(
    net: LightXMLNet, data: Data, how: Recipe, loss: Any, validate: Validate | None, phase: str, epochs: int
) -> History:
    """Everything but the encoder, on vectors that are computed once."""
    if epochs:
        data = replace(data, vectors=data.fresh if phase == "warmup" else Vectors(net, data, how.precision))
    with frozen(net.encoder):
        return _train(net, data, how, loss, validate, phase, epochs, swa_start=None, workers=0)


def _train(
    net: LightXMLNet,
    data: Data,
    how: Recipe,
    loss: Any,
    validate: Validate | None,
    phase: str,
    epochs: int,
    **changes: Any,
) -> History:
    """One phase through the common loop."""
    if not epochs:
        return []
    if validate is None:
        changes["patience"] = None
    made = partial(optimizers, lr=how.lr, head_lr=how.head_lr, weight_decay=how.weight_decay)
    trainer = how.trainer(made, phase, epochs=epochs, **changes)
    return trainer.fit(net, loss, data.tokens.n_texts, data.fetch, validate, data.tokens.lengths)


def _distinct(draws: npt.NDArray[np.float64], n: int) -> npt.NDArray[np.int64]:
    """Uniform draws as different numbers below n in each row: the i-th is one of the n - i that are left."""
    rows, count = draws.shape
    chosen = np.empty((rows, count), np.int64)
    for i in range(count):
        value = (draws[:, i] * (n - i)).astype(np.int64)
        for taken in np.sort(chosen[:, :i], axis=1).T:
            value += value >= taken
        chosen[:, i] = value
    return chosen


@torch.no_grad()
def _recalled(net: LightXMLNet, data: Data, vectors: Vectors, size: int) -> npt.NDArray[np.int64]:
    """The generator's best clusters of every text, (n, beam)."""
    net.eval()
    n, device = data.tokens.n_texts, net.offsets.device
    out = np.empty((n, data.beam), np.int64)
    order = np.argsort(-data.tokens.lengths, kind="stable")
    for start in range(0, n, size):
        rows = order[start : start + size]
        out[rows] = net.choose(net.recall(vectors[rows].to(device)), data.beam).cpu().numpy()
    return out
