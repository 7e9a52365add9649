"""LightXML's training: batches, losses by kind of negatives, optimizers, all through the common loop."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from xmc_fast import metrics
from xmc_fast._arrays import Csr, to_scipy
from xmc_fast.nn._lightxml_net import LightXMLNet
from xmc_fast.nn.tokens import Tokens, pad_rows
from xmc_fast.nn.train import Trainer

if TYPE_CHECKING:
    from xmc_fast.nn.lightxml import LightXML

History = list[dict[str, float]]
Validate = Callable[[nn.Module], dict[str, float]]


def by_place(y: Csr, order: npt.NDArray[np.int32]) -> Csr:
    """Labels renumbered by their place in ``order``, ascending in each row."""
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    moved = to_scipy(y.indptr, place[y.indices], np.ones(len(y.indices), np.int8), y.shape)
    moved.sort_indices()
    indptr, indices = moved.indptr.astype(np.int64), moved.indices.astype(np.int32)
    return Csr(indptr, indices, np.empty(0, np.float32), y.shape)


class Vectors:
    """The [CLS] states of texts from a frozen encoder, (n, width) in memory; each computed when first asked for."""

    def __init__(self, net: LightXMLNet, tokens: Tokens, precision: str) -> None:
        self.net, self.tokens, self.precision = net, tokens, precision
        self.known = np.zeros(tokens.n_texts, bool)
        self.rows = torch.empty(tokens.n_texts, net.generator.in_features)

    @torch.no_grad()
    def __getitem__(self, rows: npt.NDArray[np.int64]) -> Tensor:
        new = rows[~self.known[rows]]
        if len(new):
            training, device = self.net.training, self.net.offsets.device
            inputs = {name: t.to(device) for name, t in self.tokens.batch(new).items()}
            dtype = torch.float16 if self.precision == "fp16" else torch.bfloat16
            with torch.autocast(device.type, dtype, enabled=self.precision != "fp32"):
                self.rows[new] = self.net.eval().represent(inputs).float().cpu()
            self.net.train(training)
            self.known[new] = True
        return self.rows[rows]


class Data:
    """Texts as tokens, their positives by place, and (for static negatives) fixed clusters per text.

    With ``vectors``, batches hold those in place of the tokens.
    """

    def __init__(self, tokens: Tokens, y: Csr, offsets: npt.NDArray[np.int64], beam: int) -> None:
        self.tokens, self.y = tokens, y
        self.n_clusters = len(offsets) - 1
        self.beam = min(beam, self.n_clusters)
        self.static: npt.NDArray[np.int64] | None = None  # (n, beam), best first
        self.vectors: Vectors | None = None
        self.sizes = np.diff(offsets)
        cluster = np.searchsorted(offsets[1:], y.indices, side="right")
        new = np.ones(len(cluster), np.int64)  # the first label of its cluster in its row
        new[1:] = cluster[1:] != cluster[:-1]
        starts = y.indptr[:-1][np.diff(y.indptr) > 0]
        new[starts] = 1
        self.cluster_counts = np.bincount(cluster[new == 1], minlength=self.n_clusters)  # texts
        sums = np.concatenate([[0], np.cumsum(new)])
        self.true_clusters = sums[y.indptr[1:]] - sums[y.indptr[:-1]]

    def fetch(self, rows: npt.NDArray[np.int64]) -> dict[str, Any]:
        """A batch; ``k`` clusters are enough for the ``beam`` best and for every positive."""
        positives, _ = pad_rows(self.y.indices, self.y.indptr, rows, -1)
        inputs = self.tokens.batch(rows) if self.vectors is None else {"vectors": self.vectors[rows]}
        batch: dict[str, Any] = {"inputs": inputs, "positives": torch.from_numpy(positives)}
        batch["k"] = max(self.beam, int(self.true_clusters[rows].max()))
        if self.static is not None:
            batch["static"] = torch.from_numpy(self.static[rows])
        return batch


def both_losses(net: Any, batch: dict[str, Any]) -> tuple[Tensor, dict[str, float]]:
    """L = L_g + L_d; negatives of the generator as it is now, or the batch's fixed ones."""
    e = net.represent(batch["inputs"])
    logits = net.recall(e)
    recall = net.recall_loss(logits, batch["positives"])
    if net.flat:
        return recall, {}
    chosen = net.choose(_scores(batch, logits), batch["k"], batch["positives"])
    rank = net.rank_loss(e, chosen, batch["positives"])
    return recall + rank, {"recall": float(recall.detach()), "rank": float(rank.detach())}


def recall_only(net: Any, batch: dict[str, Any]) -> Tensor:
    """L_g."""
    loss: Tensor = net.recall_loss(net.recall(net.represent(batch["inputs"])), batch["positives"])
    return loss


def rank_only(net: Any, batch: dict[str, Any]) -> Tensor:
    """L_d on the batch's fixed clusters."""
    e = net.represent(batch["inputs"], rank=True)
    empty = torch.zeros(len(e), len(net.offsets) - 1, device=e.device)
    chosen = net.choose(_scores(batch, empty), batch["k"], batch["positives"])
    loss: Tensor = net.rank_loss(e, chosen, batch["positives"])
    return loss


def _scores(batch: dict[str, Any], logits: Tensor) -> Tensor:
    """What clusters are chosen by."""
    if "static" not in batch:
        return logits
    fixed: Tensor = batch["static"]
    rank = torch.arange(fixed.shape[1], 0, -1, device=fixed.device, dtype=torch.float32)
    return torch.zeros_like(logits).scatter(1, fixed, rank.expand(fixed.shape))


def optimizers(net: Any, *, lr: float, head_lr: float, weight_decay: float) -> list[torch.optim.Optimizer]:
    """AdamW without decay on biases and normalisation, SparseAdam for the label table; frozen parts left out."""
    table = [] if net.table is None or not net.table.weight.requires_grad else [net.table.weight]
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in net.named_parameters():
        if not parameter.requires_grad or any(parameter is t for t in table):
            continue
        rate = lr if name.startswith(("encoder.", "rank_encoder.")) else head_lr
        decay = 0.0 if parameter.dim() < 2 else weight_decay
        groups.setdefault((rate, decay), []).append(parameter)
    made = [{"params": group, "lr": rate, "weight_decay": decay} for (rate, decay), group in groups.items()]
    result: list[torch.optim.Optimizer] = [torch.optim.AdamW(made)]
    if table:
        result.append(torch.optim.SparseAdam(table, lr=head_lr))
    return result


def run(
    model: LightXML,
    data: Data,
    validate: Validate | None,
    *,
    checkpoint: str | os.PathLike[str] | None,
    checkpoint_every: int | None,
    log: str | os.PathLike[str] | None,
) -> History:
    """Train ``model.net_``; with static negatives the generator first, then the discriminator."""
    net: LightXMLNet = model.net_
    _start_at_frequencies(net, data)

    def train(
        loss: Any,
        validate: Validate | None,
        suffix: str = "",
        *,
        epochs: int = model.epochs,
        swa: bool = True,
    ) -> History:
        if not epochs:
            return []
        trainer = Trainer(
            partial(
                optimizers,
                lr=model.lr,
                head_lr=model.head_lr or model.lr,
                weight_decay=model.weight_decay,
            ),
            epochs=epochs,
            batch_size=model.batch_size,
            precision=model.precision,
            swa_start=model.swa_start if swa else None,
            checkpoint=f"{os.fspath(checkpoint)}{suffix}" if checkpoint else None,
            checkpoint_every=checkpoint_every,
            log=f"{os.fspath(log)}{suffix}" if log else None,
            device=net.offsets.device,
            seed=model.random_state,
            show_progress=model.show_progress,
        )
        return trainer.fit(net, loss, data.tokens.n_texts, data.fetch, validate, data.tokens.lengths)

    def heads_alone(loss: Any, validate: Validate | None, suffix: str, epochs: int) -> History:
        net.encoder.requires_grad_(False)
        data.vectors = Vectors(net, data.tokens, model.precision)
        history = train(loss, validate, suffix, epochs=epochs, swa=False)
        data.vectors = None
        net.encoder.requires_grad_(True)
        return history

    def warm_up(loss: Any) -> History:
        last = None if model.epochs else validate
        return heads_alone(loss, last, ".warmup", model.warmup_epochs)

    if model.negatives == "random" and not net.flat:
        draws = np.random.default_rng(model.random_state).random((data.tokens.n_texts, data.beam))
        data.static = _distinct(draws, data.n_clusters)
    if net.flat or model.negatives in ("dynamic", "random"):
        history = warm_up(both_losses) + train(both_losses, validate)
        cooldown = model.cooldown_epochs if model.epochs else 0
        return history + heads_alone(both_losses, validate, ".cooldown", cooldown)
    history = warm_up(recall_only) + train(recall_only, None, ".recall")
    vectors = Vectors(net, data.tokens, model.precision)
    data.static = _recalled(net, data, vectors, 4 * model.batch_size)
    if model.negatives == "static_copy":
        net.add_rank_encoder()
    else:
        data.vectors = vectors  # the encoder does not change any more
    for part in (net.encoder, net.generator):
        part.requires_grad_(False)
    history = history + train(rank_only, validate, epochs=model.warmup_epochs + model.epochs)
    for part in (net.encoder, net.generator):
        part.requires_grad_(True)
    return history


def validator(model: LightXML, texts: Sequence[str], y: Csr) -> Validate:
    """P@1, 3, 5 on held-out texts, for the trainer."""
    Y = to_scipy(y.indptr, y.indices, np.ones(len(y.indices), np.float32), y.shape)

    def validate(_: nn.Module) -> dict[str, float]:
        k = min(5, y.shape[1])
        found = metrics.precision_at_k(Y, model.predict(texts, k), k=[i for i in (1, 3, 5) if i <= k])
        return {f"p@{i}": float(value) for i, value in zip((1, 3, 5), found, strict=False)}

    return validate


def _start_at_frequencies(net: LightXMLNet, data: Data) -> None:
    """Biases at log-odds, so that the first epochs need not learn them.

    The generator's at those of the clusters. The labels' at those of a label where its cluster is a candidate,
    which is taken to be twice as often as one of its labels is true.
    """
    share = (data.cluster_counts + 0.5) / (data.tokens.n_texts + 1)
    odds = np.log(np.minimum(share, 0.99) / (1 - np.minimum(share, 0.99)))
    with torch.no_grad():
        net.generator.bias.copy_(torch.from_numpy(odds.astype(np.float32)))
        if net.table is not None and net.table.bias:
            true = np.bincount(data.y.indices, minlength=len(net.table.rows)) + 0.5
            shown = 2 * np.repeat(data.cluster_counts, data.sizes) + 1.5
            net.table.rows[:, -1] = torch.from_numpy(np.log(true / (shown - true)).astype(np.float32))


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
