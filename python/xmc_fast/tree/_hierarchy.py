"""The nodes of a label tree: clusters of labels, clusters of clusters, up to the first level."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast import cluster

_CHUNK = 256  # children that one chunk of the core may have


class NodeLevel(NamedTuple):
    """The nodes of one level. The children of parent ``p`` are ``child_start[p]`` to ``child_start[p + 1] - 1``."""

    child_start: npt.NDArray[np.int64]
    rows: sp.csr_matrix  # (nodes, n) binary: the training rows with a label below the node


def build_levels(
    X: sp.csr_matrix,
    Y: sp.csr_matrix,
    *,
    max_leaf: int,
    branching: int,
    max_first: int,
    random_state: int,
    n_jobs: int | None,
) -> tuple[list[NodeLevel], npt.NDArray[np.int32]]:
    """Levels from the top down, and the label of each node of the last one.

    Labels are clustered to at most ``max_leaf`` each, clusters to groups of at most ``branching``, until at most
    ``max_first`` are left. The first level has no parent: its nodes are cut into chunks.
    """
    groups: list[cluster.LabelTree] = []
    members = [Y]
    while not groups or members[-1].shape[1] > max_first:
        size = branching if groups else max_leaf
        found = cluster.label_tree(X, members[-1], max_leaf=size, random_state=random_state, n_jobs=n_jobs)
        groups.append(found)
        members.append(_binary(members[-1] @ found.matrix().T))
    first = members[-1].shape[1]
    nodes = np.arange(first)
    cuts = np.linspace(0, first, -(-first // _CHUNK) + 1).astype(np.int64)
    levels = [NodeLevel(cuts, members[-1].T.tocsr())]
    for group, below in zip(reversed(groups), reversed(members[:-1]), strict=True):
        sizes = np.diff(group.offsets)[nodes]
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        places = np.repeat(group.offsets[nodes] - starts[:-1], sizes) + np.arange(starts[-1])
        nodes = group.order[places]
        levels.append(NodeLevel(starts, below.T.tocsr()[nodes]))
    return levels, nodes.astype(np.int32)


def _binary(matrix: sp.csr_matrix) -> sp.csr_matrix:
    matrix = matrix.tocsr()
    matrix.sort_indices()
    matrix.data = np.ones(len(matrix.data), np.float32)
    return matrix
