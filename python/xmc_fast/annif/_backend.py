"""The backend: training, suggestions and learning inside Annif."""

from __future__ import annotations

import contextlib
import json
import shutil
from itertools import chain, compress
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from annif.backend import backend, hyperopt, mixins
from annif.exception import ConfigurationException, NotInitializedException, NotSupportedException
from annif.suggestion import SuggestionBatch
from annif.util import boolean
from sklearn.base import clone

from xmc_fast._files import write_text
from xmc_fast._folder import is_model_folder
from xmc_fast._folder import load as load_model
from xmc_fast._validate import to_scipy
from xmc_fast.annif._blend import Blend
from xmc_fast.annif._hyperopt import Optimizer
from xmc_fast.lexical import Lexical
from xmc_fast.linear import OneVsAll
from xmc_fast.texts import TextClassifier
from xmc_fast.texts._fit import PRIOR_STRENGTH, calibrate
from xmc_fast.tree import LabelTree

OWN, THEIRS = "xmc-fast", "annif"
MODELS = ("one-vs-all", "tree")
MOST_HELD_OUT = 1000  # documents: enough for the probabilities, and the more of them, the fewer to train on
LEAST_FOR_NAMES = 100  # documents held out that are enough to learn how far to trust names
CANDIDATES = 50  # labels of each list that is blended
Mask = npt.NDArray[np.bool_]


class Documents(NamedTuple):
    """What is trained on: texts with a subject, and with a known word."""

    texts: list[str]
    uris: list[list[str]]
    X: sp.csr_matrix | None  # of Annif's vectorizer

    def take(self, rows: Mask) -> Any:
        """What a model is given: features, or texts."""
        return [*compress(self.texts, rows)] if self.X is None else self.X[rows]


class XmcFastBackend(
    mixins.TfidfVectorizerMixin,  # type: ignore[misc]
    hyperopt.AnnifHyperoptBackend,  # type: ignore[misc]
    backend.AnnifLearningBackend,  # type: ignore[misc]
):
    """One-vs-all classifiers or a label tree on tf-idf features, with probabilities as scores.

    Parameters of a project
    -----------------------
    vectorizer : "annif" or "xmc-fast"
        Annif's analyzer and vectorizer (pickled by Annif), or this package's own: much faster, no pickle.
        The project's ``analyzer`` is not used then.
    model : "one-vs-all" or "tree"
        Exact, or a smaller and faster search.
    min_df, ngram : int
        Fewest documents of a term, and most words of one.
    C : float
        Weight of the training error against the size of the weights.
    prune : float
        Weights of one-vs-all that are smaller are left out.
    names : bool
        Names of subjects that stand in the text count too (see `xmc_fast.Lexical`), also of subjects without a
        document. How far to trust them is learned from the documents that are held out, of which there must be a
        hundred.
    calibrate : float
        Share of the documents that are held out for that and for probabilities; at most a thousand are.
    refit : bool or "auto"
        Train a second time, on all documents, and keep what was learned from those held out. "auto": where the share
        is more than a twentieth.
    keep_state : bool
        Keep what ``annif learn`` needs (with our vectorizer and one-vs-all). The folder grows, there is no second
        training (the share that probabilities are fitted on stays apart), and names do not count.
    """

    name = "xmc_fast"
    MODEL, SUBJECTS, CACHE = "xmc_fast-model", "xmc_fast-subjects.json", "xmc_fast-train"
    NAMES, BLEND = "xmc_fast-names", "xmc_fast-blend.safetensors"
    DEFAULT_PARAMETERS: ClassVar[dict[str, Any]] = {
        "vectorizer": THEIRS,
        "model": "one-vs-all",
        "min_df": 1,
        "ngram": 1,
        "C": 1.0,
        "prune": 0.05,
        "names": True,
        "calibrate": 0.1,
        "refit": "auto",
        "keep_state": False,
    }

    _model: Any = None  # a model on features, or a TextClassifier
    _names: tuple[Lexical, Blend] | None = None
    _columns: Any = None  # subject id of each label; -1 where the vocabulary has it no more

    def initialize(self, parallel: bool = False) -> None:
        """Load what was trained; `NotInitializedException` where nothing was."""
        if self._model is not None:
            return
        folder = self._path(self.MODEL)
        if not is_model_folder(folder):
            raise NotInitializedException(f"model {folder} not found", backend_id=self.backend_id)
        names = None
        if self._path(self.BLEND).is_file():
            names = Lexical.load(self._path(self.NAMES)), Blend.load(self._path(self.BLEND))
        self._use(
            load_model(folder), names, json.loads(self._path(self.SUBJECTS).read_text(encoding="utf-8"))
        )

    def _use(self, model: Any, names: tuple[Lexical, Blend] | None, uris: list[str]) -> None:
        if not isinstance(model, TextClassifier):
            self.initialize_vectorizer()
        found = (self.project.subjects.by_uri(uri, warnings=False) for uri in uris)
        self._columns = np.array([-1 if subject is None else subject for subject in found], np.int64)
        self._model, self._names = model, names

    def _train(self, corpus: Any, params: dict[str, Any], jobs: int = 0) -> None:
        if corpus != "cached" and corpus.is_empty():
            raise NotSupportedException(f"Cannot train {self.name} project with no documents")
        self._model = None
        documents = self._documents(corpus, params)
        n = len(documents.texts)
        if not n:
            raise NotSupportedException("no document has both a known word and a subject")
        self.info(f"training on {n} documents")
        estimator = _estimator(params, jobs)
        tree = params["model"] == "tree"
        learns = documents.X is None and not tree and boolean(params["keep_state"])
        held = _held_out(n, float(params["calibrate"]))
        named = boolean(params["names"]) and not learns and held.sum() >= LEAST_FOR_NAMES
        if tree and not named:
            held[:] = False
        if learns:
            estimator.set_params(calibrate=held.mean(), model__size="exact")
            model = estimator.fit(documents.texts, documents.uris, keep_state=True)
            self._keep(model, None, model.label_names_)
            return
        used = sorted({*chain.from_iterable(documents.uris)})
        uris, names = self._named(used) if named else (used, [])
        Y = _matrix(documents.uris, uris)
        lexical = Lexical(names, n_jobs=jobs or None) if named else None

        def train(rows: Mask) -> tuple[Any, Lexical | None]:
            """A model and names learned from some of the documents."""
            given, truth = documents.take(rows), Y[rows]
            options = {} if documents.X is not None else {"label_names": used}
            fitted = clone(estimator).fit(given, truth[:, : len(used)], **options)
            found = clone(lexical).fit([*compress(documents.texts, rows)], truth) if lexical else None
            return (fitted.model_ if isinstance(fitted, OneVsAll) else fitted), found

        model, found = train(~held)
        blend = None
        if held.any():
            given, truth = documents.take(held), Y[held]
            if not tree:
                _calibrate(model, given, truth[:, : len(used)], jobs or None)
            counts = np.bincount(Y[~held].indices, minlength=Y.shape[1])
            if found is not None:
                lists = [
                    self._listed(model, given, CANDIDATES, len(uris)),
                    found.predict([*compress(documents.texts, held)], CANDIDATES),
                ]
                with contextlib.suppress(ValueError):  # no right label is listed: the model alone
                    blend = Blend.fit(lists, truth, counts)
            if _again(params, held):
                first, (model, found) = model, train(np.ones(n, bool))
                if not tree:
                    _linear(model).calibration = _linear(first).calibration
                counts = np.bincount(Y.indices, minlength=Y.shape[1])
            if blend is not None:
                blend.counts = counts
        if isinstance(model, TextClassifier):
            model.label_counts_ = np.bincount(Y.indices, minlength=len(used))[: len(used)]
            model.fit_report_ |= {"rows": n, "trained": int((~held).sum()), "held_out": int(held.sum())}
        self._keep(model, None if found is None or blend is None else (found, blend), uris)

    def _keep(self, model: Any, names: tuple[Lexical, Blend] | None, uris: list[str]) -> None:
        """Store what was trained, and use it."""
        self._path(self.BLEND).unlink(missing_ok=True)
        model.save(self._path(self.MODEL))
        write_text(self._path(self.SUBJECTS), json.dumps(uris))
        if names is None:
            shutil.rmtree(self._path(self.NAMES), ignore_errors=True)
        else:
            names[0].save(self._path(self.NAMES))
            names[1].save(self._path(self.BLEND))
        self._use(model, names, uris)

    def _documents(self, corpus: Any, params: dict[str, Any]) -> Documents:
        """The documents that can be trained on; those of a corpus are kept for ``train --cached``."""
        own = _choice(params, "vectorizer", (THEIRS, OWN)) == OWN
        path, matrix = (self._path(f"{self.CACHE}.{kind}") for kind in ("jsonl", "npz"))
        if corpus != "cached":
            every = ((document.text, self._uris(document.subject_set)) for document in corpus.documents)
            rows = [(text, uris) for text, uris in every if uris and text.strip()]
            write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        elif not path.is_file() or not (own or matrix.is_file()):
            raise NotInitializedException(f"{path} not found: train without --cached first")
        else:
            self.info("Reusing cached training data from previous run.")
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
        texts, uris = [text for text, _ in rows], [uris for _, uris in rows]
        if own or not texts:
            return Documents(texts, uris, None)
        if corpus == "cached":
            X = sp.load_npz(matrix).tocsr()
        else:
            options = {
                "min_df": int(params["min_df"]),
                "tokenizer": self.project.analyzer.tokenize_words,
                "ngram_range": (1, int(params["ngram"])),
            }
            X = self.create_vectorizer(texts, options).astype(np.float32)
            sp.save_npz(matrix, X, compressed=False)
        known = np.diff(X.indptr) > 0
        return Documents([*compress(texts, known)], [*compress(uris, known)], X[known])

    def _listed(self, model: Any, given: Any, k: int, width: int, proba: bool = False) -> sp.csr_matrix:
        """The best labels of texts or features, as a matrix of so many columns; none where no word is known."""
        if isinstance(model, TextClassifier):
            top = model.predict(given, k, output="csr", proba=proba and model.calibrated)
            return to_scipy(top.indptr, top.indices, top.data, (top.shape[0], width))
        calibrated = getattr(model, "calibration", None) is not None
        top = model.predict(given, k, proba=proba and calibrated)
        known = np.diff(given.indptr) > 0
        sizes = np.diff(top.indptr)
        keep = np.repeat(known, sizes)
        indptr = np.concatenate([[0], np.cumsum(np.where(known, sizes, 0))])
        return to_scipy(indptr, top.indices[keep], top.data[keep], (len(known), width))

    def _suggest_batch(self, documents: list[Any], params: dict[str, Any]) -> SuggestionBatch:
        texts = [document.text for document in documents]
        limit = int(params["limit"])
        own = isinstance(self._model, TextClassifier)
        given = texts if own else self.vectorizer.transform(texts).astype(np.float32)
        if self._names is None:
            top = self._listed(self._model, given, limit, len(self._columns), proba=True)
        else:
            lexical, blend = self._names
            lists = [
                self._listed(self._model, given, CANDIDATES, len(self._columns)),
                lexical.predict(texts, CANDIDATES),
            ]
            top = blend.best(lists, limit)
        rows = np.repeat(np.arange(len(texts)), np.diff(top.indptr))
        subjects = self._columns[top.indices]
        good = (subjects >= 0) & (top.data > 0)
        shape = (len(texts), len(self.project.subjects))
        scores = np.minimum(top.data[good], 1).astype(np.float32)
        return SuggestionBatch(sp.csr_array((scores, (rows[good], subjects[good])), shape=shape))

    def _learn(self, corpus: Any, params: dict[str, Any]) -> None:
        self.initialize()
        if getattr(self._model, "state_", None) is None:
            needed = f"vectorizer={OWN} and keep_state=True"
            raise NotSupportedException(
                f"learning needs {needed} in the project's configuration when it is trained"
            )
        rows = [(document.text, self._uris(document.subject_set)) for document in corpus.documents]
        model = self._model.update([text for text, _ in rows], [uris for _, uris in rows])
        self._keep(model, None, model.label_names_)

    def get_hp_optimizer(self, corpus: Any, metric: str) -> Any:
        """For ``annif hyperopt``: a search over C, pruning and terms with our vectorizer and one-vs-all."""
        if self.params["vectorizer"] != OWN or self.params["model"] != "one-vs-all":
            raise NotSupportedException(f"tuning needs vectorizer={OWN} and model=one-vs-all")
        return Optimizer(self, corpus, metric)

    def _path(self, name: str) -> Path:
        return Path(self.datadir) / name

    def _uris(self, subjects: Any) -> list[str]:
        return [self.project.subjects[subject].uri for subject in sorted(subjects)]

    def _named(self, used: list[str]) -> tuple[list[str], list[list[str]]]:
        """The subjects that documents have, then the vocabulary's others; and the names of each, in any language."""
        names = {one.uri: [*one.labels.values()] for _, one in self.project.subjects.active}
        uris = used + sorted(names.keys() - set(used))
        return uris, [names.get(uri, []) for uri in uris]


def _matrix(rows: list[list[str]], uris: list[str]) -> sp.csr_matrix:
    """Which row has which of the subjects."""
    column = {uri: i for i, uri in enumerate(uris)}
    sets = [sorted({column[uri] for uri in row}) for row in rows]
    indptr = np.cumsum([0, *map(len, sets)])
    indices = np.fromiter(chain.from_iterable(sets), np.int32, indptr[-1])
    return sp.csr_matrix((np.ones(len(indices), np.float32), indices, indptr), (len(rows), len(uris)))


def _held_out(n: int, share: float) -> Mask:
    """Which of n documents are held out."""
    held = np.zeros(n, bool)
    held[np.random.default_rng(0).permutation(n)[: min(round(share * n), MOST_HELD_OUT)]] = True
    return held


def _again(params: dict[str, Any], held: Mask) -> bool:
    """Whether to train a second time, on all documents."""
    return bool(held.mean() > 0.05 if params["refit"] == "auto" else boolean(params["refit"]))


def _choice(params: dict[str, Any], name: str, choices: tuple[str, ...]) -> str:
    if params[name] not in choices:
        raise ConfigurationException(f"{name} must be {' or '.join(choices)}, got {params[name]!r}")
    return str(params[name])


def _estimator(params: dict[str, Any], jobs: int) -> Any:
    """What is trained on features; with our vectorizer, on texts."""
    kind = _choice(params, "model", MODELS)
    options: dict[str, Any] = {"C": float(params["C"]), "n_jobs": jobs or None, "random_state": 0}
    linear: dict[str, Any] = {"prune": float(params["prune"]), "size": "auto"}
    model = OneVsAll(**options, **linear) if kind == "one-vs-all" else LabelTree(**options)
    if params["vectorizer"] == THEIRS:
        return model
    terms: dict[str, Any] = {"min_df": int(params["min_df"]), "ngram_range": (1, int(params["ngram"]))}
    return TextClassifier(model=model, **terms, calibrate=0.0, n_jobs=jobs or None)


def _linear(model: Any) -> Any:
    """The one-vs-all model of a text classifier, or itself."""
    return model.model_ if isinstance(model, TextClassifier) else model


def _calibrate(model: Any, given: Any, Y: sp.csr_matrix, jobs: int | None) -> None:
    """Fit the probabilities of one-vs-all; with no right label among those of few rows it gives scores."""
    if isinstance(model, TextClassifier):
        calibrate(model, model.transform(given), Y)
    else:
        with contextlib.suppress(ValueError):
            model.calibrate(given, Y, prior_strength=PRIOR_STRENGTH, n_jobs=jobs)
