"""When the CUDA kernels are part of a build: with an nvcc that only pretends, and CMake itself."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "csrc/cuda"
LISTS = f"""cmake_minimum_required(VERSION 3.22)
project(alone NONE)
set(XMC_INPLACE OFF CACHE BOOL "")
include({FOLDER / "cuda.cmake"})
install(CODE "")
"""
NVCC = """#!/bin/sh
[ "$1" = --list-gpu-code ] && { echo sm_75; echo sm_90; exit 0; }
echo "$@" >>"$LOG"
while [ "$1" != -o ]; do shift; done
%s
"""
pytestmark = pytest.mark.skipif(os.name != "posix" or not shutil.which("cmake"), reason="cmake not found")


@pytest.fixture
def build(tmp_path, monkeypatch):
    """Configures, builds and installs with these options; returns CMake's result, whether the library is there."""
    (tmp_path / "CMakeLists.txt").write_text(LISTS)
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    monkeypatch.delenv("XMC_CUDA_ARCHS", raising=False)
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []

    def run(nvcc: str | None, *options: str):
        if nvcc is not None:
            (tmp_path / "nvcc").write_text(NVCC % nvcc)
            (tmp_path / "nvcc").chmod(0o755)
            options += (f"-DXMC_NVCC={tmp_path / 'nvcc'}",)
        steps = (
            ["-S", str(tmp_path), "-B", str(tmp_path / "b"), *generator, *options],
            ["--build", str(tmp_path / "b")],
            ["--install", str(tmp_path / "b"), "--prefix", str(tmp_path / "to")],
        )
        for step in steps:
            done = subprocess.run(["cmake", *step], capture_output=True, text=True)
            if done.returncode:
                break
        return done, (tmp_path / "to/xmc_fast/libxmc_cuda.so").is_file()

    return run


def test_nvcc_is_used_where_it_is(build, tmp_path):
    done, there = build(': >"$2"')
    assert (done.returncode, there) == (0, True), done.stderr
    call = (tmp_path / "log").read_text()
    assert "code=sm_75" in call
    assert "code=sm_90" in call
    assert "arch=compute_90,code=compute_90" in call  # PTX of the newest that this nvcc knows
    assert "sm_100" not in call


@pytest.mark.parametrize(("option", "code"), [("AUTO", 0), ("ON", 1)])
def test_an_nvcc_that_fails(build, option, code):
    done, there = build("exit 1", f"-DXMC_CUDA={option}")
    assert (min(done.returncode, 1), there) == (code, False), done.stderr


@pytest.mark.parametrize("option", ["-DXMC_CUDA=OFF", "-DXMC_INPLACE=ON", "-DXMC_SANITIZE=address"])
def test_left_out(build, option, tmp_path):
    done, there = build(': >"$2"', option)
    assert (done.returncode, there, (tmp_path / "log").exists()) == (0, False, False), done.stderr


def test_asked_for_without_nvcc(build):
    done, _ = build(None, "-DXMC_CUDA=ON", "-DXMC_NVCC=0")
    assert done.returncode != 0
    assert "needs nvcc" in done.stderr
