"""The Annif backend: what Annif's own backend tests ask of Omikuji, asked of ours."""

from __future__ import annotations

import contextlib
import io
import re
import socket
import subprocess
import sys
import time
import urllib.request
from types import SimpleNamespace

import numpy as np
import pytest

annif_backend = pytest.importorskip("annif.backend", reason="xmc-fast[annif] is not installed")
from annif.corpus import Document, DocumentList, SubjectSet  # noqa: E402
from annif.exception import (  # noqa: E402
    ConfigurationException,
    NotInitializedException,
    NotSupportedException,
)
from annif.vocab import Subject, SubjectIndexFile  # noqa: E402

from xmc_fast import annif as ours  # noqa: E402
from xmc_fast import load  # noqa: E402
from xmc_fast.annif import _backend as backend_module  # noqa: E402

WORDS = {
    "archaeology": "excavation ruin grave find ancient stone layer dig",
    "history": "war king ancient century archive reign source letter",
    "physics": "energy particle force quantum wave field mass heat",
    "music": "song choir violin note rhythm opera tone voice",
    "unused": "",
}
BACKENDS = [{}, {"vectorizer": "xmc-fast"}, {"model": "tree"}, {"vectorizer": "xmc-fast", "model": "tree"}]
names = pytest.mark.parametrize("config", BACKENDS, ids=lambda c: "+".join(c.values()) or "defaults")


class Analyzer:
    """Annif's own analyzers ask for data of NLTK."""

    def tokenize_words(self, text):
        return [word.lower() for word in text.split() if len(word) >= 3]


@pytest.fixture
def subjects():
    index = SubjectIndexFile()
    for name in WORDS:
        index.append(Subject(uri=f"http://example.org/{name}", labels={"en": name}, notation=None))
    return index


@pytest.fixture
def project(tmp_path, subjects):
    return SimpleNamespace(
        datadir=str(tmp_path), subjects=subjects, analyzer=Analyzer(), project_id="p", vocab_lang="en"
    )


@pytest.fixture
def corpus(subjects):
    rng = np.random.default_rng(0)
    topics = [words.split() for words in WORDS.values() if words]
    documents = []
    for _ in range(120):
        about = rng.choice(len(topics), 2 if rng.random() < 0.3 else 1, replace=False)
        text = " ".join(rng.choice(topics[topic], 5).tolist()[i] for topic in about for i in range(5))
        documents.append(Document(text=text, subject_set=SubjectSet(about.tolist())))
    documents += [Document(text="", subject_set=SubjectSet([0])), Document(text="excavation ruin")]
    return DocumentList(documents)


def make(project, **config):
    ours.register()
    return annif_backend.get_backend("xmc_fast")(backend_id="xmc_fast", config_params=config, project=project)


def best(backend, text, **params):
    (found,) = backend.suggest([Document(text=text)], params)
    return [(suggestion.subject_id, suggestion.score) for suggestion in found]


def test_default_params(project):
    params = make(project).params
    assert (params["limit"], params["min_df"], params["vectorizer"]) == (100, 1, "annif")


@names
def test_suggest_before_training(project, config):
    backend = make(project, **config)
    assert not backend.is_trained
    with pytest.raises(NotInitializedException):
        best(backend, "example text")


@names
def test_train_and_suggest(project, corpus, tmp_path, config):
    (tmp_path / "xmc_fast-model").mkdir()  # an empty folder is no hindrance
    config = {**config, "min_df": "1", "ngram": "2", "C": "1.0"}  # values of a file are strings
    backend = make(project, **config)
    backend.train(corpus, jobs=1)
    found = best(backend, "ancient ruin and excavation of a grave", limit="3")
    assert found[0][0] == 0
    assert 1 < len(found) <= 3
    assert all(0 < score <= 1 for _, score in found)
    assert 4 not in dict(found)  # a subject without documents
    assert best(backend, "j") == []
    assert backend.is_trained
    assert best(make(project, **config), "ancient ruin and excavation of a grave", limit="3") == found


@names
def test_a_batch_is_as_its_documents_alone(project, corpus, config):
    backend = make(project, **config)
    backend.train(corpus)
    texts = ["ancient ruin", "quantum energy", "zzz", "choir opera king"]
    batch = backend.suggest([Document(text=text) for text in texts])
    assert batch.array.dtype == np.float32
    assert batch.array.shape == (4, len(WORDS))
    for i, text in enumerate(texts):
        assert dict(best(backend, text)) == pytest.approx({s.subject_id: s.score for s in batch[i]}, rel=1e-6)


@names
def test_train_cached(project, corpus, config):
    backend = make(project, **config)
    with pytest.raises(NotInitializedException, match="without --cached"):
        backend.train("cached")
    backend.train(corpus)
    before = best(backend, "ancient ruin")
    again = make(project, **config)
    again.train("cached")
    assert best(again, "ancient ruin") == before
    again.train("cached", {"C": "0.01"})
    assert best(again, "ancient ruin") != before


@names
def test_train_without_documents(project, config):
    with pytest.raises(NotSupportedException):
        make(project, **config).train(DocumentList([]))


@names
def test_subjects_may_be_deprecated_and_reordered(project, corpus, subjects, config):
    backend = make(project, **config)
    backend.train(corpus)
    order = ["music", "physics", "history", "archaeology", "unused"]
    index = SubjectIndexFile()
    for name in order:
        labels = None if name == "history" else {"en": name}
        index.append(Subject(uri=f"http://example.org/{name}", labels=labels, notation=None))
    index._languages = ["en"]
    project.subjects = index
    found = best(make(project, **config), "ancient ruin archive king")
    assert found[0][0] == 3
    assert 2 not in dict(found)
    index._uri_idx.pop("http://example.org/history")
    again = make(project, **config)
    again.train("cached")  # the cache has URIs
    assert best(again, "ancient ruin archive king")[0][0] == 3


def test_the_pickle_is_annifs_only(project, corpus, tmp_path):
    backend = make(project, vectorizer="xmc-fast")
    backend.train(corpus)
    assert not (tmp_path / "vectorizer").exists()
    make(project).train(corpus)
    assert (tmp_path / "vectorizer").exists()


@pytest.fixture
def many(subjects):
    """Documents of which few hold the name of their subject, and some that of another; enough to hold a hundred out."""
    rng = np.random.default_rng(1)
    words = [WORDS[name].split() for name in list(WORDS)[:4]]
    documents = []
    for _ in range(1200):
        about = int(rng.integers(4))
        text = [*rng.choice(words[about], 3).tolist(), *rng.choice(words[int(rng.integers(4))], 2).tolist()]
        named = rng.choice(list(WORDS)[:4]) if rng.random() < 0.1 else list(WORDS)[about]
        text += [named] if rng.random() < 0.5 else []
        documents.append(Document(text=" ".join(text), subject_set=SubjectSet([about])))
    return DocumentList(documents)


@names
def test_names_of_subjects_count_where_they_stand_in_a_text(project, many, tmp_path, config):
    backend = make(project, **config)
    backend.train(many, jobs=1)
    (both,) = backend.suggest([Document(text="quantum energy unused")])
    assert {s.subject_id for s in both} >= {2, 4}  # 4 has no document
    assert all(0 < s.score <= 1 for s in both)
    alone = best(backend, "unused")
    assert [subject for subject, _ in alone] == [4]
    assert best(make(project, **config), "quantum energy unused") == [(s.subject_id, s.score) for s in both]
    again = make(project, **config)
    again.train("cached", {"names": "False"})
    assert best(again, "unused") == []
    assert best(make(project, **config), "unused") == []  # nothing is left of them
    assert not (tmp_path / "xmc_fast-names").exists()


@pytest.mark.parametrize("config", [{}, {"vectorizer": "xmc-fast"}], ids=["annif", "xmc-fast"])
def test_probabilities_with_names_are_those_of_new_documents(project, many, config):
    backend = make(project, **config, refit="False")
    documents = [*many.documents]
    backend.train(DocumentList(documents[:1000]), jobs=1)
    found = backend.suggest([Document(text=document.text) for document in documents[1000:]])
    scores = [
        (s.score, s.subject_id in d.subject_set)
        for row, d in zip(found, documents[1000:], strict=True)
        for s in row
    ]
    given, right = np.array(scores).T
    assert abs(given.sum() - right.sum()) < 0.15 * right.sum()


def test_a_model_that_was_trained_inside_annif_is_a_text_model(project, many, tmp_path):
    """It can be served, and tells what it was trained on."""
    make(project, vectorizer="xmc-fast").train(many, jobs=1)
    model = load(tmp_path / "xmc_fast-model")
    assert model.calibrated
    assert model.label_names_ == sorted(f"http://example.org/{name}" for name in list(WORDS)[:4])
    assert model.label_counts_.sum() == model.fit_report_["rows"] == 1200
    assert model.fit_report_["held_out"] == 120


def test_few_documents_are_held_out_of_many():
    assert backend_module._held_out(50, 0.1).sum() == 5
    assert backend_module._held_out(100_000, 0.1).sum() == backend_module.MOST_HELD_OUT == 1000
    assert backend_module._again({"refit": "auto"}, backend_module._held_out(10_000, 0.1))
    assert not backend_module._again({"refit": "auto"}, backend_module._held_out(100_000, 0.1))
    assert not backend_module._again({"refit": "False"}, backend_module._held_out(50, 0.1))


def test_wrong_parameters(project, corpus):
    for config in ({"vectorizer": "other"}, {"model": "other"}):
        with pytest.raises(ConfigurationException, match=r"must be .* got 'other'"):
            make(project, **config).train(corpus)


def test_learn_needs_our_vectorizer(project, corpus):
    backend = make(project)
    backend.train(corpus)
    with pytest.raises(NotSupportedException, match="vectorizer=xmc-fast and keep_state=True"):
        backend.learn(corpus)


def test_learn(project, corpus, subjects):
    config = {"vectorizer": "xmc-fast", "keep_state": "True", "min_df": "1"}
    make(project, **config).train(corpus)
    subjects.append(Subject(uri="http://example.org/chess", labels={"en": "chess"}, notation=None))
    text = "rook bishop pawn checkmate"
    assert best(make(project, **config), text) == []
    new = [
        Document(text=f"{text} {word}", subject_set=SubjectSet([5])) for word in ("queen", "knight", "ruin")
    ]
    make(project, **config).learn(DocumentList(new))
    backend = make(project, **config)  # as a new process finds it
    assert best(backend, text)[0][0] == 5
    assert best(backend, "quantum energy wave")[0][0] == 2


def test_hyperopt(project, corpus):
    backend = make(project, vectorizer="xmc-fast")
    results = io.StringIO()
    found = backend.get_hp_optimizer(corpus, "NDCG").optimize(3, 1, results)
    assert [line.partition("=")[0] for line in found.lines] == ["C", "prune", "min_df", "ngram"]
    assert 0 < found.score <= 1
    assert results.getvalue().startswith("trial\tvalue\tC\t")
    backend.train(corpus, dict(line.split("=") for line in found.lines))
    with pytest.raises(NotSupportedException, match="metric must be"):
        backend.get_hp_optimizer(corpus, "LRAP")
    with pytest.raises(NotSupportedException, match="vectorizer=xmc-fast"):
        make(project).get_hp_optimizer(corpus, "NDCG")


PROJECTS = """
[own]
name=Own
language=en
vocab=topics(en)
analyzer=simple
backend=xmc_fast
vectorizer=xmc-fast
keep_state=True
allow_learn=True
limit=3
"""


def test_the_command_is_annifs_with_our_backend(corpus, tmp_path, monkeypatch, capsys):
    """A vocabulary, training, suggestions, learning and tuning, as docs/howto/annif.md has them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANNIF_PROJECTS", "projects.cfg")

    def run(*arguments, given=""):
        monkeypatch.setattr(sys, "argv", ["xmc-fast-annif", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO(given))
        with pytest.raises(SystemExit) as ended:
            ours.main()
        said = capsys.readouterr()
        assert ended.value.code in (0, None), said.err
        return said.out

    uris = [f"http://example.org/{name}" for name in [*WORDS, "chess"]]
    (tmp_path / "projects.cfg").write_text(PROJECTS)
    (tmp_path / "topics.csv").write_text("uri,label_en\n" + "".join(f"{u},{u[19:]}\n" for u in uris))
    lines = [
        f"{d.text}\t{' '.join(f'<{uris[s]}>' for s in d.subject_set)}\n" for d in corpus.documents if d.text
    ]
    (tmp_path / "train.tsv").write_text("".join(lines[:100]))
    (tmp_path / "dev.tsv").write_text("".join(lines[100:120]))
    (tmp_path / "new.tsv").write_text(f"rook bishop pawn\t<{uris[-1]}>\nrook queen\t<{uris[-1]}>\n")
    run("load-vocab", "topics", "topics.csv")
    run("train", "own", "train.tsv")
    assert re.search(r"F1@5:\s+0\.[3-9]", run("eval", "own", "-m", "F1@5", "dev.tsv"))
    suggested = run("suggest", "own", given="ancient ruin and excavation of a grave")
    assert suggested.startswith(f"<{uris[0]}>\tarchaeology\t")
    run("learn", "own", "new.tsv")
    assert run("suggest", "own", given="rook and pawn").startswith(f"<{uris[-1]}>\tchess\t")
    assert "prune=" in run("hyperopt", "own", "train.tsv", "--metric", "F1@5", "--trials", "2")


@contextlib.contextmanager
def serving(folder):
    """``xmc-fast serve`` on a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "xmc_fast", "serve", f"p={folder}", "--quiet", "--port", str(port)]
    process = subprocess.Popen(command)
    try:
        end = time.monotonic() + 120
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=10).read()
                break
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/v1/projects/p/suggest"
    finally:
        process.terminate()
        process.wait(30)


def test_annifs_own_http_backend_asks_our_server(project, corpus, tmp_path):
    for package in ("fastapi", "uvicorn", "prometheus_client", "swagger_ui_bundle"):
        pytest.importorskip(package, reason="xmc-fast[serve] is not installed")
    trained = make(project, vectorizer="xmc-fast")
    trained.train(corpus, jobs=1)
    text = "ancient ruin and excavation of a grave"
    with serving(tmp_path / "xmc_fast-model") as endpoint:
        config = {"endpoint": endpoint, "limit": 3}
        stock = annif_backend.get_backend("http")(backend_id="http", config_params=config, project=project)
        assert stock.is_trained
        assert stock.modification_time.year >= 2024
        assert dict(best(stock, text)) == pytest.approx(dict(best(trained, text, limit=3)), rel=1e-5)
        assert best(stock, "zzz") == []
