"""SIGKILL at random moments of an operation: what is there afterwards, byte by byte.

The operation runs in a process forked from this one, with everything imported and in memory; it says when it begins and
when it is done. The moment is uniform over the time that the operation takes. A kill that came after the end is counted
apart and made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import random
import shutil
import signal
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import xmc_fast
from xmc_fast import _files
from xmc_fast.cli import main

TRIES = 4  # kills that came too late: at most so many for each that counts


def problem(labels: int = 64) -> tuple[sp.csr_matrix, sp.csr_matrix]:
    rng = np.random.default_rng(0)
    X = sp.random(300, 60, 0.2, format="csr", dtype=np.float32, random_state=0)
    return X, sp.csr_matrix(rng.random((300, labels)) < 0.05)


X, Y = problem()
TEXT = "".join(
    f"{i % 7},{i % 11 + 7} " + " ".join(f"{j}:{(i * j) % 9 + 1}" for j in range(0, 60, 5)) + "\n"
    for i in range(4000)
)


def contents(path: Path) -> dict[str, str]:
    """Files of a folder, or a file, and the hash of each."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    return {str(f.relative_to(path.parent)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


# ---- operations: each a function of a folder of its own


def model() -> xmc_fast.SparseModel:
    rng = np.random.default_rng(1)
    return xmc_fast.SparseModel(
        sp.csr_matrix(rng.random((64, 60), np.float32) * (rng.random((64, 60)) < 0.5))
    )


MODEL = model()


def fit(folder: Path) -> None:
    xmc_fast.OneVsAll(block_labels=4, n_jobs=1).fit(X, Y, checkpoint=folder / "out")


def fit_mach(folder: Path) -> None:
    xmc_fast.Mach(8, 6, n_jobs=1).fit(X, Y, checkpoint=folder / "out")


def fit_tree(folder: Path) -> None:
    tree = xmc_fast.LabelTree(max_leaf=4, branching=2, n_trees=3, n_jobs=1)
    tree.fit(X, Y, checkpoint=folder / "work").save(folder / "out")


def save(folder: Path) -> None:
    MODEL.save(folder / "out")


def compress(folder: Path) -> None:
    xmc_fast.load(folder / "old").compress(n_jobs=1).save(folder / "out")


def update(folder: Path) -> None:
    opened = xmc_fast.OneVsAll.load(folder / "out")
    opened.update(X[200:], Y[200:], checkpoint=folder / "work").save(folder / "out")


def predict_file(folder: Path) -> None:
    xmc_fast.model.predict_file(MODEL, folder / "in.txt", folder / "out", 3, chunk_bytes=20_000, n_jobs=1)


def convert(folder: Path) -> None:
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        code = main(["convert", str(folder / "in.txt"), str(folder / "out")])
    if code:
        raise OSError(said.getvalue())


# ---- what was there before


def nothing(folder: Path) -> None:
    pass


def old_model(folder: Path) -> None:
    rng = np.random.default_rng(2)
    xmc_fast.SparseModel(sp.csr_matrix(rng.random((64, 60), np.float32))).save(folder / "out")
    shutil.copytree(folder / "out", folder / "old")


def old_state(folder: Path) -> None:
    old = xmc_fast.OneVsAll(block_labels=4, n_jobs=1)
    old.fit(X[:200], Y[:200], keep_state=True).save(folder / "out")


def old_file(folder: Path) -> None:
    (folder / "in.txt").write_text("4000 60 64\n" + TEXT)
    (folder / "out").write_text("old\n")


FIRST_FILE = "fit, in its first file"
# Name -> (what it does, what was there before).
OPERATIONS: dict[str, tuple[Callable[[Path], None], Callable[[Path], None]]] = {
    "fit with checkpoint": (fit, nothing),
    FIRST_FILE: (fit, nothing),
    "fit a Mach with checkpoint": (fit_mach, nothing),
    "fit a LabelTree with checkpoint": (fit_tree, nothing),
    "save over an old model": (save, old_model),
    "update over an old model": (update, old_state),
    "compress over an old model": (compress, old_model),
    "predict a file": (predict_file, old_file),
    "convert a file": (convert, old_file),
}


@contextlib.contextmanager
def child(work: Callable[[], None]) -> Iterator[int]:
    """A forked process that does the work; ended and waited for when the block ends."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with open(os.devnull, "w") as null:
                os.dup2(null.fileno(), 1)
                os.dup2(null.fileno(), 2)
            work()
            code = 0
        finally:
            os._exit(code)
    try:
        yield pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


class Stopped(Exception):
    """The operation itself failed."""


def killed(work: Callable[[], None], moment: float, why: Path | None = None) -> tuple[bool, float]:
    """Run the work in a child and kill it ``moment`` seconds after it began; whether it had ended, and the time.

    ``why``: a file for the error that the work itself ended with.
    """
    read, write = os.pipe()

    def told() -> None:
        os.write(write, b"b")
        try:
            work()
        except BaseException:
            if why is not None:
                why.write_text(traceback.format_exc())
            raise
        os.write(write, b"e")
        time.sleep(60)

    with child(told) as pid:
        os.close(write)
        if os.read(read, 1) != b"b":
            raise Stopped
        begin = time.perf_counter()
        if moment == float("inf"):
            ended = os.read(read, 1) == b"e"
        else:
            time.sleep(moment)
            os.kill(pid, signal.SIGKILL)
            ended = os.read(read, 1) == b"e"
        seconds = time.perf_counter() - begin
    os.close(read)
    return ended, seconds


def stages(number: int) -> None:
    """The process ends itself as it writes a file: when it is open, half written, before or after its data are on the
    disk, or as it is put in place."""

    def end(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def half(path: Path, text: str, **_: Any) -> None:
        with open(path, "w") as file:
            file.write(text[: len(text) // 2])
        end()

    def after(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **options: (function(*args, **options), end())

    places: list[tuple[Any, str, Callable[..., Any]]] = [
        (_files, "_new_file", after(_files._new_file)),
        (Path, "write_text", half),
        (os, "fsync", end),
        (os, "fsync", after(os.fsync)),
        (os, "replace", end),
    ]
    owner, name, function = places[number % len(places)]
    setattr(owner, name, function)


def kills(name: str, count: int, seed: int = 0) -> dict[str, Any]:
    """Kill an operation ``count`` times at random moments; what was lost and what differed."""
    work, before = OPERATIONS[name]
    rng = random.Random(seed)
    row: dict[str, Any] = {"operation": name, "kills": 0, "came too late": 0}
    row |= {"lost": 0, "half": 0, "differing": 0, "left over": 0}
    with tempfile.TemporaryDirectory() as top:
        good = Path(top, "good")
        good.mkdir()
        before(good)
        start = Path(top, "start")
        shutil.copytree(good, start)
        old = contents(start / "out") if (start / "out").exists() else None
        with contextlib.redirect_stdout(io.StringIO()):
            work(good)  # what is imported at the first use is imported here, and not in each child
        taken = []
        for number in range(3):
            again = Path(top, f"good{number}")
            shutil.copytree(start, again)
            ended, seconds = killed(lambda again=again: work(again), float("inf"))  # type: ignore[misc]
            if not ended:
                raise AssertionError(f"{name} fails without a kill")
            taken.append(seconds)
        seconds = statistics.median(taken)
        expected = contents(again / "out")
        for number in range(TRIES * count):
            if row["kills"] == count:
                break
            folder = Path(top, str(number))
            shutil.copytree(start, folder)
            moment = rng.random() * seconds

            def job(folder: Path = folder, number: int = number) -> None:
                if name == FIRST_FILE:
                    stages(number)
                work(folder)

            ended, _ = killed(job, float("inf") if name == FIRST_FILE else moment)
            if ended:
                row["came too late"] += 1
                shutil.rmtree(folder)
                continue
            row["kills"] += 1
            now = contents(folder / "out") if (folder / "out").exists() else None
            if old is not None:
                row["lost"] += now is None
                row["half"] += now not in (old, expected, None)
            if not (now == expected and before is old_state):  # else the same rows would be added again
                why = Path(top, "why")
                failed = not killed(lambda folder=folder: work(folder), float("inf"), why)[0]  # type: ignore[misc]
                if failed:
                    print(
                        f"{name}, kill {number}, the second run: {why.read_text() if why.exists() else 'ended'}"
                    )
                row["lost"] += failed
                row["differing"] += not failed and contents(folder / "out") != expected
            stale = [p for p in folder.rglob(".*") if p.name.endswith((".tmp", ".old"))]
            row["left over"] += bool(stale)
            shutil.rmtree(folder)
    return row
