"""Files of weights: arrays in a form that has a name and a version, and the whole numbers that describe them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from xmc_fast._folder import ModelFormatError
from xmc_fast.model._tensors import Tensors, read_tensors, write_tensors


class Form(NamedTuple):
    """A kind of file: its name, its version and the names of its numbers."""

    name: str
    version: int
    numbers: tuple[str, ...]

    def write(self, path: str | os.PathLike[str], tensors: Tensors, *numbers: int) -> None:
        """Write the arrays and the numbers as one file, atomically."""
        metadata = {"format": self.name, "format_version": str(self.version)}
        named = {name: str(int(number)) for name, number in zip(self.numbers, numbers, strict=True)}
        write_tensors(path, tensors, metadata | named)

    def read(
        self, path: Path, *, map_file: bool, verify: bool
    ) -> tuple[tuple[int, ...], Tensors, dict[str, str]]:
        """The numbers, the arrays and all metadata of a file of this form and version; another is refused."""
        tensors, metadata = read_tensors(path, map_file=map_file, verify=verify)
        if metadata.get("format") != self.name or metadata.get("format_version") != str(self.version):
            found = f"{metadata.get('format')} {metadata.get('format_version')}"
            raise ModelFormatError(f"{path}: format version {self.name} {self.version} expected, got {found}")
        try:
            return tuple(int(metadata[name]) for name in self.numbers), tensors, metadata
        except (KeyError, ValueError) as error:
            raise ModelFormatError(f"{path}: damaged, {error} is missing or bad") from None
