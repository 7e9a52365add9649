"""``annif hyperopt``: `xmc_fast.tune` in place of Annif's own trials."""

from __future__ import annotations

from typing import Any, ClassVar

from annif.backend import hyperopt
from annif.exception import NotSupportedException

from xmc_fast.tuning import tune


class Optimizer(hyperopt.HyperparameterOptimizer):  # type: ignore[misc]
    """`xmc_fast.tune` in place of Annif's trials: settings are compared on a part of the corpus that is held out."""

    CHANGES: ClassVar[list[dict[str, Any]]] = [
        *({}, {"C": 0.5}, {"C": 2.0}, {"ngram_range": [1, 2]}, {"C": 0.25}, {"C": 4.0}, {"min_df": 1}),
        *({"min_df": 4}, {"prune": 0.02}, {"prune": 0.1}, {"ngram_range": [1, 2], "C": 2.0}, {"C": 8.0}),
    ]

    def __init__(self, backend: Any, corpus: Any, metric: str) -> None:
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
