"""xmc_fast as a backend of Annif, the tool with which libraries assign subjects; needs ``xmc-fast[annif]``.

Annif has no plug-ins, so the command ``xmc-fast-annif`` adds the backend and then runs Annif's own command line:
``xmc-fast-annif train my-project corpus.tsv``. A project of ``projects.cfg`` asks for it with
``backend=xmc_fast`` and may set the parameters of `XmcFastBackend`.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import compress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from annif.backend import _backend_fns, backend, hyperopt, mixins
from annif.exception import ConfigurationException, NotInitializedException, NotSupportedException
from annif.suggestion import SuggestionBatch
from annif.util import boolean
from sklearn.base import clone

from xmc_fast._files import write_text
from xmc_fast._folder import is_model_folder
from xmc_fast._folder import load as load_model
from xmc_fast.linear import OneVsAll
from xmc_fast.texts import TextClassifier
from xmc_fast.texts._fit import calibrate
from xmc_fast.tree import LabelTree
from xmc_fast.tuning import tune

OWN, THEIRS = "xmc-fast", "annif"
MODELS = ("one-vs-all", "tree")
MOST_HELD_OUT = 1000  # documents: enough for the probabilities, and the more of them, the fewer to train on
Rows = tuple[sp.csr_matrix, sp.csr_matrix]  # features and subjects


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
        The name of each subject that some document has is one more text to train on.
    calibrate : float
        Share of the documents that probabilities are fitted on; at most a thousand are.
    refit : bool or "auto"
        Train one-vs-all a second time, on all documents: it keeps the probabilities that were fitted on a share.
        "auto": where the share is more than a twentieth.
    keep_state : bool
        Keep what ``annif learn`` needs (with our vectorizer and one-vs-all). The folder grows, there is no second
        training (the share that probabilities are fitted on stays apart), and names are not trained on.
    """

    name = "xmc_fast"
    MODEL, SUBJECTS, CACHE = "xmc_fast-model", "xmc_fast-subjects.json", "xmc_fast-train"
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
    _columns: Any = None  # subject id of each label; -1 where the vocabulary has it no more

    def initialize(self, parallel: bool = False) -> None:
        """Load what was trained; `NotInitializedException` where nothing was."""
        if self._model is not None:
            return
        folder = self._path(self.MODEL)
        if not is_model_folder(folder):
            raise NotInitializedException(f"model {folder} not found", backend_id=self.backend_id)
        self._use(load_model(folder), json.loads(self._path(self.SUBJECTS).read_text(encoding="utf-8")))

    def _use(self, model: Any, uris: list[str]) -> None:
        if not isinstance(model, TextClassifier):
            self.initialize_vectorizer()
        found = (self.project.subjects.by_uri(uri, warnings=False) for uri in uris)
        self._columns = np.array([-1 if subject is None else subject for subject in found], np.int64)
        self._model = model

    def _train(self, corpus: Any, params: dict[str, Any], jobs: int = 0) -> None:
        if corpus != "cached" and corpus.is_empty():
            raise NotSupportedException(f"Cannot train {self.name} project with no documents")
        self._model = None
        if _choice(params, "vectorizer", (THEIRS, OWN)) == OWN:
            model = self._train_on_texts(corpus, params, jobs)
            uris = model.label_names_
        else:
            model, uris = self._train_on_features(corpus, params, jobs)
        model.save(self._path(self.MODEL))
        write_text(self._path(self.SUBJECTS), json.dumps(uris))
        self._use(model, uris)

    def _train_on_texts(self, corpus: Any, params: dict[str, Any], jobs: int) -> TextClassifier:
        path = self._path(f"{self.CACHE}.jsonl")
        if corpus != "cached":
            rows = [[document.text, self._uris(document.subject_set)] for document in corpus.documents]
            write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        elif not path.is_file():
            raise NotInitializedException(f"{path} not found: train without --cached first")
        else:
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
        self.info(f"training on {len(rows)} documents")
        texts, labels = map(list, zip(*rows, strict=True))
        tree = _choice(params, "model", MODELS) == "tree"
        held = _held_out(len(rows), 0.0 if tree else float(params["calibrate"]))
        classifier = TextClassifier(
            model=_estimator(params, jobs),
            min_df=int(params["min_df"]),
            ngram_range=(1, int(params["ngram"])),
            calibrate=0.0,
            n_jobs=jobs or None,
        )
        if boolean(params["keep_state"]) and not tree:
            updatable: TextClassifier = classifier.set_params(calibrate=held.mean())
            return updatable.fit(texts, labels, keep_state=True)
        counts = Counter(uri for uris in labels for uri in set(uris))
        used = sorted(counts)
        named = used if boolean(params["names"]) else []
        names = self._names(self.project.subjects.by_uri(uri, warnings=False) for uri in named)

        def train(chosen: Any) -> TextClassifier:
            whole = [*compress(texts, chosen), *names], [*compress(labels, chosen), *([uri] for uri in named)]
            model: TextClassifier = clone(classifier).fit(*whole, label_names=used)
            return model

        fitted = train(~held)
        if held.any():
            encoded = fitted.encode([*compress(labels, held)])
            calibrate(fitted, fitted.transform([*compress(texts, held)]), encoded.known)
            if fitted.calibrated and _again(params, held):
                first, fitted = fitted, train(np.ones(len(rows), bool))
                fitted.model_.calibration = first.model_.calibration
        fitted.label_counts_ = np.array([counts[uri] for uri in used], np.int64)
        fitted.fit_report_ |= {"rows": len(rows), "trained": int((~held).sum()), "held_out": int(held.sum())}
        return fitted

    def _train_on_features(self, corpus: Any, params: dict[str, Any], jobs: int) -> tuple[Any, list[str]]:
        paths = [self._path(f"{self.CACHE}-{part}.npz") for part in ("X", "Y", "names-X", "names-Y")]
        if corpus != "cached":
            sets: list[
                list[int]
            ] = []  # filled while the vectorizer reads the texts: one pass over the corpus
            options = {
                "min_df": int(params["min_df"]),
                "tokenizer": self.project.analyzer.tokenize_words,
                "ngram_range": (1, int(params["ngram"])),
            }
            X = self.create_vectorizer(self._texts(corpus, sets, params), options).astype(np.float32)
            n, named = len(sets), [[subject] for subject in _used(sets)][: X.shape[0] - len(sets)]
            matrices = [
                *_both_filled(X[:n], self._subject_matrix(sets)),
                *_both_filled(X[n:], self._subject_matrix(named)),
            ]
            for path, matrix in zip(paths, matrices, strict=True):
                sp.save_npz(path, matrix, compressed=False)
        elif not all(path.is_file() for path in paths):
            raise NotInitializedException(f"{paths[0]} not found: train without --cached first")
        else:
            self.info("Reusing cached training data from previous run.")
            matrices = [sp.load_npz(path) for path in paths]
        X, Y, *names = matrices
        if not X.shape[0]:
            raise NotSupportedException("no document has both a known word and a subject")
        self.info(f"training on {X.shape[0]} documents")
        used = np.flatnonzero(np.bincount(Y.indices, minlength=Y.shape[1]))
        names = names if boolean(params["names"]) else [X[:0], Y[:0]]
        fitted = _fit(params, jobs, (X, Y[:, used]), (names[0], names[1][:, used]))
        return fitted, self._uris(used.tolist())

    def _suggest_batch(self, documents: list[Any], params: dict[str, Any]) -> SuggestionBatch:
        texts = [document.text for document in documents]
        limit = int(params["limit"])
        if isinstance(self._model, TextClassifier):
            top = self._model.predict(texts, limit, output="csr")
        else:
            X = self.vectorizer.transform(texts).astype(np.float32)
            calibrated = getattr(self._model, "calibration", None) is not None
            top = self._model.predict(X, limit, proba=calibrated)
            top.data[np.repeat(np.diff(X.indptr) == 0, np.diff(top.indptr))] = (
                0  # no known word: no suggestion
            )
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
        model.save(self._path(self.MODEL))
        write_text(self._path(self.SUBJECTS), json.dumps(model.label_names_))
        self._use(model, model.label_names_)

    def get_hp_optimizer(self, corpus: Any, metric: str) -> Any:
        """For ``annif hyperopt``: a search over C, pruning and terms with our vectorizer and one-vs-all."""
        if self.params["vectorizer"] != OWN or self.params["model"] != "one-vs-all":
            raise NotSupportedException(f"tuning needs vectorizer={OWN} and model=one-vs-all")
        return Optimizer(self, corpus, metric)

    def _path(self, name: str) -> Path:
        return Path(self.datadir) / name

    def _texts(self, corpus: Any, sets: list[list[int]], params: dict[str, Any]) -> Iterator[str]:
        """The texts of a corpus, then the names of its subjects; those of each document are added to ``sets``."""
        for document in corpus.documents:
            sets.append(sorted(document.subject_set))
            yield document.text
        if boolean(params["names"]):
            yield from self._names(_used(sets))

    def _names(self, subjects: Iterable[int | None]) -> list[str]:
        """Of each subject, in the language of the vocabulary; empty where it has none."""
        found = (None if subject is None else self.project.subjects[subject].labels for subject in subjects)
        return [(labels or {}).get(self.project.vocab_lang) or "" for labels in found]

    def _uris(self, subjects: Iterable[int]) -> list[str]:
        return [self.project.subjects[subject].uri for subject in subjects]

    def _subject_matrix(self, sets: list[list[int]]) -> sp.csr_matrix:
        indptr = np.cumsum([0, *map(len, sets)])
        indices = np.array([subject for subjects in sets for subject in subjects], np.int32)
        shape = (len(sets), len(self.project.subjects))
        return sp.csr_matrix((np.ones(len(indices), np.float32), indices, indptr), shape)


class Optimizer(hyperopt.HyperparameterOptimizer):  # type: ignore[misc]
    """`xmc_fast.tune` in place of Annif's trials: settings are compared on a part of the corpus that is held out."""

    CHANGES: ClassVar[list[dict[str, Any]]] = [
        *({}, {"C": 0.5}, {"C": 2.0}, {"ngram_range": [1, 2]}, {"C": 0.25}, {"C": 4.0}, {"min_df": 1}),
        *({"min_df": 4}, {"prune": 0.02}, {"prune": 0.1}, {"ngram_range": [1, 2], "C": 2.0}, {"C": 8.0}),
    ]

    def __init__(self, backend: XmcFastBackend, corpus: Any, metric: str) -> None:
        super().__init__(backend, corpus, metric, objective=None)
        name, _, k = metric.lower().partition("@")
        known = {"ndcg": "ndcg", "precision": "precision", "f1": "sample_f1"}
        if name not in known or not (k or "10").isdecimal():
            raise NotSupportedException(f"metric must be NDCG, NDCG@k, Precision@k or F1@k, got {metric!r}")
        self._name = f"{known[name]}@{k or 10}"

    def optimize(self, n_trials: int, n_jobs: int, results_file: Any) -> Any:
        """Try the first ``n_trials`` changes of the project's parameters."""
        params = self._backend.params
        base: dict[str, Any] = {
            "C": float(params["C"]),
            "prune": float(params["prune"]),
            "min_df": int(params["min_df"]),
            "ngram_range": [1, int(params["ngram"])],
        }
        rows = [
            (document.text, self._backend._uris(document.subject_set)) for document in self._corpus.documents
        ]
        found = tune(
            [text for text, _ in rows],
            [uris for _, uris in rows],
            metric=self._name,
            settings=[base | change for change in self.CHANGES[:n_trials]],
            n_jobs=n_jobs or None,
        )
        if results_file:
            names = list(base)
            print("trial", "value", *names, sep="\t", file=results_file)
            for number, trial in enumerate(found.trials):
                values = (trial["setting"][name] for name in names)
                print(number, trial["score"], *values, sep="\t", file=results_file)
        shown = {**found.best, "ngram": found.best["ngram_range"][1]}
        lines = [f"{name}={shown[name]}" for name in ("C", "prune", "min_df", "ngram")]
        return hyperopt.HPRecommendation(lines=lines, score=found.last[0]["score"])


def _used(sets: list[list[int]]) -> list[int]:
    """The subjects that some document has."""
    return sorted({subject for subjects in sets for subject in subjects})


def _both_filled(X: sp.csr_matrix, Y: sp.csr_matrix) -> tuple[sp.csr_matrix, sp.csr_matrix]:
    """Rows that have both a known word and a subject."""
    rows = np.flatnonzero((np.diff(X.indptr) > 0) & (np.diff(Y.indptr) > 0))
    return X[rows], Y[rows]


def _held_out(n: int, share: float) -> npt.NDArray[np.bool_]:
    """Which of n documents are held out for probabilities."""
    held = np.zeros(n, bool)
    held[np.random.default_rng(0).permutation(n)[: min(round(share * n), MOST_HELD_OUT)]] = True
    return held


def _again(params: dict[str, Any], held: npt.NDArray[np.bool_]) -> bool:
    """Whether to train a second time, on all documents."""
    return bool(held.mean() > 0.05 if params["refit"] == "auto" else boolean(params["refit"]))


def _choice(params: dict[str, Any], name: str, choices: tuple[str, ...]) -> str:
    if params[name] not in choices:
        raise ConfigurationException(f"{name} must be {' or '.join(choices)}, got {params[name]!r}")
    return str(params[name])


def _estimator(params: dict[str, Any], jobs: int) -> Any:
    kind = _choice(params, "model", MODELS)
    options: dict[str, Any] = {"C": float(params["C"]), "n_jobs": jobs or None, "random_state": 0}
    return OneVsAll(**options, prune=float(params["prune"])) if kind == "one-vs-all" else LabelTree(**options)


def _fit(params: dict[str, Any], jobs: int, documents: Rows, names: Rows) -> Any:
    """A model trained on documents and names; one-vs-all gets probabilities from documents that are held out."""
    estimator = _estimator(params, jobs)
    X, Y = documents
    linear = isinstance(estimator, OneVsAll)
    held = _held_out(X.shape[0], float(params["calibrate"]) if linear else 0.0)

    def train(chosen: npt.NDArray[np.bool_]) -> Any:
        return estimator.fit(
            *(sp.vstack([m[chosen], n], format="csr") for m, n in zip(documents, names, strict=True))
        )

    fitted = train(~held)
    if not linear:
        return fitted
    model = fitted.model_
    if held.any():
        with contextlib.suppress(ValueError):  # none of so few rows has a right label: the model gives scores
            model.calibrate(X[held], Y[held], n_jobs=estimator.n_jobs)
    if model.calibration is not None and _again(params, held):
        whole = train(np.ones(X.shape[0], bool)).model_
        whole.calibration = model.calibration
        return whole
    return model


def register() -> None:
    """Make the backend known to Annif under its name."""
    _backend_fns[XmcFastBackend.name] = lambda: XmcFastBackend


def main() -> None:
    """The command ``xmc-fast-annif``: Annif's own command line with the backend ``xmc_fast``."""
    register()
    from annif.cli import cli

    cli()


if __name__ == "__main__":
    main()
