"""Kills, full disks, broken files, threads, signals, little memory: nothing is lost and nothing hangs.

`bench/experiments/faults.py` makes the tables of docs/howto/reliability.md; here its short form.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import xmc_fast
from xmc_fast import data
from xmc_fast._files import _exchange, locked, put_in_place, remove_abandoned
from xmc_fast._folder import replace_folder
from xmc_fast.data import _io

pytest.importorskip("fcntl")
psutil = pytest.importorskip("psutil")
faults = pytest.importorskip("bench.experiments.faults")
kills = pytest.importorskip("bench.experiments.kills")
ROOT = Path(__file__).parents[1]
SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")
not_sanitized = pytest.mark.skipif(SANITIZED, reason="ASan needs the address space, and is slow")


@pytest.mark.parametrize("name", kills.OPERATIONS)
@not_sanitized
def test_kills(name):
    count = 5 if name == kills.FIRST_FILE else 2
    row = kills.kills(name, count, seed=1)
    assert row["kills"] == count
    assert (row["lost"], row["half"], row["differing"]) == (0, 0, 0)


def test_kills_see_what_is_lost(monkeypatch):
    """The harness itself: a folder that is gone for a moment is found missing."""

    def in_two_steps(new, target):
        shutil.rmtree(target, ignore_errors=True)
        time.sleep(0.05)
        os.rename(new, target)

    monkeypatch.setattr("xmc_fast._folder.put_in_place", in_two_steps)
    assert kills.kills("save over an old model", 6, seed=1)["lost"] > 0


@pytest.mark.parametrize("name", faults.FAULTS)
@not_sanitized
def test_faults(name):
    assert faults.fault(name)["outcome"]


def test_a_folder_with_only_temporary_files_is_empty(tmp_path):
    """A fit killed as it wrote its first file left one behind, and could not be run again."""
    for name, fit in (("fit.json", kills.fit), ("mach.json", kills.fit_mach)):
        folder = tmp_path / name
        (folder / "out").mkdir(parents=True)
        (folder / "out" / f".{name}.abc123.tmp").write_text("{")
        fit(folder)
        assert not list((folder / "out").glob(".*"))


def test_a_folder_is_replaced_at_once(tmp_path):
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    put_in_place(tmp_path / "new", tmp_path / "old")
    assert (tmp_path / "old" / "file").read_text() == "new"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["old"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux exchanges folders")
def test_folders_are_exchanged(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    assert _exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a" / "b").exists()
    assert not _exchange(tmp_path / "a", tmp_path / "missing")


def test_abandoned_folders_are_removed_and_others_are_not(tmp_path):
    mine, dead, other = (tmp_path / f".{name}.tmp" for name in ("model.a", "model.b", "model2.c"))
    for folder in (mine, dead, other):
        folder.mkdir()
    with locked(mine):
        remove_abandoned(tmp_path, "model")
        assert [mine.exists(), dead.exists(), other.exists()] == [True, False, True]
        with pytest.raises(ValueError, match="in use by another fit"), locked(mine):
            pass
    remove_abandoned(tmp_path, "model")
    assert not mine.exists()


def test_two_saves_at_once_end_with_one_of_them(tmp_path):
    def save(number):
        for _ in range(20):
            with replace_folder(tmp_path / "model") as folder:
                (folder / "manifest.json").write_text(f'{{"kind": "{number}"}}')
                (folder / f"of-{number}").touch()

    threads = [threading.Thread(target=save, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (kind,) = re.findall(r"\d", (tmp_path / "model" / "manifest.json").read_text())
    assert sorted(p.name for p in (tmp_path / "model").iterdir()) == ["manifest.json", f"of-{kind}"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model"]


def test_eight_threads_predict_while_others_save_and_fit(tmp_path):
    X, Y = kills.X, kills.Y
    estimator = xmc_fast.OneVsAll(n_jobs=2).fit(X, Y)
    model, expected = estimator.model_, estimator.model_.predict(X, 3)
    tree = xmc_fast.LabelTree(max_leaf=8, n_jobs=2).fit(X, Y)
    of_tree = tree.predict(X, 3)
    stop, wrong = time.monotonic() + 1.0, []

    def repeat(work):
        with contextlib.suppress(BaseException):
            while time.monotonic() < stop:
                work()
            return
        wrong.append(work)

    def predict():
        assert (model.predict(X, 3) != expected).nnz == 0

    def search():
        assert (tree.predict(X, 3) != of_tree).nnz == 0

    work = [*[predict] * 5, *[search] * 3]
    work += [lambda: model.save(tmp_path / "model"), lambda: tree.save(tmp_path / "tree")]
    work += [
        lambda: xmc_fast.load(tmp_path / "tree").predict(X[:2]) if (tmp_path / "tree").exists() else None
    ]
    work += [lambda: xmc_fast.OneVsAll(n_jobs=2).fit(X, Y)] * 2
    threads = [threading.Thread(target=repeat, args=(w,)) for w in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


CTRL_C = """
import signal, sys, time
import numpy as np, scipy.sparse as sp
import xmc_fast
from xmc_fast import cluster, data, decide, knn, metrics

signal.signal(signal.SIGINT, signal.default_int_handler)
rng = np.random.default_rng(0)
def rows(n, d, per_row):  # sp.random would take a minute
    columns = rng.integers(0, d, (n, 1)) + np.cumsum(rng.integers(1, d // per_row, (n, per_row)), 1)
    columns = np.sort(columns % d, 1).astype(np.int32)
    ends = np.arange(0, n * per_row + 1, per_row)
    return sp.csr_matrix((rng.random(n * per_row, np.float32), columns.ravel(), ends), (n, d))
def truth(n, l):
    return rows(n, l, 5).astype(bool)
# Every import now: Python cannot finish one of scipy or scikit-learn that a signal has stopped.
xmc_fast.OneVsAll(n_jobs=2).fit(np.eye(4), np.eye(4)).predict(np.eye(4), 1)
xmc_fast.LabelTree(max_leaf=2, n_jobs=2).fit(np.eye(4), np.eye(4)).predict(np.eye(4), 1)
"""
# What runs long enough to be stopped: the arguments are made first, then "ready" is said.
LONG = {
    "fit": "X, Y = rows(10000, 2000, 60), truth(10000, 4000); f = lambda: xmc_fast.OneVsAll(n_jobs=2).fit(X, Y)",
    "tree": "X, Y = rows(10000, 2000, 60), truth(10000, 4000); f = lambda: xmc_fast.LabelTree(n_jobs=2).fit(X, Y)",
    "predict": "m, X = xmc_fast.SparseModel(rows(10000, 2000, 100)), rows(30000, 2000, 60); m.prepare();"
    " f = lambda: m.predict(X, 5, n_jobs=2)",
    "label_tree": "X, Y = rows(20000, 5000, 100), truth(20000, 10000);"
    " f = lambda: cluster.label_tree(X, Y, max_leaf=4, n_jobs=2)",
    "knn": "Z = rng.random((40000, 128), np.float32); i = knn.InnerProductIndex(Z);"
    " f = lambda: i.search(Z, 20, n_jobs=2)",
    "bca": "P = rows(50000, 5000, 50);"
    " f = lambda: decide.bca(P, 'macro-f1', 5, tol=1e-12, max_iter=10**6, n_jobs=2)",
    "metrics": "Y, P = truth(100000, 5000), rows(100000, 5000, 20);"
    " f = lambda: [metrics.ndcg_at_k(Y, P, 5) for _ in range(1000)]",
    "read": "open('big.txt', 'w').write('100000 1000 10\\n' + '1,2 3:1 5:0.25 7:8 9:1 11:2 500:3.5\\n' * 100000);"
    " f = lambda: [data.read_xmc('big.txt', n_jobs=2) for _ in range(1000)]",
    "read a large file":
    "open('big.txt', 'w').write('2000000 1000 10\\n' + '1,2 3:1 5:0.25 7:8 9:1 11:2 500:3.5\\n' * 2000000);"
    " f = lambda: data.read_xmc('big.txt', n_jobs=2)",
    "read a table": "open('big.csv', 'w').write('text,label\\n' + 'green tea and much more,a|b\\n' * 300000);"
    " f = lambda: data.read('big.csv', n_jobs=2)",
    "read json lines":
    "open('big.jsonl', 'w').write('{\"text\": \"green tea\", \"label\": [\"a\", \"b\"]}\\n' * 300000);"
    " f = lambda: data.read('big.jsonl', n_jobs=2)",
}  # fmt: skip


@pytest.mark.parametrize("name", LONG)
@not_sanitized
def test_ctrl_c(name, tmp_path):
    """It comes through within half a second of CPU time, and the process goes on."""
    code = (
        CTRL_C
        + textwrap.dedent(LONG[name])
        + textwrap.dedent("""
        try:
            print("ready", flush=True)
            while True:
                f()
        except KeyboardInterrupt:
            print("stopped", time.process_time(), flush=True)
        print(xmc_fast.OneVsAll(n_jobs=2).fit(np.eye(4), np.eye(4)).predict(np.eye(4), 1).indices.tolist())
        """)
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    timer = threading.Timer(120, process.kill)
    timer.start()
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.4)
    before = sum(psutil.Process(process.pid).cpu_times()[:2])
    process.send_signal(signal.SIGINT)
    word, seconds = process.stdout.readline().split()
    rest = process.stdout.read()  # not communicate(timeout): it does not see what readline has buffered
    timer.cancel()
    assert (process.wait(), word, rest.strip()) == (0, "stopped", "[0, 1, 2, 3]")
    process.stdout.close()
    assert float(seconds) - before < 2 * 0.5 + 0.3  # of two threads


# Readers of a file of five lines, as a whole and in parts.
READERS = {
    "read_xmc": (data.read_xmc, lambda path: data.iter_xmc(path, chunk_bytes=30)),
    "read_libsvm": (data.read_libsvm, None),
    "read (csv)": (data.read, lambda path: data.read_chunks(path, rows=2)),
    "read (json lines)": (data.read, None),
    "read_lines": (data.read_lines, None),
}
LINES = {
    "read_xmc": "4 9 9\n" + "0 1:1 2:3\n" * 4,
    "read_libsvm": "1 1:1 2:3\n" * 5,
    "read (csv)": "text,label\n" + "green tea,a\n" * 4,
    "read (json lines)": '{"text": "green tea", "label": "a"}\n' * 5,
    "read_lines": "green tea\n" * 5,
}


@pytest.mark.parametrize("name", READERS)
def test_a_file_cut_short_while_it_is_read(name, tmp_path, monkeypatch):
    """Mapped, it would end the process; and a shorter file must not be taken for the whole."""
    path = tmp_path / ("a.jsonl" if "json" in name else "a.csv" if "csv" in name else "a.txt")
    path.write_text(LINES[name])
    read, chunks = READERS[name]
    read(path)
    real = np.empty
    cut = []

    def empty(*args, **options):  # the room is made, then the file is cut, then it is read
        if not cut and args[:1] == (len(LINES[name]),):
            cut.append(os.truncate(path, 25))
        return real(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(_io.np, "empty", empty)
        with pytest.raises(
            ValueError, match=r"a\.\w+: changed while it was read \(\d+ bytes before, 25 after"
        ):
            read(path)
    assert cut
    path.write_text(LINES[name])
    for step in (read, *([] if chunks is None else [lambda path: list(chunks(path))])):
        step(path)
    if chunks is not None:
        with pytest.raises(ValueError, match="changed while it was read"):
            list(map(lambda _: os.truncate(path, 25), chunks(path)))


def test_a_file_replaced_while_it_is_read(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text(LINES["read_xmc"])
    rows = 0
    for X, _ in data.iter_xmc(path, chunk_bytes=10):
        rows += X.shape[0]
        (tmp_path / "new").write_text("1 1 1\n0 0:1\n")
        os.replace(tmp_path / "new", path)
    assert rows == 4


@not_sanitized
def test_a_forked_child_can_do_everything_after_use(tmp_path):
    X, Y = kills.X, kills.Y
    model = xmc_fast.OneVsAll(n_jobs=2).fit(X, Y).model_
    expected = model.predict(X, 3, n_jobs=2)

    def work():
        assert (model.predict(X, 3, n_jobs=2) != expected).nnz == 0
        xmc_fast.LabelTree(max_leaf=8, n_jobs=2).fit(X, Y)
        model.save(tmp_path / "model")

    with kills.child(work) as pid:
        assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.memory
@not_sanitized
def test_repeated_calls_do_not_grow(tmp_path):
    """5,000 predictions, openings and fits: less than 1 MB more than after the first 300 of each."""
    code = f"""
import resource, sys
sys.path.insert(0, {str(ROOT)!r})
from bench.experiments import kills
import xmc_fast
for i in range(200_000):
    sys.intern(str(i))  # Python's table of names, also those of paths, takes its final size now and not once later
X, Y = kills.X[:20], kills.Y[:20, :20]
model = xmc_fast.OneVsAll(n_jobs=1).fit(kills.X, kills.Y).model_
model.save("model")
def now():
    xmc_fast.release_memory()
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
def each(n):
    for i in range(n):
        model.predict(X, 3, n_jobs=1)
        xmc_fast.load("model").predict(X[:1], 3, n_jobs=1)
        xmc_fast.OneVsAll(n_jobs=1).fit(X, Y)
each(300)
before = now()
each(5000)
print(now() - before)
"""
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert int(run.stdout) < 1 << 20


def test_release_memory():
    from xmc_fast import _core

    block = _core.new_result(8 << 20)
    del block
    assert xmc_fast.release_memory() >= 8 << 20
    assert xmc_fast.release_memory() == 0


# What can run code from data, or a command: not called, or only where the reason stands.
FORBIDDEN = re.compile(
    r"(builtins\.)?(eval|exec|compile|__import__)|(.*\.)?(pickle|cloudpickle|dill|joblib|marshal)\.(loads?|Unpickler)|shelve\.open"
    r"|os\.(system|popen|exec\w+|spawn\w+|posix_spawn\w*)|(subprocess|pty|runpy)\..*|torch\.(jit\.load|hub\..*)|yaml\.\w*load\w*"
)  # fmt: skip
MUST_BE = {"shell": "False", "trust_remote_code": "False", "allow_pickle": "False", "weights_only": "True"}
ALLOWED = {
    (path, "pickle.loads"): "what the driver of an engine sent to its own workers, see SECURITY.md"
    for path in ("engine/_work.py", "_row_ranges.py")
}


def runs_code(source):
    """What Python source calls of these; names are followed through its imports, options through dicts."""
    tree, known, found = ast.parse(source), {}, []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known |= {a.asname: a.name for a in node.names if a.asname}
        elif isinstance(node, ast.ImportFrom):
            known |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    for node in ast.walk(tree):
        given = {}
        if isinstance(node, ast.Call):
            first, dot, rest = ast.unparse(node.func).partition(".")
            name = known.get(first, first) + dot + rest
            given = {word.arg: ast.unparse(word.value) for word in node.keywords}
            unsafe = name == "torch.load" and "weights_only" not in given
            found += [name] if unsafe or FORBIDDEN.fullmatch(name) else []
        elif isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            given = {k.value: ast.unparse(v) for k, v in pairs if isinstance(k, ast.Constant)}
        found += [f"{k}={v}" for k, v in given.items() if MUST_BE.get(k, v) != v]
    return found


def test_nothing_runs_what_it_reads():
    package = Path(xmc_fast.__file__).parent
    files = list(package.rglob("*.py"))
    assert len(files) > 100
    found = {(p.relative_to(package).as_posix(), call) for p in files for call in runs_code(p.read_text())}
    assert found == set(ALLOWED)


@pytest.mark.parametrize(
    "source",
    [
        "from pickle import loads as read\nread(b'')",
        "import numpy as np\nnp.load('a.npy', allow_pickle=True)",
        "import os\nos.system('ls')",
        "import subprocess\nsubprocess.run(['ls'])",
        "import torch\ntorch.load('a.pt')",
        "import torch\ntorch.load('a.pt', weights_only=False)",
        "from joblib.externals import cloudpickle\ncloudpickle.loads(b'')",
        "options = {'trust_remote_code': remote}",
        "eval('1')",
    ],
)
def test_what_runs_code_is_found(source):
    assert len(runs_code(source)) == 1
