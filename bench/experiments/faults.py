"""What is left after a fault: the kill table and the fault table of docs/howto/reliability.md.

    python -m bench.experiments.faults --write    # 200 kills of each operation, all faults, into docs/
    python -m bench.experiments.faults --kills 5

An operation runs in a process of its own that is ended by SIGKILL at a random moment (or, for "first file", in the
middle of that write). Afterwards what was there before or what should be there is asked for, byte by byte, and the
operation is run again.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import hashlib
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import xmc_fast

DOCS = Path(__file__).parents[2] / "docs"
SECONDS = 60.0


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


def fit(folder: Path) -> None:
    xmc_fast.OneVsAll(block_labels=4, n_jobs=1).fit(X, Y, checkpoint=folder / "out")


def fit_mach(folder: Path) -> None:
    xmc_fast.Mach(8, 6, n_jobs=1).fit(X, Y, checkpoint=folder / "out")


def save(folder: Path) -> None:
    model().save(folder / "out")


def compress(folder: Path) -> None:
    xmc_fast.load(folder / "old").keep_top(8).save(folder / "out")


def predict_file(folder: Path) -> None:
    xmc_fast.model.predict_file(model(), folder / "in.txt", folder / "out", 3, chunk_bytes=20_000, n_jobs=1)


def convert(folder: Path) -> None:
    from xmc_fast.cli import main

    main(["convert", str(folder / "in.txt"), str(folder / "out")])


def old_model(folder: Path) -> None:
    rng = np.random.default_rng(2)
    xmc_fast.SparseModel(sp.csr_matrix(rng.random((64, 60), np.float32))).save(folder / "out")
    shutil.copytree(folder / "out", folder / "old")


def old_file(folder: Path) -> None:
    (folder / "in.txt").write_text("4000 60 64\n" + TEXT)
    (folder / "out").write_text("old\n")


# Name -> (what it does, what was there before).
OPERATIONS: dict[str, tuple[Callable[[Path], None], Callable[[Path], None]]] = {
    "fit with checkpoint": (fit, lambda folder: None),
    "fit, in its first file": (fit, lambda folder: None),
    "fit a Mach with checkpoint": (fit_mach, lambda folder: None),
    "save over an old model": (save, old_model),
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


def kill_in_first_file() -> None:
    """The process ends itself as it puts its first file in place."""

    def end(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    os.replace = end  # type: ignore[assignment]


def kills(name: str, count: int, seed: int = 0) -> dict[str, Any]:
    """Kill an operation ``count`` times at random moments; what was lost and what differed."""
    work, before = OPERATIONS[name]
    rng = random.Random(seed)
    row = {
        "operation": name,
        "kills": 0,
        "finished first": 0,
        "lost": 0,
        "half": 0,
        "differing": 0,
        "left over": 0,
    }
    with tempfile.TemporaryDirectory() as top:
        good = Path(top, "good")
        good.mkdir()
        before(good)
        old = contents(good / "out") if (good / "out").exists() else None
        start = time.monotonic()
        with child(lambda: work(good)) as pid:
            check(os.waitpid(pid, 0)[1] == 0, f"{name} fails without a kill")
        seconds = time.monotonic() - start
        expected = contents(good / "out")
        for number in range(count):
            folder = Path(top, str(number))
            folder.mkdir()
            before(folder)

            def job(folder: Path = folder) -> None:
                if "first file" in name:
                    kill_in_first_file()
                work(folder)

            with child(job) as pid:
                wait = time.monotonic() + (SECONDS if "first file" in name else rng.random() * seconds)
                while time.monotonic() < wait and os.waitpid(pid, os.WNOHANG)[0] == 0:
                    time.sleep(0.0005)
            now = contents(folder / "out") if (folder / "out").exists() else None
            row["kills"] += 1
            row["finished first"] += now == expected
            if "checkpoint" not in name and "first file" not in name:
                row["lost"] += now is None and old is not None
                row["half"] += now not in (old, expected)
            with child(lambda folder=folder: work(folder)) as pid:  # type: ignore[misc]
                failed = os.waitpid(pid, 0)[1] != 0
            row["lost"] += failed
            row["differing"] += not failed and contents(folder / "out") != expected
            stale = [p for p in folder.rglob(".*") if p.name.endswith((".tmp", ".old"))]
            row["left over"] += bool(stale)
            shutil.rmtree(folder)
    return row


# ---- faults: each a function of a folder that returns what happened in words, or raises if it was wrong


def disk_full(folder: Path) -> str:
    """A model larger than the file system it is saved on, over an old one."""
    place = folder / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)], capture_output=True
    )
    if mounted.returncode:
        return "not tried: no right to mount a tmpfs"
    try:
        small = xmc_fast.SparseModel(sp.eye(20, format="csr", dtype=np.float32))
        small.save(place / "out")
        before = contents(place / "out")
        large = xmc_fast.SparseModel(
            sp.random(500, 4000, 0.3, format="csr", dtype=np.float32, random_state=0)
        )
        said = error_of(lambda: large.save(place / "out"), OSError)
        check(contents(place / "out") == before, "the old model is not what it was")
        check(sorted(p.name for p in place.iterdir()) == ["out"], "temporary files stay")
        check("No space left" in said, said)
        return "OSError: No space left on device, names the target; the old model stays, no temporary file"
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def read_only(folder: Path) -> str:
    """A folder that cannot be written (as another user, since root may write everything)."""
    save(folder)
    before = contents(folder / "out")

    def attempt() -> None:
        if os.getuid() == 0:
            os.setuid(65534)
        said = error_of(lambda: model().save(folder / "out"), OSError)
        check("Permission" in said and "out" in said, said)

    os.chmod(folder, 0o555)
    with child(attempt) as pid:
        code = os.waitpid(pid, 0)[1]
    os.chmod(folder, 0o755)
    check(code == 0, "another error")
    check(contents(folder / "out") == before, "the old model is not what it was")
    return "OSError: Permission denied, names the target; the old model stays"


def two_fits(folder: Path) -> str:
    """A second fit on a checkpoint folder that a first one is using."""
    with child(
        lambda: xmc_fast.OneVsAll(block_labels=4, n_jobs=1).fit(*problem(4000), checkpoint=folder / "out")
    ) as pid:
        deadline = time.monotonic() + SECONDS
        while not (folder / "out" / "fit.json").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        said = error_of(
            lambda: xmc_fast.OneVsAll(block_labels=4, n_jobs=1).fit(
                *problem(4000), checkpoint=folder / "out"
            ),
            ValueError,
        )
        check("in use by another fit" in said, said)
        check(os.waitpid(pid, os.WNOHANG)[0] == 0, "the first fit ended")
    return "ValueError: in use by another fit; the first goes on"


def failing_fsync(folder: Path) -> str:
    """A disk that reports an error when data are forced onto it."""
    save(folder)
    before, fsync = contents(folder / "out"), os.fsync

    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    os.fsync = fail
    try:
        said = error_of(lambda: model().keep_top(3).save(folder / "out"), OSError)
    finally:
        os.fsync = fsync
    check("Input/output error" in said, said)
    check(contents(folder / "out") == before, "the old model is not what it was")
    check(sorted(p.name for p in folder.iterdir()) == ["out"], "temporary files stay")
    return "OSError: Input/output error, names the file; the old model stays"


def little_memory(folder: Path) -> str:
    """A limit of the address space that a prediction or a fit does not fit into."""
    del folder
    import resource

    def attempt() -> None:
        rows = sp.random(20_000, 2000, 0.01, format="csr", dtype=np.float32, random_state=0)
        truth = sp.random(20_000, 4000, 0.001, format="csr", random_state=0).astype(bool)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        for room in (1, 4, 16, 40):
            resource.setrlimit(resource.RLIMIT_AS, (used + (room << 20), resource.RLIM_INFINITY))
            for call in (
                lambda: xmc_fast.OneVsAll(n_jobs=2, max_iter=2).fit(rows, truth),
                lambda: xmc_fast.cluster.label_tree(rows, truth, n_jobs=2),
                lambda: xmc_fast.knn.InnerProductIndex(np.ones((4000, 400), np.float32)).search(
                    np.ones((4000, 400), np.float32), 50, n_jobs=2
                ),
                lambda: model().predict(
                    sp.random(200_000, 60, 0.1, format="csr", dtype=np.float32), 60, n_jobs=2
                ),
            ):
                with contextlib.suppress(MemoryError):
                    call()

    with child(attempt) as pid:
        code = os.waitpid(pid, 0)[1]
    check(code == 0, f"the process ended with {code}")
    return "MemoryError, never an abort"


def removed_under_use(folder: Path) -> str:
    """The folder of a mapped model replaced, then removed, while it predicts."""
    save(folder)
    mapped = xmc_fast.load(folder / "out")
    before = mapped.predict(X[:50], 3)
    xmc_fast.SparseModel(sp.eye(60, format="csr", dtype=np.float32)).save(folder / "out")
    check((mapped.predict(X[:50], 3) != before).nnz == 0, "other predictions after it was replaced")
    shutil.rmtree(folder / "out")
    check((mapped.predict(X[:50], 3) != before).nnz == 0, "other predictions after it was removed")
    return "predicts as before"


def truncated_under_use(folder: Path) -> str:
    """The files of a model that was read (mmap=False) cut short while it predicts."""
    save(folder)
    read = xmc_fast.load(folder / "out", mmap=False)
    before = read.predict(X[:50], 3)
    for path in (folder / "out").glob("*.safetensors"):
        os.truncate(path, 10)
    check((read.predict(X[:50], 3) != before).nnz == 0, "other predictions")
    return "predicts as before with mmap=False; a mapped model ends by SIGBUS"


FAULTS: dict[str, Callable[[Path], str]] = {
    "disk full while saving over an old model": disk_full,
    "folder not writable": read_only,
    "second fit on a checkpoint in use": two_fits,
    "fsync fails": failing_fsync,
    "address space limited (RLIMIT_AS)": little_memory,
    "model folder replaced or removed while mapped": removed_under_use,
    "model files cut short while in use": truncated_under_use,
}


def check(right: bool, said: str) -> None:
    if not right:
        raise AssertionError(said)


def error_of(call: Callable[[], Any], kind: type[BaseException]) -> str:
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def fault(name: str) -> dict[str, str]:
    """One fault in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        return {"fault": name, "outcome": FAULTS[name](Path(folder))}


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown of rows with the same keys."""
    head = list(rows[0])
    lines = [head, ["---"] * len(head), *([str(row[key]) for key in head] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="The kill table and the fault table of docs/howto/reliability.md."
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--only", choices=("kills", "faults"))
    parser.add_argument("--write", action="store_true", help="the tables into docs/")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    if options.only != "faults":
        found["kills"] = [kills(name, options.kills) for name in OPERATIONS]
        print(table(found["kills"]), "\n", flush=True)
    if options.only != "kills":
        found["faults"] = [fault(name) for name in FAULTS]
        print(table(found["faults"]))
    for part, rows in found.items() if options.write else ():
        publish(part, rows)


def publish(part: str, rows: list[dict[str, Any]]) -> None:
    """Rows as a table of docs/howto/reliability.md."""
    page = DOCS / "howto" / "reliability.md"
    before, mark, rest = page.read_text().partition(f"<!-- table: {part}, made by a command -->\n")
    page.write_text(before + mark + table(rows) + "\n" + rest[rest.index(f"<!-- so far: {part} -->") :])


if __name__ == "__main__":
    main()
