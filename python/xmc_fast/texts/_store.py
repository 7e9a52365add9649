"""The folder of a text classifier: its model's folder, its vectorizer and names beside it, no pickle.

``manifest.json``            kind, parameters, what training counted, names of the text columns
``model/``                   the model, as its own class saves it
``vectorizer.json``          kind and parameters
``vectorizer.safetensors``   terms and idf
``labels.json``              label names and their frequencies
``thresholds.safetensors``   how many labels a text gets, if that was decided
``state/``                   what an update starts from, if it was kept

Folders of earlier versions hold the label blocks and the vectorizer side by side; `load` opens them too.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from xmc_fast._files import write_text
from xmc_fast._folder import (
    count,
    file_in,
    kind_of,
    opening,
    part_of,
    read_any_manifest,
    read_json,
    read_manifest,
    replace_folder,
    write_manifest,
)
from xmc_fast._folder import load as load_any
from xmc_fast.model import Calibration, ModelFormatError, SparseModel
from xmc_fast.model._tensors import read_tensors, write_tensors
from xmc_fast.text import TfidfVectorizer

KIND = "text_classifier"
_OWN, _SKLEARN = "xmc_fast.TfidfVectorizer", "sklearn.TfidfVectorizer"
_SKLEARN_PARAMETERS = (
    *("encoding", "decode_error", "strip_accents", "lowercase", "analyzer", "stop_words", "token_pattern"),
    *("ngram_range", "binary", "norm", "use_idf", "smooth_idf", "sublinear_tf"),
)


def save(classifier: Any, directory: str | os.PathLike[str]) -> None:
    """Write the folder; an older model there is replaced."""
    state, arrays = _vectorizer_state(classifier.vectorizer_)
    params = {
        name: value
        for name, value in classifier.get_params(deep=False).items()
        if name not in ("model", "embed") and _is_json(value)
    }
    counts = classifier.label_counts_
    labels = {
        "names": classifier.label_names_,
        "counts": None if counts is None else [int(count) for count in counts],
    }
    manifest = {
        "text_columns": classifier.text_columns_,
        "params": params,
        "fit_report": classifier.fit_report_,
        "reading": classifier.reading_,
    }
    manifest |= {"embedding_size": classifier.embedding_size_} if classifier.embedding_size_ else {}
    with replace_folder(directory) as folder:
        classifier.model_.save(folder / "model")
        write_text(folder / "vectorizer.json", json.dumps(state, indent=1) + "\n")
        write_tensors(folder / "vectorizer.safetensors", arrays, {"kind": str(state["kind"])})
        write_text(folder / "labels.json", json.dumps(labels, ensure_ascii=False) + "\n")
        if classifier.decision_ is not None:
            classifier.decision_.write(folder)
        if classifier.state_ is not None:
            classifier.state_.write(folder)
        write_manifest(folder, KIND, manifest)


@opening
def load(cls: Any, directory: str | os.PathLike[str], mmap: bool, verify: bool) -> Any:
    """Open a folder of this or of earlier versions."""
    from xmc_fast.texts._join import join

    folder = Path(directory)
    manifest = read_any_manifest(folder)[1]
    if kind_of(manifest) != KIND:
        return _load_earlier(cls, folder, manifest, mmap, verify)
    manifest = read_manifest(folder, KIND, required=("params", "text_columns", "fit_report", "reading"))
    columns = manifest["text_columns"]
    if not (isinstance(columns, list) and columns and all(isinstance(name, str) for name in columns)):
        raise ModelFormatError(f"{folder}: damaged, text_columns must be a list of names, got {columns!r}")
    vectorizer = _read_vectorizer(folder / "vectorizer.json", folder / "vectorizer.safetensors", [])
    labels = read_json(folder / "labels.json")
    _check_labels(folder / "labels.json", labels)
    options = (
        {"mmap": mmap, "verify": verify}
        if kind_of(read_any_manifest(part_of(folder, "model"))[1]) in ("sparse_model", "label_tree", "mach")
        else {}
    )
    model = load_any(folder / "model", **options)
    try:
        size = count(manifest.get("embedding_size", 0), "embedding_size", 0)
        out = join(cls, vectorizer, model, labels["names"], size)
        params = {n: tuple(v) if n == "ngram_range" else v for n, v in manifest["params"].items()}
        out.set_params(**params)
        out.text_columns_, out.fit_report_ = manifest["text_columns"], manifest["fit_report"]
        out.reading_ = manifest["reading"]
        out.label_counts_ = None if labels["counts"] is None else np.array(labels["counts"], np.int64)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFormatError(f"{folder}: damaged, {error}") from None
    return out


def _check_labels(path: Path, labels: dict[str, Any]) -> None:
    """Names are texts, and there are as many counts."""
    names, counts = labels.get("names"), labels.get("counts")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ModelFormatError(f"{path}: damaged, names must be a list of texts")
    if counts is not None and (
        not isinstance(counts, list)
        or len(counts) != len(names)
        or not all(isinstance(n, int) and 0 <= n < 2**63 for n in counts)
    ):
        raise ModelFormatError(f"{path}: damaged, counts must be {len(names)} numbers")


def _load_earlier(cls: Any, folder: Path, manifest: dict[str, Any], mmap: bool, verify: bool) -> Any:
    files = manifest.get("files", {})
    if "vectorizer" not in files:
        raise ModelFormatError(f"{folder}: a model without a vectorizer, open it with xmc_fast.load")
    model = SparseModel.load(folder, mmap=mmap, verify=verify)
    path, arrays = (file_in(folder, files[role]) for role in ("vectorizer", "vectorizer_arrays"))
    return cls.from_parts(_read_vectorizer(path, arrays, model.feature_names or []), model)


def named(model: SparseModel, label_names: list[str]) -> SparseModel:
    """The model with names for its labels."""
    out = SparseModel(
        model.weights,
        bias=model.bias,
        normalize=model.normalize,
        params=model.params,
        label_names=label_names,
    )
    out.calibration, out.folder = model.calibration, model.folder
    return out


def joined_calibration(parts: list[Calibration | None]) -> Calibration | None:
    """The calibrations of consecutive labels as one; None if one is missing."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    scale, shift = (np.concatenate([getattr(part, name) for part in known]) for name in ("scale", "shift"))
    return Calibration(scale, shift, known[0].global_scale, known[0].global_shift)


def n_terms(vectorizer: Any) -> int:
    """Columns of a fitted vectorizer."""
    return len(vectorizer.idf_ if isinstance(vectorizer, TfidfVectorizer) else vectorizer.vocabulary_)


def same_vectorizer(a: Any, b: Any) -> bool:
    """Whether two fitted vectorizers make the same rows."""
    states = [_vectorizer_state(vectorizer) for vectorizer in (a, b)]
    for state, _ in states:
        state["parameters"] = {k: v for k, v in state["parameters"].items() if k != "n_jobs"}
    (first, arrays), (second, others) = states
    return (
        first == second
        and arrays.keys() == others.keys()
        and all(np.array_equal(arrays[name], others[name]) for name in arrays)
    )


def _vectorizer_state(vectorizer: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Kind and parameters (JSON), and arrays."""
    if isinstance(vectorizer, TfidfVectorizer):
        arrays = vectorizer.to_dict()
        return {"kind": _OWN, "parameters": arrays.pop("params")}, arrays
    given = vectorizer.get_params()
    own = [name for name in ("tokenizer", "preprocessor", "analyzer") if callable(given[name])]
    if own:
        raise ValueError(f"a vectorizer with its own {own[0]} cannot be saved, only parameters that are data")
    if given["input"] != "content":
        raise ValueError(f"the vectorizer must take input='content', got {given['input']!r}")
    parameters = {name: given[name] for name in _SKLEARN_PARAMETERS}
    if isinstance(parameters["stop_words"], (set, frozenset)):
        parameters["stop_words"] = sorted(parameters["stop_words"])
    parameters["ngram_range"] = list(parameters["ngram_range"])
    parameters["dtype"] = np.dtype(given["dtype"]).name
    terms = vectorizer.get_feature_names_out().tolist()
    state = {"kind": _SKLEARN, "parameters": parameters, "terms": terms}
    return state, {"idf": np.asarray(vectorizer.idf_)} if vectorizer.use_idf else {}


def _read_vectorizer(path: Path, arrays_path: Path, terms: list[str]) -> Any:
    state = read_json(path)
    arrays, _ = read_tensors(file_in(arrays_path.parent, arrays_path.name), map_file=False, verify=True)
    try:
        kind, parameters = state["kind"], state["parameters"]
        if kind == _OWN:
            return TfidfVectorizer.from_dict({"params": parameters, **arrays})
        if kind == _SKLEARN:
            return _sklearn_vectorizer(parameters, state.get("terms", terms), arrays.get("idf"))
    except (KeyError, TypeError) as error:
        raise ModelFormatError(f"{path}: truncated or damaged ({error})") from None
    raise ModelFormatError(f"{path}: unknown vectorizer {kind!r}")


def _sklearn_vectorizer(parameters: dict[str, Any], terms: list[str], idf: Any) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer as SklearnVectorizer

    options = {**parameters, "ngram_range": tuple(parameters["ngram_range"])}
    options["dtype"] = np.dtype(options["dtype"]).type
    if not isinstance(terms, list) or not all(isinstance(term, str) for term in terms):
        raise ModelFormatError("damaged, terms must be a list of texts")
    vectorizer = SklearnVectorizer(**options, vocabulary={term: i for i, term in enumerate(terms)})
    if idf is None:
        vectorizer.fit([""])  # nothing to learn: the vocabulary is given
    else:
        vectorizer.idf_ = idf
    return vectorizer


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
