"""Writing files so that a crash, a full disk or Ctrl-C never leaves half of one."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import glob
import importlib
import os
import re
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/(?:fd/(\d+)|(stdout|stderr))")
_WINDOWS = os.name == "nt"
_FULL = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))
_WAITS = (0.01, 0.05, 0.2, 0.5, 1.0)  # seconds: scanners open new files for a moment


@contextlib.contextmanager
def naming(target: Path, within: Path | None = None) -> Iterator[None]:
    """An error of the block names ``target``, not the temporary file beside it.

    With ``within`` only an error of that file, or of one in that folder, and one of a full disk, which has no name.
    """
    try:
        yield
    except OSError as error:
        if within is not None:
            named = error.filename is not None
            if not (str(error.filename).startswith(str(within)) if named else error.errno in _FULL):
                raise
        why = str(error.strerror or error).removeprefix("cannot write: ")
        raise OSError(error.errno, f"cannot write: {why}", str(target)) from None


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
    # Windows has no /dev, and would put a drive before it
    descriptor = _DESCRIPTOR.fullmatch(target.as_posix() if _WINDOWS else os.path.abspath(target))
    target = Path(tempfile.gettempdir(), "output") if descriptor else Path(os.path.realpath(target))
    with naming(Path(path)):
        temporary = _new_file(target)
    try:
        with naming(Path(path), temporary):
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
        replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _temporary_name(target: Path) -> Path:
    return target.parent / f".{target.name}.{secrets.token_hex(4)}.tmp"


def _new_file(target: Path) -> Path:
    """A new file beside ``target``. The system applies the umask, which no thread can ask for without changing it."""
    while True:
        path = _temporary_name(target)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            return path


def replace(source: Path, target: Path) -> None:
    """`os.replace`. Windows refuses while somebody has the file, or one of the folder, open or mapped: then it is tried
    again for two seconds, and the error says so."""
    for wait in _WAITS if _WINDOWS else ():
        try:
            os.replace(source, target)
            return
        except PermissionError:
            time.sleep(wait)
    try:
        os.replace(source, target)
    except PermissionError as error:
        if not _WINDOWS:
            raise
        why = "it is open in a process: close models that were loaded from it with mmap=True, or choose another name"
        raise PermissionError(error.errno, why, str(target)) from None


def _try_lock(folder: Path) -> int:
    """A descriptor that holds the lock of a folder while it is open.

    BlockingIOError: another has it; other OSError, or ImportError: there are no locks here.
    """
    if not _WINDOWS:
        import fcntl

        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise
        return handle
    # A folder cannot be opened there: a file beside it is, which goes when it is closed. Beside it, because a folder
    # in which a file is open cannot be renamed.
    msvcrt: Any = importlib.import_module("msvcrt")
    beside = folder.with_name(f"{folder.name}.lock")
    try:
        handle = os.open(beside, os.O_CREAT | os.O_RDWR | getattr(os, "O_TEMPORARY", 0))
    except PermissionError:  # it is just being removed
        raise BlockingIOError(errno.EAGAIN, "in use", str(folder)) from None
    try:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
    except OSError:
        os.close(handle)
        raise BlockingIOError(errno.EAGAIN, "in use", str(folder)) from None
    return handle


@contextlib.contextmanager
def locked(folder: Path, *, needed: bool = False) -> Iterator[None]:
    """No other process, nor another call in this one, may enter with the same folder until the block ends.

    The lock goes with the process. Where the system or the file system has no locks nothing is locked; with ``needed``
    that is an OSError.
    """
    handle = None
    try:
        handle = _try_lock(folder)
    except BlockingIOError:
        raise ValueError(
            f"{folder} is in use by another fit: wait for it, or choose another folder"
        ) from None
    except FileNotFoundError:
        raise
    except (OSError, ImportError) as error:
        if needed:
            raise OSError(f"there are no locks here: {error}") from None
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def allocate(path: Path, size: int) -> None:
    """Make a file so large before it is mapped: a full disk is an error now, and not a signal that ends the process."""
    with open(path, "rb+") as file:
        file.truncate(size)
        if size and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a whole text file atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")  # the same bytes on every system


@contextlib.contextmanager
def temporary_folder(target: Path) -> Iterator[Path]:
    """A new folder beside ``target``, locked, and removed if the block fails; those of killed processes go first."""
    remove_abandoned(target.parent, target.name)
    with contextlib.ExitStack() as stack:
        while True:
            folder = _temporary_name(target)
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            with contextlib.suppress(FileNotFoundError, ValueError):
                stack.enter_context(locked(folder))
                if folder.is_dir():  # and nobody took it for an abandoned one before it was locked
                    break
        try:
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
            if _WINDOWS and target.is_dir():
                target.rmdir()  # there a folder replaces nothing, not even an empty one
            replace(new, target)
            return
    except OSError as error:  # somebody else has just put a folder there
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    old = new
    if not _exchange(new, target):
        old = new.with_suffix(".old")
        replace(target, old)
        replace(new, target)
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
