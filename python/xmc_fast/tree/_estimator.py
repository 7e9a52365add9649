"""The estimator: trees of linear classifiers, trained level by level, searched with a beam."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.preprocessing import normalize
from sklearn.utils.validation import check_is_fitted

from xmc_fast import _core
from xmc_fast._arrays import Csr, features, labels, to_scipy
from xmc_fast._folder import ModelFormatError, read_manifest, replace_folder, write_manifest
from xmc_fast._progress import progress
from xmc_fast._threads import resolve_threads
from xmc_fast.linear import OneVsAll
from xmc_fast.model import OneRow, merge_topk
from xmc_fast.model._tensors import read_tensors, write_tensors
from xmc_fast.tree._hierarchy import NodeLevel, build_levels

Level = dict[str, npt.NDArray[Any]]
_KIND = "label_tree"
_PARAMETERS = (
    *("C", "max_leaf", "branching", "max_first", "beam", "n_trees", "power", "matched", "tol", "bias"),
    *("normalize", "prune", "max_iter", "random_state"),
)


class LabelTree(OneRow, BaseEstimator):  # type: ignore[misc]
    """A shallow tree of one-vs-all classifiers: training and prediction grow with the logarithm of the labels.

    Labels are clustered by their mean inputs (`xmc_fast.cluster.label_tree`), clusters again, until few are left.
    Each node's children are told apart by squared-hinge classifiers trained on the node's own rows only. A query
    follows the ``beam`` best nodes of each level; a label's score is the product of p(s) along its path, with
    p(s) = exp(-max(0, 1 - s)^power). This is the family of Parabel, Bonsai, XR-Linear and PLT: ``max_leaf`` and
    ``branching`` set the arity and so the depth, ``n_trees`` averages trees of other clusterings.

    Weights are stored in one byte each (scale per node), features in buckets by node: small on disk, and what lies
    on disk is what predicts.

    Parameters
    ----------
    C : float
        Weight of the loss against 1/2 |w|², as in `xmc_fast.OneVsAll`.
    max_leaf : int
        Labels of a leaf, at most 256.
    branching : int
        Children of an inner node, at most 256.
    max_first : int
        Nodes of the first level, which every query looks at.
    beam : int
        Nodes of a level that a query follows.
    n_trees : int
        Trees; probabilities are averaged.
    power : 1, 2 or 3
        Of the penalty in p(s).
    matched : int
        Rows for which the levels above propose a node among their so many best are further negatives below it; 0
        takes the node's own rows only.
    tol, max_iter : float, int
        Stopping rule of the solver.
    bias : float or None
        Value of a constant feature.
    normalize : bool
        Scale rows to length 1 first, in fit and in predict.
    prune : float
        Weights of smaller absolute value are dropped.
    n_jobs : int, optional
        Threads. The model has the same bits for any number.
    random_state : int
        Seed of the clusterings and of the solver.

    Attributes
    ----------
    trees_ : list of (levels, order)
        Arrays of each level (csrc/tree/level.h), and the label of each node of the last one.
    n_labels_, n_features_in_ : int

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    >>> Y = np.array([[1, 0], [1, 0], [0, 1], [0, 1]])
    >>> LabelTree(max_leaf=2).fit(X, Y).predict([[0.8, 0.1]], k=1).indices
    array([0], dtype=int32)
    """

    def __init__(
        self,
        C: float = 1.0,
        *,
        max_leaf: int = 100,
        branching: int = 64,
        max_first: int = 1000,
        beam: int = 10,
        n_trees: int = 1,
        power: int = 3,
        matched: int = 0,
        tol: float = 0.01,
        bias: float | None = 1.0,
        normalize: bool = True,
        prune: float = 0.1,
        max_iter: int = 1000,
        n_jobs: int | None = None,
        random_state: int = 0,
    ) -> None:
        self.C = C
        self.max_leaf = max_leaf
        self.branching = branching
        self.max_first = max_first
        self.beam = beam
        self.n_trees = n_trees
        self.power = power
        self.matched = matched
        self.tol = tol
        self.bias = bias
        self.normalize = normalize
        self.prune = prune
        self.max_iter = max_iter
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(self, X: Any, Y: Any) -> LabelTree:
        """Train.

        Parameters
        ----------
        X : (n, D) sparse or dense
        Y : (n, L) binary, sparse or dense, any dtype
        """
        self._check_parameters()
        x = features(X)
        y = labels(Y, n_rows=x.shape[0])
        self.n_features_in_, self.n_labels_ = x.shape[1], y.shape[1]
        truth = to_scipy(y.indptr, y.indices, np.ones(len(y.indices), np.float32), y.shape)
        self.trees_ = []
        for t in range(self.n_trees):
            seed = int(self.random_state) + t
            levels, order = build_levels(
                normalize(to_scipy(*x)) if self.normalize else to_scipy(*x),
                truth,
                max_leaf=self.max_leaf,
                branching=self.branching,
                max_first=self.max_first,
                random_state=seed,
                n_jobs=self.n_jobs,
            )
            self.trees_.append((self._train(x, levels, seed), order))
        return self

    def predict(
        self, X: Any, k: int = 5, *, proba: bool = False, beam: int | None = None, n_jobs: int | None = None
    ) -> sp.csr_matrix:
        """The ``k`` best labels of each row that the beam search finds.

        Parameters
        ----------
        X : (n, D) sparse or dense
        k : int
            Labels per row. Rows have fewer where the beam reaches fewer.
        proba : bool
            Nothing changes: scores are products of p(s), from 0 to 1.
        beam : int, optional
            Instead of the estimator's.
        n_jobs : int, optional

        Returns
        -------
        scipy CSR (n, L) of scores, best first.
        """
        check_is_fitted(self, "trees_")
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        x = features(X, n_features=self.n_features_in_)
        threads = resolve_threads(self.n_jobs if n_jobs is None else n_jobs)
        width = self.beam if beam is None else int(beam)
        if width < 1:
            raise ValueError(f"beam must be at least 1, got {width}")
        k = min(int(k), self.n_labels_)
        listed = k if len(self.trees_) == 1 else min(max(4 * k, 20), self.n_labels_)
        found = [self._search(x, levels, order, listed, width, threads) for levels, order in self.trees_]
        if len(found) == 1:
            return found[0]
        merged = merge_topk(found, k, n_jobs=threads)
        merged.data /= len(found)
        return merged

    @property
    def nbytes(self) -> int:
        """Bytes of the model in memory (mapped or not)."""
        check_is_fitted(self, "trees_")
        return sum(
            order.nbytes + sum(array.nbytes for level in levels for array in level.values())
            for levels, order in self.trees_
        )

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write the model as a folder; an older model there is replaced."""
        check_is_fitted(self, "trees_")
        with replace_folder(directory) as folder:
            for t, (levels, order) in enumerate(self.trees_):
                tensors = {
                    f"{i}.{name}": array for i, level in enumerate(levels) for name, array in level.items()
                }
                write_tensors(folder / f"tree-{t}.safetensors", {"order": order, **tensors}, {"kind": _KIND})
            write_manifest(
                folder,
                _KIND,
                {
                    "params": {name: getattr(self, name) for name in _PARAMETERS},
                    "n_labels": self.n_labels_,
                    "n_features": self.n_features_in_,
                },
            )

    @classmethod
    def load(cls, directory: str | os.PathLike[str], *, mmap: bool = True, verify: bool = False) -> LabelTree:
        """Open what `save` wrote. ``mmap`` maps the weights; ``verify`` reads and checks every byte."""
        manifest = read_manifest(directory, _KIND, required=("params", "n_labels", "n_features"))
        model = cls(**manifest["params"])
        model.n_labels_, model.n_features_in_ = int(manifest["n_labels"]), int(manifest["n_features"])
        model.trees_ = []
        for t in range(model.n_trees):
            path = Path(directory) / f"tree-{t}.safetensors"
            tensors, _ = read_tensors(path, map_file=mmap, verify=verify)
            depth = 1 + max(int(name.split(".")[0]) for name in tensors if name != "order")
            levels = [
                {name.split(".")[1]: array for name, array in tensors.items() if name.startswith(f"{i}.")}
                for i in range(depth)
            ]
            order = tensors["order"]
            try:
                nodes = _core.tree_check(levels, model.n_features_in_)
            except (ValueError, KeyError, TypeError) as error:
                raise ModelFormatError(f"{path}: {error}") from None
            if nodes != len(order) or (nodes and not 0 <= order.min() <= order.max() < model.n_labels_):
                raise ModelFormatError(f"{path}: damaged label tree: order")
            model.trees_.append((levels, order))
        return model

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        tags.target_tags.two_d_labels = True
        return tags

    def _train(self, x: Csr, levels: list[NodeLevel], seed: int) -> list[Level]:
        done: list[Level] = []
        with progress(sum(level.rows.shape[0] for level in levels), unit="node", desc="LabelTree") as bar:
            for parents, level in zip([None, *levels], levels, strict=False):
                trained = (
                    self._first_level(x, level, seed)
                    if parents is None
                    else self._level(x, self._with_matched(x, parents.rows, done), level, seed)
                )
                done.append({**trained, "child_start": level.child_start})
                bar.update(level.rows.shape[0])
        return done

    def _first_level(self, x: Csr, level: NodeLevel, seed: int) -> Level:
        """All nodes of the first level on all rows."""
        flat = OneVsAll(
            C=self.C, tol=self.tol, bias=self.bias, normalize=self.normalize, prune=self.prune, max_iter=self.max_iter,
            n_jobs=self.n_jobs, random_state=seed,
        )  # fmt: skip
        W = flat.fit(to_scipy(*x), level.rows.T.tocsr()).model_.to_csr()
        biases = np.zeros(W.shape[0], np.float32)
        if self.bias is not None:
            biases = W[:, -1].toarray().ravel().astype(np.float32) * np.float32(self.bias)
            W = W[:, :-1].tocsr()
        W.sort_indices()
        return _core.tree_chunks(
            x.shape[1],
            W.indptr.astype(np.int64),
            W.indices.astype(np.int32),
            W.data,
            biases,
            level.child_start,
        )

    def _level(self, x: Csr, parents: sp.csr_matrix, level: NodeLevel, seed: int) -> Level:
        return _core.tree_train(
            x.shape[1],
            *x[:3],
            parents.indptr.astype(np.int64),
            parents.indices.astype(np.int32),
            level.rows.indptr.astype(np.int64),
            level.rows.indices.astype(np.int32),
            level.child_start,
            bool(self.normalize),
            self.bias,
            float(self.C),
            float(self.tol),
            float(self.prune),
            int(self.max_iter),
            seed,
            resolve_threads(self.n_jobs),
        )

    def _with_matched(self, x: Csr, rows: sp.csr_matrix, above: list[Level]) -> sp.csr_matrix:
        """The rows of each node, and those for which the levels above propose it."""
        if not self.matched:
            return rows
        m = min(int(self.matched), rows.shape[0])
        ids, _ = _core.tree_predict(
            x.shape[1], *x[:3], above, self.normalize, m, m, self.power, resolve_threads(self.n_jobs)
        )
        ends = np.arange(0, ids.size + 1, m)
        proposed = sp.csr_matrix((np.ones(ids.size, np.float32), ids.ravel(), ends), rows.shape[::-1])
        both = (rows + proposed.T).tocsr()
        both.sort_indices()
        return both

    def _search(
        self, x: Csr, levels: list[Level], order: npt.NDArray[np.int32], k: int, beam: int, threads: int
    ) -> sp.csr_matrix:
        ids, scores = _core.tree_predict(
            x.shape[1], *x[:3], levels, self.normalize, beam, k, self.power, threads
        )
        found = ids >= 0
        indptr = np.concatenate([[0], np.cumsum(found.sum(1), dtype=np.int64)])
        return to_scipy(indptr, order[ids[found]], np.exp(scores[found]), (x.shape[0], self.n_labels_))

    def _check_parameters(self) -> None:
        def check(name: str, good: bool, expected: str) -> None:
            if not good:
                raise ValueError(f"{name} must be {expected}, got {getattr(self, name)!r}")

        for name in ("C", "tol"):
            check(name, np.isfinite(getattr(self, name)) and getattr(self, name) > 0, "a positive number")
        check("prune", self.prune >= 0, "at least 0")
        check("bias", self.bias is None or bool(np.isfinite(self.bias)), "a finite number or None")
        check("power", self.power in (1, 2, 3), "1, 2 or 3")
        check("matched", self.matched >= 0, "at least 0")
        for name in ("max_leaf", "branching"):
            check(name, 2 <= getattr(self, name) <= 256, "from 2 to 256")
        for name in ("max_first", "beam", "n_trees", "max_iter"):
            check(name, getattr(self, name) >= 1, "at least 1")
