"""Model folders: replaced as a whole, told apart by ``manifest.json``, opened by `load` whatever their kind.

Every manifest is a JSON object with ``kind`` (a key of `KINDS`), ``format_version`` and what the class needs.
Folders of earlier versions have ``format`` instead of ``kind``, some a file of another name.

A folder may come from anybody: what a manifest says is checked before it is used (`read_manifest`, `count`,
`file_in`), and whatever is wrong ends as a `ModelFormatError` that names the folder (`opening`).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

from xmc_fast._files import naming, put_in_place, temporary_folder, write_text

MANIFEST = "manifest.json"
MOST = 2**31 - 1  # labels, features, and whatever else is counted
MOST_LABELS = 2**28  # where no file grows with them, but the memory of a prediction does
_TRIES = 100  # of opening a folder that others replace
_P = ParamSpec("_P")
_T = TypeVar("_T")

# What `load` opens each kind of folder with; the module is imported on first use.
KINDS = {
    "sparse_model": "xmc_fast.model:SparseModel",
    "text_classifier": "xmc_fast.texts:TextClassifier",
    "text_model": "xmc_fast.texts:TextClassifier",  # of earlier versions
    "label_tree": "xmc_fast.tree:LabelTree",
    "mach": "xmc_fast.mach:Mach",
    "neighbours": "xmc_fast.neighbours:Neighbours",
    "lexical": "xmc_fast.lexical:Lexical",
    "ensemble": "xmc_fast.ensemble:Ensemble",
    "linear_declare": "xmc_fast.declare:LinearDeclare",
    "declare": "xmc_fast.nn:Declare",
    "sparse_classifier": "xmc_fast.nn:SparseClassifier",
    "extreme_classifier": "xmc_fast.nn:SparseClassifier",  # of earlier versions
    "lightxml": "xmc_fast.nn:LightXML",
    "lightxml_ensemble": "xmc_fast.nn:LightXMLEnsemble",
}
# Manifests of earlier versions: other file names, and values of "format" that are no kind.
_EARLIER_FILES = ("mach.json", "declare.json")
_EARLIER_FORMATS = {"1": "mach", "declare-linear-1": "linear_declare"}


class ModelFormatError(ValueError):
    """A model file is missing, damaged, truncated or of another format version."""


class Model(Protocol):
    """What every model of this package can do."""

    def predict(self, X: Any, k: int = 5) -> Any:
        """The k best labels of each row as scipy CSR of scores, best first."""

    def predict_one(self, x: Any, k: int = 5) -> Any:
        """The k best labels of one row, and their scores."""

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write a folder that `load` opens."""

    @property
    def nbytes(self) -> int:
        """Bytes of the model in memory."""


def load(directory: str | os.PathLike[str], **options: Any) -> Model:
    """Open a model folder, whatever its kind.

    Parameters
    ----------
    directory : path
        What the ``save`` of any model of this package made, or a finished checkpoint.
    **options
        Those of the class's own ``load`` (``mmap``, ``verify``, ``device``).

    Returns
    -------
    An object of the class that was saved; for `OneVsAll` its `SparseModel`.

    Examples
    --------
    >>> import numpy as np, scipy.sparse as sp, xmc_fast
    >>> xmc_fast.SparseModel(sp.eye(3).tocsr()).save("model")
    >>> xmc_fast.load("model").predict(np.eye(3), k=1).indices
    array([0, 1, 2], dtype=int32)
    """
    kind = kind_of(read_any_manifest(directory)[1])
    if kind not in KINDS:
        raise ModelFormatError(
            f"{Path(directory) / MANIFEST}: {kind!r} is no kind of model this package knows"
        )
    module, name = KINDS[kind].split(":")
    return getattr(importlib.import_module(module), name).load(directory, **options)  # type: ignore[no-any-return]


def opening(load: Callable[_P, _T]) -> Callable[_P, _T]:
    """For the ``load(cls, directory, ...)`` of a class: whatever a bad folder leads to is a `ModelFormatError`.

    Arguments that the function does not have, missing memory and errors of the system stay what they are. A folder
    that is replaced while it is read is read again: no model is made of files of two.
    """
    signature = inspect.signature(load)

    @functools.wraps(load)
    def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        directory = signature.bind(*args, **kwargs).arguments.get("directory")
        for _ in range(_TRIES):
            before = _identity(directory)
            try:
                model = load(*args, **kwargs)
            except (MemoryError, ImportError):
                raise
            except Exception as error:
                if before != _identity(directory):
                    continue
                if isinstance(error, OSError):
                    raise
                if not isinstance(error, ModelFormatError):
                    raise ModelFormatError(
                        f"{directory}: damaged ({type(error).__name__}: {error})"
                    ) from error
                if str(directory) in str(error):
                    raise
                raise ModelFormatError(f"{directory}: {error}") from error
            if before == _identity(directory):
                return model
        raise ModelFormatError(f"{directory}: replaced {_TRIES} times while it was opened")

    return wrapped


def _identity(directory: Any) -> tuple[int, ...] | None:
    """What differs between a folder and the one that replaces it."""
    try:
        status = os.stat(directory)
    except (OSError, TypeError, ValueError):
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


def count(value: Any, name: str, low: int = 0, high: int = MOST) -> int:
    """A number of a manifest that sizes something: an int in its range.

    >>> count(3, "n_labels")
    3
    >>> count(True, "n_labels")
    Traceback (most recent call last):
    xmc_fast._folder.ModelFormatError: damaged, n_labels must be an integer in 0..2147483647, got True
    """
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ModelFormatError(f"damaged, {name} must be an integer in {low}..{high}, got {value!r}")
    return value


def part_of(folder: Path, name: Any) -> Path:
    """A file or folder inside of a model's folder: no absolute path, no "..", no link that leads out of it."""
    if not isinstance(name, str) or not name or "\0" in name:
        raise ModelFormatError(f"{folder}: damaged, {name!r} is no name of a file")
    if os.path.isabs(name) or ".." in Path(name).parts:
        raise ModelFormatError(f"{folder}: damaged, {name!r} leads out of the folder")
    path = folder / name
    inside = os.path.join(os.path.realpath(folder), "")
    if not os.path.realpath(path).startswith(inside):
        raise ModelFormatError(f"{path}: a link that leads out of the folder")
    return path


def file_in(folder: Path, name: Any) -> Path:
    """`part_of` a folder that is a regular file (or missing: whoever opens it says so)."""
    path = part_of(folder, name)
    if path.exists() and not path.is_file():
        raise ModelFormatError(f"{path}: not a regular file")
    return path


def kind_of(manifest: dict[str, Any]) -> str:
    """The kind a manifest names, also that of an earlier version."""
    kind = str(manifest.get("kind") or manifest.get("format")).removeprefix("xmc_fast.")
    files = manifest.get("files")
    if kind == "sparse_model" and isinstance(files, dict) and "vectorizer" in files:
        return "text_model"
    return _EARLIER_FORMATS.get(kind, kind.removesuffix("-1"))


def write_manifest(folder: Path, kind: str, content: dict[str, Any], *, version: int = 1) -> Path:
    """Write the manifest of a model; without one a folder is no model, so write it last."""
    text = {"kind": kind, "format_version": version, **content}
    write_text(folder / MANIFEST, json.dumps(text, indent=1, allow_nan=False) + "\n")
    return folder / MANIFEST


def read_manifest(
    directory: str | os.PathLike[str], *kinds: str, version: int = 1, required: Iterable[str] = ()
) -> dict[str, Any]:
    """The manifest of a folder of one of these kinds, with the ``required`` keys."""
    path, manifest = read_any_manifest(directory)
    kind = kind_of(manifest)
    if kind not in kinds:
        raise ModelFormatError(f"{path}: {' or '.join(kinds)} expected, got {kind}")
    for name in ("n_labels", "n_features"):
        if manifest.get(name) is not None:
            try:
                count(manifest[name], name)
            except ModelFormatError as error:
                raise ModelFormatError(f"{path}: {error}") from None
    jobs = manifest.get("params", {}).get("n_jobs")
    if jobs is not None and (type(jobs) is not int or jobs == 0):
        raise ModelFormatError(f"{path}: damaged, n_jobs must be an integer but 0, or null, got {jobs!r}")
    found = manifest.get("format_version", version)
    if str(found) != str(version):
        raise ModelFormatError(f"{path}: format version {found}, this package reads {version}")
    missing = set(required) - set(manifest)
    if missing:
        raise ModelFormatError(f"{path}: damaged, {sorted(missing)} missing")
    return manifest


def read_any_manifest(directory: str | os.PathLike[str]) -> tuple[Path, dict[str, Any]]:
    """The manifest of a folder of any kind, and where it is."""
    folder = Path(directory)
    names = (name for name in (MANIFEST, *_EARLIER_FILES) if (folder / name).is_file())
    path = file_in(folder, next(names, MANIFEST))
    manifest = read_json(path)
    for name in ("params", "files"):
        if not isinstance(manifest.get(name, {}), dict):
            raise ModelFormatError(f"{path}: damaged, {name} must be an object, got {manifest[name]!r}")
    return path, manifest


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of a model."""
    file_in(path.parent, path.name)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ModelFormatError(f"{path}: file is missing (not a model folder?)") from None
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(f"{path}: truncated or damaged, not JSON ({error})") from None
    if not isinstance(value, dict):
        raise ModelFormatError(f"{path}: damaged, not a JSON object")
    return value


def is_model_folder(directory: str | os.PathLike[str]) -> bool:
    """Whether a path is a folder with a model's manifest."""
    return any((Path(directory) / name).is_file() for name in (MANIFEST, *_EARLIER_FILES))


def check_replaceable(target: Path) -> None:
    """An error unless a model can be saved there: nothing, an empty folder, or a model."""
    if target.exists() and not target.is_dir():
        raise ValueError(f"{target} exists and is not a folder")
    if target.is_dir() and any(target.iterdir()) and not is_model_folder(target):
        raise ValueError(f"{target} exists and is not a model folder: it is not overwritten")


@contextlib.contextmanager
def replace_folder(directory: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary folder beside ``directory`` that takes its place on success.

    An existing folder is replaced only if it is empty or holds a model.
    """
    target = Path(directory)
    check_replaceable(target)
    with contextlib.ExitStack() as stack:
        with naming(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = stack.enter_context(temporary_folder(target))
        with naming(target, temporary):
            yield temporary
        with naming(target):
            put_in_place(temporary, target)


def check_same_fit(path: Path, fit: dict[str, Any]) -> bool:
    """Whether a checkpoint's file ``path`` is there; an error if it is of another fit than ``fit``."""
    if not path.is_file():
        return False
    old = read_json(path)
    for name, value in fit.items():
        if old.get(name) != value:
            raise ValueError(
                f"checkpoint {path.parent} is of another fit: {name} is {old.get(name)!r} there, {value!r} here"
            )
    return True
