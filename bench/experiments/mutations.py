"""Model folders as an adversary would change them: what opens still predicts, what does not says why.

Each mutation changes one or two things of a good folder (an element, a length, a type or a name of an array, a value
of the manifest, a byte, a whole file), with all checksums made right again, opens the folder and predicts. A worker
process does many; one that dies or takes longer than its limit is counted with the number of the mutation, which
makes the same one again:

    python -m bench.experiments.mutations --count 10000 --networks 2000 --write   # the table of the docs
    python -m bench.experiments.mutations --kind mach --first 17 --count 1 --trace

Beside them single bytes of the weights are changed with the checksums left as they were: ``verify=True`` must notice
each. Run it on a sanitizer build of the core (see .ci/run) to see reads out of bounds that do not crash.
"""

from __future__ import annotations

import argparse
import collections
import functools
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
from bench.experiments.mutate import mutate

SECONDS = 20  # a mutation that takes more CPU time hangs,
WAITED = 600  # or more time by the clock
MEMORY = 4 << 30  # beyond what the worker has when it starts
TEXTS = [
    f"{['green', 'tea', 'leaf', 'ore'][i % 4]} {['ship', 'port', 'wood'][i % 3]} {i % 5}0" for i in range(24)
]


@functools.cache
def data(rows: int = 24, features: int = 12, labels: int = 6) -> tuple[sp.csr_matrix, sp.csr_matrix]:
    rng = np.random.default_rng(0)
    X = sp.random(rows, features, 0.4, format="csr", dtype=np.float32, random_state=0)
    return X, sp.csr_matrix(rng.random((rows, labels)) < 0.3)


def _near(folder: Path) -> None:
    """A model with an index for nearly exact prediction."""
    X, Y = data()
    xmc_fast.OneVsAll(n_jobs=1).fit(X, Y).model_.build_near_index(X, 3).save(folder)


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


def _lightxml(folder: Path, members: int = 0) -> None:
    """A LightXML, or an ensemble of some."""
    sys.path.append(str(Path(__file__).parents[2] / "tests"))
    from reference import tiny_encoder
    from xmc_fast import nn

    _, Y = data()
    encoder = str(tiny_encoder.save(folder.with_suffix(".encoder"), TEXTS, layers=1, hidden=8))
    single = [
        nn.LightXML(
            encoder, epochs=1, device="cpu", mode="clusters", max_leaf=2, bottleneck=4, layers=1, max_length=8,
            batch_size=16, random_state=number,
        )
        for number in range(max(1, members))
    ]  # fmt: skip
    model = nn.LightXMLEnsemble(single) if members else single[0]
    model.fit(TEXTS, Y).save(folder)


# Kind -> what makes a folder of it. Names as in xmc_fast._folder.KINDS, with a suffix for further forms.
KINDS: dict[str, Callable[[Path], None]] = {
    "sparse_model": lambda folder: xmc_fast.OneVsAll(n_jobs=1).fit(*data()).model_.save(folder),
    "sparse_model-blocks": lambda folder: xmc_fast.OneVsAll(n_jobs=1).fit(*data(), checkpoint=folder),
    "sparse_model-small": lambda folder: xmc_fast.OneVsAll(n_jobs=1).fit(*data()).model_.compress().save(folder),
    "sparse_model-near": _near,
    "text_classifier": _text,
    "label_tree": _tree,
    "neighbours": lambda folder: xmc_fast.Neighbours(3, n_jobs=1).fit(*data()).save(folder),
    "lexical": lambda folder: xmc_fast.Lexical(["tea", "ore"]).fit(["tea", "ore"], [[1, 0], [0, 1]]).save(folder),
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
    "lightxml_ensemble": functools.partial(_lightxml, members=2),
}  # fmt: skip
TEXT_KINDS = ("text_classifier", "lexical", "lightxml", "lightxml_ensemble")
NETWORKS = (
    *("mach-network", "declare", "sparse_classifier", "sparse_classifier-groups", "lightxml"),
    "lightxml_ensemble",
)
VERIFIED = (
    "sparse_model",
    "text",
    "label_tree",
    "mach",
    "neighbours",
    "lexical",
    "ensemble",
)  # kinds whose load has verify; others always do


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
        if kind == "sparse_model-near":
            model.predict(X, 3, recall=0.5)
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
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.alarm(WAITED)
        result = call()
        signal.setitimer(signal.ITIMER_PROF, 0)
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
            too_long = ended.returncode in (-signal.SIGALRM, -signal.SIGPROF)
            how = "hang" if too_long else f"crash {ended.returncode}"
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
