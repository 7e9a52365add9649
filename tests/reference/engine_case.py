"""The fit that the tests of engines do, and workers that fail in it."""

from __future__ import annotations

import functools
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from xmc_fast import linear
from xmc_fast.linear import OneVsAll

cloudpickle = pytest.importorskip("cloudpickle")
pytest.importorskip("resource")  # not on Windows
cloudpickle.register_pickle_by_value(sys.modules[__name__])
MARKS = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "libasan" in os.environ.get("LD_PRELOAD", ""), reason="the engines do not run under ASan"
    ),
    pytest.mark.filterwarnings("default"),  # the engines' own
]
LABELS, BLOCK = 420, 20  # 21 blocks


def problem(n=600, D=120, L=LABELS, seed=0):
    """A power law of labels: the first ones are on a third of the rows."""
    rng = np.random.default_rng(seed)
    X = sp.random(n, D, 0.1, format="csr", random_state=rng, dtype=np.float32)
    share = 0.3 / (1 + np.arange(L)) ** 0.7
    return X, sp.csr_matrix((rng.random((n, L)) < share).astype(np.int8))


X, Y = problem()


def estimator(**options):
    return OneVsAll(block_labels=BLOCK, n_jobs=1, **options)


def contents(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


class Saboteur(linear.LabelBlocks):
    """Blocks that fail at the block ``at``; pickled by value, so that workers need not import this file."""

    at: tuple[int, ...] = ()
    marks: Path | None = None  # a block fails once, if given
    pause = 0.0

    def store(self, block, result):
        time.sleep(self.pause)
        if block in self.at and (self.marks is None or self.first_time(block)):
            self.fail(block)
        return super().store(block, result)

    def first_time(self, block):
        try:
            (self.marks / str(block)).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def fail(self, block):
        os.kill(os.getpid(), signal.SIGKILL)


def sabotage(monkeypatch, **attributes):
    kind = type("Sabotage", (attributes.pop("kind", Saboteur),), attributes)
    monkeypatch.setattr(linear, "LabelBlocks", kind)


def same_weights(fitted):
    single = estimator().fit(X, Y)
    a, b = fitted.model_.to_csr(), single.model_.to_csr()
    for name in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    assert len(fitted.report_["status"]) == LABELS


@functools.cache
def single_run():
    """The files of a single-process run."""
    with tempfile.TemporaryDirectory() as folder:
        estimator().fit(X, Y, checkpoint=Path(folder) / "run")
        return contents(Path(folder) / "run")
