"""Output layers under any transformer: a model for transformers' ``Trainer``, a loss that DDP and FSDP2 wrap."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from xmc_fast.nn._embed import TextEmbedding
from xmc_fast.nn.fanin import DenseHeadSparseTail, FixedFanInLinear, sparse_bce, sparse_squared_hinge
from xmc_fast.nn.tokens import Encoder, load_encoder

PADDING = -100  # of lists of labels, as transformers pads labels


class LabelLoss(nn.Module):
    """A layer with its fused loss as the forward pass, which is what DDP and FSDP2 wrap.

    Parameters
    ----------
    layer : FixedFanInLinear or DenseHeadSparseTail
    loss : {"bce", "squared_hinge"}

    Examples
    --------
    >>> output = LabelLoss(FixedFanInLinear(16, 100, fan_in=4))
    >>> output(torch.randn(2, 16), torch.tensor([[3, 40], [7, -1]])).dim()
    0
    """

    def __init__(self, layer: FixedFanInLinear | DenseHeadSparseTail, loss: str = "bce") -> None:
        super().__init__()
        losses = {"bce": sparse_bce, "squared_hinge": sparse_squared_hinge}
        if loss not in losses:
            raise ValueError(f"loss must be one of {tuple(losses)}, got {loss!r}")
        self.layer, self.loss, self._function = layer, loss, losses[loss]

    def forward(self, x: Tensor, targets: Any) -> Tensor:
        """The loss of x (batch, in_features), mean over the batch; targets as for `xmc_fast.nn.sparse_bce`."""
        return self._function(x, self.layer, targets)


class EncoderForLabels(nn.Module):
    """An encoder with a sparse output layer, called as transformers' models are.

    With ``labels`` (batch, width; padded with -100) forward gives the loss, computed without logits; otherwise, or
    in evaluation, the scores and ids of the ``k`` best labels.

    Parameters
    ----------
    encoder : Encoder
        See `xmc_fast.nn.load_encoder`.
    n_labels : int
    fan_in, group_size : int
        Of the `xmc_fast.nn.FixedFanInLinear`.
    loss : {"bce", "squared_hinge"}
    pooling : {"mean", "cls"}
    dropout : float
    k : int
    random_state : int

    Examples
    --------
    >>> model = EncoderForLabels.from_pretrained("encoder-folder/", n_labels=3000)  # doctest: +SKIP
    >>> trainer = transformers.Trainer(
    ...     model, arguments, train_dataset=rows, data_collator=pad_labels(model.tokenizer)
    ... )  # doctest: +SKIP
    """

    def __init__(
        self,
        encoder: Encoder,
        n_labels: int,
        *,
        fan_in: int = 32,
        group_size: int = 1,
        loss: str = "bce",
        pooling: str = "mean",
        dropout: float = 0.1,
        k: int = 5,
        random_state: int = 0,
    ) -> None:
        super().__init__()
        if pooling not in ("mean", "cls"):
            raise ValueError(f'pooling must be "mean" or "cls", got {pooling!r}')
        self.embedding = TextEmbedding(encoder, pooling, encoder.max_length or 512, dropout)
        self.tokenizer, self.k = encoder.tokenizer, k
        width = self.embedding.width
        layer = FixedFanInLinear(
            width, n_labels, min(fan_in, width), group_size=group_size, random_state=random_state
        )
        nn.init.zeros_(layer.weight)  # every label starts as "no"
        nn.init.constant_(layer.bias, -4.0 if loss == "bce" else -1.0)  # type: ignore[arg-type]
        self.output = LabelLoss(layer, loss)

    @classmethod
    def from_pretrained(
        cls, name_or_dir: str | os.PathLike[str] | Encoder, n_labels: int, **options: Any
    ) -> EncoderForLabels:
        """On an encoder from a folder or the hub; options as for the class."""
        return cls(load_encoder(name_or_dir), n_labels, **options)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Tokens (batch, length) -> {"loss"} and {"scores", "ids"} (batch, k) in evaluation or without labels."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        x = self.embedding({"input_ids": input_ids, "attention_mask": mask})
        out: dict[str, Tensor] = {}
        if labels is not None:
            out["loss"] = self.output(x, labels)
        if labels is None or not self.training:
            layer: Any = self.output.layer
            out["scores"], out["ids"] = layer.topk(x, min(self.k, layer.out_features))
        return out


def pad_labels(tokenizer: Any) -> Callable[[list[dict[str, Any]]], dict[str, Tensor]]:
    """A collator: tokens padded by the tokenizer, lists of ``labels`` with -100.

    >>> class Pad:
    ...     def pad(self, rows, return_tensors):
    ...         return {"input_ids": torch.tensor([row["input_ids"] for row in rows])}
    >>> rows = [{"input_ids": [1], "labels": [5, 7]}, {"input_ids": [2], "labels": []}]
    >>> pad_labels(Pad())(rows)["labels"]
    tensor([[   5,    7],
            [-100, -100]])
    """

    def collate(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        lists = [torch.as_tensor(row["labels"], dtype=torch.int64) for row in rows]
        tokens = [{name: value for name, value in row.items() if name != "labels"} for row in rows]
        batch: dict[str, Tensor] = dict(tokenizer.pad(tokens, return_tensors="pt"))
        batch["labels"] = nn.utils.rnn.pad_sequence(lists, batch_first=True, padding_value=PADDING)
        return batch

    return collate
