"""Predicting a file of any size in constant memory, and the text form of predictions."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import pairwise
from typing import IO, Any

import numpy as np
import scipy.sparse as sp

from xmc_fast._files import atomic_path
from xmc_fast._progress import progress
from xmc_fast._validate import at_least, to_scipy, valid_csr
from xmc_fast.data import iter_xmc

Path = str | os.PathLike[str]


def predict_file(
    model: Any,
    path: Path,
    out: Path,
    k: int = 5,
    *,
    proba: bool = False,
    chunk_bytes: int = 8 << 20,
    n_jobs: int | None = None,
) -> int:
    """Predict the points of a text file, line by line, whatever its size.

    Parameters
    ----------
    model : SparseModel
    path : path
        In the Extreme Classification Repository's format (see `xmc_fast.data.read_xmc`), labels ignored.
    out : path
        One line per point: ``label:score label:score ...``, best first. Written under a temporary name and
        renamed when complete.
    k : int
        Labels per point.
    proba : bool
        Probabilities instead of scores (needs a calibrated model).
    chunk_bytes : int
        Text that is in memory at a time.

    Returns
    -------
    int
        Number of points.
    """
    chunks = iter_xmc(path, chunk_bytes=chunk_bytes, n_jobs=n_jobs)
    return write_pieces(out, (model.predict(X, k, proba=proba, n_jobs=n_jobs) for X, _ in chunks))


def write_pieces(out: Path, pieces: Iterable[sp.csr_matrix]) -> int:
    """Write predictions that come piece by piece, atomically; returns the number of points."""
    rows = 0
    bar = progress(None, unit="point", desc="predict")
    with atomic_path(out) as temporary, open(temporary, "wb") as file, bar:
        for top in pieces:
            _write_rows(file, top)
            rows += top.shape[0]
            bar.update(top.shape[0])
    return rows


def write_predictions(out: Path, predictions: sp.csr_matrix) -> None:
    """Write predictions (CSR n x L, best first) as ``label:score`` lines, atomically.

    Scores have as many digits as a float32 needs: reading them back gives the same bits.
    """
    predictions, _ = valid_csr(predictions, "predictions")
    step = 1 << 16
    write_pieces(out, (predictions[i : i + step] for i in range(0, predictions.shape[0], step)))


def read_predictions(path: Path, n_labels: int) -> sp.csr_matrix:
    """What `write_predictions` or `predict_file` wrote, as CSR n x n_labels, order kept."""
    at_least(0, n_labels=n_labels)
    indptr, ids, scores = [0], [], []
    with open(path, encoding="ascii") as file:
        for number, line in enumerate(file, 1):
            for token in line.split():
                label, colon, score = token.partition(":")
                try:
                    ids.append(int(label))
                    scores.append(float(score))
                except ValueError:
                    raise ValueError(f"{path}:{number}: label:score expected, got {token!r}") from None
                if not colon or not 0 <= ids[-1] < n_labels:
                    raise ValueError(f"{path}:{number}: label below {n_labels} expected, got {token!r}")
            indptr.append(len(ids))
    shape = (len(indptr) - 1, n_labels)
    with np.errstate(over="ignore"):
        values = np.array(scores, np.float64).astype(np.float32)
    return to_scipy(np.array(indptr, np.int64), np.array(ids, np.int32), values, shape)


def _write_rows(file: IO[bytes], top: sp.csr_matrix) -> None:
    pairs = zip(top.indices.tolist(), top.data.tolist(), strict=True)
    entries = [f"{label}:{score:.9g}" for label, score in pairs]
    lines = (" ".join(entries[a:b]) for a, b in pairwise(top.indptr.tolist()))
    file.write(("\n".join(lines) + "\n").encode() if top.shape[0] else b"")
