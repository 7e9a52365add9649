"""Boot a guest with two memory nodes and run numa_guest.cpp in it (about 6 s, no KVM needed).

Needs qemu-system-x86_64, a C++ compiler with a static libc, and a kernel image that this user may read:
``python tests/guest/numa_guest.py /boot/vmlinuz-...`` prints what the guest found.
"""

from __future__ import annotations

import gzip
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def cpio(entries):
    """An initramfs: (name, mode, device, content) entries in the "newc" format."""
    out = b""
    for inode, (name, mode, device, content) in enumerate([*entries, ("TRAILER!!!", 0, (0, 0), b"")]):
        fields = (inode, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(name) + 1, 0)
        out += b"070701" + b"".join(b"%08X" % f for f in fields) + name.encode() + b"\0"
        out += bytes(-len(out) % 4) + content
        out += bytes(-len(out) % 4)
    return out


def run(kernel, folder):
    """Build, boot, return the guest's lines."""
    init = folder / "init"
    sources = [ROOT / "tests" / "guest" / "numa_guest.cpp", ROOT / "csrc" / "core" / "numa.cpp"]
    subprocess.run(
        ["g++", "-std=c++20", "-O2", "-static", "-pthread", f"-I{ROOT / 'csrc'}", *sources, "-o", init],
        check=True,
    )
    folders = [(name, 0o40755, (0, 0), b"") for name in ("proc", "sys", "dev")]
    files = [("dev/console", 0o20600, (5, 1), b""), ("init", 0o100755, (0, 0), init.read_bytes())]
    initrd = folder / "initrd.gz"
    initrd.write_bytes(gzip.compress(cpio(folders + files)))
    memory = [f"memory-backend-ram,id=m{k},size=256M" for k in (0, 1)]
    nodes = [f"node,nodeid={k},cpus={2 * k}-{2 * k + 1},memdev=m{k}" for k in (0, 1)]
    command = ["qemu-system-x86_64", "-accel", "tcg", "-cpu", "max", "-smp", "4", "-m", "512"]
    command += ["-nographic", "-no-reboot", "-nodefaults", "-serial", "stdio"]
    command += [word for m in memory for word in ("-object", m)]
    command += [word for n in nodes for word in ("-numa", n)]
    command += ["-kernel", str(kernel), "-initrd", str(initrd), "-append", "console=ttyS0 quiet panic=-1"]
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=180, check=True, input=""
    )
    return done.stdout.splitlines()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    with tempfile.TemporaryDirectory() as scratch:
        print("\n".join(run(Path(sys.argv[1]), Path(scratch))))
