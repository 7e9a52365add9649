"""Opens thousands of damaged model folders whose checksums are right: each is refused with a ValueError or predicts.

    python tests/mutate_models.py FOLDER COUNT [SEED]

Run by test_model_mutations.py in a process of its own, since what it looks for is a crash.
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from xmc_fast import SparseModel, load
from xmc_fast.model import Calibration
from xmc_fast.model._tensors import checksum, read_tensors

VALUES = (0, 1, -1, 3, 255, 256, 65535, 65536, 2**31 - 1, -(2**31), 2**32 - 1, 2**62, -(2**62))


def make(folder: Path) -> list[Path]:
    """Models of each form."""
    rng = np.random.default_rng(0)
    W = rng.normal(size=(150, 41)).astype(np.float32) * (rng.random((150, 41)) < 0.2)
    names = {"label_names": [f"l{i}" for i in range(150)], "feature_names": [f"f{i}" for i in range(40)]}
    exact = SparseModel([sp.csr_matrix(W[:70]), sp.csr_matrix(W[70:])], bias=1.0, **names)
    small = exact.compress()
    half = exact.astype("float16")
    for model, name in ((exact, "exact"), (small, "small"), (half, "half")):
        model.calibration = Calibration(np.ones(150, np.float32), np.zeros(150, np.float32), 1.0, 0.0)
        model.save(folder / name)
    return [folder / name for name in ("exact", "small", "half")]


def mutate(raw: bytes, rng: np.random.Generator) -> bytes:
    """A few bytes changed, numbers replaced, the end cut off or repeated."""
    data = bytearray(raw)
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(len(data) or 1))
        kind = rng.integers(8)
        if kind < 3:
            data[at : at + 1] = bytes([rng.integers(256)])
        elif kind < 6:
            form = "<" + "bhiq"[rng.integers(4)]
            size = struct.calcsize(form)
            at -= at % size
            value = VALUES[rng.integers(len(VALUES))] & ((1 << 8 * size) - 1)
            data[at : at + size] = value.to_bytes(size, "little")
        elif kind == 6:
            del data[at:]
        else:
            data += data[at : at + 64]
    return bytes(data)


def repair(folder: Path, file: Path) -> None:
    """Make checksums and sizes right again, as whoever changed the file would."""
    try:
        tensors, _ = read_tensors(file, map_file=False)
        raw = file.read_bytes()
        end = 8 + int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8:end])
        header["__metadata__"]["crc32"] = checksum(tensors)
        text = json.dumps(header, separators=(",", ":")).encode().ljust(end - 8)
        file.write_bytes(len(text).to_bytes(8, "little") + text + raw[end:])
        manifest = json.loads((folder / "manifest.json").read_text())
        for row in [*manifest["blocks"], manifest.get("packed", {}), manifest.get("layout", {})]:
            if row.get("file") == file.name:
                row["bytes"], row["crc32"] = file.stat().st_size, checksum(tensors)
        (folder / "manifest.json").write_text(json.dumps(manifest))
    except (ValueError, KeyError, TypeError):
        pass  # refused anyway


def use(folder: Path, verify: bool, X: np.ndarray) -> None:
    """Everything that reads a model's files."""
    model = load(folder, verify=verify)
    for proba in (False, True):
        model.predict(X[:, : model.n_features], 5, proba=proba)
    model.to_csr().sum()
    _ = model.label_names, model.feature_names
    model.compress(delta=0.5)


def main(target: Path, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    X = rng.random((3, 40)).astype(np.float32)
    refused = 0
    for folder in make(target):
        originals = {file: file.read_bytes() for file in sorted(folder.iterdir())}
        files = list(originals)
        weights = [file for file in files if file.name.startswith(("block", "packed", "layout"))]
        for number in range(count):
            file = (weights if number % 2 else files)[rng.integers(len(weights if number % 2 else files))]
            file.write_bytes(mutate(originals[file], rng))
            if file.suffix == ".safetensors":
                repair(folder, file)
            try:
                use(folder, bool(number % 3), X)
            except ValueError:  # ModelFormatError is one
                refused += 1
            for changed in {file, folder / "manifest.json"}:
                changed.write_bytes(originals[changed])
    print(f"{3 * count} mutations, {refused} refused")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0)
