"""Documents per second of Annif projects, with and without making features of their texts.

``python -m bench.speed.bench_annif CORPUS PROJECT ...`` in Annif's environment and in the folder of projects.cfg (with
the root of the repository on PYTHONPATH), after ``xmc-fast-annif train``.

Batches of 32 documents, one thread, CPU time. "without tokenising" gives the backend the tf-idf rows of the documents,
so that only its model works. Sizes are those of the files that a trained project needs.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import annif
import annif.registry
from annif.corpus import DocumentFileTSV

from xmc_fast.annif import register
from xmc_fast.texts import TextClassifier

BATCH = 32


class Rows:
    """A vectorizer that knows the rows of its texts already."""

    def __init__(self, vectorizer: Any, texts: list[str]) -> None:
        self._rows = {}
        for start in range(0, len(texts), BATCH):
            batch = tuple(texts[start : start + BATCH])
            self._rows[batch] = vectorizer.transform(list(batch))

    def transform(self, texts: list[str]) -> Any:
        return self._rows[tuple(texts)]


def seconds(backend: Any, documents: list[Any]) -> float:
    """CPU time of all suggestions."""
    start = time.process_time()
    for first in range(0, len(documents), BATCH):
        backend.suggest(documents[first : first + BATCH], {"limit": 10})
    return time.process_time() - start


def size(folder: Path) -> int:
    """Bytes of a trained project, without the cached training data."""
    files = (path for path in folder.rglob("*") if path.is_file() and "-train" not in path.name)
    return sum(path.stat().st_size for path in files)


def main(corpus: str, *projects: str) -> None:
    register()
    with annif.create_flask_app().app_context():
        registry = annif.registry.AnnifRegistry("projects.cfg", "data", init_projects=False)
        print("| project | MB | documents/s | without tokenising |\n| --- | ---: | ---: | ---: |")
        for name in projects:
            project = registry.get_project(name)
            backend = project.backend
            documents = list(DocumentFileTSV(corpus, project.subjects).documents)
            backend.initialize()
            owner: Any = backend
            attribute = "vectorizer"
            if isinstance(getattr(backend, "_model", None), TextClassifier):
                owner, attribute = backend._model, "vectorizer_"
                owner.n_jobs = 1
            backend.suggest(documents[:BATCH], {"limit": 10})
            whole = seconds(backend, documents)
            texts = [document.text for document in documents]
            setattr(owner, attribute, Rows(getattr(owner, attribute), texts))
            rest = seconds(backend, documents)
            megabytes = size(Path(backend.datadir)) / 1e6
            print(
                f"| {name} | {megabytes:.1f} | {len(documents) / whole:.0f} | {len(documents) / rest:.0f} |"
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
