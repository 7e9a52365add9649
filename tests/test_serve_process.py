"""The server as a process: slow clients, killed workers, replaced models under load, a graceful stop."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import psutil
import pytest

from xmc_fast.cli import main
from xmc_fast.texts import TextClassifier

pytest.importorskip("uvicorn", reason="xmc-fast[serve] is not installed")
TEXTS = ["green tea leaves", "black tea cup", "iron ore mine", "steel iron bar"]


def train(folder, drink="drink"):
    labels = [drink, drink, "metal", "metal"]
    TextClassifier(calibrate=0.2).fit(TEXTS * 12, labels * 12).save(folder)


def ask(port, text="tea", timeout=20):
    """Status and best label."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    body = json.dumps({"text": text, "k": 1})
    connection.request("POST", "/v1/models/model/suggest", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    found = json.loads(answer.read())
    connection.close()
    return answer.status, found["results"][0]["suggestions"][0]["label"]


def ready(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/ready")
    found = json.loads(connection.getresponse().read())
    connection.close()
    return found


def sooner_or_later(condition, seconds=30):
    end = time.monotonic() + seconds
    while not (held := condition()) and time.monotonic() < end:
        time.sleep(0.1)
    return held


@contextlib.contextmanager
def loaded(port):
    """Four clients that ask all the time; gives what they are answered."""
    seen, ending = [], threading.Event()

    def client():
        while not ending.is_set():
            seen.append(ask(port))

    clients = [threading.Thread(target=client) for _ in range(4)]
    for thread in clients:
        thread.start()
    try:
        yield seen
    finally:
        ending.set()
        for thread in clients:
            thread.join()


class Server:
    """``xmc-fast serve`` on a free port."""

    def __init__(self, folder, log, *options):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [sys.executable, "-m", "xmc_fast", "serve", str(folder), "--port", str(self.port), *options]
        self.log = log
        with open(log, "wb") as file:
            self.process = subprocess.Popen(command, stderr=file, stdout=file)
        self.wait()

    def wait(self):
        end = time.monotonic() + 60
        while True:
            try:
                assert ask(self.port)[0] == 200
                return
            except (OSError, http.client.HTTPException):
                assert self.process.poll() is None, self.log.read_text()
                assert time.monotonic() < end, self.log.read_text()
                time.sleep(0.1)

    def stop(self):
        self.process.terminate()
        return self.process.wait(30)


@pytest.fixture
def start(tmp_path):
    train(tmp_path / "model")
    servers = []

    def run(*options):
        servers.append(Server(tmp_path / "model", tmp_path / "log", *options))
        return servers[-1]

    yield run
    for server in servers:
        if server.process.poll() is None:
            for child in psutil.Process(server.process.pid).children(recursive=True):
                child.kill()
            server.process.kill()
            server.process.wait()


def test_slow_clients_replaced_models_and_a_graceful_stop(start, tmp_path):
    server = start("--timeout", "4")
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as slow:
        head = (
            "POST /v1/models/model/suggest HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        )
        slow.sendall((head + 'Content-Length: 1000\r\n\r\n{"text": "').encode())
        assert ask(server.port)[1] == "drink"  # nobody waits for the slow one
        assert slow.recv(1000).startswith(b"HTTP/1.1 408")
    with loaded(server.port) as seen:
        train(tmp_path / "model", "Getränk")
        assert sooner_or_later(lambda: ask(server.port)[1] == "Getränk")
    assert {status for status, _ in seen} == {200}
    assert ask(server.port) == (200, "Getränk")
    # A request whose body arrives after the stop was asked for is still answered.
    body = b'{"text": "tea", "k": 1}'
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as last:
        last.sendall((head + f"Content-Length: {len(body)}\r\n\r\n").encode() + body[:5])
        time.sleep(0.2)
        server.process.terminate()
        time.sleep(0.2)
        last.sendall(body[5:])
        assert last.recv(100).startswith(b"HTTP/1.1 200")
    assert server.process.wait(30) in (0, -signal.SIGTERM)
    assert "tea" not in server.log.read_text()


def test_a_deleted_model_stays_in_use_until_there_is_a_new_one(start, tmp_path):
    server = start()
    with loaded(server.port) as seen:
        shutil.rmtree(tmp_path / "model")
        assert sooner_or_later(lambda: "gone" in str(ready(server.port)["problems"]))
        before = len(seen)
        assert sooner_or_later(lambda: len(seen) > before + 20)
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "manifest.json").write_text("{")  # damaged
        assert sooner_or_later(lambda: "cannot be opened" in str(ready(server.port)["problems"]))
        assert ask(server.port) == (200, "drink")
        train(tmp_path / "model", "Getränk")
        assert sooner_or_later(lambda: ask(server.port)[1] == "Getränk")
    assert {status for status, _ in seen} == {200}
    assert sooner_or_later(lambda: ready(server.port)["problems"] == {})


def test_a_killed_worker_is_replaced_and_pages_are_shared(start, tmp_path):
    small = TextClassifier.load(tmp_path / "model")
    small.model_ = small.model_.compress()
    small.save(tmp_path / "model")
    server = start("--workers", "2", "--mmap")
    parent = psutil.Process(server.process.pid)

    def workers():
        found = []
        for child in parent.children():
            with contextlib.suppress(psutil.Error):  # a zombie has no command line
                found += [child.pid] if "spawn_main" in " ".join(child.cmdline()) else []
        return found

    first = workers()
    assert len(first) == 2
    os.kill(first[0], signal.SIGKILL)
    end = time.monotonic() + 60
    while len(set(workers()) - {first[0]}) < 2 and time.monotonic() < end:
        time.sleep(0.2)
    assert len(set(workers()) - {first[0]}) == 2
    server.wait()
    assert {ask(server.port)[0] for _ in range(10)} == {200}
    weights = str(tmp_path / "model" / "model")

    def maps(worker):
        return any(file.path.startswith(weights) for file in psutil.Process(worker).memory_maps())

    assert sooner_or_later(lambda: all(map(maps, workers())))  # the same files
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("GET", "/metrics")
    assert b"xmc_fast_requests_total" in connection.getresponse().read()
    connection.close()
    assert server.stop() == 0


def test_models_that_cannot_be_served_are_named(tmp_path):
    command = [sys.executable, "-m", "xmc_fast", "serve", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 1
    assert str(tmp_path) in run.stderr
    assert "not a model folder" in run.stderr


def test_a_damaged_model_is_refused_before_workers_start(tmp_path, monkeypatch, capsys):
    """Each worker would die as it opens it, and be started again without end."""
    started = []
    monkeypatch.setattr("xmc_fast.serve.run", lambda *_, **options: started.append(options))
    train(tmp_path / "model")
    command = ["serve", str(tmp_path / "model"), "--workers", "2"]
    assert main(command) == 0
    (tmp_path / "model" / "labels.json").write_text("{")
    assert main(command) == 1
    assert "labels.json: truncated or damaged" in capsys.readouterr().err
    assert len(started) == 1


def test_a_port_that_is_none_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["serve", str(tmp_path), "--port", "70000"])
    assert caught.value.code == 2
    assert "expected a port from 1 to 65535, got '70000'" in capsys.readouterr().err
