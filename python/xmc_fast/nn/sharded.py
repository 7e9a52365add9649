"""A sparse output layer whose labels are spread over processes: each owns a range, none holds the whole.

Every process has rows of its own, as in data-parallel training. Their features (batch x in_features, small) are
exchanged, never logits (batch x labels, large): each process computes the fused loss, or the best labels, of all
rows on its own labels, and the sums, or the best lists, are merged. Works with any backend of torch.distributed.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from xmc_fast.nn.fanin import FixedFanInLinear, fan_in_loss, target_positions


class ShardedFanInLinear(nn.Module):
    """The part of a `xmc_fast.nn.FixedFanInLinear` that this process owns, with the loss and top-k of the whole.

    All processes of ``group`` call `loss` and `topk` together, each with its own rows (any number of them). Give
    the parameters of this module to the optimizer as they are; leave them out of DDP and FSDP, which would average
    what is not the same.

    Parameters
    ----------
    in_features, out_features, fan_in, group_size, bias, random_state
        Of the whole layer. Each process draws the connections and weights of its own labels.
    group : process group, optional
        By default all processes.

    Attributes
    ----------
    first, last : int
        This process owns the labels ``first <= l < last``, whole groups of them.
    layer : FixedFanInLinear

    Examples
    --------
    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> output = ShardedFanInLinear(16, 100, fan_in=4)
    >>> output.topk(torch.randn(2, 16), 5)[1].shape
    torch.Size([2, 5])
    >>> dist.destroy_process_group()
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        fan_in: int,
        *,
        group_size: int = 1,
        bias: bool = True,
        random_state: int = 0,
        group: Any = None,
    ) -> None:
        super().__init__()
        self._place(out_features, group_size, group)
        self.layer = FixedFanInLinear(
            in_features,
            self.last - self.first,
            fan_in,
            group_size=group_size,
            bias=bias,
            random_state=random_state + dist.get_rank(group),
        )

    def _place(self, out_features: int, group_size: int, group: Any) -> None:
        rank, world = dist.get_rank(group), dist.get_world_size(group)
        groups = -(-out_features // group_size)
        self.first, self.last = (
            min(groups * r // world * group_size, out_features) for r in (rank, rank + 1)
        )
        self.out_features, self.group = out_features, group

    @classmethod
    def from_layer(cls, whole: FixedFanInLinear, group: Any = None) -> ShardedFanInLinear:
        """This process's part of a layer that every process holds, for example one that was loaded."""
        part = cls.__new__(cls)
        nn.Module.__init__(part)
        part._place(whole.out_features, whole.group_size, group)
        lists = slice(part.first // whole.group_size, -(-part.last // whole.group_size))
        part.layer = FixedFanInLinear(
            whole.in_features,
            part.last - part.first,
            whole.fan_in,
            group_size=whole.group_size,
            bias=whole.bias is not None,
            device="meta",
            dtype=whole.weight.dtype,
        )
        kept = {
            name: t.detach()[lists if name == "connections" else slice(part.first, part.last)].clone()
            for name, t in whole.state_dict(keep_vars=True).items()
        }
        part.layer.load_state_dict(kept, assign=True)
        for name, p in whole.named_parameters():
            part.layer.get_parameter(name).requires_grad_(p.requires_grad)
        return part

    def gathered(self) -> dict[str, Tensor]:
        """The state of the whole layer, on every process: to save, or to load into a `FixedFanInLinear`."""
        return {name: _gather(t, self.group) for name, t in self.layer.state_dict().items()}

    def extra_repr(self) -> str:
        return f"labels {self.first}..{self.last} of {self.out_features}"

    def forward(self, x: Tensor, targets: Any, loss: str = "bce") -> Tensor:
        """The same as `loss`."""
        return self.loss(x, targets, loss)

    def loss(self, x: Tensor, targets: Any, loss: str = "bce") -> Tensor:
        """The fused loss over all labels, mean over the rows of all processes; the same value everywhere.

        ``x`` (batch, in_features) and ``targets`` (batch, out_features; as for `xmc_fast.nn.sparse_bce`) are the
        rows of this process. DDP and FSDP average the gradients of an encoder over processes: the gradient for x
        is the one that makes their average that of this mean.
        """
        rows = _GatherRows.apply(x, self.group)  # type: ignore[no-untyped-call]
        crow, col, _ = target_positions(x, self.out_features, targets, "sum")
        counts = _gather(crow.diff().to(x.device), self.group)
        col = _gather(col.to(x.device), self.group)
        mine = (col >= self.first) & (col < self.last)
        row = torch.repeat_interleave(torch.arange(len(counts), device=x.device), counts)[mine]
        own = torch.bincount(row, minlength=len(counts)).cumsum(0)
        own = torch.cat([own.new_zeros(1), own])
        part = fan_in_loss(loss, rows, self.layer, own, col[mine] - self.first, 1.0 / max(len(counts), 1))
        total: Tensor = _Sum.apply(part, self.group)  # type: ignore[no-untyped-call]
        return total

    @torch.no_grad()
    def topk(self, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Scores and ids of the k best of all labels for each row of this process, best first."""
        if not 0 <= k <= self.out_features:
            raise ValueError(f"k must be in [0, {self.out_features}], got {k}")
        sizes = _sizes(x, self.group)
        scores, ids = self.layer.topk(_gather(x, self.group), min(k, self.last - self.first))
        # lists are of different length where a process owns fewer than k labels
        width = torch.nn.functional.pad
        missing = k - scores.shape[1]
        scores = width(scores, (0, missing), value=-torch.inf)
        ids = width(ids + self.first, (0, missing), value=self.out_features)
        all_scores, all_ids = (torch.cat(_gather(t[None], self.group).unbind(), 1) for t in (scores, ids))
        rank = dist.get_rank(self.group)
        mine = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
        found, order = torch.sort(all_ids[mine], 1)  # lower ids first among equal scores
        best, place = torch.sort(all_scores[mine].gather(1, order), dim=1, descending=True, stable=True)
        return best[:, :k], found.gather(1, place)[:, :k]


def _sizes(t: Tensor, group: Any) -> list[int]:
    """The rows that each process has."""
    mine = torch.tensor([len(t)], device=t.device)
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, mine, group=group)
    return [int(n) for n in every]


def _gather(t: Tensor, group: Any) -> Tensor:
    """The rows of all processes, one after another; they may have different numbers of them."""
    t = t.detach().contiguous()
    sizes = _sizes(t, group)
    most = max(sizes)
    padded = torch.cat([t, t.new_zeros(most - len(t), *t.shape[1:])])
    every = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(every, padded, group=group)
    return torch.cat([rows[:n] for rows, n in zip(every, sizes, strict=True)])


class _GatherRows(torch.autograd.Function):
    """Rows of all processes. Backward: the sum of all processes' gradients for the rows of this one, times their
    number (see `ShardedFanInLinear.loss`)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group, sizes = group, _sizes(x, group)
        rank = dist.get_rank(group)
        ctx.mine = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
        return _gather(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(grad, group=ctx.group)
        return grad[ctx.mine] * dist.get_world_size(ctx.group), None


class _Sum(torch.autograd.Function):
    """The sum over processes. Backward: each process's own part has slope 1."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: Any) -> Tensor:
        total = part.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None
