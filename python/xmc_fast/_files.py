"""Writing files so that a crash, a full disk or Ctrl-C never leaves half of one."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/(?:fd/(\d+)|(stdout|stderr))")


@contextlib.contextmanager
def naming(target: Path) -> Iterator[None]:
    """An error of the block names ``target``, not the temporary file beside it."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"cannot write: {error.strerror}", str(target)) from None


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path to write to: a temporary file that replaces ``path`` on success and is removed on failure.

    Symbolic links stay: the file they lead to is replaced. Devices and pipes are written to directly; where
    /dev/stdout or another descriptor is a regular file, it is added to at the end.
    """
    target = Path(path)
    if target.exists() and not target.is_file():
        yield target
        return
    descriptor = _DESCRIPTOR.fullmatch(os.path.abspath(target))
    target = Path(tempfile.gettempdir(), "output") if descriptor else Path(os.path.realpath(target))
    with naming(Path(path)):
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            if descriptor:
                number = int(descriptor[1] or ("stdin", "stdout", "stderr").index(descriptor[2]))
                with open(number, "ab", closefd=False) as open_file:
                    shutil.copyfileobj(file, open_file)
                temporary.unlink()
                return
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a whole text file atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def remove_leftovers(folder: Path, name: str = "") -> None:
    """Remove temporary files of `atomic_path` (for the file ``name``, or any) whose process was killed."""
    for leftover in folder.glob(f".{name}*.tmp"):
        leftover.unlink(missing_ok=True)
