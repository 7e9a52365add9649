"""The arrays of a tree, and its folder.

``manifest.json``              kind, parameters, sizes
``tree-<t>.safetensors``       the arrays of each level (csrc/tree/level.h) and the label of each node of the last one
``calibration.safetensors``    if the model has probabilities
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xmc_fast import _core
from xmc_fast._folder import ModelFormatError, file_in, opening, read_manifest, replace_folder, write_manifest
from xmc_fast.model._calibrate import read_calibration, write_calibration
from xmc_fast.model._tensors import read_tensors, write_tensors

Level = dict[str, npt.NDArray[Any]]
Tree = tuple[list[Level], npt.NDArray[np.int32]]

_KIND = "label_tree"
_CALIBRATION = "calibration.safetensors"
_PARAMETERS = (
    *("C", "max_leaf", "branching", "max_first", "beam", "slack", "n_trees", "power", "decay", "matched"),
    *("tol", "bias", "normalize", "prune", "max_iter", "random_state"),
)


def parameters(model: Any) -> dict[str, Any]:
    """What decides a model, as JSON."""
    values = {name: getattr(model, name) for name in _PARAMETERS}
    return {name: v.item() if isinstance(v, np.generic) else v for name, v in values.items()}


def join(parts: list[Level]) -> Level:
    """The arrays of consecutive blocks of parents as one level. They are taken out of the blocks, so that each is held
    twice only while it is joined."""
    out: Level = {}
    for name in list(parts[0]):
        arrays = [part.pop(name) for part in parts]
        if name.endswith("_start"):
            ends = np.cumsum([0, *(int(array[-1]) for array in arrays)])
            arrays = [np.zeros(1, np.int64), *(a[1:] + end for a, end in zip(arrays, ends, strict=False))]
        out[name] = np.concatenate(arrays)
    return out


def tree_path(folder: Path, t: int) -> Path:
    """The file of a tree."""
    return folder / f"tree-{t}.safetensors"


def write_tree(path: Path, tree: Tree) -> None:
    """Write one tree."""
    levels, order = tree
    tensors = {f"{i}.{name}": array for i, level in enumerate(levels) for name, array in level.items()}
    write_tensors(path, {"order": order, **tensors}, {"kind": _KIND})


def read_tree(path: Path, *, mmap: bool, verify: bool) -> Tree:
    """Read one tree; its arrays are not checked."""
    tensors, _ = read_tensors(path, map_file=mmap, verify=verify)
    numbered = [name for name in tensors if name != "order"]
    depth = 1 + max((int(name.split(".")[0]) for name in numbered), default=-1)
    if depth > len(numbered):
        raise ModelFormatError(f"{path}: damaged label tree: {depth} levels in {len(numbered)} arrays")
    levels = [{n.split(".")[1]: tensors[n] for n in numbered if n.startswith(f"{i}.")} for i in range(depth)]
    return levels, tensors["order"]


def finish(folder: Path, model: Any) -> None:
    """What makes a folder of trees a model: calibration, then the manifest."""
    if model.calibration is not None:
        write_calibration(folder / _CALIBRATION, model.calibration)
    facts = {"n_labels": model.n_labels_, "n_features": model.n_features_in_}
    write_manifest(
        folder,
        _KIND,
        {"params": parameters(model), **facts, "calibrated": model.calibration is not None},
    )


def save(model: Any, directory: str | os.PathLike[str]) -> None:
    """Write a folder; an older model there is replaced."""
    with replace_folder(directory) as folder:
        for t, tree in enumerate(model.trees_):
            write_tree(tree_path(folder, t), tree)
        finish(folder, model)


@opening
def load(cls: Any, directory: str | os.PathLike[str], *, mmap: bool, verify: bool) -> Any:
    """Open a folder, checked so that no damaged array can be followed out of its bounds."""
    manifest = read_manifest(directory, _KIND, required=("params", "n_labels", "n_features"))
    model = cls(**manifest["params"])
    model._check_parameters()
    model.n_labels_, model.n_features_in_ = int(manifest["n_labels"]), int(manifest["n_features"])
    model.trees_ = []
    for t in range(model.n_trees):
        path = file_in(Path(directory), tree_path(Path(), t).name)
        levels, order = read_tree(path, mmap=mmap, verify=verify)
        try:
            nodes = _core.tree_check(levels, model.n_features_in_)
        except (ValueError, KeyError, TypeError) as error:
            raise ModelFormatError(f"{path}: {error}") from None
        right = order.dtype == np.int32 and order.shape == (nodes,)
        if not right or (nodes and not 0 <= order.min() <= order.max() < model.n_labels_):
            raise ModelFormatError(f"{path}: damaged label tree: order")
        model.trees_.append((levels, order))
    model.calibration = None
    if manifest.get("calibrated"):
        model.calibration = read_calibration(file_in(Path(directory), _CALIBRATION))
        if len(model.calibration.scale) != model.n_labels_:
            raise ModelFormatError(f"{Path(directory) / _CALIBRATION}: damaged, not {model.n_labels_} labels")
    return model
