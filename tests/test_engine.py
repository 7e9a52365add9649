"""Label blocks on local clusters of processes: the same bytes whatever the workers, and after every failure."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from reference.engine_case import (
    BLOCK,
    MARKS,
    Saboteur,
    X,
    Y,
    contents,
    estimator,
    sabotage,
    same_weights,
    single_run,
)
from xmc_fast import engine as engines
from xmc_fast import linear
from xmc_fast._work import DATA_NAME
from xmc_fast.engine import _run
from xmc_fast.linear import OneVsAll
from xmc_fast.mach import Mach
from xmc_fast.model import SparseModel
from xmc_fast.tree import LabelTree

cloudpickle = pytest.importorskip("cloudpickle")
resource = pytest.importorskip("resource")  # not on Windows
pytestmark = MARKS
cloudpickle.register_pickle_by_value(sys.modules[__name__])
expected = pytest.fixture(scope="module")(single_run)


class Dask:
    name = "dask"

    def __init__(self, stack):
        distributed = pytest.importorskip("distributed")
        dask = pytest.importorskip("dask")
        stack.enter_context(
            dask.config.set(
                {
                    "distributed.scheduler.allowed-failures": 1,
                    "distributed.admin.system-monitor.disk": False,
                    "distributed.worker.memory.terminate": False,
                }
            )
        )
        cluster = stack.enter_context(
            distributed.LocalCluster(
                n_workers=4,
                threads_per_worker=1,
                dashboard_address="127.0.0.1:0",
                host="127.0.0.1",
                silence_logs=50,
            )
        )
        self.client = stack.enter_context(distributed.Client(cluster, set_as_default=False))
        self.address = cluster.scheduler_address

    def ready(self, count=4):
        self.client.wait_for_workers(count, timeout=300)

    @contextlib.contextmanager
    def workers(self, count):
        """The engine with so many workers."""
        self.ready()
        all_of_them = self.client.nthreads
        few = dict(sorted(all_of_them().items())[:count])
        self.client.nthreads = lambda: few
        try:
            yield engines.connect(self.client), 1
        finally:
            self.client.nthreads = all_of_them


class Ray:
    name = "ray"

    def __init__(self, stack):
        ray = pytest.importorskip("ray")
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        ray.init(
            num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="error",
            object_store_memory=80 << 20, _node_ip_address="127.0.0.1",
        )  # fmt: skip
        stack.callback(ray.shutdown)
        self.client = ray
        self.address = ray.get_runtime_context().gcs_address

    def ready(self, count=4):
        pass  # Ray starts processes as it needs them

    @contextlib.contextmanager
    def workers(self, count):
        yield engines.connect(self.client), 4 // count


@pytest.fixture(scope="module", params=[Dask, Ray], ids=["dask", "ray"])
def cluster(request):
    with contextlib.ExitStack() as stack:
        yield request.param(stack)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_same_bytes_on_any_number_of_workers(cluster, count, tmp_path, expected):
    with cluster.workers(count) as (engine, n_jobs):
        fitted = estimator().set_params(n_jobs=n_jobs).fit(X, Y, checkpoint=tmp_path / "c", engine=engine)
    assert contents(tmp_path / "c") == expected
    report = fitted.report_["engine"]
    assert sum(row["blocks"] for row in report["workers"].values()) == 21 + report["repeated"]
    assert len(report["workers"]) <= count or cluster.name == "ray"  # a slot of Ray is not one process
    assert np.isfinite(fitted.report_["seconds"]).all()


def test_returned_blocks_and_data_sent_once_per_worker(cluster):
    fitted = estimator().fit(X, Y, engine=engines.connect(cluster.client))
    same_weights(fitted)
    report = fitted.report_["engine"]
    size = report["data_bytes"]
    assert size > X.data.nbytes + X.indices.nbytes + Y.indices.nbytes
    assert list(report["sent_bytes"].values()) == [size]  # one machine
    tasks = sum(row["tasks"] for row in report["workers"].values())
    assert tasks > len(report["workers"])
    assert all(row["data_bytes"] in (0, size) for row in report["workers"].values())


@pytest.mark.parametrize(
    ("at", "stored"), [((7,), True), ((3, 12), True), ((7,), False)], ids=["one", "two", "returned"]
)
def test_killed_workers_blocks_are_run_again(cluster, at, stored, tmp_path, expected, monkeypatch):
    cluster.ready()
    marks = tmp_path / "marks"
    marks.mkdir()
    kind = Saboteur if stored else SaboteurInSolve
    sabotage(monkeypatch, at=at, marks=marks, kind=kind)
    start = time.monotonic()
    fitted = estimator().fit(
        X, Y, checkpoint=tmp_path / "c" if stored else None, engine=engines.connect(cluster.client)
    )
    assert time.monotonic() - start < 60
    assert sorted(int(path.name) for path in marks.iterdir()) == sorted(at)  # they did die
    if stored:
        assert contents(tmp_path / "c") == expected  # no lost, doubled or other file
    else:
        same_weights(fitted)


class SaboteurInSolve(Saboteur):
    """Fails in the middle of solving a returned block."""

    def solve(self, arrays, blocks, threads, emit):
        def mortal(block, result):
            if block in self.at and (self.marks is None or self.first_time(block)):
                self.fail(block)
            emit(block, result)

        return super().solve(arrays, blocks, threads, mortal)


DRIVER = """
    import sys, time
    from reference.engine_case import X, Y, Saboteur, estimator, linear
    from xmc_fast import engine
    class Slow(Saboteur):
        pause = 0.15
    linear.LabelBlocks = Slow
    client = engine.connect(sys.argv[1], sys.argv[2])
    estimator().set_params(n_jobs=2).fit(X, Y, checkpoint=sys.argv[3], engine=client)
"""


def test_killed_driver_resumes_to_the_same_bytes(cluster, tmp_path, expected):
    cluster.ready()
    folder = tmp_path / "c"
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    driver = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(DRIVER), cluster.name, cluster.address, str(folder)],
        env={**os.environ, "PYTHONPATH": path},
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 60
    while len(list(folder.glob("block-*"))) < 3:
        assert driver.poll() is None, driver.stderr.read().decode()[-2000:]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    driver.kill()
    driver.wait()
    driver.stderr.close()
    done = len(list(folder.glob("block-*")))
    assert done < 21
    assert (folder / DATA_NAME).exists()
    leftover = folder / ".block-00001.safetensors.abc.tmp"
    leftover.write_bytes(b"of a killed worker")
    fitted = estimator().fit(X, Y, checkpoint=folder, engine=engines.connect(cluster.client))
    assert not leftover.exists()
    # a task of the dead driver may still be at its block, and be killed there after the fit has cleaned up
    assert {name: data for name, data in contents(folder).items() if not name.endswith(".tmp")} == expected
    assert np.isnan(fitted.report_["seconds"]).sum() >= BLOCK * done  # those were not solved again


class FullDisk(Saboteur):
    code = errno.ENOSPC

    def fail(self, block):
        raise OSError(self.code, os.strerror(self.code))


class HalfAFile(Saboteur):
    """The file's write really fails, after some bytes."""

    def store(self, block, result):
        if block not in self.at:
            return super().store(block, result)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        try:
            return linear.LabelBlocks.store(self, block, result)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)


class NoMemory(Saboteur):
    """The worker's address space really ends."""

    def solve(self, arrays, blocks, threads, emit):
        if not set(self.at) & set(blocks):
            return super().solve(arrays, blocks, threads, emit)
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, before[1]))
        try:
            np.empty(1 << 28, np.float64).fill(1)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)


def test_failures_name_the_block_and_leave_nothing_corrupt(cluster, tmp_path, expected, monkeypatch):
    cluster.ready()
    for kind, code, message in [
        (FullDisk, errno.ENOSPC, "could not write to .*No space left"),
        (FullDisk, errno.EACCES, "could not write to .*Permission denied"),
        (HalfAFile, 0, "could not write to .*File too large"),
        (NoMemory, 0, "out of memory"),
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(_run, "WAVE_LABELS", BLOCK)
            sabotage(patch, at=(5,), kind=kind, code=code)
            pattern = rf"block 5 \(labels 100 to 119\): worker .*{message}"
            with pytest.raises(engines.EngineError, match=pattern) as caught:
                estimator().fit(X, Y, checkpoint=tmp_path, engine=engines.connect(cluster.client))
        assert caught.value.block == 5
        left = {path.name: path.read_bytes() for path in tmp_path.glob("[!.]*")}  # others may be at a block
        assert all(expected[name] == data for name, data in left.items())
        assert "block-00005.safetensors" not in left
    estimator().fit(X, Y, checkpoint=tmp_path, engine=engines.connect(cluster.client))
    assert contents(tmp_path) == expected


def test_a_block_that_ends_its_workers_is_named(cluster, tmp_path, expected, monkeypatch):
    cluster.ready()
    monkeypatch.setattr(_run, "RETRIES", 1)
    sabotage(monkeypatch, at=(4,))
    with pytest.raises(
        engines.EngineError, match=r"block 4 \(labels 80 to 99\): its worker died .*out of memory\?"
    ):
        estimator().fit(X, Y, checkpoint=tmp_path, engine=engines.connect(cluster.client))
    left = contents(tmp_path)
    assert "block-00004.safetensors" not in left
    assert all(expected[name] == data for name, data in left.items() if name in expected)


def test_version_mismatch_is_refused(cluster, tmp_path, monkeypatch):
    cluster.ready()
    monkeypatch.setattr("xmc_fast.__version__", "9.9.9")
    with pytest.raises(
        engines.EngineError,
        match=r"block \d+ .*version mismatch, the worker has xmc_fast \d.*the driver 9.9.9",
    ):
        estimator().fit(X, Y, checkpoint=tmp_path, engine=engines.connect(cluster.client))
    assert sorted(contents(tmp_path)) == ["fit.json"]


class Lame(Saboteur):
    """The worker that gets block 0 is slow with everything."""

    def store(self, block, result):
        if block == 0:
            Lame.slow = True
        time.sleep(1.5 if getattr(Lame, "slow", False) else 0.0)
        return super().store(block, result)


def test_a_straggler_is_relieved(cluster, tmp_path, expected, monkeypatch):
    if cluster.name == "ray":
        pytest.skip("the same driver: one engine will do")
    cluster.ready()
    monkeypatch.setattr(_run, "WAVE_LABELS", BLOCK)
    monkeypatch.setattr(_run, "POLL", 0.05)
    sabotage(monkeypatch, kind=Lame)
    report = (
        estimator()
        .fit(X, Y, checkpoint=tmp_path / "c", engine=engines.connect(cluster.client))
        .report_["engine"]
    )
    assert report["split"] >= 1
    assert contents(tmp_path / "c") == expected


def test_mach_trains_repetitions_with_the_same_bytes(cluster, tmp_path):
    cluster.ready()
    mach = Mach(12, 3, base=OneVsAll(), n_jobs=1)
    mach.fit(X, Y, checkpoint=tmp_path / "single")
    Mach(12, 3, base=OneVsAll(), n_jobs=1).fit(X, Y, repeats=(1, 2), checkpoint=tmp_path / "engine")
    stored = Mach(12, 3, base=OneVsAll(), n_jobs=1)
    stored.fit(X, Y, checkpoint=tmp_path / "engine", engine=engines.connect(cluster.client))
    single, engine = (
        {path.relative_to(tmp_path / which): path.read_bytes() for path in (tmp_path / which).rglob("*.*")}
        for which in ("single", "engine")
    )
    assert single == engine
    returned = Mach(12, 3, base=OneVsAll(), n_jobs=1).fit(X, Y, engine=engines.connect(cluster.client))
    want = mach.predict(X, 4)
    for top in (stored.predict(X, 4, engine=engines.connect(cluster.client)), returned.predict(X, 4)):
        for part in ("indptr", "indices", "data"):
            np.testing.assert_array_equal(getattr(top, part), getattr(want, part))


def test_label_tree_has_the_bytes_of_one_process(cluster, tmp_path):
    cluster.ready()
    options = {"max_leaf": 8, "branching": 4, "max_first": 12, "matched": 2, "n_trees": 2, "n_jobs": 1}
    connected = engines.connect(cluster.client)
    want = LabelTree(**options).fit(X, Y, checkpoint=tmp_path / "one")
    stored = LabelTree(**options).fit(X, Y, checkpoint=tmp_path / "many", engine=connected)
    assert contents(tmp_path / "many") == contents(tmp_path / "one")
    LabelTree(**options).fit(X, Y, engine=connected).save(tmp_path / "returned")
    for name, written in contents(tmp_path / "returned").items():
        assert written == (tmp_path / "one" / name).read_bytes(), name
    here, there = want.predict(X, 7), stored.predict(X, 7, engine=connected)
    for part in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(there, part), getattr(here, part))


def test_prediction_over_label_shards(cluster, tmp_path):
    cluster.ready()
    model = estimator().fit(X, Y).model_
    model.calibrate(X, Y)
    model.save(tmp_path / "m")
    for source, proba in ((model, True), (SparseModel.load(tmp_path / "m"), False)):
        want = model.predict(X, 7, proba=proba)
        top = source.predict(X, 7, proba=proba, n_jobs=1, engine=engines.connect(cluster.client))
        assert top.shape == want.shape
        np.testing.assert_array_equal(top.indptr, want.indptr)
        np.testing.assert_allclose(top.data, want.data, rtol=2e-6, atol=1e-6)
        assert (top.indices != want.indices).mean() < 0.002  # near-ties may swap
