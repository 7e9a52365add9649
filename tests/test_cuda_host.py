"""The CUDA kernels' own source on the CPU: results, races, out-of-bounds, divergent barriers (cuda_host/)."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import ClassVar

import pytest

ROOT = Path(__file__).parents[1]
HOST = Path(__file__).parent / "cuda_host"
KERNELS = [
    ROOT / "csrc" / kernel
    for kernel in (
        "fanin/forward.cu",
        "fanin/backward.cu",
        "decide/weighted_topk.cu",
        "gather/gather_dot.cu",
        "mach/mach.cu",
    )
]


def cuda_include() -> Path:
    nvcc = shutil.which("nvcc")
    places = [os.environ.get("CUDA_HOME"), nvcc and Path(nvcc).resolve().parents[1], "/usr/local/cuda"]
    for place in filter(None, places):
        for include in (Path(place) / "include", Path(place) / "targets/x86_64-linux/include"):
            if (include / "cuda_fp16.h").is_file():
                return include
    pytest.skip("CUDA toolkit headers not found (set CUDA_HOME)")


class Builder:
    """Builds the kernels, the engine and the driver; objects are kept for the next build."""

    FLAGS = ("-std=c++17", "-g", "-O1", "-fPIC", "-w")
    INSTRUMENT: ClassVar = {
        "": (),
        "address": ("-fsanitize=address,undefined",),
        "thread": ("-fsanitize=thread",),
    }
    DEFINE: ClassVar = {"": (), "address": ("-DXMC_HOST_ASAN",), "thread": ("-DXMC_HOST_TSAN",)}

    def __init__(self, folder: Path) -> None:
        if shutil.which("g++") is None:
            pytest.skip("g++ not found")
        self.folder = folder
        self.paths = ["-isystem", str(cuda_include()), "-I", str(ROOT / "csrc"), "-I", str(HOST)]
        self.known: dict[tuple[Path, str], str] = {}

    def object(self, source: Path, sanitizer: str, *options: str) -> str:
        key = (source, sanitizer)
        if key not in self.known:
            target = str(self.folder / f"{len(self.known)}.o")
            command = ["g++", *self.FLAGS, *self.paths, *options, "-c", str(source), "-o", target]
            subprocess.run(command, check=True)
            self.known[key] = target
        return self.known[key]

    def build(self, kernels: list[Path] = KERNELS, *, sanitizer: str = "", shared: bool = False) -> Path:
        """A program; or without the driver a library."""
        instrument = self.INSTRUMENT[sanitizer]
        # the engine itself is not instrumented
        objects = [self.object(HOST / "cuda_host.cpp", sanitizer, *self.DEFINE[sanitizer])]
        as_host = ("-DXMC_CUDA_HOST", "-include", "cuda_host.h", "-x", "c++")
        objects += [self.object(kernel, sanitizer, *instrument, *as_host) for kernel in kernels]
        if not shared:
            objects.append(self.object(HOST / "driver.cpp", sanitizer, *instrument))
        target = self.folder / f"{'library' if shared else 'program'}{len(list(self.folder.iterdir()))}"
        link = ["g++", *instrument, *(["-shared"] if shared else []), *objects, "-o", str(target)]
        subprocess.run(link, check=True)
        return target


@pytest.fixture(scope="module")
def builder(tmp_path_factory):
    return Builder(tmp_path_factory.mktemp("host"))


def run(program: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1", "ASAN_OPTIONS": "detect_leaks=0"}
    environment.pop("LD_PRELOAD", None)
    # setarch -R: TSan of older compilers needs fixed addresses
    prefix = ["setarch", "-R"] if shutil.which("setarch") else []
    return subprocess.run([*prefix, str(program)], capture_output=True, text=True, env=environment)


@pytest.mark.parametrize("sanitizer", ["", "address", "thread"])
def test_kernels_match_plain_loops(builder, sanitizer):
    result = run(builder.build(sanitizer=sanitizer))
    assert result.returncode == 0, result.stdout + result.stderr[-2000:]
    assert result.stdout == "OK\n"


@pytest.fixture(scope="module")
def library(builder):
    pytest.importorskip("torch")
    return builder.build(shared=True)


@pytest.fixture(scope="module")
def kernels(library):
    from xmc_fast.nn._fanin_cuda import Kernels

    return Kernels(library, chunk=100)  # several chunks


SIZES = [(0, 7, 5, 3, 1), (1, 1, 1, 1, 1), (3, 9, 0, 4, 1), (65, 40, 233, 33, 1), (64, 50, 205, 7, 8)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("size", [*SIZES, (5, 60, 33, 3, 3)], ids=str)
def test_adapter_matches_cpu_operators(kernels, size, dtype):
    """xmc_fast.nn._fanin_cuda with the host-compiled kernels on CPU tensors, against the CPU operators."""
    torch = pytest.importorskip("torch")
    from xmc_fast.nn import fanin, ops

    dtype = getattr(torch, dtype)
    batch, features, labels, fan_in, group = size
    generator = torch.Generator().manual_seed(0)
    layer = fanin.FixedFanInLinear(features, labels, fan_in, group_size=group, dtype=dtype).requires_grad_(
        False
    )
    indices = (
        layer.indices.to(torch.int32) if group == 3 else layer.indices
    )  # as for more than 65,536 features
    x = torch.randn(batch, features, generator=generator).to(dtype)
    g = torch.randn(batch, labels, generator=generator).to(dtype)
    sparse = (torch.rand(batch, labels, generator=generator) < 0.1).float()
    crow = torch.cat([torch.zeros(1), sparse.sum(1).cumsum(0)]).to(torch.int64)
    col, values = sparse.nonzero()[:, 1], torch.randn(int(sparse.sum()), generator=generator)
    weights = (layer.weight, indices, layer.bias, group)
    calls = {
        "linear": (x, *weights),
        "grad_features": (g, layer.weight, indices, group, features, dtype),
        "grad_weights": (x, g, indices, group, True, dtype),
        "grad_sparse": (x, layer.weight, indices, group, crow, col, values),
        "loss": (x, *weights, crow, col, 0, 0.5, True, True, True),
        "topk": (x.float(), *weights, min(5, labels)),
    }
    calls["loss "] = (*calls["loss"][:7], 1, *calls["loss"][8:])  # bce
    close = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    for name, arguments in calls.items():
        got = getattr(kernels, name.strip())(*arguments)
        want = getattr(ops.ops, f"fan_in_{name.strip()}")(*arguments)
        for a, b in zip(*((r,) if isinstance(r, torch.Tensor) else r for r in (got, want)), strict=True):
            torch.testing.assert_close(a, b, **close, msg=lambda text, name=name: f"{name}: {text}")
    if indices.numel():
        indices[0, 0] = 0  # the lists follow the change
        twice = kernels.grad_features(*calls["grad_features"])
        torch.testing.assert_close(twice, ops.ops.fan_in_grad_features(*calls["grad_features"]), **close)


def test_weighted_topk_matches_cpu_operator(library):
    torch = pytest.importorskip("torch")
    from xmc_fast.nn import weighted_topk as module

    generator = torch.Generator().manual_seed(0)
    for rows, labels, k, segment in [
        (0, 3, 1, 100),
        (2, 1, 1, 100),
        (2, 257, 257, 200),
        (2, 5000, 7, 2600),
        (4, 40, 3, 7),
    ]:
        eta = torch.rand(rows, labels + 5, generator=generator)[:, 2 : labels + 2]
        a, b = torch.randn(2, labels, generator=generator)
        run = module.CudaTopk(library, segment=segment, few_rows=4)
        for weights in ((a, None), (None, b), (a, b)):
            gains, ids = run(eta, *weights, k)
            want_gains, want_ids = module.weighted_topk(eta, k, *weights)
            torch.testing.assert_close(gains, want_gains, rtol=1e-6, atol=1e-6)
            assert ids.dtype == torch.int64
            exact = weights[0] is None or weights[1] is None  # else fused or not may swap near-equal gains
            assert (ids == want_ids).all() if exact else (ids == want_ids).float().mean() > 0.99 or not rows
        if rows:
            columns = eta.t().contiguous().t()
            assert torch.equal(run(columns, a, None, k)[1], run(eta, a, None, k)[1])
    with pytest.raises(ValueError, match="between 1 and"):
        run(eta, None, None, 41)


@pytest.mark.parametrize(
    "size", [(0, 3, 5, 4), (2, 0, 5, 4), (1, 1, 1, 1), (3, 9, 33, 20), (2, 17, 130, 40)], ids=str
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_gather_dot_matches_cpu_operator(library, size, dtype):
    torch = pytest.importorskip("torch")
    from xmc_fast.nn import gather_dot as module

    batch, width, dims, labels = size
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(batch, dims, generator=generator).to(getattr(torch, dtype))
    table = torch.randn(labels, dims, generator=generator)
    candidates = torch.randint(-1, labels, (batch, width), generator=generator)
    g = torch.randn(batch, width, generator=generator)
    run, ops = module.CudaGatherDot(library), torch.ops.xmc_fast
    pairs = [
        (run.forward(h, table, candidates, True), ops.gather_dot(h, table, candidates, True)),
        (run.grad_h(g, table, candidates), ops.gather_dot_grad_h(g, table, candidates)),
        *zip(
            run.grad_rows(g, h, candidates, labels),
            ops.gather_dot_grad_rows(g, h, candidates, labels),
            strict=True,
        ),
    ]
    for got, want in pairs:
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_mach_matches_cpu(library):
    """The table and the top-k over several slices: the CPU's bits."""
    torch = pytest.importorskip("torch")
    import numpy as np

    from xmc_fast import mach
    from xmc_fast.nn._mach import CudaMach

    run = CudaMach(library, slice_labels=300)
    for repeats, rows, buckets, labels in [(1, 1, 1, 1), (4, 2, 7, 600), (5, 3, 65536, 301), (2, 0, 3, 9)]:
        table = run.table(labels, buckets, repeats, random_state=-3, device="cpu")
        assert (table.numpy() == mach.bucket_table(labels, buckets, repeats, random_state=-3)).all()
        p = np.random.default_rng(0).normal(size=(repeats, rows, buckets)).round(1).astype(np.float32)
        for aggregate in ("mean", "min", "median"):
            for k in {1, min(4, labels)}:
                ids, scores = run.topk(torch.from_numpy(p), table, k, aggregate=aggregate)
                want_ids, want = mach.aggregate_topk(p, table.numpy(), k, aggregate=aggregate)
                assert (scores.numpy() == want).all()  # -0 equals 0
                assert (ids.numpy() == want_ids).all()
    with pytest.raises(ValueError, match="aggregate must be one of"):
        run.topk(torch.from_numpy(p), table, 1, aggregate="mode")


# file, what the source says, what a mistake would say, sanitizer, what is then seen
MISTAKES = {
    "missing barrier": ("forward.cu", "__syncthreads();  // staged", "", "thread", "data race"),
    "missing second barrier": ("backward.cu", "__syncthreads();  // used up", "", "thread", "data race"),
    "wrong result without barrier": ("forward.cu", "__syncthreads();  // staged", "", "", "WRONG"),
    "out of bounds": (
        "backward.cu",
        "if (d >= layer.features)",
        "if (d > layer.features)",
        "address",
        "overflow",
    ),
    "missing barrier of the merge": (
        "weighted_topk.cu",
        "__syncthreads();  // merged",
        "",
        "thread",
        "data race",
    ),
    "missing barrier of the dot": (
        "gather_dot.cu",
        "__syncthreads();  // all lanes done",
        "",
        "thread",
        "data race",
    ),
    "lost ceiling": ("weighted_topk.cu", "|| mine[j] >= ceiling", "", "", "top-k differs"),
    "label outside the slice": (
        "mach.cu",
        "if (l >= job.count)",
        "if (l > job.count)",
        "address",
        "overflow",
    ),
    "divergent barrier": (
        "forward.cu",
        "__syncthreads();  // tile complete",
        "if (lane == 3) return;\n__syncthreads();  //",
        "",
        "divergent barrier",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_harness_sees_mistakes(builder, tmp_path, name):
    """A harness that reports nothing must be able to report something."""
    file, right, wrong, sanitizer, symptom = MISTAKES[name]
    kernels = list(KERNELS)
    place = next(i for i, kernel in enumerate(KERNELS) if kernel.name == file)
    text = KERNELS[place].read_text()
    assert right in text
    kernels[place] = tmp_path / file
    kernels[place].write_text(text.replace(right, wrong, 1))
    result = run(builder.build(kernels, sanitizer=sanitizer))
    assert result.returncode != 0
    assert symptom in result.stdout + result.stderr
