"""The layers of an encoder: frozen ones run once and their outputs kept, others trained whole or by low rank.

Encoders of the BERT family are embeddings followed by a list of layers; that is all that is assumed. With the first n
layers frozen, what layer n + 1 reads never changes: it is computed once for every token (bfloat16, memory-mapped),
and a step of the training runs the layers above alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from xmc_fast._files import allocate, atomic_path
from xmc_fast._progress import progress
from xmc_fast.nn.tokens import Tokens, pad_rows
from xmc_fast.nn.train import autocast

_LOW_RANK = ("query", "value", "q_lin", "v_lin", "query_proj", "value_proj", "q", "v")  # of attention


def layer_list(encoder: Any) -> tuple[nn.Module, str]:
    """The module that holds an encoder's list of layers, and the list's name in it."""
    depth = int(getattr(encoder.config, "num_hidden_layers", 0))
    for module in encoder.modules():
        for name, child in module.named_children():
            if isinstance(child, nn.ModuleList) and len(child) == depth:
                return module, name
    raise ValueError(f"{type(encoder).__name__} has no list of its {depth} layers")


def layers_of(encoder: Any) -> nn.ModuleList:
    """An encoder's list of layers."""
    owner, name = layer_list(encoder)
    layers: nn.ModuleList = getattr(owner, name)
    return layers


def lower_parts(encoder: Any, count: int) -> list[nn.Module]:
    """The embeddings and the first ``count`` layers."""
    layers = layers_of(encoder)
    if not isinstance(getattr(encoder, "embeddings", None), nn.Module):
        raise ValueError(f"frozen_layers needs an encoder with embeddings, {type(encoder).__name__} has none")
    if not 0 <= count < len(layers):
        raise ValueError(f"frozen_layers must be in [0, {len(layers) - 1}], got {count}")
    return [encoder.embeddings, *layers[:count]]


class _Given(nn.Module):
    """In the place of the embeddings: states that are known."""

    def __init__(self, states: Tensor) -> None:
        super().__init__()
        self.states = states

    def forward(self, *_: Any, **__: Any) -> Tensor:
        return self.states


@contextlib.contextmanager
def _changed(encoder: Any, layers: slice, states: Tensor | None = None) -> Iterator[None]:
    """Inside, an encoder has these layers only, and starts from ``states`` if given."""
    owner, name = layer_list(encoder)
    whole, embeddings = getattr(owner, name), encoder.embeddings
    setattr(owner, name, whole[layers])
    if states is not None:
        encoder.embeddings = _Given(states)
    try:
        yield
    finally:
        setattr(owner, name, whole)
        encoder.embeddings = embeddings


def run_upper(encoder: Any, count: int, states: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    """The hidden states from layer ``count`` on, that one's (which are given) first."""
    with _changed(encoder, slice(count, None), states):
        out = encoder(inputs_embeds=states, attention_mask=mask, output_hidden_states=True)
    return tuple(out.hidden_states)


class States:
    """What layer ``count`` gives for every token of all texts, and the [CLS] states of the layers below it.

    In a file of ``folder``, 2 bytes x hidden for each token. A file of the same tokens and the
    same frozen weights is taken as it is.
    """

    def __init__(
        self,
        encoder: Any,
        count: int,
        tokens: Tokens,
        *,
        precision: str = "fp32",
        folder: str | os.PathLike[str],
        batch_size: int = 32,
    ) -> None:
        lower_parts(encoder, count)  # refuses what cannot be
        with torch.no_grad():  # at its first call transformers decides which layers it records: all of them
            one = torch.zeros(1, 1, dtype=torch.int64, device=encoder.device)
            encoder(input_ids=one, output_hidden_states=True)
        self.tokens, self.count = tokens, count
        hidden = int(encoder.config.hidden_size)
        self._width = hidden
        entries = (
            len(tokens.ids) + tokens.n_texts * count
        )  # rows of the file: tokens, then [CLS] states below
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        path = place / f"states-{fingerprint(tokens, lower_parts(encoder, count), count)}.bf16"
        size = entries * hidden * 2
        if not (path.is_file() and path.stat().st_size == size):
            with atomic_path(path) as temporary:
                allocate(temporary, size)
                rows = np.memmap(temporary, np.uint16, "r+", shape=(entries, hidden))
                _fill(rows, encoder, count, tokens, precision, batch_size)
                rows.flush()
        self._rows = np.memmap(path, np.uint16, "r", shape=(entries, hidden))

    def batch(self, rows: npt.NDArray[np.int64]) -> dict[str, Tensor]:
        """states (rows, longest, hidden), attention_mask, below (rows, count, hidden; the highest layer first)."""
        n = len(self.tokens.ids)
        places, mask = pad_rows(
            np.arange(n, dtype=np.int64), self.tokens.offsets, rows, 0, front=self.tokens.cls_last
        )
        states = np.zeros((*mask.shape, self._width), np.uint16)
        states[mask] = self._rows[places[mask]]
        below = self._rows[n + rows[:, None] * self.count + np.arange(self.count)]
        return {
            "states": _bfloat16(states),
            "below": _bfloat16(np.ascontiguousarray(below)),
            "attention_mask": torch.from_numpy(mask.astype(np.int64)),
        }


@torch.no_grad()
def _fill(
    out: npt.NDArray[np.uint16], encoder: Any, count: int, tokens: Tokens, precision: str, size: int
) -> None:
    device, training = next(encoder.parameters()).device, encoder.training
    encoder.eval()
    order = np.argsort(tokens.lengths, kind="stable")
    with progress(tokens.n_texts, unit="text", desc="frozen layers") as bar, _changed(encoder, slice(count)):
        for start in range(0, len(order), size):
            rows = order[start : start + size]
            inputs = {name: t.to(device) for name, t in tokens.batch(rows).items()}
            with autocast(precision, device):
                found = encoder(**inputs, output_hidden_states=True).hidden_states
            states = found[-1].to(torch.bfloat16).cpu()
            mask = inputs["attention_mask"].bool().cpu().numpy()
            places, _ = pad_rows(np.arange(len(tokens.ids)), tokens.offsets, rows, 0, front=tokens.cls_last)
            out[places[mask]] = _bits(states)[mask]
            first = -1 if tokens.cls_last else 0
            if count:
                cls = torch.stack([s[:, first] for s in found[-2::-1]], 1).to(torch.bfloat16).cpu()
                out[len(tokens.ids) + rows[:, None] * count + np.arange(count)] = _bits(cls)
            bar.update(len(rows))
    encoder.train(training)


def _bits(t: Tensor) -> npt.NDArray[np.uint16]:
    bits: npt.NDArray[np.uint16] = t.contiguous().view(torch.int16).numpy().view(np.uint16)
    return bits


def _bfloat16(bits: npt.NDArray[np.uint16]) -> Tensor:
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)


def fingerprint(tokens: Tokens, parts: Iterable[nn.Module], *facts: Any) -> str:
    """Names the tokens, the weights of these modules and what else matters."""
    digest = hashlib.blake2b(repr((tokens.cls_last, tokens.pad, *facts)).encode(), digest_size=16)
    for array in (tokens.ids, tokens.offsets):
        digest.update(np.ascontiguousarray(array).data)
    for part in parts:
        for name, t in part.state_dict().items():
            digest.update(name.encode() + t.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class _LowRank(nn.Module):
    """W + B A, where A (rank, in) and B (out, rank) are trained and W is not; B starts at zero."""

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        self.a = nn.Parameter(weight.new_empty(rank, weight.shape[1]))
        self.b = nn.Parameter(weight.new_zeros(weight.shape[0], rank))
        nn.init.kaiming_uniform_(self.a, a=5**0.5)

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.b @ self.a


@contextlib.contextmanager
def low_rank(encoder: Any, rank: int | None, skip: int = 0) -> Iterator[None]:
    """Inside, an encoder is trained by low-rank additions to the query and value weights of its layers after
    ``skip`` (LoRA, Hu et al. 2022) and is otherwise frozen; outside they are part of its weights."""
    if rank is None:
        yield
        return
    found = [
        module
        for layer in layers_of(encoder)[skip:]
        for name, module in layer.named_modules()
        if isinstance(module, nn.Linear) and name.rsplit(".", 1)[-1] in _LOW_RANK
    ]
    if not found:
        raise ValueError(f"lora: {type(encoder).__name__} has no linear layers for queries and values")
    with frozen(encoder):
        for module in found:
            parametrize.register_parametrization(module, "weight", _LowRank(module.weight, rank))
        try:
            yield
        finally:
            with torch.no_grad():
                for module in found:
                    parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)


@contextlib.contextmanager
def frozen(*parts: nn.Module) -> Iterator[None]:
    """Inside, these parts are not trained."""
    before = [(p, p.requires_grad) for part in parts for p in part.parameters()]
    for p, _ in before:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p, needed in before:
            p.requires_grad_(needed)
