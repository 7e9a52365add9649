"""The nodes of a label tree: clusters of labels, clusters of clusters, up to the first level."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast import cluster

_CHUNK = 256  # children that one chunk of the core may have
_ENTRIES = 1 << 28  # of all label vectors together, 8 bytes each: from a million labels on they are shorter


class Hierarchy(NamedTuple):
    """Levels from the top down. The children of parent ``p`` of level ``i`` are the nodes ``starts[i][p]`` to
    ``starts[i][p + 1] - 1`` of that level; the parents of a level are the nodes of the one above. The first level
    has no parents: its nodes are cut into chunks. ``order`` is the label of each node of the last level."""

    starts: list[npt.NDArray[np.int64]]
    order: npt.NDArray[np.int32]


def build(
    X: sp.csr_matrix,
    Y: sp.csr_matrix,
    *,
    max_leaf: int,
    branching: int,
    max_first: int,
    random_state: int,
    n_jobs: int | None,
) -> Hierarchy:
    """Cluster labels to at most ``max_leaf`` each, clusters to groups of at most ``branching``, until at most
    ``max_first`` are left."""
    groups: list[cluster.LabelTree] = []
    members = Y
    while not groups or members.shape[1] > max_first:
        size = branching if groups else max_leaf
        found = cluster.label_tree(
            X,
            members,
            max_leaf=size,
            max_features=int(np.clip(_ENTRIES // max(members.shape[1], 1), 32, 256)),
            random_state=random_state,
            n_jobs=n_jobs,
        )
        groups.append(found)
        members = _binary(members @ found.matrix().T)
    first = members.shape[1]
    nodes = np.arange(first)
    starts = [np.linspace(0, first, -(-first // _CHUNK) + 1).astype(np.int64)]
    for group in reversed(groups):
        sizes = np.diff(group.offsets)[nodes]
        starts.append(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))
        places = np.repeat(group.offsets[nodes] - starts[-1][:-1], sizes) + np.arange(starts[-1][-1])
        nodes = group.order[places]
    return Hierarchy(starts, nodes.astype(np.int32))


def node_rows(Y: sp.csr_matrix, hierarchy: Hierarchy) -> list[sp.csr_matrix]:
    """Of each level (nodes, n) binary: the training rows with a label below the node."""
    rows = [_binary(Y.T.tocsr()[hierarchy.order])]
    for starts in reversed(hierarchy.starts[1:]):
        ones = np.ones(int(starts[-1]), np.float32)
        parents = sp.csr_matrix((ones, np.arange(len(ones)), starts), (len(starts) - 1, len(ones)))
        rows.append(_binary(parents @ rows[-1]))
    return rows[::-1]


def _binary(matrix: sp.csr_matrix) -> sp.csr_matrix:
    matrix = matrix.tocsr()
    matrix.sort_indices()
    matrix.data = np.ones(len(matrix.data), np.float32)
    return matrix
