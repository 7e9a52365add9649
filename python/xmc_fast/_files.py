"""Writing files so that a crash, a full disk or Ctrl-C never leaves half of one."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import glob
import os
import re
import shutil
import sys
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
            with naming(Path(path)):
                os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


@contextlib.contextmanager
def locked(folder: Path, *, needed: bool = False) -> Iterator[None]:
    """No other process, nor another call in this one, may enter with the same folder until the block ends.

    The lock goes with the process. Where the system or the file system has none there is none, and an OSError if
    it is ``needed``.
    """
    try:
        import fcntl
    except ImportError:
        if needed:
            raise OSError("this system has no flock") from None
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"{folder} is in use by another fit: wait for it, or choose another folder"
            ) from None
        except OSError:
            if needed:
                raise
        yield
    finally:
        os.close(handle)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a whole text file atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def temporary_folder(target: Path) -> Iterator[Path]:
    """A new folder beside ``target``, locked, and removed if the block fails; those of killed processes go first."""
    remove_abandoned(target.parent, target.name)
    with contextlib.ExitStack() as stack:
        while True:
            folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
            with contextlib.suppress(FileNotFoundError, ValueError):
                stack.enter_context(locked(folder))
                if folder.is_dir():  # and nobody took it for an abandoned one before it was locked
                    break
        try:
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(folder, 0o777 & ~umask)
            yield folder
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def put_in_place(new: Path, target: Path) -> None:
    """The folder ``new`` at the place of ``target``, at every moment the old one or the new one; the old one goes.

    Where the system cannot exchange two folders (Linux can) there is a moment with neither, and a process killed
    just then leaves the old one beside it as ``.<name>.*.old``.
    """
    try:
        if not target.is_dir() or not any(target.iterdir()):
            os.replace(new, target)
            return
    except OSError as error:  # somebody else has just put a folder there
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    old = new
    if not _exchange(new, target):
        old = new.with_suffix(".old")
        os.rename(target, old)
        os.rename(new, target)
    shutil.rmtree(old, ignore_errors=True)


def _exchange(a: Path, b: Path) -> bool:
    """Two folders swap their names at once; False where that cannot be done."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return rename is not None and rename(here, os.fsencode(a), here, os.fsencode(b), swap) == 0


def remove_abandoned(folder: Path, name: str) -> None:
    """Remove temporary folders for ``name`` that no process holds with `locked`: their process was killed."""
    for leftover in folder.glob(f".{glob.escape(name)}.*.tmp"):
        with contextlib.suppress(OSError, ValueError):
            if leftover.is_dir():
                with locked(leftover, needed=True):
                    shutil.rmtree(leftover, ignore_errors=True)


def remove_leftovers(folder: Path, name: str = "") -> None:
    """Remove temporary files of `atomic_path` (for the file ``name``, or any) whose process was killed."""
    for leftover in folder.glob(f".{glob.escape(name)}*.tmp"):
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)
