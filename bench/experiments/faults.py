"""What is left after a fault: the kill table and the fault table of docs/howto/reliability.md.

python -m bench.experiments.faults --write    # 200 kills of each operation, all faults, into docs/
python -m bench.experiments.faults --kills 5
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import xmc_fast
from bench.experiments.kills import FIRST_FILE, OPERATIONS, X, child, contents, kills, model, problem, save

DOCS = Path(__file__).parents[2] / "docs"
SECONDS = 60.0

# ---- faults: each a function of a folder that returns what happened in words, or raises if it was wrong


@contextlib.contextmanager
def small_disk(place: Path, size: str) -> Iterator[bool]:
    """A file system of this size; False where this process may not mount one."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    mounted = subprocess.run(command, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(place)], check=True)
        place.rmdir()


NOT_TRIED = "not tried: no right to mount a tmpfs"


def disk_full(folder: Path) -> str:
    """A model larger than the file system it is saved on, over an old one."""
    place = folder / "small"
    with small_disk(place, "256k") as mounted:
        if not mounted:
            return NOT_TRIED
        small = xmc_fast.SparseModel(sp.eye(20, format="csr", dtype=np.float32))
        small.save(place / "out")
        before = contents(place / "out")
        large = xmc_fast.SparseModel(
            sp.random(500, 4000, 0.3, format="csr", dtype=np.float32, random_state=0)
        )
        said = error_of(lambda: large.save(place / "out"), OSError)
        check(contents(place / "out") == before, "the old model is not what it was")
        check(sorted(p.name for p in place.iterdir()) == ["out"], "temporary files stay")
        check("No space left" in said and str(place / "out") in said, said)
        return "OSError: No space left on device, names the target; the old model stays, no temporary file"


def disk_gets_full(folder: Path) -> str:
    """Each operation of the kill table on a disk with little room, then once more when there is room again."""
    for name, (work, before) in OPERATIONS.items():
        good, stopped = folder / "good", 0
        good.mkdir()
        with contextlib.redirect_stdout(io.StringIO()):
            before(good)
            work(good)
        expected = contents(good / "out")
        shutil.rmtree(good)
        for room in (0, 4, 12, 40):  # KiB
            with small_disk(folder / "small", "8m") as mounted, contextlib.redirect_stdout(io.StringIO()):
                if not mounted:
                    return NOT_TRIED
                stopped += stopped_by_full_disk(folder / "small", work, before, room << 10, expected)
        check(stopped > 0, f"{name} never filled the disk")
    return "OSError: No space left on device, names a file; what was there stays; with room again, the same bytes"


def stopped_by_full_disk(
    place: Path,
    work: Callable[[Path], None],
    before: Callable[[Path], None],
    room: int,
    expected: dict[str, str],
) -> bool:
    """Whether an operation ran out of ``room`` bytes; everything is checked if it did."""
    before(place)
    old = contents(place / "out") if (place / "out").exists() else None
    free = os.statvfs(place)
    (place / "filler").write_bytes(bytes(free.f_bavail * free.f_frsize - room))
    try:
        work(place)
    except OSError as error:
        check("No space left" in str(error) and str(place) in str(error), str(error))
    else:
        check(contents(place / "out") == expected, "it ended without an error")
        return False
    check(old is None or contents(place / "out") == old, "what was there is not what it was")
    check(not list(place.rglob(".*.tmp")), "temporary files stay")
    (place / "filler").unlink()
    work(place)
    check(contents(place / "out") == expected, "other bytes when there was room again")
    return True


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
    "disk full during each operation of the kill table": disk_gets_full,
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
    parser.add_argument(
        "--kills", type=int, default=200, help="of each operation; in the first file at most 40"
    )
    parser.add_argument("--operation", action="append", choices=list(OPERATIONS), help="kills of these only")
    parser.add_argument("--only", choices=("kills", "faults"))
    parser.add_argument("--write", action="store_true", help="the tables into docs/")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    if options.only != "faults":
        counts = {
            name: min(40, options.kills) if name == FIRST_FILE else options.kills for name in OPERATIONS
        }
        found["kills"] = []
        for name in options.operation or OPERATIONS:
            count = counts[name]
            found["kills"].append(kills(name, count))
            print(found["kills"][-1], flush=True)
    if options.only != "kills":
        found["faults"] = [fault(name) for name in FAULTS]
        print(table(found["faults"]))
    for part, rows in found.items() if options.write else ():
        publish(part, rows)


def publish(part: str, rows: list[dict[str, Any]]) -> None:
    """Rows as a table of docs/howto/reliability.md; those of other names stay where the columns are the same."""
    page = DOCS / "howto" / "reliability.md"
    before, mark, rest = page.read_text().partition(f"<!-- table: {part}, made by a command -->\n")
    at = rest.index(f"<!-- so far: {part} -->")
    head, _, *lines = [line.strip("| ").split(" | ") for line in rest[:at].splitlines()] or [[], []]
    name = next(iter(rows[0]))
    old = [dict(zip(head, line, strict=True)) for line in lines if head == list(rows[0])]
    new = {row[name]: row for row in [*old, *rows]}
    page.write_text(before + mark + table(list(new.values())) + "\n" + rest[at:])


if __name__ == "__main__":
    main()
