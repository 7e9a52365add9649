"""Multi-label losses, also under missing labels (Qaraei et al. 2021; Schultheis and Babbar 2025).

Every loss here is linear in a target vector t made from the observed labels y:

    loss = h(s) + sum_j t_j g_j(s)          s: logits of all labels, or of a short list of candidates

==========  =========================  ======================================================  ==============
reduction   h                          g_j                                                     t_j
==========  =========================  ======================================================  ==============
``ova``     sum_i l(s_i, 0)            l(s_j, 1) - l(s_j, 0)                                   y_j
``pal``     0                          l_j(s): softmax cross-entropy of label j, or            y_j
                                       l(s_j, 1) + sum_{i != j} l(s_i, 0) for a binary l
``ova_n``   as ``ova``                 as ``ova``                                              y_j / |y|
``pal_n``   as ``pal``                 as ``pal``                                              y_j / |y|
==========  =========================  ======================================================  ==============

A true label j is seen with probability p_j, independently (its propensity). Then a target whose mean over
what is seen equals that of the complete labels makes the loss unbiased: `unbiased_targets`. Such a loss
can have no lower bound, so that training drives it to minus infinity; what to train with instead:

- ``ova``: the surrogate, a convex bound of the unbiased 0-1 loss: positives weighted by 2/p - 1;
- ``pal``: the unbiased loss itself, its weights y_j / p_j are not negative;
- ``pal_n``: the upper bound, `upper_bound_targets`;
- ``ova_n``: nothing of this kind is known.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = [
    "MultilabelLoss",
    "SampledEstimateWarning",
    "binary_losses",
    "unbiased_estimate",
    "unbiased_targets",
    "upper_bound_targets",
]

Base = Literal["bce", "squared_hinge", "softmax"]
Reduction = Literal["ova", "pal", "ova_n", "pal_n"]
Correction = Literal["none", "unbiased", "surrogate", "upper_bound"]


class SampledEstimateWarning(UserWarning):
    """An estimate was sampled because its exact value has too many terms."""


def binary_losses(logits: Tensor, base: Base) -> tuple[Tensor, Tensor]:
    """l(s, 1) and l(s, 0), elementwise: log(1 + e^-s) and log(1 + e^s), or max(0, 1 -+ s)^2.

    >>> positive, negative = binary_losses(torch.tensor([2.0, -2.0]), "squared_hinge")
    >>> positive.tolist(), negative.tolist()
    ([0.0, 9.0], [9.0, 0.0])
    """
    if base == "bce":
        return F.softplus(-logits), F.softplus(logits)
    if base == "squared_hinge":
        return F.relu(1 - logits).square(), F.relu(1 + logits).square()
    raise ValueError(f'base must be "bce" or "squared_hinge" for a binary loss, got {base!r}')


def unbiased_targets(targets: Tensor, propensity: Tensor, *, normalized: bool) -> Tensor:
    """Targets whose mean over the masks equals that of the complete labels.

    y_j / p_j; or, normalised, the unbiased estimate of y_j / |y|. That one is the sum over all subsets y' of the
    observed labels of (prod_{i in y'} 1/p_i) (prod_{i not in y'} (1 - 1/p_i)) y'_j / |y'|. With
    1/(1 + n) = int_0^1 z^n dz the 2^|y| terms become

        (y_j / p_j) int_0^1 prod_{i != j} (1 + (z - 1) y_i / p_i) dz,

    a polynomial of degree |y| - 1, which Gauss-Legendre quadrature with |y|/2 nodes integrates exactly: |y|^2
    operations per row. Entries may be negative and grow like prod 1/p.

    Parameters
    ----------
    targets : 0/1, shape (rows, labels)
    propensity : shape (labels,), or (rows, labels) for short lists
    normalized : bool

    Returns
    -------
    Tensor of shape (rows, labels)

    Examples
    --------
    >>> y, p = torch.tensor([[1.0, 1.0, 0.0]]), torch.tensor([0.5, 1.0, 0.5])
    >>> unbiased_targets(y, p, normalized=False)
    tensor([[2., 1., 0.]])
    >>> unbiased_targets(y, p, normalized=True)
    tensor([[1., 0., 0.]])
    """
    p = propensity.expand_as(targets).to(targets.dtype)
    if not normalized:
        return targets / p
    most = int(targets.sum(dim=1).max().item()) if targets.numel() else 0
    if most == 0:
        return torch.zeros_like(targets)
    seen, index = targets.topk(most, dim=1)  # rows x most: the observed labels, then padding with seen = 0
    ratio = (seen / p.gather(1, index)).double()
    z, weight = np.polynomial.legendre.leggauss((most + 1) // 2)
    nodes = torch.as_tensor((z - 1) / 2, device=targets.device)  # z - 1 on [0, 1]
    factor = 1 + ratio[:, :, None] * nodes  # rows x most x nodes
    one = torch.ones_like(factor[:, :1])
    before = torch.cat([one, factor[:, :-1]], dim=1).cumprod(dim=1)
    after = torch.cat([factor[:, 1:], one], dim=1).flip(1).cumprod(dim=1).flip(1)
    integral = (before * after) @ torch.as_tensor(weight / 2, device=targets.device)
    return torch.zeros_like(targets).scatter(1, index, (ratio * integral).to(targets.dtype))


def upper_bound_targets(targets: Tensor, propensity: Tensor) -> Tensor:
    """(y_j / p_j) / (1 + sum_{i != j} y_i / p_i): its mean is at least that of y_j / |y| (by Jensen's inequality).

    Never negative and at most 1/p_j: little variance for some bias. Shapes as for `unbiased_targets`.

    >>> upper_bound_targets(torch.tensor([[1.0, 1.0, 0.0]]), torch.tensor([0.5, 1.0, 0.5]))
    tensor([[1.0000, 0.3333, 0.0000]])
    """
    ratio = targets / propensity.expand_as(targets).to(targets.dtype)
    return ratio / (1 + ratio.sum(dim=1, keepdim=True) - ratio)


class MultilabelLoss(nn.Module):
    """A multi-label loss, optionally corrected for missing labels.

    Parameters
    ----------
    base : {"bce", "squared_hinge", "softmax"}
        Softmax needs a ``pal`` reduction.
    reduction : {"ova", "pal", "ova_n", "pal_n"}
        One-vs-all or pick-all-labels; ``_n``: divided by the number of positives.
    correction : {"none", "unbiased", "surrogate", "upper_bound"}
        "surrogate" for ``ova``, "unbiased" for ``pal`` and "upper_bound" for ``pal_n`` are fit for training.
        The unbiased form of the other reductions has no lower bound: it needs ``allow_unbounded=True`` and is
        meant for evaluation and study.
    propensity : array of shape (L,), in (0, 1]
        See ``xmc_fast.propensity``; needed by any correction.
    positive_weight : array of shape (L,), optional
        A further weight of positives, e.g. ``propensity.rebalancing_weights(counts, beta)``.
    normalize_weights : bool
        Scale the weights of positives (surrogate and positive_weight) to mean one over the labels: steadier
        training of deep networks.
    batch : {"mean", "sum", "none"}
        What to do with the rows' losses. A row's loss is the sum over its labels.

    Examples
    --------
    >>> loss = MultilabelLoss("bce", "ova", correction="surrogate", propensity=[0.5, 1.0, 1.0])
    >>> logits = torch.zeros(2, 3, requires_grad=True)
    >>> targets = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    >>> round(loss(logits, targets).item(), 4)  # (5 + 3) log(2) / 2
    2.7726
    """

    propensity: Tensor | None
    weight: Tensor | None

    def __init__(
        self,
        base: Base = "bce",
        reduction: Reduction = "ova",
        *,
        correction: Correction = "none",
        propensity: Any = None,
        positive_weight: Any = None,
        normalize_weights: bool = False,
        allow_unbounded: bool = False,
        batch: Literal["mean", "sum", "none"] = "mean",
    ) -> None:
        super().__init__()
        _choice("base", base, ("bce", "squared_hinge", "softmax"))
        _choice("reduction", reduction, ("ova", "pal", "ova_n", "pal_n"))
        _choice("correction", correction, ("none", "unbiased", "surrogate", "upper_bound"))
        _choice("batch", batch, ("mean", "sum", "none"))
        if base == "softmax" and reduction.startswith("ova"):
            raise ValueError('softmax is a loss of one label against all: use reduction "pal" or "pal_n"')
        if correction == "surrogate" and reduction != "ova":
            raise ValueError(
                f'the surrogate bounds the binary 0-1 loss: it needs reduction "ova", got {reduction!r}'
                ' (for "pal" the unbiased loss is fit for training, for "pal_n" the upper bound)'
            )
        if correction == "upper_bound" and reduction != "pal_n":
            raise ValueError(f'the upper bound holds for reduction "pal_n" only, got {reduction!r}')
        if correction == "unbiased" and reduction != "pal" and not allow_unbounded:
            instead = {"ova": 'correction="surrogate"', "pal_n": 'correction="upper_bound"'}
            raise ValueError(
                f"the unbiased {reduction} loss has no lower bound and must not be minimised: train with "
                f"{instead.get(reduction, 'another reduction')}, or pass allow_unbounded=True to evaluate with it"
            )
        p = _vector("propensity", propensity)
        if correction != "none":
            if p is None:
                raise ValueError(f"correction {correction!r} needs propensity")
            if p.numel() and not (p.min() > 0 and p.max() <= 1):
                raise ValueError(f"propensity must be in (0, 1], got values in [{p.min()}, {p.max()}]")
        weight = _vector("positive_weight", positive_weight)
        if weight is not None and p is not None and weight.shape != p.shape:
            raise ValueError(f"positive_weight has shape {tuple(weight.shape)}, propensity {tuple(p.shape)}")
        if correction == "surrogate" and p is not None:
            surrogate = 2 / p - 1
            weight = surrogate if weight is None else surrogate * weight
        if normalize_weights and weight is not None and weight.numel():
            weight = weight / weight.mean()
        self.base, self.reduction, self.correction, self.batch = base, reduction, correction, batch
        self.register_buffer("propensity", p if correction in ("unbiased", "upper_bound") else None)
        self.register_buffer("weight", weight)

    def extra_repr(self) -> str:
        return (
            f"base={self.base}, reduction={self.reduction}, correction={self.correction}, batch={self.batch}"
        )

    def forward(
        self,
        logits: Tensor,
        targets: Tensor,
        candidates: Tensor | None = None,
        n_positives: Tensor | None = None,
    ) -> Tensor:
        """The loss of a batch.

        Parameters
        ----------
        logits : shape (rows, L), or (rows, C) for short lists; half precision is computed in float32
        targets : 0/1 of the same shape
        candidates : integers of shape (rows, C), optional
            The label of each logit; negative: padding, ignored. Needed with per-label weights when the logits
            are of short lists.
        n_positives : shape (rows,), optional
            |y| for the normalised reductions when short lists leave out positives (without correction).
        """
        if logits.shape != targets.shape or logits.ndim != 2:
            raise ValueError(f"logits have shape {tuple(logits.shape)}, targets {tuple(targets.shape)}")
        if candidates is not None and candidates.shape != logits.shape:
            raise ValueError(f"candidates have shape {tuple(candidates.shape)}, logits {tuple(logits.shape)}")
        with torch.autocast(logits.device.type, enabled=False):
            s = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
            y = targets.to(s.dtype)
            valid = None if candidates is None else candidates >= 0
            if valid is not None:
                y = y * valid
            rows = self._rows(s, self._targets(y, candidates, n_positives), valid, candidates)
        if self.batch == "none":
            return rows
        return rows.mean() if self.batch == "mean" else rows.sum()

    def _rows(self, s: Tensor, t: Tensor, valid: Tensor | None, candidates: Tensor | None) -> Tensor:
        w = self._per_label(self.weight, s, candidates)
        if self.base == "softmax":
            masked = s if valid is None else s.masked_fill(~valid, -torch.inf)
            cost = masked.logsumexp(dim=1, keepdim=True) - s
            # A row of padding only has a logsumexp of -inf; its targets are 0.
            return (t * w * cost.masked_fill(t == 0, 0)).sum(dim=1)
        positive, negative = binary_losses(s, self.base)
        if valid is not None:
            negative = negative * valid
        h = negative.sum(dim=1)
        if self.reduction.startswith("ova"):
            return h + (t * (w * positive - negative)).sum(dim=1)
        return (t * w * (positive - negative + h[:, None])).sum(dim=1)

    def _targets(self, y: Tensor, candidates: Tensor | None, n_positives: Tensor | None) -> Tensor:
        normalized = self.reduction.endswith("_n")
        if self.propensity is not None:
            if n_positives is not None:
                raise ValueError("n_positives cannot be used with a correction: list all observed positives")
            p = self._per_label(self.propensity, y, candidates)
            if self.correction == "upper_bound":
                return upper_bound_targets(y, p)
            return unbiased_targets(y, p, normalized=normalized)
        if not normalized:
            return y
        count = y.sum(dim=1) if n_positives is None else n_positives.to(y.dtype)
        return y / count.clamp(min=1)[:, None]

    def _per_label(self, values: Tensor | None, like: Tensor, candidates: Tensor | None) -> Tensor:
        """One value per logit: the label's, 1 without values; padding gets that of label 0."""
        if values is None:
            return like.new_ones(1)
        values = values.to(like.dtype)
        if candidates is not None:
            return values[candidates.clamp(min=0)]
        if values.shape[0] != like.shape[1]:
            raise ValueError(
                f"logits have {like.shape[1]} columns, the loss has {values.shape[0]} labels: pass candidates "
                "for short lists"
            )
        return values


def unbiased_estimate(
    loss: Callable[[Tensor], Tensor],
    propensity: Any,
    *,
    max_positives: int = 20,
    samples: int = 100_000,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Unbiased estimate of any multi-label loss of one row, from its m observed labels.

    With each true label i seen with probability p_i, independently, the estimate

        sum over subsets y' of the observed labels of
            (prod_{i in y'} 1/p_i) (prod_{i not in y'} (1 - 1/p_i)) loss(y')

    has the mean loss(complete labels): an indicator [y_i = 1] is linear in y_i and becomes y_i/p_i. Above
    ``max_positives`` observed labels the 2^m terms are sampled (i is in y' with probability 1/(2 - p_i), signed
    weights), and a SampledEstimateWarning says so. The variance grows like prod 1/p_i^2.

    Parameters
    ----------
    loss : function
        Gets subsets as a boolean tensor of shape (S, m), column i for observed label i; returns the S losses of
        the row if exactly those labels were true.
    propensity : array of shape (m,), in (0, 1]
        Of the observed labels.
    max_positives : int
    samples : int
    generator : torch.Generator, optional
        Of the sampled subsets.

    Returns
    -------
    Tensor, a scalar; differentiable as far as ``loss`` is

    Examples
    --------
    >>> unbiased_estimate(lambda subset: (subset.sum(1) == 2).double(), [0.5, 0.5]).item()  # [both true]
    4.0
    """
    p = torch.as_tensor(np.asarray(propensity, np.float64))
    m = p.numel()
    if p.ndim != 1 or (m and not (p.min() > 0 and p.max() <= 1)):
        raise ValueError(f"propensity must be one value in (0, 1] per observed label, got {propensity}")
    chunk = 1 << 14
    total: Tensor | None = None
    if m <= max_positives:
        inside, outside = 1 / p, 1 - 1 / p
        for first in range(0, 1 << m, chunk):
            codes = torch.arange(first, min(first + chunk, 1 << m))
            subset = (codes[:, None] >> torch.arange(m)) & 1 == 1
            part = _weighted(loss, subset, torch.where(subset, inside, outside).prod(dim=1))
            total = part if total is None else total + part
    else:
        warnings.warn(
            f"{m} observed labels: the exact estimate has 2^{m} terms, {samples} sampled instead "
            f"(max_positives={max_positives})",
            SampledEstimateWarning,
            stacklevel=2,
        )
        mass = (2 / p - 1).prod() / samples
        for first in range(0, samples, chunk):
            draw = torch.rand((min(chunk, samples - first), m), generator=generator, dtype=p.dtype)
            subset = draw < 1 / (2 - p)
            sign = 1.0 - 2.0 * ((~subset).sum(dim=1) % 2)
            part = _weighted(loss, subset, mass * sign)
            total = part if total is None else total + part
    assert total is not None
    return total


def _weighted(loss: Callable[[Tensor], Tensor], subset: Tensor, weight: Tensor) -> Tensor:
    values = loss(subset)
    if values.shape != weight.shape:
        raise ValueError(f"loss must return one value per subset ({len(weight)}), got {tuple(values.shape)}")
    return (weight.to(values) * values).sum()


def _choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def _vector(name: str, values: Any) -> Tensor | None:
    if values is None:
        return None
    vector = torch.as_tensor(np.asarray(values, np.float64))
    if vector.ndim != 1:
        raise ValueError(f"{name} must be one value per label, got shape {tuple(vector.shape)}")
    return vector
