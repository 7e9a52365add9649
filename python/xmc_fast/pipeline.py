"""From text to labels: a vectorizer and a model as one artefact, saved as one folder without pickle.

The folder is that of the model (see `xmc_fast.model.storage`) with the vectorizer's terms as feature names,
its parameters in ``vectorizer.json`` and its term weights in ``vectorizer.safetensors``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from xmc_fast._files import write_text
from xmc_fast.model import ModelFormatError, SparseModel, read_manifest, storage, stream
from xmc_fast.model._tensors import read_tensors, write_tensors
from xmc_fast.text import TfidfVectorizer

_SKLEARN = "sklearn.TfidfVectorizer"
_OWN = "xmc_fast.TfidfVectorizer"
_PARAMETERS = (
    "encoding",
    "decode_error",
    "strip_accents",
    "lowercase",
    "analyzer",
    "stop_words",
    "token_pattern",
    "ngram_range",
    "binary",
    "norm",
    "use_idf",
    "smooth_idf",
    "sublinear_tf",
)


class TextModel:
    """Texts in, the k best labels out.

    Parameters
    ----------
    vectorizer : fitted `xmc_fast.text.TfidfVectorizer` or sklearn TfidfVectorizer
        The latter with parameters that are data: own functions (tokenizer, preprocessor, analyzer) cannot be
        saved.
    model : SparseModel
        Trained on the vectorizer's features.

    Examples
    --------
    >>> import numpy as np, scipy.sparse as sp
    >>> from xmc_fast.text import TfidfVectorizer
    >>> vectorizer = TfidfVectorizer().fit(["cheese and milk", "iron ore"])
    >>> weights = sp.csr_matrix(np.array([[0, 1.0, 0, 1.0, 0], [0, 0, 1.0, 0, 1.0]]))
    >>> text_model = TextModel(vectorizer, SparseModel(weights, label_names=["food", "mining"]))
    >>> labels, scores = text_model.predict_one("milk is milk", k=1)
    >>> text_model.model.label_names[labels[0]]
    'food'
    """

    def __init__(self, vectorizer: Any, model: SparseModel) -> None:
        self._own = isinstance(vectorizer, TfidfVectorizer)
        terms = len(vectorizer.idf_ if self._own else vectorizer.vocabulary_)
        if terms != model.n_features:
            raise ValueError(f"the vectorizer has {terms} terms, the model {model.n_features} features")
        self.vectorizer = vectorizer
        self.model = model
        self._analyze = None if self._own else vectorizer.build_analyzer()
        self._idf = vectorizer.idf_ if vectorizer.use_idf else None

    def predict(
        self, texts: Iterable[str], k: int, *, proba: bool = False, n_jobs: int | None = None
    ) -> sp.csr_matrix:
        """The ``k`` best labels of each text; see `SparseModel.predict`."""
        return self.model.predict(self.vectorizer.transform(texts), k, proba=proba, n_jobs=n_jobs)

    def predict_one(
        self, text: str, k: int, *, proba: bool = False
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """The ``k`` best labels of one text and their scores, with little overhead."""
        return self.model.predict_one(self._row(text), k, proba=proba)

    def predict_file(
        self,
        path: str | os.PathLike[str],
        out: str | os.PathLike[str],
        k: int,
        *,
        proba: bool = False,
        chunk_rows: int = 4096,
        n_jobs: int | None = None,
    ) -> int:
        """Predict a file with one text per line in constant memory; see `xmc_fast.model.predict_file`."""
        pieces = (
            self.predict(texts, k, proba=proba, n_jobs=n_jobs) for texts in line_chunks(path, chunk_rows)
        )
        return stream.write_pieces(out, pieces)

    def save(self, directory: str | os.PathLike[str], *, prepared: bool = False) -> None:
        """Write vectorizer and model as one folder; an older model there is replaced."""
        arrays: dict[str, npt.NDArray[Any]]
        if self._own:
            arrays = self.vectorizer.to_dict()
            state = {"kind": _OWN, "parameters": arrays.pop("params")}
        else:
            state = {"kind": _SKLEARN, "parameters": _parameters(self.vectorizer)}
            arrays = {} if self._idf is None else {"idf": np.asarray(self._idf)}
        terms = self.vectorizer.get_feature_names_out().tolist()
        with storage.replace_folder(directory) as folder:
            write_text(folder / "vectorizer.json", json.dumps(state, indent=1) + "\n")
            write_tensors(folder / "vectorizer.safetensors", arrays, {"kind": str(state["kind"])})
            files = {"vectorizer": "vectorizer.json", "vectorizer_arrays": "vectorizer.safetensors"}
            self.model.write(folder, prepared=prepared, feature_names=terms, files=files)

    @classmethod
    def load(cls, directory: str | os.PathLike[str], *, mmap: bool = True, verify: bool = False) -> TextModel:
        """Open what `save` wrote (`SparseModel.load` opens the model alone)."""
        model = SparseModel.load(directory, mmap=mmap, verify=verify)
        files = read_manifest(directory)["files"]
        if "vectorizer" not in files:
            raise ModelFormatError(
                f"{directory}: a model without a vectorizer, open it with SparseModel.load"
            )
        path = Path(directory) / files["vectorizer"]
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            kind, parameters = state["kind"], state["parameters"]
        except (ValueError, KeyError, TypeError) as error:
            raise ModelFormatError(f"{path}: truncated or damaged ({error})") from None
        if kind not in (_OWN, _SKLEARN):
            raise ModelFormatError(f"{path}: unknown vectorizer {kind!r}")
        arrays_path = Path(directory) / files["vectorizer_arrays"]
        arrays, _ = read_tensors(arrays_path, map_file=False, verify=True)
        if kind == _OWN:
            return cls(TfidfVectorizer.from_dict({"params": parameters, **arrays}), model)
        return cls(_restore(parameters, model.feature_names or [], arrays.get("idf")), model)

    def _row(self, text: str) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """One text as (columns, values): what transform() does, without its checks."""
        if self._analyze is None:
            row = self.vectorizer.transform([text])
            return row.indices, row.data
        vocabulary = self.vectorizer.vocabulary_
        counts: dict[int, int] = {}
        for term in self._analyze(text):
            column = vocabulary.get(term)
            if column is not None:
                counts[column] = counts.get(column, 0) + 1
        found = sorted(counts)
        columns = np.array(found, np.int32)
        if self.vectorizer.binary:
            values = np.ones(len(found), self.vectorizer.dtype)
        else:
            values = np.array([counts[column] for column in found], self.vectorizer.dtype)
        if self.vectorizer.sublinear_tf:
            values = np.log(values) + 1
        if self._idf is not None:
            values = values * self._idf[columns]
        if self.vectorizer.norm and len(values):
            order = {"l1": 1, "l2": 2}[self.vectorizer.norm]
            values = values / np.linalg.norm(values, order)
        return columns, values.astype(np.float32, copy=False)


def load_model(directory: str | os.PathLike[str], *, mmap: bool = True, verify: bool = False) -> Any:
    """Open a model folder of either kind: a `TextModel` if it holds a vectorizer, else a `SparseModel`."""
    kind = TextModel if "vectorizer" in read_manifest(directory)["files"] else SparseModel
    return kind.load(directory, mmap=mmap, verify=verify)


def _parameters(vectorizer: Any) -> dict[str, Any]:
    given = vectorizer.get_params()
    for name in ("tokenizer", "preprocessor"):
        if given[name] is not None:
            raise ValueError(
                f"a vectorizer with its own {name} cannot be saved, only parameters that are data"
            )
    if callable(given["analyzer"]):
        raise ValueError("a vectorizer with its own analyzer cannot be saved, only parameters that are data")
    if given["input"] != "content":
        raise ValueError(f"the vectorizer must take input='content', got {given['input']!r}")
    result = {name: given[name] for name in _PARAMETERS}
    if isinstance(result["stop_words"], (set, frozenset)):
        result["stop_words"] = sorted(result["stop_words"])
    result["dtype"] = np.dtype(given["dtype"]).name
    return result


def _restore(parameters: dict[str, Any], terms: list[str], idf: npt.NDArray[Any] | None) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer as SklearnVectorizer

    options = dict(parameters)
    options["ngram_range"] = tuple(options["ngram_range"])
    options["dtype"] = np.dtype(options["dtype"]).type
    vectorizer = SklearnVectorizer(**options, vocabulary={term: i for i, term in enumerate(terms)})
    if idf is None:
        vectorizer.fit([""])  # nothing to learn: the vocabulary is given
    else:
        vectorizer.idf_ = idf
    return vectorizer


def line_chunks(path: str | os.PathLike[str], rows: int) -> Iterator[list[str]]:
    """The lines of a text file in lists of ``rows``."""
    chunk: list[str] = []
    with open(path, encoding="utf-8", newline="\n") as file:
        for line in file:
            chunk.append(line.rstrip("\r\n"))
            if len(chunk) == rows:
                yield chunk
                chunk = []
    if chunk:
        yield chunk
