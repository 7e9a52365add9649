"""LightXML's network: one encoder, a generator over label clusters, a discriminator over their labels.

Labels are numbered by their place in the cluster order, so that cluster c is the range offsets[c] ..
offsets[c + 1): candidates are ranges, and their rows of the label table lie side by side. Shapes below: B texts,
K clusters, L labels, k chosen clusters, C labels of the largest cluster, P positives of the richest text.
Everything is batched tensor code on the model's device; no loop runs over texts, clusters or candidates.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xmc_fast.nn._layers import run_upper
from xmc_fast.nn.fanin import FixedFanInLinear
from xmc_fast.nn.gather_dot import gather_dot
from xmc_fast.nn.ops import feature_ids


class LabelTable(nn.Module):
    """Label embeddings: the dots of a text's vector with the rows of its candidates. Sparse gradient.

    With ``bias``, rows have one dim more, the label's bias, and vectors a 1 for it.
    With ``fan_in``, a label has weights for that many of the dims only (``group_size`` neighbours, hence labels of
    one cluster, share them), as in `xmc_fast.nn.FixedFanInLinear`. ``sparse_grad`` may be set to False for what
    takes no sparse gradients, such as DDP.
    """

    sparse_grad = True

    def __init__(
        self,
        labels: int,
        dims: int,
        fan_in: int | None,
        group_size: int,
        random_state: int,
        *,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.fan: FixedFanInLinear | None = None
        self.bias = bias and fan_in is None
        if fan_in is None:
            self.rows = nn.Parameter(torch.zeros(labels, dims + self.bias))
            with torch.no_grad():
                nn.init.xavier_uniform_(self.rows[:, :dims])
        else:
            self.fan = FixedFanInLinear(
                dims, labels, fan_in, group_size=group_size, bias=False, random_state=random_state
            )

    @property
    def weight(self) -> nn.Parameter:
        """One row per label."""
        return self.rows if self.fan is None else self.fan.weight

    def forward(self, h: Tensor, candidates: Tensor) -> Tensor:
        """h (B, dims), candidates (B, m), -1 for padding -> logits (B, m) float32, 0 at padding"""
        if self.fan is None:
            h = F.pad(h, (0, 1), value=1.0) if self.bias else h
            return gather_dot(h, self.weight, candidates, sparse_grad=self.sparse_grad)
        ids = candidates.clamp(min=0)
        dims = feature_ids(self.fan.indices[ids // self.fan.group_size]).flatten(1)
        weights = F.embedding(ids, self.weight, sparse=self.sparse_grad)  # (B, m, fan_in)
        values = h.float().gather(1, dims).reshape(weights.shape)
        return (weights * values).sum(-1) * (candidates >= 0)


class LightXMLNet(nn.Module):
    """See the module. Without ``bottleneck`` it is flat: a cluster per label and the generator alone.

    ``offsets`` (K + 1,) are the clusters; ``layers`` the encoder layers whose [CLS] states are concatenated.
    """

    offsets: Tensor

    def __init__(
        self,
        encoder: Any,
        offsets: Tensor,
        *,
        bottleneck: int | None,
        layers: int = 5,
        dropout: float = 0.5,
        cls_last: bool = False,
        pooling: str = "cls",
        activation: str = "identity",
        label_bias: bool = False,
        fan_in: int | None = None,
        group_size: int = 16,
        random_state: int = 0,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.rank_encoder: Any = (
            None  # a text representation of the discriminator's own (static negatives only)
        )
        self.register_buffer("offsets", offsets)
        self.layers, self.cls_last, self.pooling, self.activation = layers, cls_last, pooling, activation
        width = layers * encoder.config.hidden_size
        self.dropout = nn.Dropout(dropout)
        self.generator = nn.Linear(width, len(offsets) - 1)
        self.bottleneck: nn.Linear | None = None
        self.table: LabelTable | None = None
        self.most = int(offsets.diff().max())  # C
        if bottleneck is not None:
            self.bottleneck = nn.Linear(width, bottleneck)
            self.table = LabelTable(
                int(offsets[-1]), bottleneck, fan_in, group_size, random_state, bias=label_bias
            )

    @property
    def flat(self) -> bool:
        return self.table is None

    def __getstate__(self) -> dict[str, Any]:
        """Encoders as configuration and weights: transformers hooks local functions into them that no pickle takes."""
        state = self.__dict__.copy()
        state["_modules"] = dict(state["_modules"])
        for name in ("encoder", "rank_encoder"):
            encoder = state["_modules"].get(name)
            if encoder is not None:
                state["_modules"][name] = (encoder.config, encoder.state_dict(), encoder.training)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        from transformers import AutoModel

        for name, module in state["_modules"].items():
            if isinstance(module, tuple):
                config, weights, training = module
                with torch.random.fork_rng([]):
                    encoder = AutoModel.from_config(config, trust_remote_code=False)  # type: ignore[no-untyped-call]
                dtype = next(iter(weights.values())).dtype
                encoder.to(dtype if dtype.is_floating_point else torch.float32).load_state_dict(weights)
                state["_modules"][name] = encoder.train(training)
        self.__dict__.update(state)

    def add_rank_encoder(self) -> None:
        """Give the discriminator a copy of the encoder."""
        self.rank_encoder = copy.deepcopy(self.encoder)

    def forward(self, batch: dict[str, Any], rank_weight: float = 1.0) -> tuple[Tensor, dict[str, Tensor]]:
        """L = L_g + rank_weight L_d of a batch, and its parts; what DDP wraps (set ``table.sparse_grad`` to False).

        Negatives are those of the generator as it is now, or the batch's fixed ones (``static``). Both losses are sums
        over labels per text, in which labels that are rightly "no" hardly count: neither the number of clusters nor
        that of candidates changes their weight.
        """
        e = self.represent(batch["inputs"])
        logits = self.recall(e)
        recall = self.recall_loss(logits, batch["positives"])
        if self.flat:
            return recall, {}
        chosen = self.choose(cluster_scores(batch, logits), batch["k"], batch["positives"])
        rank = self.rank_loss(e, chosen, batch["positives"])
        return recall + rank_weight * rank, {"recall": recall, "rank": rank}

    def represent(self, inputs: dict[str, Tensor], *, rank: bool = False) -> Tensor:
        """Tokens (B, length) -> the [CLS] states of the last layers, or the means of all, (B, layers * hidden).

        Inputs may be the states themselves, as ``vectors``, or what the frozen layers give (`xmc_fast.nn._layers`).
        """
        if "vectors" in inputs:
            given: Tensor = self.dropout(inputs["vectors"])
            return given
        encoder = self.rank_encoder if rank and self.rank_encoder is not None else self.encoder
        mask = inputs["attention_mask"]
        if "states" in inputs:
            given, below = (inputs[name].to(self.generator.weight.dtype) for name in ("states", "below"))
            states = run_upper(encoder, below.shape[1], given, mask)
            tops = [self._pooled(state, mask) for state in states[::-1]] + list(below.unbind(1))
            joined = torch.cat(tops[: self.layers], dim=1)
        else:
            states = encoder(**inputs, output_hidden_states=True).hidden_states
            joined = torch.cat([self._pooled(s, mask) for s in states[: -self.layers - 1 : -1]], dim=1)
        result: Tensor = self.dropout(joined)
        return result

    def _pooled(self, state: Tensor, mask: Tensor) -> Tensor:
        """(B, length, hidden) -> (B, hidden)"""
        if self.pooling == "cls":
            return state[:, -1 if self.cls_last else 0]
        weights = mask.to(state.dtype)[:, :, None]
        return (state * weights).sum(1) / weights.sum(1).clamp(min=1)

    def recall(self, e: Tensor) -> Tensor:
        """Cluster logits, (B, K)."""
        logits: Tensor = self.generator(e)
        return logits.float()

    def clusters_of(self, labels: Tensor) -> Tensor:
        """The cluster of each label (by place); of padding (-1) cluster 0."""
        return torch.searchsorted(self.offsets[1:], labels.clamp(min=0), right=True)

    def choose(self, scores: Tensor, k: int, positives: Tensor | None = None) -> Tensor:
        """The k best clusters of each text, (B, k); clusters of positives (B, P) come before all others."""
        scores = scores.detach()
        if positives is not None:
            first = torch.where(positives >= 0, torch.inf, -torch.inf).to(scores.dtype)
            scores = scores.scatter_reduce(1, self.clusters_of(positives), first, "amax")
        return scores.topk(k, dim=1).indices

    def candidates(self, chosen: Tensor) -> Tensor:
        """The labels of the chosen clusters, (B, k) -> (B, k * C), -1 where a cluster has fewer than C."""
        label = self.offsets[chosen].unsqueeze(2) + torch.arange(self.most, device=chosen.device)
        return label.where(label < self.offsets[chosen + 1].unsqueeze(2), -1).flatten(1)

    def targets(self, chosen: Tensor, positives: Tensor) -> Tensor:
        """1 for the candidates of chosen clusters that are positives, (B, k * C)."""
        cluster = self.clusters_of(positives)
        slot = (chosen.unsqueeze(2) == cluster.unsqueeze(1)).to(torch.int8).argmax(1)  # (B, P)
        place = slot * self.most + positives.clamp(min=0) - self.offsets[cluster]
        known = (positives >= 0).float()
        empty = known.new_zeros(len(chosen), chosen.shape[1] * self.most)
        return empty.scatter_reduce(1, place.where(positives >= 0, 0), known, "amax")

    def rank(self, e: Tensor, candidates: Tensor) -> Tensor:
        """Label logits of candidates, (B, m)."""
        if self.bottleneck is None or self.table is None:
            raise RuntimeError("a flat network has no discriminator")
        h = self.bottleneck(e)
        h = torch.sigmoid(h) if self.activation == "sigmoid" else h
        logits: Tensor = self.table(h, candidates)
        return logits

    def recall_loss(self, logits: Tensor, positives: Tensor) -> Tensor:
        """Eq. 1: binary cross-entropy over all clusters, summed over clusters, mean over texts."""
        y = torch.zeros_like(logits)
        y = y.scatter_reduce(1, self.clusters_of(positives), (positives >= 0).to(y.dtype), "amax")
        return F.binary_cross_entropy_with_logits(logits, y, reduction="sum") / max(len(y), 1)

    def rank_loss(self, e: Tensor, chosen: Tensor, positives: Tensor) -> Tensor:
        """Eq. 5: binary cross-entropy over the candidates, summed, mean over texts."""
        candidates = self.candidates(chosen)
        logits, y = self.rank(e, candidates), self.targets(chosen, positives)
        losses = F.binary_cross_entropy_with_logits(logits, y, reduction="none")
        return (losses * (candidates >= 0)).sum() / max(len(y), 1)

    @torch.no_grad()
    def best(self, inputs: dict[str, Tensor], k: int, beam: int) -> tuple[Tensor, Tensor]:
        """Scores sigma(generator) * sigma(discriminator) and labels (by place) of candidates, (B, m).

        m is all candidates of the ``beam`` best clusters (score 0, label -1 at padding), or k if flat.
        """
        e = self.represent(inputs)
        logits = self.recall(e)
        if self.flat:
            values, labels = logits.topk(k, dim=1)
            return values.sigmoid(), labels
        chosen = self.choose(logits, beam)
        candidates = self.candidates(chosen)
        ranked = self.rank(e if self.rank_encoder is None else self.represent(inputs, rank=True), candidates)
        recalled = logits.gather(1, chosen).sigmoid().repeat_interleave(self.most, 1)
        return (recalled * ranked.sigmoid()) * (candidates >= 0), candidates


def cluster_scores(batch: dict[str, Any], logits: Tensor) -> Tensor:
    """What the clusters of a batch are chosen by: the generator's logits, or its fixed ones."""
    if "static" not in batch:
        return logits
    fixed: Tensor = batch["static"]
    rank = torch.arange(fixed.shape[1], 0, -1, device=fixed.device, dtype=torch.float32)
    return torch.zeros_like(logits).scatter(1, fixed, rank.expand(fixed.shape))
