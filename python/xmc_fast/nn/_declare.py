"""DECLARE's network (sparse input → hidden ReLU → c) and the two networks it is compared with.

`Declare` learns the compressed labels and recovers labels by neighbours; `UncompressedNetwork` has an output per
label; `PrunedNetwork` is that network with its output weights pruned by magnitude to DECLARE's output budget.
All three are trained by `xmc_fast.nn.Trainer` and share fit, predict, save and load.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from xmc_fast._arrays import features, labels, to_scipy, valid_csr
from xmc_fast._folder import ModelFormatError, opening
from xmc_fast.declare import LabelRecovery, compress
from xmc_fast.declare._recovery import load_model, save_model, stored_labels
from xmc_fast.nn._estimator import NeuralEstimator
from xmc_fast.nn.sparse_input import CsrRows, SparseInputLinear, adam, csr_batches
from xmc_fast.nn.train import Callback, Run
from xmc_fast.nn.weighted_topk import weighted_topk

_PREDICT_ROWS = 1024

Self = TypeVar("Self", bound="_Model")


class SparseMlp(nn.Module):
    """Sparse rows → hidden units with ReLU → outputs."""

    def __init__(self, in_features: int, hidden: int, out_features: int, *, sparse_grad: bool = True) -> None:
        super().__init__()
        self.input = SparseInputLinear(in_features, hidden, sparse_grad=sparse_grad)
        self.output = nn.Linear(hidden, out_features)

    def forward(self, x: CsrRows) -> Tensor:
        out: Tensor = self.output(F.relu(self.input(x)))
        return out


@dataclass(eq=False, repr=False, kw_only=True)
class _Model(NeuralEstimator):
    """What the three networks share. Subclasses prepare the targets and turn outputs into labels."""

    hidden: int = 256
    epochs: int = 20
    lr: float = 5e-4
    sparse_grad: bool = True
    n_jobs: int | None = None

    def fit(
        self: Self,
        X: Any,
        Y: Any,
        *,
        validation: tuple[Any, Any] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Train.

        Parameters
        ----------
        X : (n, D) features, sparse or dense; Y : (n, L) binary labels.
        validation : (X, Y), optional. P@1, 3 and 5 on it after each epoch enter ``history_``.
        checkpoint : file to save the state of the training to after each epoch, and to go on from.
        """
        x = features(X)
        y = labels(Y, n_rows=x.shape[0])
        self.n_features_in_, self.n_labels_ = x.shape[1], y.shape[1]
        targets = self._targets(Y)
        self.network_ = self._network(int(targets.shape[1]))
        with torch.random.fork_rng([]):
            torch.manual_seed(self.random_state)
            for layer in (self.network_.input, self.network_.output):
                layer.reset_parameters()
        self._start(y.indices, x.shape[0])
        batches = csr_batches(X, targets)
        trainer = self._trainer(
            lambda m: adam(m, self.lr),
            checkpoint=checkpoint,
            callbacks=[*self._callbacks(), *self.callbacks],
        )
        validate = self._validator(validation)
        self.history_ = trainer.fit(self.network_, self._loss, batches.n, batches.fetch, validate)
        return self

    def predict(self, X: Any, k: int = 5, *, proba: bool = False) -> sp.csr_matrix:
        """(n, L) CSR of the k best labels per row, best first. Scores are not probabilities."""
        self._fitted()
        if proba:
            raise ValueError(f"{type(self).__name__} has no probabilities: proba must be False")
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        features(X, n_features=self.n_features_in_)
        self.network_.eval()
        parts = []
        with torch.no_grad():
            for x in csr_batches(X, None, _PREDICT_ROWS):
                parts.append(self._decode(self._outputs(x), min(k, self.n_labels_)))
        empty = sp.csr_matrix((0, self.n_labels_), dtype=np.float32)
        return _stack(parts) if parts else empty

    def _outputs(self, x: CsrRows) -> Tensor:
        device = self.network_.output.weight.device
        out: Tensor = self.network_(CsrRows(*(t.to(device) for t in x)))
        return out

    @property
    def nbytes(self) -> int:
        """Bytes of the network as saved."""
        self._fitted()
        return sum(array.nbytes for array in self._arrays().values())

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write a folder: settings as JSON, arrays as safetensors."""
        self._fitted()
        settings = {
            "params": self._saved_params(),
            "n_labels": self.n_labels_,
            "n_features": self.n_features_in_,
        }
        save_model(directory, self._kind(), settings, self._arrays(), getattr(self, "recovery_", None))

    @classmethod
    @opening
    def load(cls: type[Self], directory: str | os.PathLike[str]) -> Self:
        """Open what `save` wrote (on the CPU)."""
        settings, tensors = load_model(directory, cls._kind())
        model = cls(**settings["params"])
        model.n_labels_, model.n_features_in_ = int(settings["n_labels"]), int(settings["n_features"])
        if model.hidden != len(tensors["input.bias"]) or model.n_features_in_ != len(tensors["input.weight"]):
            raise ModelFormatError("damaged, the input layer has another size than the manifest says")
        model._restore(tensors)
        return model

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        return {name: value.detach().cpu().numpy() for name, value in self.network_.state_dict().items()}

    def _restore(self, tensors: dict[str, npt.NDArray[Any]]) -> None:
        outputs = len(tensors["output.bias"])
        if tensors["output.weight"].shape != (outputs, self.hidden):  # before anything of that size is made
            raise ModelFormatError(f"damaged, output.weight has shape {tensors['output.weight'].shape}")
        network = self._network(outputs)
        state = {name: torch.from_numpy(tensors[name]) for name in network.state_dict()}
        network.load_state_dict(state)
        self.network_ = network.eval()

    @classmethod
    def _kind(cls) -> str:
        return cls.__name__.lower()

    def _network(self, outputs: int) -> SparseMlp:
        return SparseMlp(self.n_features_in_, self.hidden, outputs, sparse_grad=self.sparse_grad)

    def _callbacks(self) -> list[Callback]:
        return []

    def _start(self, positives: npt.NDArray[np.int32], n: int) -> None:
        pass

    def _targets(self, Y: Any) -> Any:
        raise NotImplementedError

    def _loss(self, model: nn.Module, batch: Any) -> Tensor:
        raise NotImplementedError

    def _decode(self, out: Tensor, k: int) -> sp.csr_matrix:
        raise NotImplementedError


@dataclass(eq=False, repr=False, kw_only=True)
class Declare(_Model):
    """Deep extreme compressed labelling and recovery estimation.

    Parameters
    ----------
    n_components : c, outputs of the network.
    hidden : hidden units.
    neighbours, similarity, search : of the recovery, see `xmc_fast.declare.LabelRecovery`.
    compression, label_scaling : "svd" or "neighbour"; "none", "length" or "sum": see `xmc_fast.declare.compress`.
    epochs, batch_size, lr : of the training with Adam on the mean squared error.
    sparse_grad : update only the input weights of columns that occur in a batch (`RowAdam`); False is plain
        Adam, whose steps cost time in proportion to all D columns.
    device : "auto" takes CUDA when there is one.
    n_jobs, random_state : threads of compression and recovery; seed of everything.

    Attributes
    ----------
    network_ : SparseMlp
    recovery_ : LabelRecovery, holds the compressed training rows and their labels
    history_ : a dict per epoch (loss, seconds, validation figures)

    Examples
    --------
    >>> X = Y = np.eye(8)
    >>> model = Declare(8, hidden=32, neighbours=1, epochs=60, batch_size=4, lr=0.01).fit(X, Y)
    >>> model.predict(X, k=1).indices.tolist()
    [0, 1, 2, 3, 4, 5, 6, 7]
    """

    n_components: int = field(default=100, kw_only=False)
    neighbours: int = 25
    similarity: str = "cosine"
    search: str = "exact"
    compression: str = "svd"
    label_scaling: str = "none"

    def _targets(self, Y: Any) -> Any:
        Z = compress(
            Y,
            self.n_components,
            compression=self.compression,
            label_scaling=self.label_scaling,
            neighbours=self.neighbours,
            n_jobs=self.n_jobs,
            random_state=self.random_state,
        )
        self._recover(Z, Y)
        return Z

    def _recover(self, Z: Any, Y: Any) -> None:
        self.recovery_ = LabelRecovery(
            Z, Y, neighbours=self.neighbours, similarity=self.similarity, search=self.search
        )

    def _loss(self, model: nn.Module, batch: Any) -> Tensor:
        x, z = batch
        return F.mse_loss(model(x), z)

    def _decode(self, out: Tensor, k: int) -> sp.csr_matrix:
        return self.recovery_.predict(out.float().cpu().numpy(), k, n_jobs=self.n_jobs)

    def _restore(self, tensors: dict[str, npt.NDArray[Any]]) -> None:
        super()._restore(tensors)
        if tensors["Z"].shape[1:] != tensors["output.bias"].shape:
            raise ModelFormatError(
                f"damaged, Z has shape {tensors['Z'].shape}, expected as many columns as outputs"
            )
        self._recover(tensors["Z"], stored_labels(tensors, self.n_labels_))


class UncompressedNetwork(_Model):
    """The same network with one output per label, trained with binary cross-entropy.

    Parameters are those of `Declare` without the compression. The output bias starts at the log-odds of each
    label's frequency.

    Examples
    --------
    >>> import numpy as np, scipy.sparse as sp
    >>> rng = np.random.default_rng(0)
    >>> Y = sp.csr_matrix(rng.random((60, 12)) < 0.2)
    >>> X = sp.csr_matrix(Y @ rng.random((12, 20)))
    >>> model = UncompressedNetwork(hidden=16, epochs=2, random_state=0).fit(X, Y)
    >>> model.predict(X, k=3).shape
    (60, 12)
    """

    def _targets(self, Y: Any) -> Any:
        y = labels(Y)
        return to_scipy(y.indptr, y.indices, np.ones(len(y.indices), np.float32), y.shape)

    def _start(self, positives: npt.NDArray[np.int32], n: int) -> None:
        share = (np.bincount(positives, minlength=self.n_labels_) + 0.5) / (n + 1)
        with torch.no_grad():
            self.network_.output.bias.copy_(torch.from_numpy(np.log(share / (1 - share))))

    def _loss(self, model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        out = model(x)
        rows = torch.repeat_interleave(torch.arange(len(out), device=out.device), y.indptr.diff())
        # cross-entropy summed over labels: softplus(z) - z at the true ones, without a dense target
        loss: Tensor = (F.softplus(out).sum() - out[rows, y.indices].sum()) / len(out)
        return loss

    def _restore(self, tensors: dict[str, npt.NDArray[Any]]) -> None:
        if len(tensors["output.bias"]) != self.n_labels_:
            raise ModelFormatError(f"damaged, {len(tensors['output.bias'])} outputs, {self.n_labels_} labels")
        super()._restore(tensors)

    def _decode(self, out: Tensor, k: int) -> sp.csr_matrix:
        scores, ids = weighted_topk(out.float().contiguous(), k)
        indptr = np.arange(0, k * len(out) + 1, k)
        shape = (len(out), self.n_labels_)
        return to_scipy(indptr, ids.cpu().numpy().ravel(), scores.cpu().numpy().ravel(), shape)


@dataclass(eq=False, repr=False, kw_only=True)
class PrunedNetwork(UncompressedNetwork):
    """The uncompressed network under magnitude pruning of its output weights to DECLARE's output budget.

    Of the L · hidden output weights, n_components · hidden are kept: the smallest are set to zero more and more
    often over the first ``prune_until`` of the training (cubic schedule), then the kept ones are fixed.

    Parameters
    ----------
    n_components : the outputs of the `Declare` it is compared with.
    prune_until : share of the steps in which pruning goes on.
    Others as in `UncompressedNetwork`.

    Examples
    --------
    >>> import numpy as np, scipy.sparse as sp
    >>> rng = np.random.default_rng(0)
    >>> Y = sp.csr_matrix(rng.random((60, 12)) < 0.2)
    >>> X = sp.csr_matrix(Y @ rng.random((12, 20)))
    >>> model = PrunedNetwork(n_components=3, hidden=16, epochs=2, random_state=0).fit(X, Y)
    >>> int(torch.count_nonzero(model.network_.output.weight))
    48
    """

    n_components: int = field(default=100, kw_only=False)
    prune_until: float = 0.5

    def _callbacks(self) -> list[Callback]:
        if self.n_components < 1:
            raise ValueError(f"n_components must be at least 1, got {self.n_components}")
        return [MagnitudePruning(min(1.0, self.n_components / self.n_labels_), until=self.prune_until)]

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        arrays = super()._arrays()
        weight = sp.csr_matrix(arrays.pop("output.weight"))  # (L, hidden), few entries
        narrow = np.uint16 if weight.shape[1] <= 1 << 16 else np.int32
        parts = {"indptr": weight.indptr, "indices": weight.indices.astype(narrow), "data": weight.data}
        return arrays | {f"output.{name}": array for name, array in parts.items()}

    def _restore(self, tensors: dict[str, npt.NDArray[Any]]) -> None:
        indptr, indices, data = (tensors[f"output.{name}"] for name in ("indptr", "indices", "data"))
        shape = (len(indptr) - 1, self.hidden)
        if data.ndim != 1 or shape[0] != self.n_labels_ or indices.dtype.kind not in "iu":
            raise ModelFormatError("damaged, the output layer has another size than the manifest says")
        weight, _ = valid_csr(to_scipy(indptr, indices, data, shape), "output")
        super()._restore(tensors | {"output.weight": weight.toarray()})


class MagnitudePruning(Callback):
    """Keeps the largest ``keep`` of ``model.output.weight``, reached by a cubic schedule over ``until`` of the run."""

    def __init__(self, keep: float, *, until: float = 0.5, updates: int = 50) -> None:
        self.keep, self.until, self.updates = keep, until, updates
        self.mask: Tensor | None = None

    def on_step(self, run: Run) -> None:
        weight: Tensor = run.model.output.weight  # type: ignore[union-attr, assignment]
        last = max(1, int(self.until * run.total_steps))
        if run.step <= last and (run.step == last or run.step % max(1, last // self.updates) == 0):
            share = self.keep + (1 - self.keep) * (1 - run.step / last) ** 3
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


def _stack(parts: list[sp.csr_matrix]) -> sp.csr_matrix:
    """Rows below each other, the order of the entries (best first) kept."""
    indptr = np.concatenate([[0], np.cumsum(np.concatenate([np.diff(p.indptr) for p in parts]))])
    indices, data = (np.concatenate([getattr(p, name) for p in parts]) for name in ("indices", "data"))
    return to_scipy(indptr, indices, data, (len(indptr) - 1, parts[0].shape[1]))
