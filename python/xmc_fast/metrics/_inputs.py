"""What people pass to a metric, checked and turned into ranked lists beside a binary truth."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast import _core
from xmc_fast._validate import Csr, aligned, labels, numbers, to_scipy, valid_csr
from xmc_fast.propensity import checked

Floats = npt.NDArray[np.float64]
MISS, HIT, IGNORED = 0, 1, 2


class Ranked(NamedTuple):
    """Truth and, per row, the best labels in rank order with a flag (MISS, HIT or IGNORED) each."""

    truth: Csr
    indptr: npt.NDArray[np.int64]  # n + 1
    ids: npt.NDArray[np.int32]  # indptr[n]
    hits: npt.NDArray[np.uint8]  # indptr[n]
    threads: int


class LabelBins(NamedTuple):
    """A division of the labels: ``group[j]`` is the number of label j's bin, or -1 for none."""

    names: tuple[str, ...]
    group: npt.NDArray[np.int32]  # L


def truth_and_scores(Y_true: Any, pred: Any, n_labels: int | None, name: str = "pred") -> tuple[Csr, Any]:
    """The truth, and the predictions as CSR, floats or integer ids, both with the same number of labels."""
    truth = labels(Y_true, "Y_true")
    if sp.issparse(pred):
        pred, _ = valid_csr(pred, name)
        dtype = np.float32 if pred.dtype == np.float32 else np.float64
        arrays = (aligned(pred.indptr, np.int64), aligned(pred.indices, np.int32), aligned(pred.data, dtype))
        pred = Csr(*arrays, (int(pred.shape[0]), int(pred.shape[1])))
    else:
        pred = np.asarray(pred)
        if pred.ndim != 2:
            raise ValueError(f"{name} must be two-dimensional, got shape {pred.shape}")
        if pred.dtype.kind not in "iufb":
            raise ValueError(f"{name} must hold label ids (integers) or scores (floats), got {pred.dtype}")
    if pred.shape[0] != truth.shape[0]:
        raise ValueError(f"{name} has {pred.shape[0]} rows, Y_true has {truth.shape[0]}")
    is_ids = not isinstance(pred, Csr) and pred.dtype.kind in "iu"
    width = max([truth.shape[1]] if is_ids else [truth.shape[1], pred.shape[1]])
    if n_labels is None and not is_ids and pred.shape[1] != truth.shape[1]:
        raise ValueError(
            f"{name} has shape {tuple(pred.shape)}, Y_true has {truth.shape}: pass n_labels={width} if the missing"
            " labels are the last ones (label ids are passed as integers)"
        )
    if n_labels is not None and n_labels < width:
        raise ValueError(f"n_labels is {n_labels}, but there are {width} columns")
    shape = (truth.shape[0], width if n_labels is None else int(n_labels))
    truth = truth._replace(shape=shape)
    if isinstance(pred, Csr):
        return truth, pred._replace(shape=shape)
    if not is_ids and pred.shape[1] < shape[1]:
        pred = np.pad(
            pred.astype(np.float64), ((0, 0), (0, shape[1] - pred.shape[1])), constant_values=-np.inf
        )
    return truth, pred


def ranked(
    Y_true: Any, pred: Any, k: int, label_filter: Any, threads: int, n_labels: int | None = None
) -> Ranked:
    """Check everything once, rank, match; only the first ``k`` ranks are kept."""
    truth, pred = truth_and_scores(Y_true, pred, n_labels)
    k = min(k, max(1, pred.shape[1]))  # a list is no longer than that
    pairs = _filter_pairs(label_filter, truth.shape)
    if pairs is not None:
        truth = _without(truth, pairs)
    if isinstance(pred, Csr):
        rank: Any = _core.rank_sparse_f32 if pred.data.dtype == np.float32 else _core.rank_sparse_f64
        indptr, ids = rank(pred, pairs, k, threads)
    elif pred.dtype.kind in "iu":
        if pred.dtype == np.uint64:
            pred = np.minimum(pred, np.iinfo(np.int64).max)
        ids64 = aligned(pred, np.int64)
        indptr, ids = _core.rank_ids(ids64, truth.shape[1], pairs, k, threads)
    elif pred.dtype == np.float32:
        indptr, ids = _core.rank_dense_f32(aligned(pred, np.float32), pairs, k, threads)
    else:
        indptr, ids = _core.rank_dense_f64(aligned(pred, np.float64), pairs, k, threads)
    hits = _core.match_hits(truth, indptr, ids, threads)
    return Ranked(truth, indptr, ids, hits, threads)


def _filter_pairs(label_filter: Any, shape: tuple[int, int]) -> Csr | None:
    if label_filter is None:
        return None
    if sp.issparse(label_filter):
        return labels(label_filter, "label_filter", n_rows=shape[0], n_labels=shape[1])
    pairs = np.asarray(label_filter)
    if pairs.size == 0:
        return None
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu":
        raise ValueError(
            "label_filter must be a sparse matrix like Y_true or integer pairs (row, label) of shape (m, 2), "
            f"got shape {pairs.shape} and dtype {pairs.dtype}"
        )
    for column, (what, limit) in enumerate(zip(("rows", "labels"), shape, strict=True)):
        if pairs[:, column].min() < 0 or pairs[:, column].max() >= limit:
            raise ValueError(f"label_filter's {what} must be in [0, {limit}), got {pairs[:, column]}")
    ones = np.ones(len(pairs), bool)
    return labels(sp.csr_matrix((ones, (pairs[:, 0], pairs[:, 1])), shape=shape), "label_filter")


def _without(truth: Csr, pairs: Csr) -> Csr:
    def matrix(c: Csr) -> Any:
        return to_scipy(c.indptr, c.indices, np.ones(len(c.indices), np.int8), c.shape)

    rest = matrix(truth)
    rest = rest - rest.multiply(matrix(pairs))
    return labels(rest, "Y_true")


def restrict(r: Ranked, bins: LabelBins, number: int) -> Ranked:
    """The same lists with truth and counted predictions restricted to one bin; ranks stay."""
    keep = bins.group[r.truth.indices] == number
    before = np.concatenate(([0], np.cumsum(keep, dtype=np.int64)))
    empty = np.empty(0, np.float32)
    truth = Csr(before[r.truth.indptr], r.truth.indices[keep], empty, r.truth.shape)
    hits = np.where(bins.group[r.ids] == number, r.hits, np.uint8(IGNORED)).astype(np.uint8)
    return r._replace(truth=truth, hits=hits)


def cutoffs(k: Any) -> tuple[list[int], npt.NDArray[np.int64] | None]:
    """Ascending unique cut-offs, and where each given one is among them (None: a single number)."""
    try:
        given = [operator.index(k)] if np.ndim(k) == 0 else [operator.index(each) for each in k]
    except TypeError:
        raise ValueError(f"k must be a positive integer or a sequence of them, got {k!r}") from None
    if not given or min(given) < 1:
        raise ValueError(f"k must be a positive integer or a sequence of them, got {k!r}")
    if max(given) > np.iinfo(np.int32).max:
        raise ValueError(f"k must be at most {np.iinfo(np.int32).max}, got {max(given)}")
    ks, where = np.unique(given, return_inverse=True)
    return [int(each) for each in ks], None if np.ndim(k) == 0 else where


def inverse_propensity(propensity: Any, n_labels: int) -> Floats:
    """1/p, checked; empty for no propensity."""
    if propensity is None:
        return np.empty(0)
    p = np.full(n_labels, float(propensity)) if np.ndim(propensity) == 0 else propensity
    return 1.0 / checked(p, (n_labels,))


def frequency_bins(
    counts: Any, edges: Sequence[int] = (5, 50), *, names: Sequence[str] | None = None
) -> LabelBins:
    """Bins of labels by how often they occur in the training set.

    Parameters
    ----------
    counts : array of shape (L,), or label matrix of shape (n, L)
        Occurrences of each label in the training set, or the training labels themselves.
    edges : ascending counts
        A label is in the first bin if it occurs at most ``edges[0]`` times, in the second if at most
        ``edges[1]`` times, ..., else in the last.
    names : sequence of str, optional
        One per bin, rare to frequent; by default "tail", "torso", "head" for two edges, else the ranges.

    Returns
    -------
    LabelBins

    Examples
    --------
    >>> bins = frequency_bins([1, 7, 1000, 5])
    >>> [bins.names[g] for g in bins.group]
    ['tail (<=5)', 'torso (6-50)', 'head (>50)', 'tail (<=5)']
    """
    if isinstance(counts, np.matrix) and counts.shape[0] == 1:  # Y.sum(axis=0) of a scipy matrix
        counts = np.asarray(counts).ravel()
    if sp.issparse(counts) or np.ndim(counts) == 2:
        counts = labels(counts, "counts")
        counts = np.bincount(counts.indices, minlength=counts.shape[1])
    counts = numbers(counts, "counts", ndim=1)
    limits = np.asarray(edges)
    if limits.ndim != 1 or limits.size == 0 or np.any(np.diff(limits) <= 0):
        raise ValueError(f"edges must be ascending counts, got {list(edges)}")
    if names is None:
        low = [f"{int(a) + 1}-{int(b)}" for a, b in itertools.pairwise(limits)]
        ranges = [f"<={int(limits[0])}", *low, f">{int(limits[-1])}"]
        words = ["tail", "torso", "head"]
        names = [f"{w} ({r})" for w, r in zip(words, ranges, strict=True)] if len(ranges) == 3 else ranges
    if len(names) != limits.size + 1:
        raise ValueError(f"names has {len(names)} entries, expected {limits.size + 1}")
    return LabelBins(tuple(names), np.searchsorted(limits, counts, side="left").astype(np.int32))


def label_bins(bins: Any, n_labels: int) -> LabelBins:
    """LabelBins, or whatever frequency_bins takes."""
    if not isinstance(bins, LabelBins):
        bins = frequency_bins(bins)
    group = aligned(bins.group, np.int32)
    if group.shape != (n_labels,):
        raise ValueError(f"bins has shape {group.shape}, expected one value per label ({n_labels})")
    if group.size and (group.min() < -1 or group.max() >= len(bins.names)):
        raise ValueError(f"bins must be in [-1, {len(bins.names)}), got {group.min()}..{group.max()}")
    return LabelBins(tuple(bins.names), group)
