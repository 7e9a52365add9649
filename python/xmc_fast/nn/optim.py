"""SGD and Adam for large output layers: sparse gradients touch only their rows, bfloat16 weights round fairly.

A sparse gradient (of `xmc_fast.nn.mined_squared_hinge`, or an embedding's) updates weights and
state of the rows it has and leaves the others alone ("lazy": no momentum, no decay for them in that step). A
dense gradient gives the usual update. State is float32 whatever the weights are.

bfloat16 weights keep 8 bits: an update below 1/256 of a weight would be lost at every step. Stochastic rounding
goes up with a probability equal to the lost fraction, so that the expected weight is the exact one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


def stochastic_round(x: Tensor) -> Tensor:
    """float32 -> bfloat16, up or down at random with the exact value as the mean (torch's generator).

    >>> third = torch.full((10000,), 1 / 3)
    >>> _ = torch.manual_seed(0)
    >>> bool((stochastic_round(third).double().mean() - 1 / 3).abs() < 1e-4)
    True
    """
    bits = x.contiguous().view(torch.int32)
    noise = torch.randint(0, 1 << 16, bits.shape, dtype=torch.int32, device=x.device)
    rounded = (bits + noise).bitwise_and_(-(1 << 16)).view(torch.float32)
    return torch.where(torch.isfinite(x), rounded, x).to(torch.bfloat16)


class _RowOptimizer(torch.optim.Optimizer):
    """Walks over the parameters; a rule gets the rows of a weight and the gradient for them, as float32."""

    _state_names: tuple[str, ...] = ()

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Performs one step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    for name in self._names(group):
                        state[name] = torch.zeros_like(p, dtype=torch.float32)
                state["step"] += 1
                if p.grad.is_sparse:
                    self._rows(group, state, p, p.grad.coalesce())
                else:
                    self._all(group, state, p)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As any optimizer's, except that the state stays float32 for bfloat16 weights."""
        super().load_state_dict(state_dict)
        params = [p for group in self.param_groups for p in group["params"]]
        for index, saved in state_dict["state"].items():
            for name in self._state_names:
                if name in saved:
                    self.state[params[index]][name] = saved[name].to(params[index].device, copy=True)

    def _names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return self._state_names

    def _rows(self, group: dict[str, Any], state: dict[str, Any], p: Tensor, grad: Tensor) -> None:
        rows = grad.indices()[0]
        if not len(rows):
            return
        weights = p[rows].to(torch.float32)
        parts = {name: state[name][rows] for name in self._names(group)}
        self._update(group, state["step"], weights, grad.values().to(torch.float32), parts)
        for name, part in parts.items():
            state[name][rows] = part
        p[rows] = stochastic_round(weights) if p.dtype == torch.bfloat16 else weights.to(p.dtype)

    def _all(self, group: dict[str, Any], state: dict[str, Any], p: Tensor) -> None:
        weights = p if p.dtype == torch.float32 else p.to(torch.float32)
        parts = {name: state[name] for name in self._names(group)}
        self._update(group, state["step"], weights, p.grad.to(torch.float32), parts)  # type: ignore[union-attr]
        if weights is not p:
            p.copy_(stochastic_round(weights) if p.dtype == torch.bfloat16 else weights)

    def _update(
        self, group: dict[str, Any], step: int, w: Tensor, g: Tensor, state: dict[str, Tensor]
    ) -> None:
        raise NotImplementedError


class SparseAwareSGD(_RowOptimizer):
    """w -= lr * v with v = momentum * v + g; decay multiplies w by 1 - lr * weight_decay.

    >>> p = torch.nn.Parameter(torch.ones(3, 2))
    >>> p.grad = torch.sparse_coo_tensor([[1]], torch.ones(1, 2), (3, 2), check_invariants=False)
    >>> SparseAwareSGD([p], lr=0.5).step()
    >>> p.detach()[:, 0].tolist()
    [1.0, 0.5, 1.0]
    """

    _state_names = ("momentum",)

    def __init__(
        self, params: Iterable[Any], lr: float, *, momentum: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    def _names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return self._state_names if group["momentum"] else ()

    def _update(
        self, group: dict[str, Any], step: int, w: Tensor, g: Tensor, state: dict[str, Tensor]
    ) -> None:
        if group["weight_decay"]:
            w.mul_(1 - group["lr"] * group["weight_decay"])
        if "momentum" in state:
            g = state["momentum"].mul_(group["momentum"]).add_(g)
        w.sub_(g, alpha=group["lr"])


class SparseAwareAdam(_RowOptimizer):
    """Adam with decoupled weight decay (AdamW).

    >>> p = torch.nn.Parameter(torch.ones(2))
    >>> p.grad = torch.tensor([3.0, -4.0])
    >>> SparseAwareAdam([p], lr=0.1).step()
    >>> [round(v, 4) for v in p.tolist()]
    [0.9, 1.1]
    """

    _state_names = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def _update(
        self, group: dict[str, Any], step: int, w: Tensor, g: Tensor, state: dict[str, Tensor]
    ) -> None:
        first, second = group["betas"]
        if group["weight_decay"]:
            w.mul_(1 - group["lr"] * group["weight_decay"])
        m = state["exp_avg"].mul_(first).add_(g, alpha=1 - first)
        v = state["exp_avg_sq"].mul_(second).addcmul_(g, g, value=1 - second)
        scale = (v / (1 - second**step)).sqrt_().add_(group["eps"])
        w.addcdiv_(m, scale, value=-group["lr"] / (1 - first**step))


def classifier_optimizers(
    output: nn.Module, others: list[nn.Parameter], kind: str, *, lr: float, weight_decay: float
) -> list[torch.optim.Optimizer]:
    """Sparse-aware for the output layer, torch's own for other parameters."""
    rates: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay}
    if kind == "adam":
        optimizers: list[torch.optim.Optimizer] = [SparseAwareAdam(output.parameters(), **rates)]
        if others:
            optimizers.append(torch.optim.AdamW(others, fused=True, **rates))
        return optimizers
    momentum = 0.9
    optimizers = [SparseAwareSGD(output.parameters(), momentum=momentum, **rates)]
    if others:
        optimizers.append(torch.optim.SGD(others, momentum=momentum, **rates))
    return optimizers
