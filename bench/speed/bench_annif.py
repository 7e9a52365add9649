"""Annif projects with Omikuji's Bonsai and with ours on tibkat-gnd: how good, how large, how fast.

``python -m bench.speed.bench_annif FOLDER [--records 10000] [--dev 1000] [--projects bonsai ours ours-own]`` in Annif's
environment, with the root of the repository on PYTHONPATH (and NLTK's punkt where NLTK_DATA points).

Corpora, vocabulary and projects.cfg are written into FOLDER. Each project is trained and evaluated by Annif's own
commands, one job, and its CPU time is that of the whole command, reading and tokenising included. Documents per second
are of batches of 32, one thread, CPU time; "without tokenising" gives the backend the tf-idf rows of the documents, so
that only its model works. The size is that of the files that a trained project needs.
"""

from __future__ import annotations

import csv
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import annif
import annif.registry
from annif.corpus import DocumentFileTSV

from bench.common import Table, command_line, data_dir
from bench.sets import read_texts
from xmc_fast import data
from xmc_fast.annif import register
from xmc_fast.texts import TextClassifier

BATCH = 32
ALL = 90_452  # training records
TIMED = 1000  # documents of the measurement of speed
COMMON = {"language": "de", "vocab": "gnd(de)", "analyzer": "snowball(german)", "min_df": 2, "limit": 100}
BONSAI = {"backend": "omikuji", "cluster_balanced": False, "cluster_k": 100, "max_depth": 3}
OWN = {"backend": "xmc_fast", "vectorizer": "xmc-fast"}
PROJECTS: dict[str, tuple[str, dict[str, Any]]] = {
    "bonsai": ("Omikuji Bonsai", BONSAI),
    "ours": ("xmc_fast, `vectorizer=annif`", {"backend": "xmc_fast"}),
    "ours-own": ("xmc_fast, `vectorizer=xmc-fast`", OWN),
    "unnamed": (
        "xmc_fast, `vectorizer=annif`, `names=False`",
        {"backend": "xmc_fast", "names": False},
    ),
    "own-unnamed": ("xmc_fast, `vectorizer=xmc-fast`, `names=False`", OWN | {"names": False}),
}
COLUMNS = (
    *("project", "records", "dev", "F1@5", "nDCG", "training, CPU s", "folder, MB"),
    *("documents/s", "without tokenising"),
)


def prepare(folder: Path) -> None:
    """What Annif reads: projects.cfg, the vocabulary and both corpora."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "projects.cfg", "w", encoding="utf-8") as file:
        for project, (name, options) in PROJECTS.items():
            lines = {"name": name, **COMMON, **options}
            print(
                f"[{project}]", *(f"{key}={value}" for key, value in lines.items()), "", sep="\n", file=file
            )
    if (folder / "data" / "vocabs" / "gnd").exists():
        return
    names = [line.split("\t") for line in data.read_lines(data_dir("tibkat-gnd") / "label_names.txt.xz")]
    uris = [f"https://d-nb.info/gnd/{name.partition(':')[2]}" for name, _ in names]
    with open(folder / "gnd.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(
            [("uri", "label_de"), *((uri, name[1]) for uri, name in zip(uris, names, strict=True))]
        )
    for part in ("train", "dev"):
        texts, Y = read_texts("tibkat-gnd", part)
        with open(folder / f"{part}.tsv", "w", encoding="utf-8") as file:
            for row, text in enumerate(texts):
                subjects = (f"<{uris[label]}>" for label in Y.indices[Y.indptr[row] : Y.indptr[row + 1]])
                print(text.replace("\t", " "), " ".join(subjects), sep="\t", file=file)
    command(folder, "load-vocab", "gnd", "gnd.csv")


def command(folder: Path, *words: str) -> float:
    """Run one of Annif's commands; returns the CPU seconds it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = os.environ | {"ANNIF_PROJECTS": "projects.cfg"}
    run = [sys.executable, "-m", "xmc_fast.annif", *words]
    with open(folder / f"{words[0]}-{words[1]}.log", "w", encoding="utf-8") as log:
        subprocess.run(run, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


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


def speeds(folder: Path, name: str) -> tuple[float, float]:
    """Documents per second of a trained project, with and without making features of their texts."""
    register()
    with annif.create_flask_app().app_context():
        registry = annif.registry.AnnifRegistry(
            str(folder / "projects.cfg"), str(folder / "data"), init_projects=False
        )
        project = registry.get_project(name)
        backend = project.backend
        documents = list(DocumentFileTSV(str(folder / "dev.tsv"), project.subjects).documents)[:TIMED]
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
    return len(documents) / whole, len(documents) / rest


def size(folder: Path) -> int:
    """Bytes of a trained project, without the cached training data."""
    files = (path for path in folder.rglob("*") if path.is_file() and "-train" not in path.name)
    return sum(path.stat().st_size for path in files)


def measure(folder: Path, project: str, records: int, dev: int) -> dict[str, Any]:
    """Train and evaluate a project; the row of the table."""
    cpu = command(folder, "train", project, "-j", "1", "-d", str(records), "train.tsv")
    found = folder / f"metrics-{project}.json"
    command(folder, "eval", project, "-j", "1", "-d", str(dev), "-M", found.name, "dev.tsv")
    metrics = json.loads(found.read_text(encoding="utf-8"))
    with_texts, without = speeds(folder, project)
    return {
        "project": PROJECTS[project][0],
        "records": records,
        "dev": metrics["Documents_evaluated"],
        "F1@5": metrics["F1@5"],
        "nDCG": metrics["NDCG"],
        "training, CPU s": round(cpu, 1),
        "folder, MB": round(size(folder / "data" / "projects" / project) / 1e6, 1),
        "documents/s": round(with_texts),
        "without tokenising": round(without),
    }


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("folder", type=Path, help="folder of the projects; made when it is not there")
    parser.add_argument("--records", type=int, default=10_000, help=f"training records (all: {ALL})")
    parser.add_argument("--dev", type=int, default=1000, help="records of the dev part (all: 19949)")
    parser.add_argument("--projects", nargs="+", default=list(PROJECTS), choices=list(PROJECTS))
    args = parser.parse_args()
    folder = args.folder.absolute()
    prepare(folder)
    for project in args.projects:
        row = measure(folder, project, args.records, args.dev)
        table = Table("annif_all" if args.records >= ALL else "annif", COLUMNS)
        table.add(**row)
        table.keep_others("project", "records", "dev")
        order = [name for name, _ in PROJECTS.values()]
        table.rows.sort(key=lambda row: (row["records"], row["dev"], order.index(row["project"])))
        print(table)
        table.save()


if __name__ == "__main__":
    main()
