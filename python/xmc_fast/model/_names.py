"""Names of features and labels: a JSON list beside a model, compressed where the model is small, read on first use."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from xmc_fast._files import atomic_path, write_text
from xmc_fast._folder import ModelFormatError

ROLES = ("feature_names", "label_names")
_MOST_BYTES = 1 << 32  # of a decompressed list
_GZIP = 31  # zlib's window bits for a file with gzip's header


def check_names(role: str, names: Any, expected: int) -> list[str] | None:
    """The names as strings; an error unless there is one for each."""
    if names is None:
        return None
    result = [str(name) for name in names]
    if len(result) != expected:
        raise ValueError(f"{role} has {len(result)} entries, the model has {expected}")
    return result


def write_names(folder: Path, role: str, names: Any, *, small: bool) -> str:
    """Write names into a folder; returns the file's name."""
    text = json.dumps(list(names), ensure_ascii=False)
    if not small:
        write_text(folder / f"{role}.json", text)
        return f"{role}.json"
    packer = zlib.compressobj(9, zlib.DEFLATED, _GZIP)
    with atomic_path(folder / f"{role}.json.gz") as temporary:
        temporary.write_bytes(packer.compress(text.encode()) + packer.flush())
    return f"{role}.json.gz"


def read_names(path: Path, role: str, expected: int) -> list[str] | None:
    """What `write_names` wrote."""
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            unpacker = zlib.decompressobj(_GZIP)
            data = unpacker.decompress(data, _MOST_BYTES)
            if not unpacker.eof:
                raise ValueError("truncated")
        names = json.loads(data)
        if not isinstance(names, list):
            raise ValueError("not a list")
        return check_names(role, names, expected)
    except (OSError, ValueError, RecursionError, zlib.error) as error:
        raise ModelFormatError(f"{path}: missing or damaged ({error})") from None


class NamesFile(NamedTuple):
    """A file of names as it was when its model was opened, to be read when they are first used."""

    path: Path
    state: tuple[int, ...]

    @classmethod
    def at(cls, path: Path) -> NamesFile:
        return cls(path, cls._state_of(path))

    def read(self, role: str, expected: int) -> list[str] | None:
        """The names; an error if another model took the folder's place: they would be those of other labels."""
        names = read_names(self.path, role, expected)
        if self._state_of(self.path) != self.state:
            raise ModelFormatError(f"{self.path}: replaced since the model was opened: open it again")
        return names

    @staticmethod
    def _state_of(path: Path) -> tuple[int, ...]:
        try:
            status = path.stat()
        except OSError as error:
            raise ModelFormatError(f"{path}: missing or damaged ({error})") from None
        return status.st_ino, status.st_size, status.st_mtime_ns


def names_of(names: dict[str, list[str] | NamesFile | None], role: str, expected: int) -> list[str] | None:
    """The names of a role, read at their first use and kept."""
    found = names[role]
    if isinstance(found, NamesFile):
        found = names[role] = found.read(role, expected)
    return found
