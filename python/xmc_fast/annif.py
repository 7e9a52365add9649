"""xmc_fast as a backend of Annif, the tool with which libraries assign subjects; needs ``xmc-fast[annif]``.

Annif has no plug-ins, so the command ``xmc-fast-annif`` adds the backend and then runs Annif's own command line:
``xmc-fast-annif train my-project corpus.tsv``. A project of ``projects.cfg`` asks for it with
``backend=xmc_fast`` and may set the parameters of `XmcFastBackend`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
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
from xmc_fast.tree import LabelTree
from xmc_fast.tuning import tune

OWN, THEIRS = "xmc-fast", "annif"


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
    calibrate : float
        Share of the documents that probabilities are fitted on.
    refit : bool
        Train one-vs-all a second time, on all documents: it keeps the probabilities that were fitted on a share.
    keep_state : bool
        Keep what ``annif learn`` needs (with our vectorizer and one-vs-all). The folder grows, and there is no
        second training: the share that probabilities are fitted on stays apart.
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
        "calibrate": 0.1,
        "refit": True,
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
        self.info("training on texts")
        texts, labels = map(list, zip(*rows, strict=True))
        classifier = TextClassifier(
            model=_estimator(params, jobs),
            min_df=int(params["min_df"]),
            ngram_range=(1, int(params["ngram"])),
            calibrate=0.0 if params["model"] == "tree" else float(params["calibrate"]),
            n_jobs=jobs or None,
        )
        if boolean(params["keep_state"]) and params["model"] != "tree":
            return classifier.fit(texts, labels, keep_state=True)
        classifier.fit(texts, labels)
        if not classifier.calibrated or not boolean(params["refit"]):
            return classifier
        whole: TextClassifier = clone(classifier).set_params(calibrate=0.0).fit(texts, labels)
        whole.model_.calibration = classifier.model_.calibration
        return whole

    def _train_on_features(self, corpus: Any, params: dict[str, Any], jobs: int) -> tuple[Any, list[str]]:
        paths = [self._path(f"{self.CACHE}-{part}.npz") for part in "XY"]
        if corpus != "cached":
            sets: list[
                list[int]
            ] = []  # filled while the vectorizer reads the texts: one pass over the corpus
            options = {
                "min_df": int(params["min_df"]),
                "tokenizer": self.project.analyzer.tokenize_words,
                "ngram_range": (1, int(params["ngram"])),
            }
            X = self.create_vectorizer(_texts(corpus, sets), options).astype(np.float32)
            Y = self._subject_matrix(sets)
            keep = np.flatnonzero((np.diff(X.indptr) > 0) & (np.diff(Y.indptr) > 0))
            X, Y = X[keep], Y[keep]
            for path, matrix in zip(paths, (X, Y), strict=True):
                sp.save_npz(path, matrix, compressed=False)
        elif not all(path.is_file() for path in paths):
            raise NotInitializedException(f"{paths[0]} not found: train without --cached first")
        else:
            self.info("Reusing cached training data from previous run.")
            X, Y = map(sp.load_npz, paths)
        if not X.shape[0]:
            raise NotSupportedException("no document has both a known word and a subject")
        self.info(f"training on {X.shape[0]} documents")
        used = np.flatnonzero(np.bincount(Y.indices, minlength=Y.shape[1]))
        share, refit = float(params["calibrate"]), boolean(params["refit"])
        fitted = _fit(_estimator(params, jobs), X, Y[:, used], share, refit)
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


def _texts(corpus: Any, sets: list[list[int]]) -> Iterator[str]:
    """The texts of a corpus; the subjects of each document are added to ``sets``."""
    for document in corpus.documents:
        sets.append(sorted(document.subject_set))
        yield document.text


def _choice(params: dict[str, Any], name: str, choices: tuple[str, ...]) -> str:
    if params[name] not in choices:
        raise ConfigurationException(f"{name} must be {' or '.join(choices)}, got {params[name]!r}")
    return str(params[name])


def _estimator(params: dict[str, Any], jobs: int) -> Any:
    kind = _choice(params, "model", ("one-vs-all", "tree"))
    options: dict[str, Any] = {"C": float(params["C"]), "n_jobs": jobs or None, "random_state": 0}
    return OneVsAll(**options, prune=float(params["prune"])) if kind == "one-vs-all" else LabelTree(**options)


def _fit(estimator: Any, X: sp.csr_matrix, Y: sp.csr_matrix, share: float, refit: bool) -> Any:
    """Trained on all rows but a share, on which one-vs-all gets its probabilities; trees have them anyway.

    ``refit`` trains on all rows afterwards and keeps the probabilities.
    """
    if not isinstance(estimator, OneVsAll):
        return estimator.fit(X, Y)
    held = np.zeros(X.shape[0], bool)
    held[np.random.default_rng(0).permutation(X.shape[0])[: round(share * X.shape[0])]] = True
    model = estimator.fit(X[~held], Y[~held]).model_
    if held.any():
        with contextlib.suppress(
            ValueError
        ):  # so few rows that none has a right label: the model gives scores
            model.calibrate(X[held], Y[held], n_jobs=estimator.n_jobs)
    if refit and model.calibration is not None:
        whole = estimator.fit(X, Y).model_
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
