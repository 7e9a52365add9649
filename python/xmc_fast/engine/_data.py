"""The arrays every machine needs, as one file that processes of a machine map together."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from xmc_fast._folder import ModelFormatError
from xmc_fast._validate import fingerprint
from xmc_fast._work import DATA_NAME, Arrays
from xmc_fast.engine._pool import EngineError
from xmc_fast.engine._work import explain
from xmc_fast.model._tensors import read_tensors, write_tensors


class Shipment:
    """Arrays with a key by which workers know them; ``path`` when they are in a file that all machines see."""

    def __init__(self, arrays: Arrays, folder: Path | None, key: str | None = None) -> None:
        self.arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        self.nbytes = sum(array.nbytes for array in self.arrays.values())
        self.key = fingerprint(self.arrays) if key is None else key
        self.path = None if folder is None else folder / DATA_NAME

    def write(self, path: Path) -> Path:
        """Make the file, unless it is there (of a run whose driver died)."""
        try:
            if read_tensors(path)[1].get("key") == self.key:
                return path
        except ModelFormatError:
            pass
        write_tensors(path, self.arrays, {"key": self.key})
        return path


@contextlib.contextmanager
def on_shared_storage(data: Shipment) -> Iterator[None]:
    """The file in the run's folder, there while the run goes on."""
    if data.path is None:
        yield
        return
    try:
        try:
            data.write(data.path)
        except OSError as error:
            raise EngineError(f"the run's data: {explain(error, data.path.parent)}") from error
        yield
    finally:
        data.path.unlink(missing_ok=True)


@contextlib.contextmanager
def on_this_machine(data: Shipment) -> Iterator[Path]:
    """The file in a temporary folder, for engines whose workers are processes of this machine."""
    if data.path is not None:
        yield data.path
        return
    with tempfile.TemporaryDirectory(prefix="xmc_fast-") as folder:
        yield data.write(Path(folder) / DATA_NAME)
