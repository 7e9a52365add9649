"""Two ways to embed the rows of a classifier: a ReLU layer on features, or an encoder on texts.

Either is a module (inputs of a batch -> (batch, width)) that also reads rows: ``rows(X)`` checks them and gives
what the training loop needs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from xmc_fast import _validate
from xmc_fast.nn._layers import layers_of
from xmc_fast.nn.sparse_input import CsrRows, SparseInputLinear, csr_batches
from xmc_fast.nn.tokens import Encoder, Tokens, cls_last, tokenize
from xmc_fast.nn.train import Fetch


class Rows(NamedTuple):
    """Rows that were checked."""

    n: int
    fetch: Fetch  # row numbers -> inputs of the network
    lengths: npt.NDArray[np.int64] | None  # tokens of each text
    features: Callable[[], Any]  # (n, D): what related labels are found by


class FeatureEmbedding(nn.Module):
    """features -> (ReLU layer of ``hidden`` units) -> dropout. Rows are scaled to length ``norm``, if any."""

    def __init__(self, n_features: int, hidden: int | None, dropout: float, norm: float | None) -> None:
        super().__init__()
        self.n_features, self.dropout, self.norm = n_features, dropout, norm
        self.width = hidden or n_features
        self.hidden = SparseInputLinear(n_features, hidden) if hidden else None

    def reset(self, rows: Rows) -> None:
        """Start the layer as if the features had variance 1, whatever their scale (tf-idf: tiny)."""
        if self.hidden is None:
            return
        self.hidden.reset_parameters()
        x = rows.features()
        squares = float(np.square(x.data if sp.issparse(x) else x, dtype=np.float64).sum())
        if squares > 0:
            with torch.no_grad():
                self.hidden.weight.mul_((x.shape[0] * x.shape[1] / squares) ** 0.5)

    def rows(self, X: Any) -> Rows:
        """Sparse or dense features, (n, n_features)."""
        x = _normalized(dense_or_csr(X, self.n_features), self.norm)
        fetch = csr_batches(x).fetch if sp.issparse(x) else lambda rows: torch.from_numpy(x[rows])
        return Rows(x.shape[0], fetch, None, lambda: x)

    def forward(self, x: Tensor | CsrRows) -> Tensor:
        """CSR or dense rows -> (batch, width)"""
        if self.hidden is not None:
            h = F.relu(self.hidden(x))
        else:
            h = x if isinstance(x, Tensor) else _dense(x, self.n_features)
        return F.dropout(h, self.dropout, self.training)


class TextEmbedding(nn.Module):
    """Tokens -> encoder -> pooled last hidden state, of norm sqrt(width) -> dropout."""

    def __init__(self, encoder: Encoder, pooling: str, max_length: int, dropout: float) -> None:
        super().__init__()
        self.encoder = encoder.model
        self.tokenizer, self.max_length = encoder.tokenizer, max_length
        self.pooling, self.cls_last, self.dropout = pooling, cls_last(encoder.tokenizer), dropout
        self.width = int(encoder.model.config.hidden_size)

    def reset(self, rows: Rows) -> None:
        """The encoder keeps its pretrained weights."""

    def rows(self, X: Sequence[str] | Tokens) -> Rows:
        """Texts, or their tokens."""
        encoder = Encoder(self.encoder, self.tokenizer)
        tokens = X if isinstance(X, Tokens) else tokenize(X, encoder, max_length=self.max_length, warn=False)
        vocabulary = len(self.tokenizer)
        return Rows(tokens.n_texts, tokens.batch, tokens.lengths, lambda: bag_of_tokens(tokens, vocabulary))

    def forward(self, tokens: dict[str, Tensor]) -> Tensor:
        """input_ids and attention_mask, (batch, length) -> (batch, width)"""
        states = self.encoder(**tokens).last_hidden_state
        if self.pooling == "cls":
            pooled = states[:, -1 if self.cls_last else 0]
        else:
            mask = tokens["attention_mask"].to(states.dtype)[:, :, None]
            pooled = (states * mask).sum(1) / mask.sum(1).clamp(min=1)
        pooled = F.layer_norm(pooled, pooled.shape[1:])  # output layers expect features of variance 1
        return F.dropout(pooled, self.dropout, self.training).float()

    def save(self, folder: Path) -> None:
        """Encoder and tokenizer as transformers writes them."""
        self.encoder.save_pretrained(folder / "encoder")
        self.tokenizer.save_pretrained(folder / "encoder")


def own_copy(encoder: Encoder, frozen_layers: int) -> Encoder:
    """A copy of an encoder to train, without its embeddings and first ``frozen_layers`` layers (-1: nothing)."""
    model = copy.deepcopy(encoder.model)
    if not frozen_layers:
        return Encoder(model, encoder.tokenizer)
    stack = layers_of(model)
    if not -1 <= frozen_layers <= len(stack):
        raise ValueError(
            f"frozen_layers must be in [-1, {len(stack)}], the encoder's layers, got {frozen_layers}"
        )
    model.requires_grad_(False)
    if frozen_layers > 0:
        stack[frozen_layers:].requires_grad_(True)
    return Encoder(model, encoder.tokenizer)


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


def dense_or_csr(X: Any, n_features: int | None = None) -> Any:
    """Dense float32 as it is, sparse as CSR; finite, with the right number of columns."""
    if sp.issparse(X):
        return _validate.to_scipy(*_validate.features(X, n_features=n_features))
    return _validate.dense_features(X, n_features=n_features)


def unit_variance_norm(x: Any) -> float:
    """The row length at which the non-zero features of rows have a variance of about 1."""
    return float((np.count_nonzero(x.data if sp.issparse(x) else x) / max(x.shape[0], 1)) ** 0.5)


def _normalized(x: Any, norm: float | None) -> Any:
    """Rows scaled to that norm; rows of zeros stay."""
    if norm is None:
        return x
    if not sp.issparse(x):
        return (x * (norm / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-30))).astype(np.float32)
    norms = np.sqrt(np.asarray(x.multiply(x).sum(1), np.float64)).ravel()
    factors = np.repeat(norm / np.maximum(norms, 1e-30), np.diff(x.indptr))
    return _validate.to_scipy(x.indptr, x.indices, (x.data * factors).astype(np.float32), x.shape)


def _dense(rows: CsrRows, n_features: int) -> Tensor:
    n = len(rows.indptr) - 1
    out = rows.values.new_zeros(n, n_features)
    which = torch.repeat_interleave(torch.arange(n, device=out.device), rows.indptr.diff())
    out[which, rows.indices] = rows.values
    return out
