"""Files that cannot be replaced while they are open, and folders without locks: the Windows paths, without Windows."""

from __future__ import annotations

import os
import subprocess
import sys
import types

import pytest

from xmc_fast import _files


@pytest.fixture
def windows(monkeypatch):
    """The Windows paths of `_files`; the list of the pauses that it would have made."""
    pauses = []
    monkeypatch.setattr(_files, "_WINDOWS", True)
    monkeypatch.setattr(_files.time, "sleep", pauses.append)
    return pauses


@pytest.fixture
def held(monkeypatch):
    """`os.replace` that refuses so many times, as for a file that somebody has open."""
    refusals = []

    def hold(times):
        real = os.replace

        def replace(source, target):
            if len(refusals) < times:
                refusals.append(target)
                raise PermissionError(13, "Access is denied", str(source))
            real(source, target)

        monkeypatch.setattr(_files.os, "replace", replace)

    return hold


def test_a_file_that_is_open_for_a_moment_is_replaced(tmp_path, windows, held):
    held(3)
    path = tmp_path / "file"
    path.write_bytes(b"old")
    _files.write_text(path, "one\ntwo\n")
    assert path.read_bytes() == b"one\ntwo\n"
    assert len(windows) == 3
    assert windows == sorted(windows)


def test_a_file_that_stays_open_gives_a_clear_error(tmp_path, windows, held):
    held(100)
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(PermissionError, match="it is open in a process: close models"):
        _files.write_text(path, "new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert 1 < sum(windows) < 3


def test_elsewhere_a_refusal_is_told_at_once(tmp_path, held, monkeypatch):
    monkeypatch.setattr(_files, "_WINDOWS", False)
    held(1)
    with pytest.raises(PermissionError, match="Access is denied"):
        _files.write_text(tmp_path / "file", "new")


def test_a_folder_replaces_an_empty_and_a_full_one(tmp_path, windows, monkeypatch):
    real = os.replace

    def replace(source, target):  # as Windows: a folder takes no other's place
        if os.path.isdir(target):
            raise PermissionError(13, "Access is denied", str(source))
        real(source, target)

    monkeypatch.setattr(_files.os, "replace", replace)
    monkeypatch.setattr(_files, "_exchange", lambda a, b: False)
    target = tmp_path / "model"
    for content in ("first", "second"):
        if content == "first":
            target.mkdir()
        with _files.temporary_folder(target) as new:
            (new / "file").write_text(content)
            _files.put_in_place(new, target)
        assert (target / "file").read_text() == content
    assert [p.name for p in tmp_path.iterdir() if not p.name.endswith(".lock")] == ["model"]


def is_open(handle):
    try:
        os.fstat(handle)
    except OSError:
        return False
    return True


def test_a_folder_is_locked_by_a_file_beside_it(tmp_path, windows, monkeypatch):
    locked = {}

    def locking(handle, mode, size):
        place = os.fstat(handle).st_ino
        if place in locked and is_open(locked[place]):
            raise OSError(36, "Resource deadlock avoided")
        locked[place] = handle

    fake = types.ModuleType("msvcrt")
    fake.locking, fake.LK_NBLCK = locking, 2
    monkeypatch.setitem(sys.modules, "msvcrt", fake)
    folder = tmp_path / "fit"
    folder.mkdir()
    with _files.locked(folder, needed=True):
        assert not list(folder.iterdir())  # so that the folder can be renamed
        assert (tmp_path / "fit.lock").is_file()
        with pytest.raises(ValueError, match="in use by another fit"), _files.locked(folder):
            pass
        folder.rename(tmp_path / "done")


def test_without_locks(tmp_path, windows, monkeypatch):
    monkeypatch.setitem(sys.modules, "msvcrt", None)
    with _files.locked(tmp_path):
        pass
    with pytest.raises(OSError, match="no locks here"), _files.locked(tmp_path, needed=True):
        pass


def test_standard_output_by_its_name(tmp_path):
    code = (
        "from xmc_fast import _files; _files._WINDOWS = True; _files.write_text('/dev/stdout', 'a\\n');"
        "print('b')"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, cwd=tmp_path)
    assert run.stdout.splitlines() == [b"a", b"b"]
