"""An encoder whose lower, frozen layers run once per text: what lets one core train the upper ones."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from xmc_fast.nn import load_encoder
from xmc_fast.nn.tokens import Encoder


class Remembering(nn.Module):
    """A BERT of which ``frozen`` layers (and the embeddings) are fixed, without dropout, and their states kept.

    Only the upper layers are parameters. The states are kept in bfloat16 by the text's tokens.
    """

    def __init__(self, bert: Any, frozen: int, states: dict[bytes, Tensor]) -> None:
        super().__init__()
        self.config = bert.config
        self.states = states
        self._lower = [bert.embeddings.eval(), *(layer.eval() for layer in bert.encoder.layer[:frozen])]
        self.upper = bert.encoder.layer[frozen:]

    def __deepcopy__(self, memo: Any) -> Remembering:
        new = Remembering.__new__(Remembering)
        nn.Module.__init__(new)
        new.config, new.states, new._lower = self.config, self.states, self._lower
        new.upper = copy.deepcopy(self.upper, memo)
        return new

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        """(batch, length) -> an object with last_hidden_state (batch, length, hidden)"""
        sizes = attention_mask.sum(1).tolist()
        keys = [row[:n].numpy().tobytes() for row, n in zip(input_ids, sizes, strict=True)]
        mask = attention_mask.bool()[:, None, None, :]
        new = [i for i, key in enumerate(keys) if key not in self.states]
        if new:
            with torch.no_grad():
                x = self._lower[0](input_ids=input_ids[new])
                for layer in self._lower[1:]:
                    x = layer(x, mask[new])
            for i, state in zip(new, x, strict=True):
                self.states[keys[i]] = state[: sizes[i]].to(torch.bfloat16)
        x = torch.zeros(*input_ids.shape, self.config.hidden_size)
        for i, key in enumerate(keys):
            x[i, : sizes[i]] = self.states[key]
        for layer in self.upper:
            x = layer(x, mask)
        return SimpleNamespace(last_hidden_state=x)


def remembering(folder: Path, frozen: int, file: Path) -> tuple[Encoder, dict[bytes, Tensor]]:
    """The encoder, and its states of earlier runs from ``file`` (to be saved there again)."""
    encoder = load_encoder(folder)
    states = torch.load(file) if file.exists() else {}
    return Encoder(Remembering(encoder.model, frozen, states), encoder.tokenizer), states
