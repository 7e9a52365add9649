"""Compressed rows of labels, and labels from predicted ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast import knn
from xmc_fast._validate import dense_features, labels, to_scipy
from xmc_fast.declare._neighbour import neighbour_embedding
from xmc_fast.declare._svd import truncated_svd

Float = npt.NDArray[np.float32]


def compress(
    Y: Any,
    n_components: int,
    *,
    compression: str = "svd",
    label_scaling: str = "none",
    neighbours: int = 25,
    n_jobs: int | None = None,
    random_state: int = 0,
) -> Float:
    """The compressed rows Z (n, c) of a label matrix.

    ``compression`` is "svd" (all similarities between rows, see `truncated_svd`) or "neighbour" (those of near
    rows above all, see `neighbour_embedding`). ``label_scaling`` scales the rows of Y before: "length" to length one,
    "sum" to sum one, "none" not at all. With "length" the inner products that Z keeps are the cosines of two rows'
    labels, instead of the number of labels that they share.

    Examples
    --------
    Inner products of compressed rows are the numbers of labels that rows share.

    >>> Y = np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1]])
    >>> Z = compress(Y, 2)
    >>> (Z @ Z.T).round().astype(int)
    array([[2, 2, 0], [2, 2, 0], [0, 0, 1]])
    """
    if compression not in ("svd", "neighbour"):
        raise ValueError(f'compression must be "svd" or "neighbour", got {compression!r}')
    options: dict[str, Any] = {"label_scaling": label_scaling, "n_jobs": n_jobs}
    Z = truncated_svd(Y, n_components, random_state=random_state, **options).Z
    if compression == "neighbour":
        Z, _ = neighbour_embedding(Y, Z, neighbours=neighbours, **options)
    return Z


LOST = 1e-4  # of the longest compressed row


class LabelRecovery:
    """Scores labels by the training rows whose compressed rows are most similar to a prediction z.

    Similarity s = Z z ("inner", as the paper writes it) or the same with the rows of Z scaled to length one
    ("cosine"); label scores are the sum of s over the q best rows that carry the label.

    Parameters
    ----------
    Z : (n, c) compressed training rows; Y : (n, L) their labels.
    neighbours : q.
    similarity : "inner" or "cosine". Inner products favour rows with many labels.
    search : "exact", or "faiss" for an approximate index over millions of rows (install the extra [faiss]).

    Examples
    --------
    >>> recovery = LabelRecovery(np.eye(3), np.eye(3), neighbours=2)
    >>> recovery.predict(np.array([[0.0, 1.0, 0.5]]), k=2).toarray().tolist()
    [[0.0, 1.0, 0.5]]
    """

    def __init__(
        self, Z: Any, Y: Any, *, neighbours: int = 25, similarity: str = "cosine", search: str = "exact"
    ) -> None:
        if similarity not in ("inner", "cosine"):
            raise ValueError(f'similarity must be "inner" or "cosine", got {similarity!r}')
        if search not in ("exact", "faiss"):
            raise ValueError(f'search must be "exact" or "faiss", got {search!r}')
        if isinstance(neighbours, float) or not 1 <= neighbours < 2**31:
            raise ValueError(f"neighbours must be an integer from 1, got {neighbours!r}")
        self.Z = dense_features(Z, "Z")
        self.Y = labels(Y, n_rows=len(self.Z))
        self.neighbours = neighbours
        rows = self.Z
        if similarity == "cosine":
            lengths = np.linalg.norm(rows, axis=1, keepdims=True)
            # Rows whose labels the compression lost are rounding noise, mostly along the first direction:
            # scaled up they would be neighbours of every row.
            shortest = max(LOST * float(lengths.max(initial=0)), np.finfo(np.float32).tiny)
            rows = rows / np.maximum(lengths, shortest)
        self.index: Any = knn.InnerProductIndex(rows) if search == "exact" else knn.FaissIndex(rows)

    def predict(self, z: Any, k: int = 5, *, n_jobs: int | None = None) -> sp.csr_matrix:
        """(m, L) CSR of the k best labels of each row of z (m, c), best first. A row whose neighbours carry
        fewer than k labels has fewer entries."""
        z = dense_features(z, "z", n_features=self.Z.shape[1])
        ids, similarity = self.index.search(z, self.neighbours, n_jobs=n_jobs)
        matrix = to_scipy(self.Y.indptr, self.Y.indices, np.ones(len(self.Y.indices), np.bool_), self.Y.shape)
        return knn.recover_labels(ids, similarity, matrix, k, n_jobs=n_jobs)

    @property
    def nbytes(self) -> int:
        """Bytes a prediction needs beside the network: Z and the labels of the training rows."""
        return int(self.Z.nbytes + self.Y.indptr.nbytes + self.Y.indices.nbytes)
