"""The README's Python runs, its names exist, and its commands run."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import pytest

import xmc_fast
from xmc_fast.cli import main

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


def test_python_blocks_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("python")
    exec(compile(code, "README.md", "exec"), {})
    assert "macro-F1" in capsys.readouterr().out
    assert xmc_fast.SparseModel.load(tmp_path / "cooking-model").n_labels == 400


def test_named_objects_exist():
    names = set(re.findall(r"`xmc_fast((?:\.\w+)+)(?:\(\))?`", README))
    assert len(names) > 10
    for name in names:
        if name.startswith(".nn"):
            pytest.importorskip("torch")
            for module in ("fanin", "losses", "train"):
                importlib.import_module(f"xmc_fast.nn.{module}")
        found = xmc_fast
        for part in name.strip(".").split("."):
            found = getattr(found, part)


def test_commands_run_one_after_the_other(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib").use("Agg")
    monkeypatch.chdir(tmp_path)
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("xmc-fast")]
    assert len(lines) >= 6
    for line in lines:
        assert main(shlex.split(line, comments=True)[1:]) == 0, line + capsys.readouterr().err
