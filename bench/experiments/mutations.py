"""Model folders as an adversary would change them: what opens still predicts, what does not says why.

Each mutation changes one or two things of a good folder (an element, a length, a type or a name of an array, a value
of the manifest, a byte, a whole file), with all checksums made right again, opens the folder and predicts. A worker
process does many; one that dies or takes longer than its limit is counted with the number of the mutation, which
makes the same one again:

    python -m bench.experiments.mutations --count 15000 --networks 2000 --write   # the table of the docs
    python -m bench.experiments.mutations --kind mach --first 17 --count 1 --trace

Beside them single bytes of the weights are changed with the checksums left as they were: ``verify=True`` must notice
each. Run it on a sanitizer build of the core (see .ci/run) to see reads out of bounds that do not crash.
"""

from __future__ import annotations

import argparse
import collections
import copy
import functools
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import xmc_fast
from bench.experiments.faults import publish

SECONDS = 20  # a mutation that takes longer hangs
MEMORY = 4 << 30  # beyond what the worker has when it starts
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

TEXTS = [
    f"{['green', 'tea', 'leaf', 'ore'][i % 4]} {['ship', 'port', 'wood'][i % 3]} {i % 5}0" for i in range(24)
]


@functools.cache
def data(rows: int = 24, features: int = 12, labels: int = 6) -> tuple[sp.csr_matrix, sp.csr_matrix]:
    rng = np.random.default_rng(0)
    X = sp.random(rows, features, 0.4, format="csr", dtype=np.float32, random_state=0)
    return X, sp.csr_matrix(rng.random((rows, labels)) < 0.3)


def _tree(folder: Path) -> None:
    X, Y = data(60, 12, 20)
    xmc_fast.LabelTree(max_leaf=3, branching=2, max_first=4, n_trees=2, n_jobs=1).fit(X, Y).save(folder)


def _text(folder: Path, model: Any = None) -> None:
    _, Y = data()
    options = {} if model is None else {"model": model}
    made = xmc_fast.TextClassifier(min_df=1, n_jobs=1, **options).fit(TEXTS, Y)
    made.save(folder)


def _nn(name: str, *arguments: Any, **options: Any) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        from xmc_fast import nn

        options.setdefault("epochs", 1)
        getattr(nn, name)(*arguments, **options).fit(*data()).save(folder)

    return make


def _lightxml(folder: Path) -> None:
    sys.path.append(str(Path(__file__).parents[2] / "tests"))
    from reference import tiny_encoder
    from xmc_fast import nn

    _, Y = data()
    encoder = str(tiny_encoder.save(folder.with_suffix(".encoder"), TEXTS, layers=1, hidden=8))
    nn.LightXML(
        encoder, epochs=1, device="cpu", mode="clusters", max_leaf=2, bottleneck=4, layers=1, max_length=8,
        batch_size=16,
    ).fit(TEXTS, Y).save(folder)  # fmt: skip


# Kind -> what makes a folder of it. Names as in xmc_fast._folder.KINDS, with a suffix for further forms.
KINDS: dict[str, Callable[[Path], None]] = {
    "sparse_model": lambda folder: xmc_fast.OneVsAll(n_jobs=1).fit(*data()).model_.save(folder),
    "sparse_model-small": lambda folder: xmc_fast.OneVsAll(n_jobs=1).fit(*data()).model_.compress().save(folder),
    "text_classifier": _text,
    "label_tree": _tree,
    "neighbours": lambda folder: xmc_fast.Neighbours(3, n_jobs=1).fit(*data()).save(folder),
    "ensemble": lambda folder: xmc_fast.Ensemble(folds=2, n_jobs=1).fit(*data()).save(folder),
    "mach": lambda folder: xmc_fast.Mach(4, 2, n_jobs=1).fit(*data()).save(folder),
    "mach-network": lambda folder: xmc_fast.Mach(4, 2, base="network", n_jobs=1).fit(*data()).save(folder),
    "linear_declare": lambda folder: xmc_fast.LinearDeclare(3, neighbours=4, n_jobs=1).fit(*data()).save(folder),
    "declare": _nn("Declare", 3, hidden=4, neighbours=4),
    "sparse_classifier": _nn("SparseClassifier", hidden=8, fan_in=4, device="cpu"),
    "sparse_classifier-groups": _nn(
        "SparseClassifier", hidden=8, fan_in=4, device="cpu", output="head_tail", head=2, group_size=2
    ),
    "lightxml": _lightxml,
}  # fmt: skip
TEXT_KINDS = ("text_classifier", "lightxml")
NETWORKS = ("mach-network", "declare", "sparse_classifier", "sparse_classifier-groups", "lightxml")
VERIFIED = ("sparse_model", "text", "label_tree", "mach")  # kinds whose load has verify; others always do


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


def options_of(kind: str, verify: bool) -> dict[str, bool]:
    return {"verify": verify} if kind.startswith(VERIFIED) else {}


def attempt(folder: Path, kind: str, verify: bool) -> str:
    """Open and predict: "predicted", "refused" with a clear error, or "unclear" and the error."""
    # A clear error names a file (a ModelFormatError, or an OSError), or if the model opened is a ValueError that says
    # what does not fit: a manifest may have another number of features, a weight may be inf.
    model = None
    try:
        model = xmc_fast.load(folder, **options_of(kind, verify))
        X = TEXTS[:5] if kind in TEXT_KINDS else data(60 if kind == "label_tree" else 24)[0][:5]
        model.predict(X, 3)
    except MemoryError:
        return "refused"
    except Exception as error:
        of_folder = isinstance(error, xmc_fast.model.ModelFormatError | OSError)
        clear = (
            str(folder) in str(error) if of_folder else model is not None and isinstance(error, ValueError)
        )
        return "refused" if clear else f"unclear: {type(error).__name__}: {str(error)[:200]}"
    return "predicted"


def flip(folder: Path, kind: str, rng: np.random.Generator) -> str:
    """Change one byte of the weights and open with ``verify``: "noticed" or "unnoticed"."""
    files = sorted(folder.rglob("*.safetensors"))
    starts = [8 + int.from_bytes(path.read_bytes()[:8], "little") for path in files]
    sizes = np.array([path.stat().st_size - start for path, start in zip(files, starts, strict=True)])
    number = rng.choice(len(files), p=sizes / sizes.sum())
    at = starts[number] + int(rng.integers(sizes[number]))
    raw = files[number].read_bytes()
    files[number].write_bytes(raw[:at] + bytes([raw[at] ^ int(rng.integers(1, 256))]) + raw[at + 1 :])
    try:
        xmc_fast.load(folder, **options_of(kind, True))
    except xmc_fast.model.ModelFormatError:
        return "noticed"
    except Exception as error:
        return f"unclear: {type(error).__name__}: {str(error)[:200]}"
    finally:
        files[number].write_bytes(raw)
    return f"unnoticed: byte {at} of {files[number].relative_to(folder)}"


class Folder:
    """A copy of a model folder that can be made whole again: what a mutation changed, and every manifest."""

    def __init__(self, source: Path, place: Path) -> None:
        shutil.copytree(source, place)
        self.path = place
        self.files = {p.relative_to(place): p.read_bytes() for p in place.rglob("*") if p.is_file()}

    def restore(self, said: str) -> None:
        names = {Path(name) for name in said.split(", ") if name}
        for name in names | {name for name in self.files if name.name == "manifest.json"}:
            (self.path / name).unlink(missing_ok=True)
            (self.path / name).write_bytes(self.files[name])


def work(source: Path, kind: str, numbers: range, flips: range, log: Path, trace: bool) -> None:
    """The worker: each mutation on a copy of the folder, each result on a line of the log."""
    warnings.simplefilter("ignore")
    os.environ["OMP_NUM_THREADS"] = "1"
    attempt(source, kind, True)  # imports
    if "ASAN_OPTIONS" not in os.environ:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    folder = Folder(source, Path(tempfile.mkdtemp(dir=source.parent)) / "model")

    def one(number: int, said: str, file: Any, call: Callable[[], str]) -> None:
        file.write(f"{number}\t{said}\t")
        file.flush()
        signal.alarm(SECONDS)
        result = call()
        signal.alarm(0)
        file.write(result.replace("\n", " ").replace("\t", " ") + "\n")
        file.flush()

    with open(log, "a") as file:
        for number in numbers:
            rng = np.random.default_rng([number, zlib.crc32(kind.encode())])
            said = mutate(folder.path, rng)
            verify = bool(rng.integers(2))
            one(number, said, file, lambda verify=verify: attempt(folder.path, kind, verify))  # type: ignore[misc]
            if trace:
                print(number, said)
                traced(folder.path)
            folder.restore(said)
        for number in flips:
            rng = np.random.default_rng([number, zlib.crc32(kind.encode()), 1])
            one(number, "a byte", file, lambda rng=rng: flip(folder.path, kind, rng))  # type: ignore[misc]


def traced(folder: Path) -> None:
    try:
        xmc_fast.load(folder)
    except Exception:
        traceback.print_exc()


def run(
    kind: str, numbers: range, *, flips: range = range(0), source: Path | None = None, trace: bool = False
) -> dict[str, Any]:
    """Mutations of a kind, and single changed bytes, in worker processes; counts, and those that went wrong."""
    counts: collections.Counter[str] = collections.Counter()
    bad: list[tuple[int, str, str]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "source"
        if source is None:
            KINDS[kind](folder)
        else:
            shutil.copytree(source, folder)
        log = Path(name) / "log"
        log.touch()
        while True:
            lines = log.read_text().splitlines()
            done = len(lines)
            first = [
                numbers.start + done,
                numbers.stop,
                flips.start + max(0, done - len(numbers)),
                flips.stop,
            ]
            rest = [kind, str(folder), *map(str, first), str(log), str(int(trace))]
            ended = subprocess.run(
                [sys.executable, "-m", "bench.experiments.mutations", "--worker", *rest],
                stdout=None if trace else subprocess.DEVNULL, stderr=None if trace else subprocess.PIPE, text=True,
            )  # fmt: skip
            if ended.returncode == 0:
                break
            text, said = log.read_text(), ended.stderr or ""
            if not text.endswith("\t"):
                raise RuntimeError(f"the worker died outside of a mutation: {said[-2000:]}")
            how = "hang" if ended.returncode == -signal.SIGALRM else f"crash {ended.returncode}"
            with open(log, "a") as file:
                file.write(how + "\n")
            if "Sanitizer" in said or "runtime error" in said:
                print(said[-4000:])
        for line in log.read_text().splitlines():
            number, what, result = line.split("\t")
            word = result.split(":")[0].split(" ")[0]
            counts[word] += 1
            if word not in ("predicted", "refused", "noticed"):
                bad.append((int(number), what, result))
    words = ("predicted", "refused", "unclear", "crash", "hang", "noticed", "unnoticed")
    return {"kind": kind, "mutations": len(numbers), **{w: counts[w] for w in words}, "bad": bad}


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] == "--worker":
        kind, source, *numbers, log, trace = sys.argv[2:]
        first, last, first_flip, last_flip = map(int, numbers)
        work(Path(source), kind, range(first, last), range(first_flip, last_flip), Path(log), trace == "1")
        return
    parser = argparse.ArgumentParser(description="Mutations of model folders: crashes and hangs are defects.")
    parser.add_argument("--kind", action="append", choices=list(KINDS))
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument(
        "--networks", type=int, help="as --count, for kinds that need torch (default: --count)"
    )
    parser.add_argument("--flips", type=int, default=0, help="bytes changed one at a time, with verify=True")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--write", action="store_true", help="the table into docs/, kind by kind")
    options = parser.parse_args()
    build = "ASan + UBSan" if "libasan" in os.environ.get("LD_PRELOAD", "") else "release"
    for kind in options.kind or KINDS:
        start = time.monotonic()
        count = options.count if options.networks is None or kind not in NETWORKS else options.networks
        found = run(
            kind, range(options.first, options.first + count), flips=range(options.flips), trace=options.trace
        )
        bad = found.pop("bad")
        found["build"] = build
        print(found, f"{time.monotonic() - start:.0f} s", flush=True)
        for number, said, result in bad[:40]:
            print(f"  {number}: {said}: {result}", flush=True)
        if options.write:
            publish("mutations", [found])


if __name__ == "__main__":
    main()
