"""What LightXML's heads start from: the frequencies of clusters and labels, or their centroids besides.

With centroids they are linear discriminants of the text vectors x (n, width), one for each cluster and label:

    logit(x) = log-odds + s c' S^-1 (x - m) - s c' S^-1 c / 2,     s = count / (count + 10)

m is the mean of all vectors, S their covariance (1 % of its mean diagonal is added to the diagonal), c the mean of the
vectors with the label, less m; s trusts a centroid of many texts more. In the bottleneck S^-1/2 is cut to its largest
directions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch import Tensor

from xmc_fast.nn._lightxml_net import LightXMLNet

if TYPE_CHECKING:
    from xmc_fast.nn._lightxml_fit import Data, Vectors

_TRUST = 10.0  # texts from which on a centroid counts for more than half
_RIDGE = 0.01  # of the mean variance
_ROWS = 4096


def at_frequencies(net: LightXMLNet, data: Data) -> None:
    """Biases at log-odds, so that the first epochs need not learn them.

    The generator's at those of the clusters. The labels' at those of a label where its cluster is a candidate,
    which is taken to be twice as often as one of its labels is true.
    """
    share = (data.cluster_counts + 0.5) / (data.tokens.n_texts + 1)
    odds = np.log(np.minimum(share, 0.99) / (1 - np.minimum(share, 0.99)))
    with torch.no_grad():
        net.generator.bias.copy_(torch.from_numpy(odds.astype(np.float32)))
        if net.table is not None and net.table.bias:
            true = np.bincount(data.y.indices, minlength=len(net.table.rows)) + 0.5
            shown = 2 * np.repeat(data.cluster_counts, np.diff(data.offsets)) + 1.5
            net.table.rows[:, -1] = torch.from_numpy(np.log(true / (shown - true)).astype(np.float32))


@torch.no_grad()
def at_centroids(net: LightXMLNet, data: Data, vectors: Vectors) -> None:
    """Weights of both heads as discriminants, on top of `at_frequencies`."""
    mean, covariance = _moments(vectors)
    values, directions = torch.linalg.eigh(covariance)  # ascending
    scale = (values.clamp(min=0) + _RIDGE * values.mean()).rsqrt()
    whiten = (directions * scale).T.flip(0)  # S^-1/2, the largest directions first
    cluster, first = data.cluster_firsts
    rows = np.repeat(np.arange(data.tokens.n_texts), np.diff(data.y.indptr))
    of_clusters = _members(rows[first], cluster[first], data.n_clusters, data.tokens.n_texts)
    centroid, trust = _centroids(vectors, of_clusters, mean, whiten)
    weight = trust * centroid
    back = weight @ whiten
    net.generator.weight.copy_(back)
    net.generator.bias.sub_((0.5 * (weight * centroid).sum(1) + back @ mean).to(net.generator.bias))
    if net.table is None or net.bottleneck is None:
        return
    dims = net.bottleneck.out_features
    kept = whiten[:dims]
    net.bottleneck.weight.zero_()[: len(kept)] = kept.to(net.bottleneck.weight)
    net.bottleneck.bias.zero_()[: len(kept)] = -(kept @ mean).to(net.bottleneck.bias)
    of_labels = _members(rows, data.y.indices, len(net.table.rows), data.tokens.n_texts)
    centroid, trust = _centroids(vectors, of_labels, mean, kept)
    weight = trust * centroid
    net.table.rows[:, :dims].zero_()
    net.table.rows[:, : len(kept)] = weight.to(net.table.rows)
    if net.table.bias:
        net.table.rows[:, -1] -= (0.5 * (weight * centroid).sum(1)).to(net.table.rows)


def _moments(vectors: Vectors) -> tuple[Tensor, Tensor]:
    """Mean and covariance; sums over chunks in float64."""
    n, width = vectors.rows.shape
    chunks = [np.arange(i, min(i + _ROWS, n)) for i in range(0, n, _ROWS)]
    total, squares = torch.zeros(width, dtype=torch.float64), torch.zeros(width, width, dtype=torch.float64)
    for rows in chunks:
        total += vectors[rows].sum(0, dtype=torch.float64)
    mean = (total / n).float()
    for rows in chunks:
        x = vectors[rows] - mean
        squares += x.T @ x
    return mean, (squares / n).float()


def _members(rows: npt.NDArray[Any], columns: npt.NDArray[Any], n_columns: int, n: int) -> sp.csr_matrix:
    """(n_columns, n), a row for each cluster or label with 1 at its texts."""
    return sp.csr_matrix((np.ones(len(rows), np.float32), (columns, rows)), (n_columns, n))


def _centroids(
    vectors: Vectors, members: sp.csr_matrix, mean: Tensor, whiten: Tensor
) -> tuple[Tensor, Tensor]:
    """Means of whitened vectors, (groups, dims), and how far each is trusted, (groups, 1)."""
    n = vectors.rows.shape[0]
    total = np.zeros((members.shape[0], len(whiten)), np.float32)
    columns = members.tocsc()
    for start in range(0, n, _ROWS):
        rows = np.arange(start, min(start + _ROWS, n))
        total += columns[:, rows] @ ((vectors[rows] - mean) @ whiten.T).numpy()
    counts = np.asarray(members.sum(1), np.float32)
    return torch.from_numpy(total / np.maximum(counts, 1)), torch.from_numpy(counts / (counts + _TRUST))
