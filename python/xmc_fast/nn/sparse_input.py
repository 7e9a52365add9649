"""Networks on sparse input: the first layer on CSR rows, and batches of CSR rows as torch tensors.

>>> import numpy as np
>>> X, Z = np.eye(6, 4), np.arange(6.0).reshape(6, 1)
>>> batches = csr_batches(X, Z, 2, random_state=0)
>>> layer = SparseInputLinear(4, 3)
>>> [tuple(layer(x).shape) for x, z in batches]
[(2, 3), (2, 3), (2, 3)]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from xmc_fast import _core, _validate
from xmc_fast.nn._operators import threads_for


class CsrRows(NamedTuple):
    """Sparse rows as tensors: row i holds ``values[indptr[i]:indptr[i+1]]`` in columns ``indices[...]``."""

    indptr: Tensor  # (rows + 1) int64
    indices: Tensor  # (nnz) int64
    values: Tensor  # (nnz) float32


class SparseInputLinear(nn.Module):
    """``x @ W + b`` for sparse rows x: the first layer of a network on tf-idf or bag-of-words features.

    Parameters
    ----------
    in_features, out_features : the weight has shape (in_features, out_features), one row per input column
        (the transpose of `torch.nn.Linear`'s), so that a sparse row reads and writes whole rows of it.
    bias : add a learned vector.
    sparse_grad : the weight's gradient is a sparse tensor over the columns of the batch, for
        `torch.optim.SparseAdam` or SGD; pays off when a batch touches few of very many columns.

    Examples
    --------
    >>> layer = SparseInputLinear(4, 2)
    >>> rows = CsrRows(torch.tensor([0, 1, 1]), torch.tensor([3]), torch.tensor([2.0]))
    >>> torch.equal(layer(rows), layer(torch.tensor([[0, 0, 0, 2.0], [0, 0, 0, 0]])))
    True
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, sparse_grad: bool = False
    ) -> None:
        super().__init__()
        if in_features < 1 or out_features < 1:
            raise ValueError(
                f"in_features and out_features must be at least 1, got {in_features} and {out_features}"
            )
        self.in_features = in_features
        self.out_features = out_features
        self.sparse_grad = sparse_grad
        self.weight = nn.Parameter(torch.empty(in_features, out_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform in ±1/√in_features, as `torch.nn.Linear`."""
        bound = 1 / math.sqrt(self.in_features)
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor | tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """(rows, out_features) for CSR rows ``(indptr, indices, values)`` or a dense (rows, in_features)."""
        out = x @ self.weight if isinstance(x, Tensor) else _matmul(self.weight, *x, self.sparse_grad)
        return out if self.bias is None else out + self.bias

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, sparse_grad={self.sparse_grad}"
        )


class _CsrMatmul(torch.autograd.Function):
    """CSR rows times a dense weight. The gradient is the transposed product, over the columns that occur."""

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, indptr: Tensor, indices: Tensor, values: Tensor, sparse_grad: bool
    ) -> Tensor:
        ctx.save_for_backward(indptr, indices, values)
        ctx.shape, ctx.sparse_grad = weight.shape, sparse_grad
        return _product(indptr, indices, values.to(weight.dtype), weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        indptr, indices, values = ctx.saved_tensors
        rows = torch.repeat_interleave(torch.arange(len(indptr) - 1, device=grad.device), indptr.diff())
        by_column, order = torch.sort(indices, stable=True)
        columns, counts = torch.unique_consecutive(by_column, return_counts=True)
        starts = F.pad(counts.cumsum(0), (1, 0))
        part = _product(starts, rows[order], values[order].to(grad.dtype), grad.contiguous())
        if ctx.sparse_grad:
            result = torch.sparse_coo_tensor(
                columns[None], part, ctx.shape, is_coalesced=True, check_invariants=False
            )
        else:
            result = grad.new_zeros(ctx.shape).index_copy_(0, columns, part)
        return result, None, None, None, None


_matmul: Callable[..., Tensor] = _CsrMatmul.apply


def _product(indptr: Tensor, indices: Tensor, values: Tensor, dense: Tensor) -> Tensor:
    if len(indices) == 0:
        return dense.new_zeros(len(indptr) - 1, dense.shape[1])
    return F.embedding_bag(
        indices, dense, indptr, mode="sum", per_sample_weights=values, include_last_offset=True
    )


class RowAdam(torch.optim.Optimizer):
    """Adam on the rows that a sparse gradient names: what `torch.optim.SparseAdam` computes, in one pass on CPUs.

    For weights of `SparseInputLinear(..., sparse_grad=True)`. Moments of rows that do not occur in a batch stay
    as they are, so the work of a step grows with the batch and not with the number of input columns.

    Examples
    --------
    >>> layer = SparseInputLinear(4, 2, bias=False, sparse_grad=True)
    >>> before = layer.weight.detach().clone()
    >>> optimizer = RowAdam(layer.parameters(), lr=0.1)
    >>> rows = CsrRows(torch.tensor([0, 1]), torch.tensor([3]), torch.tensor([2.0]))
    >>> layer(rows).sum().backward()
    >>> optimizer.step()
    >>> (layer.weight != before).any(1)
    tensor([False, False, False,  True])
    """

    def __init__(
        self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step on the gradients there are (each row at most once, as `SparseInputLinear` gives them)."""
        if closure is not None:
            raise ValueError("RowAdam takes no closure")
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state.update(step=0, mean=torch.zeros_like(p), square=torch.zeros_like(p))
                state["step"] += 1
                rows, g = p.grad._indices()[0], p.grad._values()
                rate = group["lr"] / (1 - beta1 ** state["step"])
                scale = 1 - beta2 ** state["step"]
                if p.device.type == "cpu" and p.dtype == torch.float32:
                    step = (beta1, beta2, group["eps"], rate, scale)
                    w, mean, square = (t.detach().numpy() for t in (p, state["mean"], state["square"]))
                    _core.row_adam(
                        w, mean, square, rows.numpy(), g.numpy(), step, threads_for(g.numel(), 200_000)
                    )
                    continue
                m = state["mean"][rows].lerp_(g, 1 - beta1)
                v = state["square"][rows].mul_(beta2).addcmul_(g, g, value=1 - beta2)
                state["mean"].index_copy_(0, rows, m)
                state["square"].index_copy_(0, rows, v)
                p.index_add_(0, rows, m.div_(v.div_(scale).sqrt_().add_(group["eps"])), alpha=-rate)


def adam(model: nn.Module, lr: float) -> list[torch.optim.Optimizer]:
    """The optimizers of a network with sparse input: `RowAdam` for sparse gradients, Adam for the rest."""
    sparse = [m.weight for m in model.modules() if isinstance(m, SparseInputLinear) and m.sparse_grad]
    ids = {id(p) for p in sparse}
    dense = [p for p in model.parameters() if id(p) not in ids]
    made: list[torch.optim.Optimizer] = [torch.optim.Adam(dense, lr, fused=True)] if dense else []
    return [*made, RowAdam(sparse, lr)] if sparse else made


class CsrBatches:
    """What `csr_batches` returns: iterable by epoch, and ``n``, ``fetch`` for `Trainer.fit`."""

    def __init__(self, X: Any, Y: Any, batch_size: int, random_state: int | None) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        x = _validate.features(X)
        self._x = _validate.to_scipy(*x)
        self._y: Any = None
        if sp.issparse(Y):
            y = _validate.features(Y, "Y")
            self._y = _validate.to_scipy(*y)
        elif Y is not None:
            self._y = _validate.dense_features(Y, "Y")
        if self._y is not None and self._y.shape[0] != x.shape[0]:
            raise ValueError(f"Y has {self._y.shape[0]} rows, expected {x.shape[0]}")
        self.n = x.shape[0]
        self.batch_size = batch_size
        self.random_state = random_state
        self.epoch = 0

    def __len__(self) -> int:
        return -(-self.n // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        order = np.arange(self.n)
        if self.random_state is not None:
            order = np.random.default_rng([self.random_state, self.epoch]).permutation(self.n)
        self.epoch += 1
        for start in range(0, self.n, self.batch_size):
            yield self.fetch(order[start : start + self.batch_size])

    def fetch(self, rows: npt.NDArray[np.int64]) -> Any:
        """The batch of these rows: ``x``, or ``(x, y)`` when there is a Y."""
        x = _tensors(self._x[rows])
        if self._y is None:
            return x
        y = _tensors(self._y[rows]) if sp.issparse(self._y) else torch.from_numpy(self._y[rows])
        return x, y


def csr_batches(
    X: Any, Y: Any = None, batch_size: int = 128, *, random_state: int | None = None
) -> CsrBatches:
    """Batches of sparse rows as tensors.

    Parameters
    ----------
    X : (n, D) features, sparse or dense.
    Y : (n, L) targets, optional. Sparse ones come as `CsrRows`, dense ones as a float32 tensor (rows, L).
    batch_size : rows per batch; the last may be smaller.
    random_state : of the order of rows; None keeps the order. Each pass over the batches is the next epoch and has an
        order of its own, the one `Trainer` uses with this random_state.

    Returns
    -------
    An iterable of `CsrRows` (without Y) or of (`CsrRows`, targets), with ``len``. For the training loop:
    ``trainer.fit(model, loss, batches.n, batches.fetch)``, which shuffles by itself.

    Examples
    --------
    >>> X = sp.csr_matrix([[0, 2.0], [1.0, 0], [0, 0]])
    >>> [x.indices.tolist() for x in csr_batches(X, batch_size=2)]
    [[1, 0], []]
    """
    return CsrBatches(X, Y, batch_size, random_state)


def _tensors(rows: sp.csr_matrix) -> CsrRows:
    return CsrRows(
        torch.from_numpy(rows.indptr.astype(np.int64)),
        torch.from_numpy(rows.indices.astype(np.int64)),
        torch.from_numpy(rows.data),
    )
