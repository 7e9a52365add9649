"""_core.pyi is what csrc/bind/make_stub.py makes of the compiled module, names and types."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest


def test_stub_matches_module():
    script = Path(__file__).parents[1] / "csrc" / "bind" / "make_stub.py"
    if not script.is_file():
        pytest.skip("needs the source tree")
    made = runpy.run_path(str(script))
    text = made["stub"]()
    assert made["STUB"].read_text(encoding="utf-8") == text, "run python csrc/bind/make_stub.py"
    assert len(text.splitlines()) < 200
