"""The driver of an engine without a cluster: rounds of joblib, workers that never come, wrong parameters."""

from __future__ import annotations

import errno
import itertools
import os
from typing import ClassVar

import numpy as np
import pytest
import scipy.sparse as sp

from reference.engine_case import (
    MARKS,
    X,
    Y,
    contents,
    estimator,
    sabotage,
    same_weights,
    single_run,
)
from xmc_fast import engine as engines
from xmc_fast.engine import _run
from xmc_fast.engine._pool import WorkerLost
from xmc_fast.engine._predict import shard_cuts
from xmc_fast.engine._work import Outcome
from xmc_fast.model import SparseModel

pytestmark = MARKS
expected = pytest.fixture(scope="module")(single_run)


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 30])
def test_shards_cover_the_blocks(count):
    cuts = shard_cuts(np.arange(count) % 5)
    assert cuts[0] == 0
    assert cuts[-1] == count
    assert all(a < b for a, b in itertools.pairwise(cuts))
    assert len(cuts) - 1 <= 8


def test_joblib_backends(tmp_path, expected, monkeypatch):
    marks = tmp_path / "marks"
    marks.mkdir()
    sabotage(monkeypatch, at=(9,), marks=marks)
    estimator().fit(X, Y, checkpoint=tmp_path / "c", engine=engines.connect("loky"))
    assert contents(tmp_path / "c") == expected
    monkeypatch.undo()
    same_weights(estimator().fit(X, Y, engine=engines.connect("threading")))


def test_a_late_task_of_a_broken_round_is_not_taken_for_another(monkeypatch):
    """joblib may start a task of the broken round again and report it in the next round, in place of one."""
    from xmc_fast.engine import _joblib

    class Late:
        n_jobs = 1
        rounds: ClassVar[list[list]] = []

        def __call__(self, calls):
            self.rounds.append(list(calls))
            late = [self.rounds[0][2]] if len(self.rounds) == 2 else []
            for function, args, kwargs in [*late, *self.rounds[-1]][: len(self.rounds[-1])]:
                yield function(*args, **kwargs)
                if len(self.rounds) == 1:
                    raise RuntimeError("Broken")

    monkeypatch.setattr(_joblib, "run_task", lambda call, path: Outcome("w", done={call: None}))
    pool = _joblib.JoblibPool(Late(), 1)
    todo, done = ["a", "b", "c", "d"], []
    while todo:
        running = {pool.submit(block): block for block in todo}
        todo = []
        while running:
            for handle in pool.wait(list(running), 0):
                block = running.pop(handle)
                try:
                    done += [(block, found) for found in pool.result(handle).done]
                except WorkerLost:
                    todo.append(block)
    assert sorted(done) == [(block, block) for block in "abcd"]


def test_no_worker_is_an_error_in_bounded_time(tmp_path, monkeypatch):
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(_run, "PATIENCE", 0.5)
    options = {"n_workers": 0, "dashboard_address": "127.0.0.1:0", "host": "127.0.0.1"}
    with (
        distributed.LocalCluster(**options) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
        pytest.raises(engines.EngineError, match=r"block 0 \(labels 0 to 19\): no worker for"),
    ):
        estimator().fit(X, Y, checkpoint=tmp_path, engine=engines.connect(client))


class Flapping:
    """An engine whose workers die as they start: another name at every look, and no task is ever finished."""

    name, ahead = "flapping", False
    looks = 0

    def __init__(self, *_):
        pass

    def alive(self):
        self.looks += 1
        return {f"worker {self.looks}"}

    slots = threads = lambda self: 1
    ship = cancel = lambda self, _: None
    submit = lambda self, call: call  # noqa: E731
    wait = lambda self, handles, seconds: []  # noqa: E731
    close = lambda self: None  # noqa: E731


def test_workers_that_die_as_they_start_are_an_error(tmp_path, expected, monkeypatch):
    estimator().fit(X, Y, checkpoint=tmp_path)
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "block-00003.safetensors").unlink()
    monkeypatch.setattr(_run, "open_pool", Flapping)
    with pytest.raises(engines.EngineError, match=r"block 3 .* 21 workers died one after another .*1 blocks"):
        estimator().fit(X, Y, checkpoint=tmp_path, engine=engines.connect("threading"))
    kept = contents(tmp_path)
    assert {
        n: kept[n] for n in expected if n.startswith("block") and "00003" not in n
    }.items() <= expected.items()
    estimator().fit(X, Y, checkpoint=tmp_path)
    assert contents(tmp_path) == expected


def test_a_worker_that_dies_with_the_data_is_not_waited_for():
    pytest.importorskip("distributed")
    from xmc_fast.engine import _dask

    class Future:
        def result(self, timeout):
            raise TimeoutError

    class Client:
        left = 2

        def nthreads(self):
            self.left -= 1
            return {"tcp://there:1": 1} if self.left > 0 else {}

        def scatter(self, data, **_):
            return data

        def submit(self, *_, **__):
            return Future()

        def cancel(self, futures):
            self.cancelled = futures

    pool, data = _dask.DaskPool(Client(), 1), type("Data", (), {"path": None, "arrays": {}, "key": "k"})()
    pool.ship(data)
    assert pool._deliver("tcp://there:1") == ""
    assert pool._client.cancelled


def test_data_that_cannot_be_written(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("xmc_fast.engine._data.write_tensors", full)
    with pytest.raises(engines.EngineError, match=r"the run's data: could not write to .*No space left"):
        estimator().fit(X, Y, checkpoint=tmp_path, engine=engines.connect("threading"))
    assert sorted(contents(tmp_path)) == ["fit.json"]


def test_engine_parameter_is_checked():
    with pytest.raises(ValueError, match=r"engine must be a client or one of .*loky.*got 'spork'"):
        estimator().fit(X, Y, engine=engines.connect("spork"))
    with pytest.raises(ValueError, match="engine must be 'dask', 'ray'"):
        engines.connect(3)
    for given in ("dask", 3):
        with pytest.raises(ValueError, match=r"an object from xmc_fast\.engine\.connect"):
            estimator().fit(X, Y, engine=given)
        with pytest.raises(ValueError, match=r"an object from xmc_fast\.engine\.connect"):
            SparseModel(sp.csr_matrix(np.eye(2))).predict(np.eye(2), 1, engine=given)
    with pytest.raises(ValueError, match="address is for"):
        engines.connect("loky", "tcp://127.0.0.1:1")
