"""Shared fixtures: real data (XMC_DATA), the SIMD paths of this machine."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from xmc_fast import _core

DATA = Path(os.environ.get("XMC_DATA", Path(__file__).parents[2] / "shared" / "data"))


# In the background of a script Ctrl-C is ignored, and children would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _close_figures():
    """Pictures that a test leaves open would make matplotlib warn in a later one."""
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")


@pytest.fixture(scope="module")
def one_torch_thread():
    """For networks on tiny tensors: torch's second thread would only wait for the first, on a busy machine for long."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def data_dir():
    """A function name -> folder of a real data set; the test skips when it is not there."""

    def find(name: str) -> Path:
        folder = DATA / name
        if not folder.is_dir():
            pytest.skip(f"real data set {name!r} not found in {DATA} (set XMC_DATA)")
        return folder

    return find


LEVELS = ["baseline", "neon"] if _core.simd_supported() == "neon" else ["baseline", "avx2", "avx512"]


@pytest.fixture(params=LEVELS)
def simd(request):
    """Runs the test once on each instruction set this machine has."""
    if LEVELS.index(request.param) > LEVELS.index(_core.simd_supported()):
        pytest.skip(f"this CPU has no {request.param}")
    before = _core.simd_level()
    _core.force_simd_level(request.param)
    yield request.param
    _core.force_simd_level(before)
