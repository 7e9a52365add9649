"""The two networks that DECLARE is compared with: one output per label, and the same with its output weights pruned."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from xmc_fast._validate import labels, to_scipy
from xmc_fast.nn import Declare
from xmc_fast.nn._declare import SparseMlp
from xmc_fast.nn.train import Callback, Run
from xmc_fast.nn.weighted_topk import weighted_topk


class UncompressedNetwork(Declare):
    """The network with one output per label, trained with binary cross-entropy. The parameters of the compression are
    not used. The output bias starts at the log-odds of each label's frequency."""

    def _compress(self, Y: Any) -> Any:
        y = labels(Y)
        self._share = (np.bincount(y.indices, minlength=y.shape[1]) + 0.5) / (y.shape[0] + 1)
        return to_scipy(y.indptr, y.indices, np.ones(len(y.indices), np.float32), y.shape)

    def _network(self, outputs: int) -> SparseMlp:
        network = super()._network(outputs)
        with torch.no_grad():
            network.output.bias.copy_(torch.from_numpy(np.log(self._share / (1 - self._share))))
        return network

    def _loss(self, model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        out = model(x)
        rows = torch.repeat_interleave(torch.arange(len(out), device=out.device), y.indptr.diff())
        # cross-entropy summed over labels: softplus(z) - z at the true ones, without a dense target
        loss: Tensor = (F.softplus(out).sum() - out[rows, y.indices].sum()) / len(out)
        return loss

    def _decode(self, out: Tensor, k: int) -> sp.csr_matrix:
        scores, ids = weighted_topk(out.float().contiguous(), k)
        indptr = np.arange(0, k * len(out) + 1, k)
        shape = (len(out), self.n_labels_)
        return to_scipy(indptr, ids.cpu().numpy().ravel(), scores.cpu().numpy().ravel(), shape)


class PrunedNetwork(UncompressedNetwork):
    """The uncompressed network of which n_components · hidden output weights are left: as many as `Declare` has."""

    def _trainer(self, *arguments: Any, **changes: Any) -> Any:
        callbacks = [MagnitudePruning(self.n_components), *self.callbacks]
        return super()._trainer(*arguments, callbacks=callbacks, **changes)

    def _weights(self) -> Any:
        arrays = super()._weights()
        weight = sp.csr_matrix(arrays.pop("output.weight"))  # (L, hidden), few entries
        narrow = np.uint16 if weight.shape[1] <= 1 << 16 else np.int32
        return arrays | {
            "indptr": weight.indptr,
            "indices": weight.indices.astype(narrow),
            "data": weight.data,
        }


class MagnitudePruning(Callback):
    """Keeps the weights of ``n_components`` outputs of ``model.output.weight``, the largest ones, reached by a cubic
    schedule over ``until`` of the run."""

    def __init__(self, n_components: int, *, until: float = 0.5, updates: int = 50) -> None:
        if n_components < 1:
            raise ValueError(f"n_components must be at least 1, got {n_components}")
        self.n_components, self.until, self.updates = n_components, until, updates
        self.mask: Tensor | None = None

    def on_step(self, run: Run) -> None:
        weight: Tensor = run.model.output.weight  # type: ignore[union-attr, assignment]
        last = max(1, int(self.until * run.total_steps))
        keep = min(1.0, self.n_components / len(weight))
        if run.step <= last and (run.step == last or run.step % max(1, last // self.updates) == 0):
            share = keep + (1 - keep) * (1 - run.step / last) ** 3
            count = max(1, round(share * weight.numel()))
            kept = weight.detach().abs().flatten().topk(count, sorted=False).indices
            self.mask = torch.zeros(weight.numel(), dtype=weight.dtype, device=weight.device)
            self.mask[kept] = 1
            self.mask = self.mask.view_as(weight)
        if self.mask is not None:
            with torch.no_grad():
                weight.mul_(self.mask)

    def state_dict(self) -> dict[str, Any]:
        return {"mask": self.mask}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mask = state["mask"]
