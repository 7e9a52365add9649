"""Load on ``xmc-fast serve``, beside Annif's own web API on the same texts:
``python -m bench.speed.bench_serve MODEL [--annif FOLDER PROJECT --annif-python PYTHON]``.

Both servers are started here on loopback with one worker each, and are sent texts of tibkat-gnd's dev part (about 170
words) over connections that are kept open. They get rounds at saturation in turns, then rounds at half of the rate that
each reached; the round of the median is kept (without ``--annif`` as a table of its own). Reported are requests per
second, the latency a client sees, and the CPU time of the server per request, which depends little on what else the
machine does. ``--minutes`` is saturation for so long, with the memory that the server has for itself after each minute.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import itertools
import json
import os
import socket
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil

from bench.common import Table, command_line
from bench.sets import read_texts

COLUMNS = ("server", "load", "requests", "errors", "per second", "p50 ms", "p99 ms", "server CPU ms")


@dataclass
class Load:
    """What the clients saw."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds

    def at(self, share: float) -> float:
        """Milliseconds that this share of the requests needed at most."""
        return 1e3 * float(np.quantile(self.latencies, share))


def request_bytes(path: str, body: str, kind: str) -> bytes:
    """One whole HTTP/1.1 request."""
    raw = body.encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {len(raw)}\r\n\r\n"
    return head.encode() + raw


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> int:
    """Send a request, read its whole answer; returns the status."""
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    status = int(head.split(" ", 2)[1])
    if "content-length:" in head:
        await reader.readexactly(int(head.split("content-length:")[1].split("\r\n")[0]))
    else:  # chunked
        while size := int((await reader.readline()).split(b";")[0], 16):
            await reader.readexactly(size + 2)
        await reader.readline()
    return status


async def load(port: int, requests: list[bytes], connections: int, seconds: float, rate: float = 0.0) -> Load:
    """Requests one after the other on each connection; with a rate, each at its own time.

    Where a rate is given, a latency counts from when the request should have been sent.
    """
    found, turn = Load(), itertools.count()
    start = time.perf_counter()

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while True:
            number = next(turn)
            due = start + number / rate if rate else time.perf_counter()
            if due >= start + seconds:
                break
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            status = await exchange(reader, writer, requests[number % len(requests)])
            found.latencies.append(time.perf_counter() - due)
            found.statuses[status] = found.statuses.get(status, 0) + 1
        writer.close()

    await asyncio.gather(*(client() for _ in range(connections)))
    found.seconds = time.perf_counter() - start
    return found


@contextlib.contextmanager
def server(
    command: Callable[[int], list[str]], ready: str, **options: object
) -> Iterator[tuple[int, psutil.Process]]:
    """A server on a free port that answers at ``ready``; ended afterwards."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(command(port), **options)  # type: ignore[call-overload]
    try:
        for _ in range(1200):
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                connection.request("GET", ready)
                if connection.getresponse().status == 200:
                    break
            if process.poll() is not None:
                raise SystemExit(f"the server ended with code {process.returncode}")
            time.sleep(0.1)
        yield port, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(60)


def processes(parent: psutil.Process) -> list[psutil.Process]:
    return [parent, *parent.children(recursive=True)]


def cpu(parent: psutil.Process) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes(parent))


def memory(parent: psutil.Process) -> float:
    """MB of the processes that are their own (mapped pages of files are shared)."""
    return sum(p.memory_full_info().uss for p in processes(parent)) / 1e6


@dataclass
class Served:
    """A running server and what it is sent."""

    name: str
    port: int
    process: psutil.Process
    requests: list[bytes]

    def round(self, what: str, args: argparse.Namespace, rate: float = 0.0) -> list[object]:
        """The row of one round."""
        before = cpu(self.process)
        found = asyncio.run(load(self.port, self.requests, args.connections, args.seconds, rate))
        each = 1e3 * (cpu(self.process) - before) / len(found.latencies)
        errors = sum(count for status, count in found.statuses.items() if status != 200)
        count = len(found.latencies)
        return [self.name, what, count, errors, found.rate, found.at(0.5), found.at(0.99), each]


def measure(servers: list[Served], args: argparse.Namespace) -> list[list[object]]:
    """Rounds of all servers in turns, after one to warm up; the one of the median rate of each."""
    for one in servers:
        asyncio.run(load(one.port, one.requests, args.connections, min(args.seconds, 3)))
    rows: list[list[object]] = []
    rates = dict.fromkeys([one.name for one in servers], 0.0)
    for what in ("saturation", "half"):
        found: dict[str, list[list[Any]]] = {one.name: [] for one in servers}
        for _ in range(args.rounds):
            for one in servers:
                found[one.name].append(one.round(what, args, rates[one.name] / 2))
                print(found[one.name][-1], flush=True)
        for name, rounds in found.items():
            middle = sorted(rounds, key=lambda row: row[4 if what == "saturation" else 6])[args.rounds // 2]
            rates[name] = middle[4]
            rows.append(middle)
    return rows


def endure(one: Served, args: argparse.Namespace) -> Table:
    """Saturation for minutes: what the server's memory does, and whether there are errors."""
    table = Table("serve_minutes", ("minute", "requests", "errors", "MB"))
    for minute in range(1, args.minutes + 1):
        found = asyncio.run(load(one.port, one.requests, args.connections, 60))
        errors = sum(count for status, count in found.statuses.items() if status != 200)
        size = round(memory(one.process), 1)
        table.add(minute=minute, requests=len(found.latencies), errors=errors, MB=size)
        print(table.rows[-1], flush=True)
    return table


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("model", help="folder of a text model")
    parser.add_argument(
        "--annif", nargs=2, metavar=("FOLDER", "PROJECT"), help="where projects.cfg is, and which"
    )
    parser.add_argument("--annif-python", default=sys.executable, help="Python of Annif's environment")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3, help="of each server, in turns; 0: --minutes alone")
    parser.add_argument("--minutes", type=int, default=0, help="minutes at saturation afterwards")
    args = parser.parse_args()
    texts = read_texts("tibkat-gnd", "dev")[0][:1000]
    table = Table("serve" if args.annif else "serve_alone", COLUMNS)
    ours = [sys.executable, "-m", "xmc_fast", "serve", f"model={args.model}", "--quiet", "--threads", "1"]
    ours += ["--timeout", "900"]  # this program may be paused on a shared machine
    requests = [
        request_bytes("/v1/models/model/suggest", json.dumps({"text": text, "k": 10}), "application/json")
        for text in texts
    ]
    with contextlib.ExitStack() as running:
        started = server(lambda port: [*ours, "--port", str(port)], "/ready")
        servers = [Served("xmc-fast serve", *running.enter_context(started), requests)]
        if args.annif:
            folder, project = args.annif
            path = f"/v1/projects/{project}/suggest"
            kind = "application/x-www-form-urlencoded"
            forms = [
                request_bytes(path, urllib.parse.urlencode({"text": text, "limit": 10}), kind)
                for text in texts
            ]
            theirs = [args.annif_python, "-m", "uvicorn", "--factory", "annif:create_app"]
            options = {"cwd": folder, "env": os.environ | {"ANNIF_PROJECTS": "projects.cfg"}}
            started = server(
                lambda port: [*theirs, "--log-level", "warning", "--port", str(port)],
                "/v1/projects",
                **options,
            )
            servers.append(Served(f"Annif, {project}", *running.enter_context(started), forms))
        tables = [endure(servers[0], args)] if args.minutes else []
        if args.rounds:
            for row in measure(servers, args):
                table.add(**dict(zip(COLUMNS, row, strict=True)))
            tables.append(table)
    for table in tables:
        print(table)
        table.save()


if __name__ == "__main__":
    main()
