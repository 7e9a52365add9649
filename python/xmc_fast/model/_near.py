"""Nearly exact prediction: an index beside the layout, and what share of the exact labels its settings find."""

from __future__ import annotations

import functools
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xmc_fast import _core
from xmc_fast._folder import ModelFormatError
from xmc_fast._threads import resolve_threads
from xmc_fast._validate import Csr, at_least, features
from xmc_fast.model._form import Form
from xmc_fast.model._predict import NONE
from xmc_fast.model._storage import remembered
from xmc_fast.model._tensors import Tensors

FORM = Form("xmc_fast.near", 1, ("n_labels", "n_features", "k", "order"))
DENSITY = 1 / 32  # share of the labels with a positive weight from which on a feature has bytes
BUDGET = 2  # bytes of these features for each weight of the model, at most
CANDIDATES = (2, 4, 16)  # times k
QUANTILES = (0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 1.0)  # of the margins that the held-out labels need
Top = tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]


@dataclass(frozen=True)
class NearIndex:
    """An index (csrc/predict/near.h). Rows of ``settings`` are recall, us per row, candidates, margin."""

    n_labels: int
    n_features: int
    k: int
    order: int  # of the layout's labels, as a checksum
    settings: npt.NDArray[np.float64]
    arrays: Tensors
    path: Path | None = None
    known: bool = False  # this process has checked the file before

    @functools.cached_property
    def opened(self) -> _core.NearIndex:
        """The index, its arrays checked."""
        try:
            mapped = self.path is not None  # read then: a row's bytes are far apart, and huge pages help
            return _core.NearIndex.open(
                self.n_labels, self.n_features, self.arrays, self.known, mapped, resolve_threads(None)
            )
        except (TypeError, ValueError) as error:
            where = "" if self.path is None else f"{self.path}: "
            raise ModelFormatError(f"{where}the index is damaged: {error}") from None

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name != "opened"}
        return state | {"known": False}

    def __repr__(self) -> str:
        rows = [f"recall {r:.4f}: {us:.1f} us per row" for r, us in self.settings[:, :2]]
        return f"NearIndex(k={self.k}; {'; '.join(rows)})"

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return int(sum(array.nbytes for array in self.arrays.values()))

    def setting(self, recall: float) -> tuple[int, float]:
        """Candidates and margin of the fastest setting with at least this measured recall."""
        enough = self.settings[self.settings[:, 0] >= recall]
        if not len(enough):
            best = self.settings[:, 0].max(initial=0)
            raise ValueError(f"recall must be 1 or at most {best:.4f}, the best measured, got {recall}")
        _, _, candidates, margin = enough[np.argmin(enough[:, 1])]
        return int(candidates), float(margin)


def build_near(model: Any, X: Any, k: int, n_jobs: int | None) -> NearIndex:
    """The index of an exact model, its settings measured on the rows of X."""
    at_least(1, k=k)
    if model.compressed or model.dtype != np.float32:
        form = "compressed" if model.compressed else str(model.dtype)
        raise ValueError(f"a near index needs a model of float32 weights, got a {form} one")
    x = features(X, n_features=model.n_features)
    if x.shape[0] == 0:
        raise ValueError("X must have at least one row to measure recall on, got none")
    threads = resolve_threads(n_jobs)
    k = min(int(k), model.n_labels)
    layout = model._prepared(threads)
    arrays = layout.near(model.bias, DENSITY, BUDGET * max(model.nnz, 1 << 20), threads)
    empty = np.empty((0, 4))
    index = NearIndex(model.n_labels, model.n_features, k, order_of(layout), empty, arrays)
    exact = layout.topk(x, model.normalize, model.bias, NONE, NONE, k, threads)
    return NearIndex(
        index.n_labels, index.n_features, k, index.order, _measure(index, model, x, exact, threads), arrays
    )


def _measure(index: NearIndex, model: Any, x: Csr, exact: Top, threads: int) -> npt.NDArray[np.float64]:
    """The settings that no other one beats in recall and time, by falling recall."""
    k, rows = index.k, x.shape[0]
    labels, scores = exact[0].reshape(rows, k), exact[1].reshape(rows, k)

    def run(candidates: int, margin: float) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        found, _, rough = index.opened.topk(
            model._prepared(threads), x, model.normalize, model.bias, k, candidates, margin, threads
        )
        return found.reshape(rows, k), rough.reshape(rows, k)

    found, rough = run(max(CANDIDATES) * k, np.inf)
    needed = (scores[:, -1:] - rough)[np.isin(_pairs(found), _pairs(labels)).reshape(rows, k)]
    margins = np.unique(np.quantile(needed, QUANTILES).astype(np.float32)) if needed.size else [np.float32(0)]
    table = []
    for candidates in CANDIDATES:
        for margin in margins:
            start = time.process_time()
            found, _ = run(candidates * k, float(margin))
            seconds = time.process_time() - start
            hits = [
                np.isin(_pairs(found[:, :j]), _pairs(labels[:, :j])).mean() for j in range(1, k + 1)
            ]  # the share must hold for every smaller k
            table.append((float(min(hits)), 1e6 * seconds / rows, candidates * k, float(margin)))
    best: list[tuple[float, float, int, float]] = []
    for row in sorted(table, key=lambda row: (row[1], -row[0])):
        if not best or row[0] > best[-1][0]:
            best.append(row)
    return np.array(best[::-1], np.float64)


def _pairs(labels: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """One number for each row and label."""
    rows = np.arange(len(labels), dtype=np.int64)[:, None]
    return np.asarray((rows << 32 | labels).ravel(), np.int64)


def order_of(layout: _core.PredictLayout) -> int:
    """A checksum of the order of a layout's labels: an index belongs to one."""
    return zlib.crc32(np.ascontiguousarray(layout.arrays()["label"]).view(np.uint8).data)


def check_recall(recall: float, proba: bool, engine: Any) -> None:
    """An error for a recall that there is none of."""
    if not 0 < recall <= 1:
        raise ValueError(f"recall must be above 0 and at most 1, got {recall}")
    if recall < 1 and (proba or engine is not None):
        what = "probabilities" if proba else "an engine"
        raise ValueError(f"recall must be 1 with {what}, got {recall}")


def near_topk(model: Any, x: Csr, k: int, recall: float, threads: int) -> Top:
    """The labels and scores of each row that the model's index finds, flat."""
    index = model.near_index
    if index is None:
        raise ValueError(
            f"recall must be 1 for a model without a near index, got {recall}: call build_near_index(X, k)"
        )
    at_least(0, k=k)
    if min(k, model.n_labels) > index.k:
        raise ValueError(f"k must be at most {index.k}, for which recall was measured, got {k}")
    candidates, margin = index.setting(recall)
    options = (model.normalize, model.bias, index.k, candidates, margin, threads)
    ids, scores, _ = index.opened.topk(model._prepared(threads), x, *options)
    shape = x.shape[0], index.k
    return ids.reshape(shape)[:, :k].ravel(), scores.reshape(shape)[:, :k].ravel()


class NearMixin:
    """`SparseModel.build_near_index`."""

    near_index: NearIndex | None

    def build_near_index(self, X: Any, k: int = 5, *, n_jobs: int | None = None) -> Any:
        """Build the index of ``predict(..., recall=0.99)`` and measure what it finds; returns the model.

        For models of very many labels: candidates come from rounded weights, all of frequent features and the positive
        ones of the others, and get exact scores (csrc/predict/near.h). It is saved with the model.

        Parameters
        ----------
        X : scipy sparse matrix or array, n x n_features
            Rows the model was not trained on, some thousands: the recall of several settings is measured on them.
        k : int
            Recall is measured of so many labels a row, and of all fewer, the smallest counts; `predict` with a
            ``recall`` gives at most so many.
        n_jobs : int, optional
            Threads.

        Examples
        --------
        >>> import numpy as np, scipy.sparse as sp
        >>> from xmc_fast import SparseModel
        >>> model = SparseModel(sp.random(1000, 50, 0.1, "csr", np.float32, random_state=0))
        >>> X = sp.random(200, 50, 0.1, "csr", np.float32, random_state=1)
        >>> top = model.build_near_index(X, k=3).predict(X, k=3, recall=0.9)
        >>> top.shape, top.nnz
        ((200, 1000), 600)
        """
        self.near_index = build_near(self, X, k, n_jobs)
        return self


def write_near(path: Path, index: NearIndex) -> None:
    """Write the arrays and the settings as one file, atomically."""
    tensors: Tensors = {**index.arrays, "settings": index.settings.ravel()}
    FORM.write(path, tensors, index.n_labels, index.n_features, index.k, index.order)


def read_near(path: Path, model: Any, *, mmap: bool, verify: bool) -> NearIndex:
    """What `write_near` wrote, checked, for the model it was saved with."""
    with remembered(path) as known:
        (labels, columns, k, order), tensors, _ = FORM.read(path, map_file=mmap, verify=verify)
        settings = tensors.pop("settings", None)
        if settings is None or settings.dtype != np.float64 or settings.ndim != 1 or settings.size % 4:
            raise ModelFormatError(f"{path}: damaged, settings is missing or bad")
        table = settings.reshape(-1, 4)
        counts = table[:, 2]
        if np.isnan(table).any() or not ((counts >= 1) & (counts < 1 << 31)).all() or not 1 <= k < 1 << 31:
            raise ModelFormatError(f"{path}: damaged, settings or k is out of range")
        expected = (model.n_labels, model.n_features)
        if (labels, columns) != expected or order != order_of(model._prepared(None)):
            raise ModelFormatError(f"{path}: damaged, it is the index of another model")
        index = NearIndex(labels, columns, k, order, table, tensors, path, known)
        index.opened  # noqa: B018  checks it
    return index
