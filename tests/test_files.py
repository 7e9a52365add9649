"""Where output goes: regular files atomically, links to their target, devices and pipes directly."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from xmc_fast._files import atomic_path, write_text

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs POSIX files")


def test_a_link_stays_and_its_target_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "file", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    before = target.stat().st_ino
    write_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert target.stat().st_ino != before
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "there" / "later")
    write_text(dangling, "made")
    assert dangling.is_symlink()
    assert (tmp_path / "there" / "later").read_text() == "made"

    def fail():
        with atomic_path(link) as path:
            path.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert target.read_text() == "new"
    assert sorted(p.name for p in (tmp_path / "there").iterdir()) == ["file", "later"]


def test_a_pipe_is_written_to(tmp_path):
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "text")
    reader.join(10)
    assert got == ["text"]
    assert pipe.is_fifo()


def test_a_device_stays_a_device():
    write_text("/dev/null", "text")
    assert not os.path.isfile("/dev/null")


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1"])
@pytest.mark.parametrize("mode", ["wb", "ab"])
def test_standard_output(tmp_path, name, mode):
    code = f"from xmc_fast._files import write_text; write_text({name!r}, 'text'); print('after')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert run.stdout == b"textafter\n"
    out = tmp_path / "out"
    out.write_text("first ")
    with open(out, mode) as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, check=True)
    assert out.read_text() == ("first " if mode == "ab" else "") + "textafter\n"
