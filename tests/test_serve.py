"""The server's API in process: answers are those of the model, and every fault ends in a clear status."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from xmc_fast.texts import TextClassifier

pytest.importorskip("fastapi", reason="xmc-fast[serve] is not installed")
testclient = pytest.importorskip("starlette.testclient")
from xmc_fast.serve import Settings, create_app, model_folders  # noqa: E402
from xmc_fast.serve._batching import Batcher, Overloaded  # noqa: E402
from xmc_fast.serve._models import ServedModel  # noqa: E402

TEXTS = ["green tea leaves", "black tea cup", "iron ore mine", "steel iron bar", "tea cup of iron"]
TAGS = [["drink"], ["drink", "kitchen"], ["metal", "mining"], ["metal"], ["kitchen", "metal"]]
SUGGEST = "/v1/models/drinks/suggest"


def train(folder, tags=TAGS, columns=None):
    texts = TEXTS * 12 if columns is None else {name: TEXTS * 12 for name in columns}
    classifier = TextClassifier(calibrate=0.2).fit(texts, tags * 12)
    classifier.save(folder)
    return classifier


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "drinks"
    train(path)
    return path


@pytest.fixture(scope="module")
def app(folder, tmp_path_factory):
    two = tmp_path_factory.mktemp("models") / "two"
    train(two, columns=["title", "body"])
    limits = {"max_body": 5000, "max_upload": 200_000, "max_batch": 10, "max_k": 8}
    return create_app(Settings({"drinks": str(folder), "two": str(two)}, **limits))


@pytest.fixture(scope="module")
def client(app):
    with testclient.TestClient(app, base_url="http://localhost") as client:
        yield client


def pairs(answer, row=0):
    assert answer.status_code == 200, answer.text
    return [(s["label"], s["probability"]) for s in answer.json()["results"][row]["suggestions"]]


def test_suggestions_are_those_of_the_model(client, folder):
    model = TextClassifier.load(folder)
    answer = client.post(SUGGEST, json={"texts": [*TEXTS, "qqq", ""], "k": 3})
    for row, expected in enumerate(model.predict([*TEXTS, "qqq", ""], 3)):
        assert pairs(answer, row) == [tuple(suggestion) for suggestion in expected]
    one = client.post(SUGGEST, json={"text": TEXTS[0], "k": 3, "threshold": 0.4})
    assert pairs(one) == [tuple(s) for s in model.predict_one(TEXTS[0], 3, threshold=0.4)]
    assert len(pairs(one)) < 3


def test_explanations_have_the_places_of_words(client, folder):
    text = "🍵 iron tea"
    answer = client.post(SUGGEST, json={"text": text, "k": 1, "explain": 5}).json()
    explanation = answer["results"][0]["suggestions"][0]["explanation"]
    assert {text[slice(*span)] for c in explanation["contributions"] for span in c["spans"]} == {
        "iron",
        "tea",
    }
    same = client.post(
        "/v1/models/drinks/explain", json={"text": text, "label": explanation["label"], "top": 5}
    )
    assert same.json() == explanation
    assert same.json() == json.loads(
        json.dumps(TextClassifier.load(folder).explain(text, explanation["label"], 5).to_dict())
    )


def test_a_text_may_be_columns(client, app):
    with_title = pairs(client.post("/v1/models/two/suggest", json={"text": {"title": "tea"}}))
    assert with_title[0][0] == "drink"
    body = pairs(client.post("/v1/models/two/suggest", json={"text": "tea"}))
    assert body == pairs(client.post("/v1/models/two/suggest", json={"text": {"body": "tea"}}))


def test_models_and_labels(client):
    assert [model["name"] for model in client.get("/v1/models").json()] == ["drinks", "two"]
    facts = client.get("/v1/models/drinks").json()
    assert (facts["labels"], facts["probabilities"], facts["problem"]) == (4, True, None)
    assert facts["label_frequencies"] == [[1, 36], [2, 24], [3, 24], [4, 12]]
    found = client.get("/v1/models/drinks/labels", params={"q": "M"}).json()
    assert [one["label"] for one in found] == ["metal", "mining"]
    label = client.get("/v1/models/drinks/label", params={"label": "drink"}).json()
    assert {"tea", "black", "green"} <= {term for term, _ in label["positive"]}
    assert client.get("/v1/models/drinks/label", params={"label": "none"}).status_code == 422


def test_a_table_comes_back_tagged(client, folder):
    table = 'id,text\r\n1,"green ""tea"",\r\nleaves"\r\n2,iron ore\r\n3,\r\n'
    answer = client.post("/v1/models/drinks/tag", params={"k": 2}, content=table.encode())
    assert (answer.status_code, answer.headers["x-rows"]) == (200, "3")
    header, *rows = csv.reader(io.StringIO(answer.text, newline=""))
    assert header == ["id", "text", "suggestions", "probabilities"]
    model = TextClassifier.load(folder)
    for row in rows:
        best = model.predict_one(row[1], 2)
        assert row[2:] == ["|".join(s.label for s in best), "|".join(f"{s.probability:.4f}" for s in best)]
    assert [row[0] for row in rows] == ["1", "2", "3"]


def test_a_text_of_a_table_may_be_a_book(client):
    answer = client.post("/v1/models/drinks/tag", params={"k": 1}, content=b"text\n" + b"tea " * 40_000)
    assert answer.status_code == 200
    assert ",drink," in answer.text[-20:]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (b"id,words\n1,tea\n", "no column 'text'"),
        (b"text\n\xff\xfe\n", "not UTF-8"),
        (b"", "empty"),
        (b"id,text\n1\n", "row 1"),
    ],
)
def test_tables_that_cannot_be_tagged(client, table, said):
    answer = client.post("/v1/models/drinks/tag", content=table)
    assert answer.status_code == 422
    assert said in answer.json()["detail"]


def test_what_annifs_http_backend_calls(client, folder):
    answer = client.post("/v1/projects/drinks/suggest", data={"text": TEXTS[0], "limit": "2", "project": "x"})
    expected = TextClassifier.load(folder).predict_one(TEXTS[0], 2)
    assert [(hit["uri"], hit["score"]) for hit in answer.json()["results"]] == [tuple(s) for s in expected]
    project = client.get("/v1/projects/drinks").json()
    assert project["is_trained"] is True
    assert re.match(r"\d{4}-\d\d-\d\dT", project["modification_time"])


FAULTS = {
    "a huge body": ({"content": b"x" * 6000}, 413),
    "a huge body without its length": ({"content": iter([b"x" * 3000] * 3)}, 413),
    "broken JSON": ({"content": b'{"text": "tea'}, 422),
    "wrong encoding": ({"content": b'{"text": "t\xff"}'}, 400),
    "no text": ({"json": {"k": 3}}, 422),
    "both": ({"json": {"text": "a", "texts": ["b"]}}, 422),
    "an unknown field": ({"json": {"text": "a", "path": "/etc/passwd"}}, 422),
    "too many texts": ({"json": {"texts": ["tea"] * 11}}, 413),
    "too many labels": ({"json": {"text": "tea", "k": 9}}, 422),
    "half of a character": ({"content": b'{"text": "\\ud83c"}'}, 422),
    "an unknown column": ({"json": {"text": {"name": "tea"}}}, 422),
    "a threshold that is no number": ({"content": b'{"text": "tea", "threshold": NaN}'}, 422),
    "another host": ({"json": {"text": "tea"}, "headers": {"host": "evil.example"}}, 400),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_end_in_a_status_and_the_next_request_works(client, fault):
    request, status = FAULTS[fault]
    kind = {"content-type": "application/json"} | request.get("headers", {})
    answer = client.post(SUGGEST, **{**request, "headers": kind})
    assert answer.status_code == status
    if "host" not in fault:
        assert isinstance(answer.json()["detail"], str)
    assert pairs(client.post(SUGGEST, json={"text": "tea", "k": 1}))[0][0] == "drink"


@pytest.mark.parametrize("name", ["none", "..", "%2e%2e%2fdrinks", "drinks%2f..", "/etc/passwd"])
def test_names_are_never_paths(client, name):
    assert client.post(f"/v1/models/{name}/suggest", json={"text": "tea"}).status_code in (404, 405)
    assert client.get("/page/%2e%2e%2f_app.py").status_code == 404


def test_a_token_is_asked_for(folder):
    app = create_app(Settings({"drinks": str(folder)}, token="secret"))
    client = testclient.TestClient(app, base_url="http://localhost")
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
        assert client.post(SUGGEST, json={"text": "tea"}, headers=headers).status_code == 401
        assert client.get("/metrics", headers=headers).status_code == 401
    good = {"Authorization": "Bearer secret"}
    assert client.post(SUGGEST, json={"text": "tea"}, headers=good).status_code == 200
    assert client.get("/health").status_code == client.get("/").status_code == 200


def test_other_sites_may_call_only_if_allowed(client, folder):
    asked = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    assert "access-control-allow-origin" not in client.options(SUGGEST, headers=asked).headers
    app = create_app(Settings({"drinks": str(folder)}, origins=["https://a.example"]))
    allowed = testclient.TestClient(app, base_url="http://localhost").options(SUGGEST, headers=asked)
    assert allowed.headers["access-control-allow-origin"] == "https://a.example"


def test_no_text_in_the_log(client, caplog):
    caplog.set_level("INFO", "xmc_fast.serve")
    client.post(SUGGEST, json={"text": "confidential"})
    client.post(SUGGEST, content=b'{"text": "confidential')
    client.get("/v1/models/drinks/labels", params={"q": "confidential"})
    client.get("/confidential")
    assert len(caplog.records) >= 4
    assert "confidential" not in caplog.text


def test_operations(client):
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/ready").json() == {"status": "ready", "problems": {}}
    client.post(SUGGEST, json={"text": "tea"})
    metrics = client.get("/metrics").text
    counted = re.search(r'requests_total{route="/v1/models/{name}/suggest",status="200"} (\d+)', metrics)
    assert int(counted[1]) > 0
    assert "xmc_fast_batch_texts_bucket" in metrics
    assert "/v1/models/{name}/suggest" in client.get("/openapi.json").json()["paths"]


def test_pages_ask_no_other_host(client):
    for page in ("/", "/docs"):
        answer = client.get(page)
        assert answer.status_code == 200
        policy = answer.headers["content-security-policy"]
        assert "script-src 'self';" in policy
        assert "http" not in policy
        for file in re.findall(r'(?:src|href)="(?!data:|#)([^"]+)"', answer.text):
            assert client.get(f"/{file}").status_code == 200, file
    for path in Path(create_app.__code__.co_filename).parent.joinpath("page").iterdir():
        hosts = set(re.findall(r"https?://[\w.]+", path.read_text("utf-8")))
        assert hosts <= {"http://www.w3.org"}, path  # the name of SVG's elements


@pytest.fixture
def served(folder, tmp_path):
    path = tmp_path / "model"
    shutil.copytree(folder, path)
    model = ServedModel("model", str(path), Settings({"model": str(path)}), lambda rows: None)
    yield model, path
    model.close()


def test_explanations_of_a_batch_take_no_longer_than_the_limit(folder, monkeypatch):
    slow = TextClassifier.explain

    def explain(*args):
        time.sleep(0.1)
        return slow(*args)

    monkeypatch.setattr(TextClassifier, "explain", explain)
    app = create_app(Settings({"drinks": str(folder)}, timeout=0.5))
    with testclient.TestClient(app, base_url="http://localhost") as client:
        begin = time.monotonic()
        answer = client.post(SUGGEST, json={"texts": TEXTS * 20, "k": 4, "explain": 3})
        assert (answer.status_code, answer.json()) == (504, {"detail": "no answer within 0.5 s"})
        assert time.monotonic() - begin < 20  # all of them take forty seconds
        assert pairs(client.post(SUGGEST, json={"text": "tea", "k": 1, "explain": 3}))[0][0] == "drink"


CUT_SHORT = """
import asyncio, os, sys
from pathlib import Path
from xmc_fast.serve import Settings
from xmc_fast.serve._models import ServedModel

folder = sys.argv[1]
model = ServedModel("model", folder, Settings({"model": folder}, **({"mmap": True} if sys.argv[2:] else {})), print)
async def story():
    (_, before), = await model.suggest(["tea"], 1)
    for path in Path(folder).rglob("*.safetensors"):
        os.truncate(path, 0)
    await model.refresh()
    (classifier, after), = await model.suggest(["tea"], 1)
    assert after == before, (before, after)
    return (await model.explain(classifier, "tea", None, 3))["label"]
print(asyncio.run(story()))
model.close()
"""


@pytest.mark.parametrize("small", [False, True])
def test_files_cut_short_under_a_running_server(folder, tmp_path, small):
    """They would end a process that has mapped them (SIGBUS): a server reads its weights unless told otherwise."""
    path = tmp_path / "model"
    classifier = TextClassifier.load(folder)
    if small:
        classifier.model_ = classifier.model_.compress()
    classifier.save(path)
    run = subprocess.run([sys.executable, "-c", CUT_SHORT, str(path)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "drink"
    if small:  # what it guards against
        classifier.save(path)
        mapped = subprocess.run([sys.executable, "-c", CUT_SHORT, str(path), "mmap"], capture_output=True)
        assert mapped.returncode == -signal.SIGBUS


def test_a_replaced_folder_is_picked_up(served):
    model, path = served

    async def story():
        before = await model.suggest(["tea"], 1)
        train(path, [["Tee"], ["Tee", "Geschirr"], ["Erz"], ["Eisen"], ["Geschirr"]])
        await model.refresh()
        after = await model.suggest(["tea"], 1)
        shutil.rmtree(path)
        await model.refresh()
        gone = model.problem, await model.suggest(["tea"], 1)
        path.mkdir()
        (path / "manifest.json").write_text('{"kind": "text_classifier", "format_version": 1}')
        await model.refresh()
        damaged = model.problem, await model.suggest(["tea"], 1)
        train(path)
        await model.refresh()
        return before, after, gone, damaged, await model.suggest(["tea"], 1), model.problem

    before, after, gone, damaged, again, problem = asyncio.run(story())
    assert (before[0][1][0].label, after[0][1][0].label, again[0][1][0].label) == ("drink", "Tee", "drink")
    assert "gone" in gone[0]
    assert "cannot be opened" in damaged[0]
    assert gone[1][0][1] == damaged[1][0][1] == after[0][1]
    assert problem is None


def test_whatever_opening_ends_with_the_folder_is_looked_at_again(served, monkeypatch):
    model, path = served

    def no_memory(*_, **__):
        raise MemoryError

    async def story():
        train(path, [["Tee"], ["Tee", "Geschirr"], ["Erz"], ["Eisen"], ["Geschirr"]])
        with monkeypatch.context() as patch:
            patch.setattr("xmc_fast.serve._models.load", no_memory)
            await model.refresh()
        problem, before = model.problem, await model.suggest(["tea"], 1)
        await model.refresh()
        return problem, before, await model.suggest(["tea"], 1), model.problem

    problem, before, after, none = asyncio.run(story())
    assert "cannot be opened" in problem
    assert (before[0][1][0].label, after[0][1][0].label, none) == ("drink", "Tee", None)


def test_concurrent_requests_share_a_prediction(served):
    model, _ = served
    sizes: list[int] = []
    texts = [TEXTS[i % 5] + f" {TEXTS[i % 3]}" for i in range(64)]

    async def story():
        with ThreadPoolExecutor(1) as executor:
            batcher = Batcher(model._suggest, executor, max_rows=16, observe=sizes.append)
            return await asyncio.gather(*(batcher([text], 2 + i % 2) for i, text in enumerate(texts)))

    found = asyncio.run(story())
    for i, ((_, row),) in enumerate(found):
        assert row == model.classifier.predict([texts[i]], 2 + i % 2)[0]
    assert sum(sizes) == 64
    assert max(sizes) == 16
    assert len(sizes) <= 8


def test_one_bad_text_fails_alone_and_too_many_are_refused():
    def predict(texts, k):
        if "bad" in texts:
            raise ValueError("bad")
        return list(texts)

    async def story():
        with ThreadPoolExecutor(1) as executor:
            batcher = Batcher(predict, executor, max_waiting=4)
            jobs = [batcher([text], 1) for text in ("a", "bad", "b", "c", "d")]
            found = await asyncio.gather(*jobs, return_exceptions=True)
            return found, await batcher(["e"], 1)

    (a, bad, b, c, d), after = asyncio.run(story())
    assert [a, b, c, after] == [["a"], ["b"], ["c"], ["e"]]
    assert isinstance(bad, ValueError)
    assert isinstance(d, Overloaded)


def test_nobody_waits_longer_than_the_limit():
    def predict(texts, k):
        time.sleep(0.3)
        return texts

    async def run():
        with ThreadPoolExecutor(1) as executor:
            batcher = Batcher(predict, executor)
            with pytest.raises(asyncio.TimeoutError):
                await batcher(["slow"], 1, 0.05)
            return await batcher(["next"], 1, 30.0)

    assert asyncio.run(run()) == ["next"]


def test_a_client_that_left_is_not_predicted_for():
    seen = []

    async def story():
        with ThreadPoolExecutor(1) as executor:
            batcher = Batcher(lambda texts, k: seen.extend(texts) or list(texts), executor)
            left = asyncio.create_task(batcher(["left"], 1))
            stays = asyncio.create_task(batcher(["stays"], 1))
            await asyncio.sleep(0)
            left.cancel()
            return await stays

    assert asyncio.run(story()) == ["stays"]


def test_names_of_models(tmp_path):
    assert model_folders([str(tmp_path / "a"), "b=x/y"]) == {"a": str(tmp_path / "a"), "b": "x/y"}
    for wrong in (["a/x", "b/x"], ["a/b=c"], ["=x"]):
        with pytest.raises(ValueError, match=r"named|expected"):
            model_folders(wrong)
    for name, value in (("max_k", 0), ("timeout", float("nan")), ("timeout", float("inf"))):
        with pytest.raises(ValueError, match=f"{name} must be above 0 and finite, got {value}"):
            Settings({"a": "b"}, **{name: value})
