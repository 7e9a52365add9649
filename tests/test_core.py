"""Threads, SIMD choice, array edge, atomic files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import scipy.sparse as sp
import threadpoolctl

import xmc_fast
from xmc_fast import _core, _validate
from xmc_fast._files import atomic_path
from xmc_fast._threads import resolve_threads


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("blocks", [0, 1, 2, 7, 100])
def test_parallel_for_runs_each_block_once(blocks, threads):
    seen = []
    _core.parallel_for_test(blocks, threads, seen.append)
    assert sorted(seen) == list(range(blocks))


@pytest.mark.parametrize("threads", [1, 4])
def test_parallel_for_passes_the_exception_of_the_lowest_block(threads):
    barrier = threading.Barrier(threads, timeout=10)

    def fail(block):
        if threads > 1:
            barrier.wait()
        raise KeyError(block)

    with pytest.raises(KeyError, match="0"):
        _core.parallel_for_test(threads, threads, fail)


@pytest.mark.skipif(os.name == "nt", reason="os.kill ends the process there")
def test_ctrl_c_stops_between_blocks():
    done = []

    def slow(block):
        time.sleep(0.02)
        done.append(block)

    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        _core.parallel_for_test(1000, 2, slow)
    assert len(done) < 500


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_works_in_a_forked_child():
    code = (
        "import os\nfrom xmc_fast import _core\n"
        "_core.parallel_for_test(8, 4, lambda b: None)\n"
        "pid = os.fork()\n"
        "_core.parallel_for_test(8, 4, lambda b: None)\n"
        "if pid == 0: os._exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=60)


def test_n_jobs():
    assert resolve_threads(3) == 3
    assert resolve_threads(-1) == _core.available_cpus()
    assert resolve_threads(None) == _core.default_threads()
    with pytest.raises(ValueError, match="n_jobs"):
        resolve_threads(0)


def test_threadpoolctl_limits_our_threads():
    with threadpoolctl.threadpool_limits(limits=1):
        assert resolve_threads(None) == 1
    with threadpoolctl.threadpool_limits(limits=3, user_api="xmc_fast"):
        assert resolve_threads(None) == 3


def run_python(code, **env):
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True, timeout=120
    )


def test_omp_num_threads_is_honoured():
    out = run_python("import xmc_fast; print(xmc_fast.cpu_features()['threads'])", OMP_NUM_THREADS="5")
    assert out.stdout.strip() == "5", out.stderr


def test_xmc_simd_forces_a_path(simd):
    code = "import xmc_fast; print(xmc_fast.cpu_features()['simd'])"
    assert run_python(code, XMC_SIMD=simd).stdout.strip() == simd


def test_xmc_simd_unknown_is_an_error():
    out = run_python("import xmc_fast; xmc_fast.cpu_features()", XMC_SIMD="sse9")
    assert out.returncode != 0
    assert 'expected baseline, avx2, avx512 or neon, got "sse9"' in out.stderr


def test_import_is_light():
    code = "import sys, xmc_fast; print({'torch', 'matplotlib', 'sklearn', 'pandas'} & set(sys.modules))"
    assert run_python(code).stdout.strip() == "set()"


def test_features_sorts_sums_and_converts():
    X = sp.csr_matrix((np.array([1.0, 2.0, 3.0]), np.array([2, 0, 2]), np.array([0, 3, 3])), shape=(2, 3))
    c = _validate.features(X)
    assert c.indices.tolist() == [0, 2]
    assert c.data.tolist() == [2.0, 4.0]
    assert c.data.dtype == np.float32
    assert c.indptr.dtype == np.int64
    assert X.data.tolist() == [1.0, 2.0, 3.0], "the caller's matrix must not change"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_features_refuses_non_finite(bad):
    with pytest.raises(ValueError, match=r"X must be finite, got .* at row 1, column 2"):
        _validate.features(np.array([[1.0, 0, 0], [0, 0, bad]]))


def test_features_wrong_width():
    with pytest.raises(ValueError, match="X has 3 columns, expected 4"):
        _validate.features(np.ones((2, 3)), n_features=4)


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint8, np.int64, np.float32, np.float64])
def test_labels_any_dtype_gives_the_same(dtype):
    Y = np.zeros((3, 300))
    Y[0, 299] = Y[2, 5] = 1
    c = _validate.labels(sp.csr_matrix(Y.astype(dtype)))
    assert c.indptr.tolist() == [0, 1, 1, 2]
    assert c.indices.tolist() == [299, 5]


def test_labels_drops_stored_zeros_and_duplicates():
    Y = sp.csr_matrix((np.array([1, 0, 1]), np.array([1, 0, 1]), np.array([0, 3])), shape=(1, 2))
    assert _validate.labels(Y).indices.tolist() == [1]


def test_labels_refuses_other_values():
    with pytest.raises(ValueError, match=r"Y must be binary \(0/1\), got 2"):
        _validate.labels(np.array([[0, 2]]))


def test_transpose_round_trip():
    Y = sp.random(20, 7, 0.3, format="csr", random_state=0)
    c = _validate.features(Y)
    t = _validate.transpose(_validate.transpose(c))
    for a, b in zip(c, t, strict=True):
        assert np.array_equal(a, b)


def test_atomic_path_keeps_the_old_file_on_failure(tmp_path):
    target = tmp_path / "f.txt"
    target.write_text("old")

    def write_half():
        with atomic_path(target) as t:
            t.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["f.txt"]
    with atomic_path(target) as t:
        t.write_text("new")
    assert target.read_text() == "new"


def test_version_is_the_distribution_s():
    from importlib.metadata import PackageNotFoundError, version

    try:
        installed = version("xmc-fast")
    except PackageNotFoundError:
        pytest.skip("xmc-fast is run from the source tree, not installed")
    assert installed == xmc_fast.__version__


def test_a_bar_that_is_not_shown_takes_no_locks():
    """tqdm's are shared with forked processes, and stay locked when one of them is killed."""
    code = (
        "import sys; from xmc_fast._progress import progress\n"
        "with progress(3, unit='row') as bar: bar.update(2), bar.set_postfix({'loss': 1}, refresh=False)\n"
        "assert 'tqdm' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stderr=subprocess.PIPE)
