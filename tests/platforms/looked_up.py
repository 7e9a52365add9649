"""What a library for macOS looks up in the process that loads it must be Python's: `looked_up.py FILE` fails otherwise.

The linker takes every name that it does not find for one of these, also what no library has.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

SYMTAB, EXTERNAL, KIND = 2, 0x01, 0x0E  # mach-o/loader.h, mach-o/nlist.h
NO_LIBRARY = (0, 0xFE)  # itself, as ziglang writes, or any


def looked_up(data: bytes) -> list[str]:
    """Names of a 64-bit Mach-O file that come from whatever is loaded, not from a library that it names."""
    magic, *_, commands, _, _, _ = struct.unpack_from("<8I", data)
    if magic != 0xFEEDFACF:
        raise ValueError("not a 64-bit Mach-O file")
    names, at = [], 32
    for _ in range(commands):
        command, size = struct.unpack_from("<2I", data, at)
        if command == SYMTAB:
            first, count, strings, _ = struct.unpack_from("<4I", data, at + 8)
            for k in range(count):
                name, kind, _, where, _ = struct.unpack_from("<IBBHQ", data, first + 16 * k)
                if kind & EXTERNAL and not kind & KIND and where >> 8 in NO_LIBRARY:
                    begin = strings + name
                    names.append(data[begin : data.index(b"\0", begin)].decode())
        at += size
    return names


if __name__ == "__main__":
    found = looked_up(Path(sys.argv[1]).read_bytes())
    others = sorted(name for name in found if not name.startswith(("_Py", "__Py")))
    if not found or others:
        sys.exit(f"{sys.argv[1]}: expected names of Python to be looked up, got {others or 'none'}")
    print(f"{len(found)} names of Python are looked up when it is loaded")
