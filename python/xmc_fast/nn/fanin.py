"""Sparse output layers with fixed fan-in that stand where ``nn.Linear`` stands, and losses without logits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from xmc_fast import _validate
from xmc_fast.nn import ops
from xmc_fast.nn._fanin_torch import entry_rows, label_losses
from xmc_fast.nn._operators import call
from xmc_fast.nn._recording import Seen, missing_connections, seen_loss, seen_output


class FixedFanInLinear(nn.Module):
    """A linear layer in which every output has exactly ``fan_in`` inputs.

    Memory is ``out_features * fan_in`` weights and (16-bit, above 65,536 inputs 32-bit) indices instead of
    ``out_features * in_features`` weights. With ``group_size > 1`` that many neighbouring outputs share one
    index list: less index memory and faster, best when neighbours are related (see
    `xmc_fast.cluster.label_tree`).

    Parameters
    ----------
    in_features, out_features : int
    fan_in : int
        Inputs of each output, at most ``in_features``.
    group_size : int
        Outputs that share an index list.
    bias : bool
    labels_first : bool
        The output, (batch, out_features) as always, then lies in memory as (out_features, batch), the order in
        which it is computed. Good for losses that work element by element, whose gradient keeps that order;
        not for those that run along a row, such as softmax.
    random_state : int
        Of the random connections; the weights follow torch's own generator.

    Attributes
    ----------
    weight : Parameter of shape (out_features, fan_in)
    indices : Tensor of shape (ceil(out_features / group_size), fan_in), see `xmc_fast.nn.ops.index_dtype`
    connections : buffer of shape (ceil(out_features / group_size), bytes)
        The bytes of ``indices``: every backend of torch.distributed sends bytes, few send 16-bit integers.
    bias : Parameter of shape (out_features,) or None
    record : list of Seen, or None
        When a list, every batch leaves what the gradients of missing connections are made of (see
        `xmc_fast.nn.rewire`).

    Examples
    --------
    >>> layer = FixedFanInLinear(768, 1000, fan_in=32)
    >>> layer(torch.zeros(4, 768)).shape
    torch.Size([4, 1000])
    """

    weight: nn.Parameter
    bias: nn.Parameter | None
    connections: Tensor
    record: list[Seen] | None = None
    labels_first: bool = False

    def __init__(
        self,
        in_features: int,
        out_features: int,
        fan_in: int,
        *,
        group_size: int = 1,
        bias: bool = True,
        labels_first: bool = False,
        random_state: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not 1 <= fan_in <= in_features:
            raise ValueError(f"fan_in must be in [1, in_features = {in_features}], got {fan_in}")
        if group_size < 1:
            raise ValueError(f"group_size must be >= 1, got {group_size}")
        if out_features < 0:
            raise ValueError(f"out_features must be >= 0, got {out_features}")
        self.in_features, self.out_features = in_features, out_features
        self.fan_in, self.group_size, self.labels_first = fan_in, group_size, labels_first
        groups = (out_features + group_size - 1) // group_size
        self.weight = nn.Parameter(torch.empty(out_features, fan_in, device=device, dtype=dtype))
        if bias:
            self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        indices = ops.random_indices(groups, in_features, fan_in, random_state=random_state)
        self.register_buffer("connections", indices.view(torch.uint8).to(self.weight.device))
        self.reset_parameters()

    @property
    def indices(self) -> Tensor:
        """The connections as numbers: a view, (groups, fan_in)."""
        return self.connections.view(ops.index_dtype(self.in_features))

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *how: Any) -> None:
        """Older files hold ``indices``, 16 or 32 bits, where ``connections`` are their bytes."""
        old = state.pop(f"{prefix}indices", None)
        if old is not None:
            state.setdefault(f"{prefix}connections", old.contiguous().view(torch.uint8))
        super()._load_from_state_dict(state, prefix, *how)

    def reset_parameters(self) -> None:
        """Uniform weights in +-1/sqrt(fan_in), as nn.Linear does; the connections stay."""
        bound = 1 / math.sqrt(self.fan_in)
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, fan_in={self.fan_in},"
            f" group_size={self.group_size}, bias={self.bias is not None}"
        )

    def forward(self, x: Tensor) -> Tensor:
        """x (..., in_features) -> (..., out_features)"""
        rows = self._rows(x)
        name = "fan_in_linear_t" if self.labels_first else "fan_in_linear"
        out: Tensor = call(name, rows, self.weight, self.indices, self.bias, self.group_size)
        out = out.t() if self.labels_first else out
        if self.record is not None and out.requires_grad:
            self.record.append(seen_output(rows, out))
        return out if x.dim() == 2 else out.reshape(*x.shape[:-1], self.out_features)

    def topk(self, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Scores and ids of the k best outputs of each row, best first, without a batch x outputs buffer.

        >>> scores, ids = FixedFanInLinear(16, 100, fan_in=4).topk(torch.randn(2, 16), 5)
        >>> ids.shape
        torch.Size([2, 5])
        """
        with torch.no_grad():
            rows = self._rows(x)
            scores, ids = ops.ops.fan_in_topk(rows, self.weight, self.indices, self.bias, self.group_size, k)
        return scores.reshape(*x.shape[:-1], k), ids.reshape(*x.shape[:-1], k)

    def backward_sparse(self, x: Tensor, grad: Tensor) -> Tensor:
        """Backward for a sparse gradient of the output, at a cost proportional to its entries.

        ``grad`` is a torch sparse CSR matrix (batch, out_features). Adds to ``weight.grad`` and ``bias.grad``
        as sparse tensors over the outputs that occur (for torch.optim.SparseAdam or SGD) and returns the
        gradient for x.
        """
        rows = self._rows(x)
        if tuple(grad.shape) != (rows.shape[0], self.out_features):
            wanted = (rows.shape[0], self.out_features)
            raise ValueError(f"grad must have shape {wanted}, got {tuple(grad.shape)}")
        gx, labels, gw, gb = ops.ops.fan_in_grad_sparse(
            rows.detach(),
            self.weight.detach(),
            self.indices,
            self.group_size,
            grad.crow_indices(),
            grad.col_indices(),
            grad.values(),
        )
        for parameter, values in ((self.weight, gw), (self.bias, gb)):
            if parameter is not None and parameter.requires_grad:
                sparse = torch.sparse_coo_tensor(
                    labels[None], values, parameter.shape, is_coalesced=True, check_invariants=False
                )
                parameter.grad = sparse if parameter.grad is None else parameter.grad + sparse
        result: Tensor = gx.reshape(x.shape)
        return result

    def rewire(
        self,
        *,
        fraction: float = 0.0,
        threshold: float = -1.0,
        strength: Tensor | None = None,
        candidates: Tensor | None = None,
        random_state: int = 0,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> Tensor:
        """Replace the weakest connections; returns the mask of new ones (groups, fan_in).

        In each index list the weakest ``fraction`` and all of strength <= ``threshold`` are replaced, see
        `xmc_fast.nn.ops.rewire_`. New weights are zero, and so is their state in ``optimizer``.
        """
        if not 0 <= fraction <= 1:
            raise ValueError(f"fraction must be in [0, 1], got {fraction}")
        weight, indices = self.weight.detach().cpu(), self.indices.cpu()
        changed = ops.rewire_(
            weight,
            indices,
            self.in_features,
            group_size=self.group_size,
            strength=None if strength is None else strength.detach().cpu(),
            count=int(fraction * self.fan_in),
            threshold=threshold,
            candidates=None if candidates is None else candidates.cpu(),
            random_state=random_state,
        )
        with torch.no_grad():
            if self.weight.device.type != "cpu":
                self.weight.copy_(weight)
                self.indices.copy_(indices)
            if optimizer is not None:
                per_label = changed.repeat_interleave(self.group_size, 0)[: self.out_features]
                per_label = per_label.to(self.weight.device)
                for state in optimizer.state.get(self.weight, {}).values():
                    if isinstance(state, Tensor) and state.shape == self.weight.shape:
                        state[per_label] = 0
        return changed

    def missing(self, seen: Sequence[Seen], chunk: int = 1 << 22) -> Tensor:
        """The missing connections of largest gradient, see `xmc_fast.nn._recording.missing_connections`."""
        return missing_connections(self, seen, min(self.fan_in, self.in_features - self.fan_in), chunk)

    def mean_magnitude(self, values: Tensor) -> Tensor:
        """|values|, shaped like the weights, as a mean over the labels of each group, (groups, fan_in)."""
        groups = self.indices.shape[0]
        sizes = torch.full((groups, 1), float(self.group_size))
        if groups:  # the last one may have fewer labels
            sizes[-1] = self.out_features - (groups - 1) * self.group_size
        return ops.magnitude(values, self.group_size).cpu() / sizes

    def _rows(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.in_features:
            raise ValueError(f"x must have {self.in_features} features, got shape {tuple(x.shape)}")
        return x if x.dim() == 2 else x.reshape(-1, self.in_features)


class GroupSharedLinear(FixedFanInLinear):
    """`FixedFanInLinear` whose outputs share index lists in groups of 16 (8 to 64 are good sizes).

    >>> GroupSharedLinear(64, 100, fan_in=8).indices.shape
    torch.Size([7, 8])
    """

    def __init__(
        self, in_features: int, out_features: int, fan_in: int, *, group_size: int = 16, **options: Any
    ) -> None:
        super().__init__(in_features, out_features, fan_in, group_size=group_size, **options)


class DenseHeadSparseTail(nn.Module):
    """A dense layer for the frequent labels and a fixed fan-in layer for all others.

    Gradients through a sparse layer train an encoder badly; the dense head carries them (it replaces an
    auxiliary loss). ``head`` holds the ids of the head labels.

    >>> layer = DenseHeadSparseTail(16, 100, head=[3, 7], fan_in=4)
    >>> layer(torch.zeros(2, 16)).shape
    torch.Size([2, 100])
    """

    head_labels: Tensor
    tail_labels: Tensor
    position: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        head: Sequence[int] | Tensor,
        fan_in: int,
        *,
        group_size: int = 1,
        bias: bool = True,
        random_state: int = 0,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        ids = torch.as_tensor(head, dtype=torch.int64).unique()  # type: ignore[no-untyped-call]
        if len(ids) and not (int(ids[0]) >= 0 and int(ids[-1]) < out_features):
            raise ValueError(
                f"head must hold labels in [0, {out_features}), got {int(ids[0])}..{int(ids[-1])}"
            )
        rest = torch.ones(out_features, dtype=torch.bool)
        rest[ids] = False
        tail = rest.nonzero().squeeze(1)
        position = torch.empty(out_features, dtype=torch.int64)
        position[torch.cat([ids, tail])] = torch.arange(out_features)
        self.register_buffer("head_labels", ids)
        self.register_buffer("tail_labels", tail)
        self.register_buffer("position", position)  # of a label in (head, tail)
        self.head = nn.Linear(in_features, len(ids), bias=bias)
        self.tail = FixedFanInLinear(
            in_features, len(tail), fan_in, group_size=group_size, bias=bias, random_state=random_state
        )

    def forward(self, x: Tensor) -> Tensor:
        """x (..., in_features) -> (..., out_features)"""
        return torch.cat([self.head(x), self.tail(x)], -1).index_select(-1, self.position)

    def topk(self, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Scores and ids of the k best labels of each row, best first."""
        with torch.no_grad():
            h_scores, h = torch.topk(self.head(x), min(k, len(self.head_labels)))
            t_scores, t = self.tail.topk(x, min(k, len(self.tail_labels)))
            scores = torch.cat([h_scores, t_scores.to(h_scores.dtype)], -1)
            ids = torch.cat([self.head_labels[h], self.tail_labels[t]], -1)
            ids, order = torch.sort(ids, -1)  # lower ids first among equal scores
            scores, best = torch.sort(scores.gather(-1, order), dim=-1, descending=True, stable=True)
        return scores[..., :k], ids.gather(-1, best)[..., :k]


def sparse_squared_hinge(
    x: Tensor,
    layer: FixedFanInLinear | DenseHeadSparseTail,
    targets: Any,
    *,
    reduction: str = "batchmean",
) -> Tensor:
    """sum_l max(0, 1 - y_l z_l)^2 of ``z = layer(x)``, y = +1 at the targets and -1 elsewhere.

    The logits exist for one block of labels at a time, and the gradients are computed in the same pass: memory
    is that of the layer, for any number of labels.

    Parameters
    ----------
    x : Tensor of shape (batch, in_features)
    layer : FixedFanInLinear or DenseHeadSparseTail
    targets : scipy sparse or torch sparse CSR matrix of shape (batch, out_features), or int64 tensor (batch, width)
        Binary; as a tensor, the ids of each row's labels, negative ones are padding.
    reduction : {"batchmean", "sum", "mean"}
        Divide by the batch size, not at all, or by batch size times labels.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> layer = FixedFanInLinear(8, 50, fan_in=4)
    >>> targets = sp.csr_matrix(([1, 1], ([0, 1], [3, 40])), shape=(2, 50))
    >>> loss = sparse_squared_hinge(torch.randn(2, 8), layer, targets)
    >>> loss.backward()
    >>> layer.weight.grad.shape
    torch.Size([50, 4])
    """
    return _fused_loss("squared_hinge", x, layer, targets, reduction)


def sparse_bce(
    x: Tensor,
    layer: FixedFanInLinear | DenseHeadSparseTail,
    targets: Any,
    *,
    reduction: str = "batchmean",
) -> Tensor:
    """Binary cross-entropy of ``layer(x)``, without the logits: see `sparse_squared_hinge`.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> layer = FixedFanInLinear(8, 50, fan_in=4)
    >>> targets = sp.csr_matrix(([1, 1], ([0, 1], [3, 40])), shape=(2, 50))
    >>> x = torch.randn(2, 8)
    >>> dense = nn.functional.binary_cross_entropy_with_logits(
    ...     layer(x), torch.tensor(targets.toarray(), dtype=torch.float32), reduction="sum"
    ... )
    >>> torch.allclose(sparse_bce(x, layer, targets, reduction="sum"), dense)
    True
    """
    return _fused_loss("bce", x, layer, targets, reduction)


def _fused_loss(
    name: str, x: Tensor, layer: FixedFanInLinear | DenseHeadSparseTail, targets: Any, reduction: str
) -> Tensor:
    crow, col, scale = target_positions(x, layer.out_features, targets, reduction)
    if isinstance(layer, FixedFanInLinear):
        return fan_in_loss(name, x, layer, crow, col, scale)
    # the head is dense and small; its targets leave the list of the tail
    position = layer.position.to(col.device)[col]
    rows = entry_rows(crow, col.device)
    n_head = len(layer.head_labels)
    in_head = position < n_head
    head, _ = label_losses(name, layer.head(x), rows[in_head], position[in_head])
    counts = torch.bincount(rows[~in_head], minlength=x.shape[0])
    tail_crow = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    tail = fan_in_loss(name, x, layer.tail, tail_crow, position[~in_head] - n_head, scale)
    return head.sum() * scale + tail


def fan_in_loss(
    name: str, x: Tensor, layer: FixedFanInLinear, crow: Tensor, col: Tensor, scale: float
) -> Tensor:
    """``scale`` times the loss over all labels, targets as row offsets and columns."""
    grad = torch.is_grad_enabled()
    if layer.record is not None and grad:
        layer.record.append(seen_loss(name, x.detach(), layer, crow, col, scale))
    loss: Tensor = call(
        "fan_in_loss",
        x,
        layer.weight,
        layer.indices,
        layer.bias,
        layer.group_size,
        crow,
        col,
        ops.LOSSES[name],
        scale,
        grad and x.requires_grad,
        grad and layer.weight.requires_grad,
        grad and layer.bias is not None and layer.bias.requires_grad,
    )[0]
    return loss


def target_positions(x: Tensor, labels: int, targets: Any, reduction: str) -> tuple[Tensor, Tensor, float]:
    """Row offsets and columns of a batch's targets, and the factor of the loss that ``reduction`` means."""
    if x.dim() != 2:
        raise ValueError(f"x must have shape (batch, in_features), got {tuple(x.shape)}")
    crow, col = _positions(targets, x.shape[0], labels)
    divisors = {"sum": 1, "batchmean": x.shape[0], "mean": x.shape[0] * labels}
    if reduction not in divisors:
        raise ValueError(f"reduction must be one of {sorted(divisors)}, got {reduction!r}")
    return crow, col, 1.0 / max(divisors[reduction], 1)


def _positions(targets: Any, rows: int, labels: int) -> tuple[Tensor, Tensor]:
    """Row offsets and columns of the positive targets."""
    if isinstance(targets, Tensor) and targets.layout == torch.strided and targets.dtype == torch.int64:
        if targets.dim() != 2 or len(targets) != rows:
            raise ValueError(f"targets must have shape ({rows}, width), got {tuple(targets.shape)}")
        ids = targets.sort(1).values  # negative ones are padding
        kept = (ids >= 0) & (ids != torch.nn.functional.pad(ids, (1, 0), value=-1)[:, :-1])
        return torch.nn.functional.pad(kept.sum(1).cumsum(0), (1, 0)), ids[kept]
    if isinstance(targets, Tensor):
        if targets.layout != torch.sparse_csr:
            raise ValueError(
                f"targets must be scipy sparse, torch sparse CSR or int64 ids, got {targets.dtype} of layout"
                f" {targets.layout}"
            )
        if tuple(targets.shape) != (rows, labels):
            raise ValueError(f"targets must have shape {(rows, labels)}, got {tuple(targets.shape)}")
        return targets.crow_indices().to(torch.int64), targets.col_indices().to(torch.int64)
    csr = _validate.labels(targets, "targets", n_rows=rows, n_labels=labels)
    return torch.from_numpy(csr.indptr), torch.from_numpy(csr.indices)
