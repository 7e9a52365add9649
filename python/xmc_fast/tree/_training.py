"""The levels of a tree, trained from the top down: here or on an engine's workers, in memory or in a folder.

A checkpoint folder holds ``fit.json`` (what it is bound to), per tree a folder with the clusters (``nodes``), the
first level (a `OneVsAll` checkpoint) and a file per block of parents of the others, and ``tree-<t>.safetensors`` of
each finished tree. With the manifest, written last, it is the model's folder.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.preprocessing import normalize

from xmc_fast import _core
from xmc_fast._files import remove_leftovers, write_text
from xmc_fast._folder import check_same_fit
from xmc_fast._progress import progress
from xmc_fast._threads import resolve_threads
from xmc_fast._validate import Csr, fingerprint, to_scipy
from xmc_fast._validate import seed as checked_seed
from xmc_fast._work import Arrays, Engine, Work
from xmc_fast.linear import OneVsAll
from xmc_fast.model._tensors import read_tensors, write_tensors
from xmc_fast.tree import _store
from xmc_fast.tree._hierarchy import Hierarchy, build, node_rows
from xmc_fast.tree._store import Level, Tree

_BLOCKS, _LEAST_NODES, _MOST_PARENTS = 256, 64, 64  # blocks of a level, about; nodes and parents of a block
_FIRST_BLOCK = 64  # nodes of a block of the first level
_CHECKPOINT = "fit.json"


class LevelBlocks(Work):
    """Blocks of consecutive parents of one level (csrc/tree/train.h)."""

    def __init__(self, parents: int, nodes: int, options: dict[str, Any], folder: Path | None) -> None:
        self.parents, self.options, self.folder = parents, options, folder
        self.size = min(max(parents // _BLOCKS, _LEAST_NODES * parents // max(nodes, 1), 1), _MOST_PARENTS)
        self.count = -(-parents // self.size)
        self.block_size = -(-nodes // max(self.count, 1))

    def range(self, block: int) -> tuple[int, int]:
        """The parents of a block."""
        return block * self.size, min((block + 1) * self.size, self.parents)

    def path(self, block: int) -> Path:
        """The file of a block."""
        return (self.folder or Path()) / f"block-{block:05d}.safetensors"

    def name(self, block: int) -> str:
        first, last = self.range(block)
        return f"block {block} (nodes {first} to {last - 1})"

    def has(self, block: int) -> bool:
        return self.folder is not None and self.path(block).is_file()

    def store(self, block: int, result: Level) -> None:
        write_tensors(self.path(block), result, {"kind": "label_tree_block"})

    def solve(
        self, arrays: Arrays, blocks: Sequence[int], threads: int, emit: Callable[[int, Any], None]
    ) -> None:
        problem: dict[str, Any] = {**arrays, **self.options}
        ranges = np.array([self.range(block) for block in blocks], np.int64).ravel()
        _core.tree_train(
            **problem, blocks=ranges, threads=threads, on_block=lambda k, level: emit(blocks[k], level)
        )


class TreeFit:
    """One fit of a `LabelTree`: the data and where its parts go."""

    def __init__(self, model: Any, x: Csr, y: Csr, checkpoint: Any, engine: Engine | None) -> None:
        self.model, self.x, self.engine = model, x, engine
        self.Y = to_scipy(y.indptr, y.indices, np.ones(len(y.indices), np.float32), y.shape)
        self.folder = None if checkpoint is None else Path(checkpoint)
        if self.folder is None:
            return
        data: Arrays = {"x_indptr": x.indptr, "x_indices": x.indices, "x_data": x.data}
        data |= {"y_indptr": y.indptr, "y_indices": y.indices}
        settings = _store.parameters(model) | {"simd": _core.simd_level(), "data": fingerprint(data)}
        del settings["beam"], settings["slack"]  # of prediction
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / _CHECKPOINT
        if not check_same_fit(path, settings):
            remove_leftovers(self.folder, _CHECKPOINT)
            if any(self.folder.iterdir()):
                raise ValueError(f"checkpoint {self.folder} is neither empty nor of an earlier fit")
            write_text(path, json.dumps(settings, indent=1) + "\n")

    def run(self) -> list[Tree]:
        """All trees."""
        trees = [self._tree(t) for t in range(self.model.n_trees)]
        if self.folder is not None:
            remove_leftovers(self.folder)
        return trees

    def _tree(self, t: int) -> Tree:
        seed = checked_seed(self.model.random_state) + t
        if self.folder is None:
            return self._train(seed, None)
        path, parts = _store.tree_path(self.folder, t), self.folder / f"tree-{t}"
        if not path.is_file():
            parts.mkdir(exist_ok=True)
            _store.write_tree(path, self._train(seed, parts))
        shutil.rmtree(parts, ignore_errors=True)
        return _store.read_tree(path, mmap=True, verify=False)

    def _train(self, seed: int, folder: Path | None) -> Tree:
        hierarchy = self._hierarchy(seed, folder)
        rows = node_rows(self.Y, hierarchy)
        done: list[Level] = []
        with progress(sum(r.shape[0] for r in rows), unit="node", desc="LabelTree") as bar:
            for i, (starts, level) in enumerate(zip(hierarchy.starts, rows, strict=True)):
                own = None if folder is None else folder / f"level-{i}"
                if i == 0:
                    trained = self._first_level(starts, level, seed, own)
                    bar.update(level.shape[0])
                else:
                    trained = self._level(
                        starts, self._with_matched(rows[i - 1], done), level, seed, own, bar
                    )
                done.append({**trained, "child_start": starts})
        return done, hierarchy.order

    def _hierarchy(self, seed: int, folder: Path | None) -> Hierarchy:
        model, path = self.model, None if folder is None else folder / "nodes.safetensors"
        if path is not None and path.is_file():
            tensors, _ = read_tensors(path, map_file=False, verify=True)
            return Hierarchy([tensors[f"start.{i}"] for i in range(len(tensors) - 1)], tensors["order"])
        X = to_scipy(*self.x)
        found = build(
            normalize(X) if model.normalize else X,
            self.Y,
            max_leaf=model.max_leaf,
            branching=model.branching,
            max_first=model.max_first,
            random_state=seed,
            n_jobs=model.n_jobs,
        )
        if path is not None:
            starts = {f"start.{i}": start for i, start in enumerate(found.starts)}
            write_tensors(path, {**starts, "order": found.order}, {"kind": "label_tree_nodes"})
        return found

    def _first_level(self, starts: Any, rows: sp.csr_matrix, seed: int, folder: Path | None) -> Level:
        """All nodes of the first level on all rows."""
        model = self.model
        flat = OneVsAll(
            C=model.C, tol=model.tol, bias=model.bias, normalize=model.normalize, prune=model.prune,
            max_iter=model.max_iter, n_jobs=model.n_jobs, random_state=seed, block_labels=_FIRST_BLOCK,
        )  # fmt: skip
        flat.fit(to_scipy(*self.x), rows.T.tocsr(), checkpoint=folder, engine=self.engine)
        W = flat.model_.to_csr()
        biases = np.zeros(W.shape[0], np.float32)
        if model.bias is not None:
            biases = W[:, -1].toarray().ravel().astype(np.float32) * np.float32(model.bias)
            W = W[:, :-1].tocsr()
        W.sort_indices()
        indptr, indices = W.indptr.astype(np.int64), W.indices.astype(np.int32)
        return _core.tree_chunks(self.x.shape[1], indptr, indices, W.data, biases, starts)

    def _level(
        self,
        starts: Any,
        parents: sp.csr_matrix,
        rows: sp.csr_matrix,
        seed: int,
        folder: Path | None,
        bar: Any,
    ) -> Level:
        model, x = self.model, self.x
        arrays = {
            "x_indptr": x.indptr,
            "x_indices": x.indices,
            "x_data": x.data,
            "rows_indptr": parents.indptr.astype(np.int64),
            "rows_indices": parents.indices.astype(np.int32),
            "y_indptr": rows.indptr.astype(np.int64),
            "y_indices": rows.indices.astype(np.int32),
            "child_start": starts,
        }
        options = {
            "cols": x.shape[1],
            "normalize": bool(model.normalize),
            "bias": model.bias,
            "C": float(model.C),
            "tol": float(model.tol),
            "prune": float(model.prune),
            "max_iter": int(model.max_iter),
            "seed": seed,
        }
        if folder is not None:
            folder.mkdir(exist_ok=True)
        work = LevelBlocks(len(starts) - 1, rows.shape[0], options, folder)
        found: dict[int, Level] = {}
        todo = [block for block in range(work.count) if not work.has(block)]

        def nodes(block: int) -> int:
            first, last = work.range(block)
            return int(starts[last] - starts[first])

        def on_block(block: int, level: Level) -> None:
            if folder is None:
                found[block] = level
            elif self.engine is None:
                work.store(block, level)
            bar.update(nodes(block))

        bar.update(rows.shape[0] - sum(map(nodes, todo)))
        if self.engine is None:
            work.solve(arrays, todo, resolve_threads(model.n_jobs), on_block)
        else:
            sizes = np.diff(parents.indptr)
            cost = [nodes(b) * float(sizes[slice(*work.range(b))].mean() + 1) for b in todo]
            self.engine.run(work, arrays, todo, cost, n_jobs=model.n_jobs, on_block=on_block)
        if folder is not None:
            found = {b: read_tensors(work.path(b), map_file=True, verify=False)[0] for b in range(work.count)}
        return _store.join([found.pop(b) for b in range(work.count)])

    def _with_matched(self, rows: sp.csr_matrix, above: list[Level]) -> sp.csr_matrix:
        """The rows of each node, and those for which the levels above propose it."""
        model, x = self.model, self.x
        if not model.matched:
            return rows
        m = min(int(model.matched), rows.shape[0])
        threads = resolve_threads(model.n_jobs)
        ids, _ = _core.tree_predict(
            x.shape[1], *x[:3], above, model.normalize, m, m, model.power, model.decay, np.inf, threads
        )
        ends = np.concatenate([[0], np.cumsum((ids >= 0).sum(1))])
        chosen = ids[ids >= 0]
        proposed = sp.csr_matrix((np.ones(len(chosen), np.float32), chosen, ends), rows.shape[::-1])
        both = (rows + proposed.T).tocsr()
        both.sort_indices()
        return both
