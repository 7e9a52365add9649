"""OneVsAll on disk, interrupted, and in little memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import numpy as np
import pytest

from test_linear import problem, same_model
from xmc_fast import OneVsAll

TRAIN = """
import sys, numpy as np, scipy.sparse as sp
from xmc_fast import OneVsAll
sys.path.insert(0, {tests!r})
from test_linear import problem
X, Y = problem(n=600, D=200, L=2000, seed=11)
OneVsAll(block_labels=100, n_jobs=2).fit(X, Y, checkpoint=sys.argv[1])
"""


def test_killed_run_resumes_to_the_same_bytes(tmp_path):
    code = TRAIN.format(tests=os.path.dirname(__file__))

    def start(folder):
        return subprocess.Popen([sys.executable, "-c", code, str(folder)])

    killed, whole = tmp_path / "killed", tmp_path / "whole"
    run = start(killed)
    deadline = time.time() + 60
    while len(list(killed.glob("block-*"))) < 3 and run.poll() is None and time.time() < deadline:
        time.sleep(0.005)
    run.kill()
    run.wait()
    done = {p.name: p.stat().st_mtime_ns for p in killed.glob("block-*")}
    assert 3 <= len(done) < 20
    assert not (killed / "manifest.json").exists()
    assert start(killed).wait() == 0
    assert start(whole).wait() == 0
    assert {name: (killed / name).stat().st_mtime_ns for name in done} == done, "finished blocks are kept"
    for path in whole.iterdir():
        assert (killed / path.name).read_bytes() == path.read_bytes(), path.name


def test_checkpoint_of_a_fit_killed_at_its_first_file(tmp_path):
    X, Y = problem()
    (tmp_path / ".fit.json.abc.tmp").write_text("{")
    fitted = OneVsAll(block_labels=10).fit(X, Y, checkpoint=tmp_path)
    assert not list(tmp_path.glob(".*"))
    assert same_model(fitted.model_, OneVsAll(block_labels=10).fit(X, Y).model_)


def test_save_and_load(tmp_path):
    X, Y = problem()
    fitted = OneVsAll(C=2.0, tol=0.02, bias=None, positive_weight="balanced", random_state=3).fit(X, Y)
    fitted.save(tmp_path / "m")
    again = OneVsAll.load(tmp_path / "m")
    assert again.get_params() == {**fitted.get_params(), "solver": "dual"}
    assert same_model(fitted.model_, again.model_)
    assert again.nbytes > 0
    np.testing.assert_array_equal(again.predict(X, 3).indices, fitted.predict(X, 3).indices)
    ids, scores = again.predict_one(X[:1], 3)
    np.testing.assert_array_equal(ids, fitted.predict(X[:1], 3).indices)
    np.testing.assert_array_equal(scores, fitted.predict(X[:1], 3).data)


def test_checkpoint_of_another_fit_is_refused(tmp_path):
    X, Y = problem(L=30)
    first = OneVsAll(block_labels=10).fit(X, Y, checkpoint=tmp_path / "c")
    again = OneVsAll(block_labels=10).fit(X, Y, checkpoint=tmp_path / "c")
    assert same_model(first.model_, again.model_)
    assert np.all(np.isnan(again.report_["seconds"]))
    assert np.array_equal(first.report_["objective"], again.report_["objective"])
    with pytest.raises(ValueError, match=r"is of another fit: C is 1\.0 there, 2\.0 here"):
        OneVsAll(C=2.0, block_labels=10).fit(X, Y, checkpoint=tmp_path / "c")
    with pytest.raises(ValueError, match="is of another fit: data"):
        OneVsAll(block_labels=10).fit(X * 2, Y[:, ::-1], checkpoint=tmp_path / "c")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(ValueError, match="neither empty nor of an earlier fit"):
        OneVsAll().fit(X, Y, checkpoint=tmp_path / "other")


@pytest.mark.skipif(os.name == "nt", reason="os.kill ends the process there")
def test_ctrl_c_between_units():
    """Ctrl-C after a fifth of the time that the same fit takes."""
    code = (
        "import os, signal, threading, sys, time\n"
        f"sys.path.insert(0, {os.path.dirname(__file__)!r})\n"
        "from test_linear import problem, OneVsAll\n"
        "X, Y = problem(n=1000, D=300, L=4000, seed=12)\n"
        "start = time.monotonic()\n"
        "OneVsAll(n_jobs=2).fit(X, Y)\n"
        "soon = 0.2 * (time.monotonic() - start)\n"
        "threading.Timer(soon, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "try:\n    OneVsAll(n_jobs=2).fit(X, Y)\n"
        "except KeyboardInterrupt:\n    sys.exit(7)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 7


def test_200000_labels_in_bounded_memory():
    """A dense weight matrix would take 200,000 x 2,001 x 4 bytes = 1.6 GB; the limit allows 0.3 GB more."""
    code = (
        "import resource, numpy as np, scipy.sparse as sp\n"
        "from xmc_fast import OneVsAll\n"
        "rng = np.random.default_rng(0)\n"
        "n, D, L = 100, 2000, 200_000\n"
        "X = sp.random(n, D, 0.005, format='csr', dtype=np.float32, random_state=0)\n"
        "ones = np.ones(2 * L, np.float32)\n"
        "Y = sp.csr_matrix((ones, (rng.integers(0, n, 2 * L), np.repeat(np.arange(L), 2))), shape=(n, L)) > 0\n"
        "OneVsAll(n_jobs=1).fit(X, Y[:, :100])\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20),) * 2)\n"
        "model = OneVsAll(n_jobs=2, keep_top=20).fit(X, Y).model_\n"
        "assert model.n_labels == L and model.nnz > 3 * L\n"
    )
    if not os.path.exists("/proc/self/statm"):
        pytest.skip("needs /proc")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


PEAK_OF = """
import threading, hashlib
import numpy as np, scipy.sparse as sp
from xmc_fast import OneVsAll
def held():
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("RssAnon"))
def peak_of(run):
    before, peak, stop = held(), [0], threading.Event()
    def watch():
        while not stop.wait(0.002):
            peak.append(held())
    watcher = threading.Thread(target=watch)
    watcher.start()
    result = run()
    stop.set()
    watcher.join()
    return result, max(peak) - before
"""


@pytest.mark.memory
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_block_does_not_take_its_size_twice():
    code = """
X = sp.random(500, 60000, 0.004, "csr", np.float32, random_state=0)
Y = sp.csr_matrix((np.random.default_rng(0).random((500, 300)) < 0.01).astype(np.float32))
def fit(labels):
    return OneVsAll(n_jobs=1, prune=0.0).fit(X, Y, labels=labels).model_
fit((0, 16))
model, peak = peak_of(lambda: fit((0, 300)))
assert model.nbytes > 80e6, model.nbytes
assert peak < 1.4 * model.nbytes, (peak, model.nbytes)
"""
    subprocess.run([sys.executable, "-c", PEAK_OF + code], check=True)


@pytest.mark.memory
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_budget_of_memory_is_held():
    """A model of 90 MB is trained in 40 MB beside the data, with the same bytes; too small a budget is refused."""
    code = """
X = sp.random(2000, 30000, 0.004, "csr", np.float32, random_state=0)
Y = sp.csr_matrix((np.random.default_rng(0).random((2000, 500)) < 0.01).astype(np.float32))
def fit(**options):
    return OneVsAll(n_jobs=1, block_labels=50, prune=0.0).fit(X, Y, **options).model_
fit(labels=(0, 50))
model, peak = peak_of(lambda: fit(memory=40_000_000))
assert model.nbytes > 80e6, model.nbytes
assert peak < 40e6, peak
def digest(model):
    return [hashlib.md5(b.data.tobytes() + b.indices.astype("i4").tobytes()).hexdigest() for b in model.blocks]
assert digest(model) == digest(fit())
assert model.predict(X[:3], 2).nnz == 6
try:
    fit(memory=1000)
except ValueError as error:
    assert "memory must be at least" in str(error)
else:
    raise AssertionError("not refused")
"""
    subprocess.run([sys.executable, "-c", PEAK_OF + code], check=True)
