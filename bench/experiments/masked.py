"""Unstructured sparsity by a mask over a dense matrix: the baseline that fixed fan-in is measured against.

The number of connections is fixed for the whole matrix, not for each label, so that a label may end with none.
Training keeps the dense matrix: the mask saves no memory, only what is stored afterwards is sparse.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from xmc_fast.nn._estimator import module_bytes
from xmc_fast.nn._outputs import KINDS
from xmc_fast.nn._recording import Seen, seen_output


class MaskedLinear(nn.Linear):
    """``nn.Linear`` of which only ``connections`` weights, at first random ones, are used.

    Parameters
    ----------
    in_features, out_features : int
    connections : int
        Used weights of the whole matrix.
    random_state : int
        Of the first mask.

    Examples
    --------
    >>> layer = MaskedLinear(16, 50, connections=200)
    >>> layer(torch.zeros(2, 16)).shape, int(layer.mask.sum())
    (torch.Size([2, 50]), 200)
    """

    mask: Tensor
    record: list[Seen] | None = None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        connections: int,
        *,
        bias: bool = True,
        random_state: int = 0,
    ) -> None:
        super().__init__(in_features, out_features, bias=bias)
        cells = in_features * out_features
        if not 0 < connections <= cells:
            raise ValueError(f"connections must be in [1, {cells}], got {connections}")
        chosen = torch.randperm(cells, generator=torch.Generator().manual_seed(random_state))[:connections]
        self.register_buffer("mask", torch.zeros(out_features, in_features, dtype=torch.bool))
        self.mask.view(-1)[chosen] = True
        with torch.no_grad():  # as wide as the used inputs of a label allow
            self.weight.mul_((in_features * out_features / connections) ** 0.5).mul_(self.mask)

    def forward(self, input: Tensor) -> Tensor:
        """input (batch, in_features) -> (batch, out_features)"""
        out = F.linear(input, self.weight * self.mask, self.bias)
        if self.record is not None and out.requires_grad:
            self.record.append(seen_output(input, out))
        return out

    def mean_magnitude(self, values: Tensor) -> Tensor:
        """|values|: no two labels share a connection."""
        return values.detach().abs()

    def missing(self, seen: Sequence[Seen], chunk: int) -> Tensor:
        """As many unused cells of largest |gradient| as there are used ones, best first: flat positions, int64."""
        gradient = torch.zeros_like(self.weight)
        for batch in seen:
            gradient.addmm_(batch.gradient(0, self.out_features).T, batch.x)
        strength = gradient.abs_().masked_fill_(self.mask, 0).view(-1)
        best = torch.topk(strength, min(int(self.mask.sum()), strength.numel()))
        return best.indices[best.values > 0]

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
        """As `FixedFanInLinear.rewire`, over the whole matrix; returns the mask of new connections."""
        with torch.no_grad():
            mask = self.mask.view(-1)
            used = mask.nonzero().squeeze(1)
            size = (self.weight.abs() if strength is None else strength).reshape(-1)[used]
            size, order = torch.sort(size, stable=True)
            count = max(int(fraction * len(used)), int((size <= threshold).sum()))
            count = min(count, mask.numel() - len(used))
            pruned = used[order[:count]]
            taken = used[:0] if candidates is None else candidates[:count]
            free = ~mask
            free[taken] = False
            rest = free.nonzero().squeeze(1)
            generator = torch.Generator().manual_seed(random_state)
            drawn = rest[torch.randperm(len(rest), generator=generator)[: count - len(taken)]]
            grown = torch.cat([taken, drawn])
            mask[pruned] = False
            mask[grown] = True
            changed = torch.zeros_like(mask)
            changed[grown] = True
            for cells in (pruned, grown):
                self.weight.view(-1)[cells] = 0
                for state in optimizer.state.get(self.weight, {}).values() if optimizer else ():
                    if isinstance(state, Tensor) and state.shape == self.weight.shape:
                        state.view(-1)[cells] = 0
        return changed.view_as(self.mask)


def stored_bytes(layer: nn.Module) -> int:
    """Bytes needed to keep the layer: a mask turns into CSR (32-bit columns and weights, 64-bit offsets)."""
    if isinstance(layer, MaskedLinear):
        return int(layer.mask.sum()) * 8 + (layer.out_features + 1) * 8 + layer.out_features * 4
    return module_bytes(layer)


def _make(in_features: int, n_labels: int, fan_in: int, *, random_state: int, **_: object) -> MaskedLinear:
    return MaskedLinear(in_features, n_labels, n_labels * fan_in, random_state=random_state)


KINDS["masked"] = (_make, ("",))  # output="masked" of SparseClassifier, once this module is imported
