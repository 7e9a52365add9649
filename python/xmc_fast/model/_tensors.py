"""Named arrays in one safetensors file: written atomically, mapped without reading, damage told by name.

The format (https://github.com/huggingface/safetensors): 8 bytes little-endian header length, a JSON header
``{name: {dtype, shape, data_offsets}, "__metadata__": {str: str}}``, then the arrays' bytes. The metadata
holds a CRC-32 of the arrays, so a file can be verified by itself.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xmc_fast._files import atomic_path
from xmc_fast._folder import ModelFormatError

Tensors = dict[str, npt.NDArray[Any]]

_DTYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "I64": np.int64,
    "I32": np.int32,
    "U32": np.uint32,
    "I16": np.int16,
    "U16": np.uint16,
    "U8": np.uint8,
    "I8": np.int8,
}


def checksum(tensors: Tensors) -> str:
    """CRC-32 of the arrays' bytes in the order of their names."""
    crc = 0
    for name in sorted(tensors):
        crc = zlib.crc32(np.ascontiguousarray(tensors[name]).reshape(-1).view(np.uint8).data, crc)
    return f"{crc:08x}"


def write_tensors(path: str | os.PathLike[str], tensors: Tensors, metadata: dict[str, str]) -> None:
    """Write arrays (a copy of none is made) and metadata; ``crc32`` is added to the metadata.

    Written here and not by safetensors' save_file, whose metadata come in random order: equal input gives
    equal bytes.
    """
    arrays = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    names = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}
    header: dict[str, Any] = {"__metadata__": dict(sorted({**metadata, "crc32": checksum(arrays)}.items()))}
    order = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))  # keeps each array aligned
    end = 0
    for name in order:
        array = arrays[name]
        header[name] = {
            "dtype": names[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [end, end + array.nbytes],
        }
        end += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            file.write(arrays[name].reshape(-1).view(np.uint8).data)


def read_tensors(
    path: str | os.PathLike[str], *, map_file: bool = True, verify: bool = False
) -> tuple[Tensors, dict[str, str]]:
    """Arrays and metadata of a file. ``map_file`` gives read-only views on the file's shared pages.

    A file whose size does not fit its header is refused always; ``verify`` also reads every byte.
    """
    file = Path(path)
    try:
        with open(file, "rb") as handle:
            size = os.fstat(handle.fileno()).st_size
            header, start = _header(file, handle.read(8), handle, size)
            if map_file and size:
                buffer: Any = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
            else:
                handle.seek(0)
                buffer = bytearray(handle.read())
    except FileNotFoundError:
        raise ModelFormatError(f"{file}: file is missing") from None
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ModelFormatError(f"{file}: damaged, its metadata are no strings")
    tensors = {name: _view(file, name, entry, buffer, start, size) for name, entry in header.items()}
    end = start + max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if end != size:
        raise ModelFormatError(f"{file}: truncated or damaged, expected {end} bytes, got {size}")
    if verify and checksum(tensors) != metadata.get("crc32"):
        raise ModelFormatError(
            f"{file}: damaged, checksum is {checksum(tensors)}, expected {metadata.get('crc32')}"
        )
    return tensors, metadata


def _header(file: Path, prefix: bytes, handle: Any, size: int) -> tuple[dict[str, Any], int]:
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or length > size - 8:
        raise ModelFormatError(f"{file}: truncated or damaged, {size} bytes are too few for its header")
    try:
        header = json.loads(handle.read(length))
    except (ValueError, RecursionError):
        raise ModelFormatError(f"{file}: damaged, its header is not JSON") from None
    if not isinstance(header, dict):
        raise ModelFormatError(f"{file}: damaged, its header is not a JSON object")
    return header, 8 + length


def _view(
    file: Path, name: str, entry: dict[str, Any], buffer: Any, start: int, size: int
) -> npt.NDArray[Any]:
    bad = f"{file}: damaged, tensor {name!r} has a bad header entry"
    try:
        dtype = np.dtype(_DTYPES[entry["dtype"]])
        first, last = entry["data_offsets"]
        shape = tuple(entry["shape"])
    except (KeyError, TypeError, ValueError):
        raise ModelFormatError(bad) from None
    if not all(type(number) is int and 0 <= number < 1 << 62 for number in (first, last, *shape)):
        raise ModelFormatError(bad)
    count = math.prod(shape)
    if last - first != count * dtype.itemsize:
        raise ModelFormatError(bad)
    if start + last > size:
        raise ModelFormatError(f"{file}: truncated, expected at least {start + last} bytes, got {size}")
    try:
        if count == 0:
            return np.empty(shape, dtype)
        array = np.frombuffer(buffer, dtype, count, start + first).reshape(shape)
    except ValueError:  # more dimensions or larger ones than numpy has
        raise ModelFormatError(bad) from None
    return array if array.flags.aligned else array.copy()
