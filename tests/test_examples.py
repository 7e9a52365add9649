"""The example scripts and the notebook run, on little data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "bench" / "examples"


def run(script, *options, data=None):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    if data is not None:
        environment["XMC_DATA"] = str(data)
    command = [sys.executable, FOLDER / script, *options]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_text_tagging(data_dir, tmp_path):
    out = run(
        "text_tagging.py", "--rows", "1500", "--out", tmp_path / "tagger", data=data_dir("debtags").parent
    )
    assert "macro-F1" in out
    assert (tmp_path / "tagger" / "manifest.json").exists()


def test_recommend_packages(data_dir):
    out = run("recommend_packages.py", "--rows", "300", data=data_dir("debdeps").parent)
    assert "tail" in out
    assert "point 2:" in out


def test_tail_labels():
    lines = run("tail_labels.py").splitlines()
    top, best = (float(line.split()[-2]) for line in lines[1:3])
    assert best > top  # macro-F1 of the sets chosen for it


def test_replace_linear():
    pytest.importorskip("torch")
    assert "every parameter has a gradient: True" in run("replace_linear.py", "--labels", "2000")


def test_distributed_run():
    pytest.importorskip("distributed")
    assert "same weights as one process: True" in run("distributed_run.py")


def test_notebook_cells_run(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib").use("Agg")
    monkeypatch.chdir(tmp_path)
    cells = json.loads((FOLDER / "tour.ipynb").read_text("utf-8"))["cells"]
    namespace: dict = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), namespace)
    assert "for macro-F1" in capsys.readouterr().out
