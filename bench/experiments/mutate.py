"""One change of a model folder, as an adversary would make it, with its checksums made right again."""

from __future__ import annotations

import copy
import json
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np

DTYPES = {"F64": "f8", "F32": "f4", "F16": "f2", "I64": "i8", "I32": "i4", "U32": "u4", "I16": "i2", "U16": "u2",
          "U8": "u1", "I8": "i1"}  # fmt: skip
INTEGERS = (
    -1,
    0,
    1,
    2,
    3,
    7,
    255,
    256,
    65535,
    65536,
    2**31 - 1,
    2**31,
    2**32,
    2**62,
    2**63 - 1,
    -(2**31),
    -(2**63),
)
FLOATS = (float("nan"), float("inf"), float("-inf"), 3e38, -3e38, 1e-45, 0.0)
VALUES = (
    *INTEGERS, *FLOATS, 1e308, 0.5, "", "x", "..", "../../etc/passwd", "/etc/passwd", "/dev/zero", "a" * 5000, None,
    True, False, [], {}, [1], [[]], {"a": 1}, "float16", "linear", "cosine", "manifest.json",
)  # fmt: skip


class Tensors:
    """A safetensors file taken apart, to be put together again with a right checksum."""

    def __init__(self, path: Path) -> None:
        raw = path.read_bytes()
        size = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + size])
        self.metadata: dict[str, str] = header.pop("__metadata__", {})
        self.arrays: dict[str, np.ndarray] = {}
        for name, entry in header.items():
            first, last = entry["data_offsets"]
            bytes_ = raw[8 + size + first : 8 + size + last]
            self.arrays[name] = np.frombuffer(bytes_, DTYPES[entry["dtype"]]).reshape(entry["shape"]).copy()

    def write(self, path: Path) -> None:
        names = {np.dtype(code): name for name, code in DTYPES.items()}
        crc = 0
        for name in sorted(self.arrays):
            crc = zlib.crc32(np.ascontiguousarray(self.arrays[name]).tobytes(), crc)
        header: dict[str, Any] = {"__metadata__": {**self.metadata, "crc32": f"{crc:08x}"}}
        body, order = b"", sorted(self.arrays, key=lambda name: (-self.arrays[name].itemsize, name))
        for name in order:
            array = self.arrays[name]
            part = np.ascontiguousarray(array).tobytes()
            header[name] = {
                "dtype": names[array.dtype],
                "shape": list(array.shape),
                "data_offsets": [len(body), len(body) + len(part)],
            }
            body += part
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def mutate_array(arrays: dict[str, np.ndarray], name: str, rng: np.random.Generator) -> None:
    """Change one array: an element, its length, its shape, its type or its place."""
    array = arrays[name]
    what = rng.choice(
        ["element", "element", "element", "length", "shape", "type", "swap", "drop", "sort", "rename"]
    )
    if what == "element" and array.size:
        flat = array.reshape(-1)
        for at in rng.choice(array.size, min(array.size, int(rng.integers(1, 4))), replace=False):
            if array.dtype.kind == "f":
                with np.errstate(all="ignore"):
                    flat[at] = FLOATS[rng.integers(len(FLOATS))]
                continue
            near = (int(flat[at]) + 1, int(flat[at]) - 1, len(flat), int(rng.integers(0, 300)))
            value = (*INTEGERS, *near)[rng.integers(len(INTEGERS) + len(near))]
            bits = 8 * array.dtype.itemsize
            flat[at] = np.array(value % 2**bits, np.uint64).astype(f"u{array.itemsize}").astype(array.dtype)
    elif what == "length":
        flat = array.reshape(-1)
        size = int(rng.choice([0, 1, max(0, flat.size - 1), flat.size + 1, 2 * flat.size]))
        arrays[name] = (
            np.resize(flat, size) if array.ndim == 1 else np.resize(array, (size, *array.shape[1:]))
        )
    elif what == "shape" and array.size:
        arrays[name] = array.reshape([(1, -1), (-1, 1), (-1,), (1, 1, -1)][rng.integers(4)])
    elif what == "type":
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            arrays[name] = array.astype(list(DTYPES.values())[rng.integers(len(DTYPES))])
    elif what == "swap":
        other = str(rng.choice(sorted(arrays)))
        arrays[name], arrays[other] = arrays[other], arrays[name]
    elif what == "drop":
        del arrays[name]
    elif what == "sort":
        arrays[name] = np.ascontiguousarray(np.sort(array, axis=0)[::-1])
    elif what == "rename":
        arrays[name + "x"] = arrays.pop(name)


def mutate_value(value: Any, rng: np.random.Generator) -> Any:
    """A JSON value with one place of it changed."""
    keys = (
        list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    )
    if not keys or rng.random() < 0.15:
        return copy.deepcopy(VALUES[rng.integers(len(VALUES))])
    key = keys[rng.integers(len(keys))]
    if rng.random() < 0.1:
        del value[key]
    elif isinstance(value, list) and rng.random() < 0.1:
        value.append(value[key])
    else:
        value[key] = mutate_value(value[key], rng)
    return value


def mutate(folder: Path, rng: np.random.Generator) -> str:
    """Change one or two things of a folder; returns what."""
    said = []
    for _ in range(int(rng.choice([1, 1, 1, 2]))):
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        named = [path for path in files if path.suffix == ".safetensors" or path.name == "manifest.json"]
        pick = named if named and rng.random() < 0.8 else files
        if not pick:
            break
        path = pick[rng.integers(len(pick))]
        how = rng.random()
        said.append(str(path.relative_to(folder)))
        if how < 0.04:
            raw = path.read_bytes()
            path.write_bytes(raw[: int(rng.integers(0, len(raw) + 1))])
        elif how < 0.05:
            path.unlink()
        elif how < 0.06:
            path.unlink()
            path.symlink_to("/etc/passwd")
        elif how < 0.12:
            raw = bytearray(path.read_bytes())
            if raw:
                raw[rng.integers(len(raw))] = rng.integers(256)
            path.write_bytes(raw)
        elif path.suffix == ".safetensors":
            mutate_tensors(path, rng)
        elif path.suffix == ".json":
            try:
                value = json.loads(path.read_text())
            except (ValueError, OSError):
                continue
            path.write_text(json.dumps(mutate_value(value, rng)))
    refresh(folder)
    return ", ".join(said)


def mutate_tensors(path: Path, rng: np.random.Generator) -> None:
    try:
        file = Tensors(path)
    except (ValueError, KeyError, OSError, TypeError, AttributeError):
        return
    if file.metadata and rng.random() < 0.1:
        key = str(rng.choice(sorted(file.metadata)))
        text = file.metadata[key]
        try:
            file.metadata[key] = json.dumps(mutate_value(json.loads(text), rng))
        except ValueError:
            file.metadata[key] = str(VALUES[rng.integers(len(VALUES))])
    elif file.arrays:
        mutate_array(file.arrays, str(rng.choice(sorted(file.arrays))), rng)
    if rng.random() < 0.2 and file.arrays:
        mutate_array(file.arrays, str(rng.choice(sorted(file.arrays))), rng)
    file.write(path)


def refresh(folder: Path) -> None:
    """Sizes and checksums that manifests keep of files, as the files now are."""
    for path in folder.rglob("manifest.json"):
        try:
            manifest = json.loads(path.read_text())
        except (ValueError, OSError):
            continue
        changed = False
        rows = [manifest] if isinstance(manifest, dict | list) else []
        while rows:
            row = rows.pop()
            rows += [
                v for v in (row.values() if isinstance(row, dict) else row) if isinstance(v, dict | list)
            ]
            if not isinstance(row, dict) or not isinstance(row.get("file"), str):
                continue
            file = path.parent / row["file"]
            try:
                if not file.is_file():  # but a device, or nothing
                    continue
                if "bytes" in row and isinstance(row["bytes"], int):
                    row["bytes"], changed = file.stat().st_size, True
                if "crc32" in row:
                    row["crc32"], changed = Tensors(file).metadata.get("crc32"), True
            except Exception:  # whatever the file is by now
                continue
        if changed:
            path.write_text(json.dumps(manifest))
