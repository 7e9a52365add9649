"""Fixed fan-in kernels and torch operators against float64."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp

torch = pytest.importorskip("torch")

from reference import fanin as reference  # noqa: E402
from reference.fanin_layer import make  # noqa: E402
from xmc_fast import _core  # noqa: E402
from xmc_fast.nn import fanin, ops  # noqa: E402

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# batch, features, labels, fan_in, group_size: 0, 1, tile and block sizes and one beside
SIZES = [
    (0, 7, 5, 3, 1),
    (1, 1, 1, 1, 1),
    (3, 9, 0, 4, 1),
    (16, 40, 256, 32, 1),
    (17, 33, 257, 17, 1),
    (31, 50, 255, 15, 1),
    (3, 65600, 63, 9, 1),
    (129, 64, 300, 33, 1),
    (32, 48, 100, 16, 8),
    (5, 40, 37, 7, 16),
    (65, 100, 519, 12, 64),
    (40, 30, 50, 5, 3),
    (100, 60, 1100, 9, 1),
    (131, 40, 100, 17, 16),
    (33, 20000, 100, 9, 16),
    (130, 50, 4400, 9, 16),
    (20, 40, 301, 19, 32),
    (9, 300, 410, 20, 80),
    # features that do not stay in L2: narrow tiles that stay for several blocks; sorted by feature all the same
    (33, 17000, 700, 9, 1),
    (18, 16500, 800, 300, 1),
    (100, 8200, 600, 160, 1),
]


def arrays(layer, x):
    f64 = [t.detach().double().numpy() for t in (x, layer.weight, layer.bias)]
    return *f64, layer.indices.numpy()


def by_column(t):
    """The same matrix, column after column in memory."""
    return t.t().contiguous().t()


def close(got, want, dtype, scale):
    """float32: rounding of the sum; low precision: at most twice the error of rounding the exact result."""
    got = got.detach().double().numpy() if isinstance(got, torch.Tensor) else got
    assert got.shape == want.shape
    assert np.isfinite(got).all()
    rounded = torch.from_numpy(want).to(dtype).double().numpy()
    allowed = 2 * np.abs(rounded - want).max(initial=0) + 2e-6 * scale
    assert np.abs(got - want).max(initial=0) <= allowed


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_passes_match_reference(simd, size, dtype):
    layer, x = make(*size, dtype)
    x_, w_, b_, idx = arrays(layer, x)
    W = reference.dense(w_, idx, layer.group_size, layer.in_features)
    scale = 4.0 * np.sqrt(layer.fan_in)
    z = reference.forward(x_, W, b_)
    close(layer(x), z, dtype, scale)
    args = (layer.weight, layer.indices, layer.bias, layer.group_size)
    close(ops.ops.fan_in_linear_t(by_column(x), *args).t(), z, dtype, scale)

    g = torch.randn(z.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    gx_, gw_, gb_ = reference.gradients(x_, W, g.double().numpy(), idx, layer.group_size)
    for g, x in ((g, x), (by_column(g), by_column(x))):  # noqa: B020
        gx = ops.ops.fan_in_grad_features(g, layer.weight, layer.indices, layer.group_size, x.shape[1], dtype)
        gw, gb = ops.ops.fan_in_grad_weights(x, g, layer.indices, layer.group_size, True, dtype)
        close(gx, gx_, dtype, np.abs(gx_).max(initial=1))
        close(gw, gw_, dtype, np.abs(gw_).max(initial=1))
        close(gb, gb_, dtype, np.abs(gb_).max(initial=1))


@pytest.mark.parametrize("name", ["squared_hinge", "bce"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_fused_loss_matches_reference(simd, size, name):
    layer, x = make(*size)
    x_, w_, b_, idx = arrays(layer, x)
    W = reference.dense(w_, idx, layer.group_size, layer.in_features)
    z = reference.forward(x_, W, b_)
    y = np.where(np.random.default_rng(2).random(z.shape) < 0.1, 1.0, -1.0)
    value, g = getattr(reference, name)(z, y)
    g /= max(len(x_), 1)
    wanted = reference.gradients(x_, W, g, idx, layer.group_size)
    x.requires_grad_()
    loss = getattr(fanin, f"sparse_{name}")(x, layer, sp.csr_matrix(y > 0))
    loss.backward()
    assert loss.item() == pytest.approx(value / max(len(x_), 1), rel=1e-5, abs=1e-6)
    for got, want in zip((x.grad, layer.weight.grad, layer.bias.grad), wanted, strict=True):
        assert got.shape == want.shape
        assert np.abs(got.numpy() - want).max(initial=0) <= 5e-6 * max(1, np.abs(want).max(initial=1))


def test_bce_far_from_zero(simd):
    layer, x = make(4, 8, 40, 4, 1)
    with torch.no_grad():
        layer.weight.mul_(100)
    x_, w_, b_, idx = arrays(layer, x)
    z = reference.forward(x_, reference.dense(w_, idx, 1, 8), b_)
    value, g = reference.bce(z, -np.ones_like(z))
    loss = fanin.sparse_bce(x, layer, sp.csr_matrix(z.shape), reduction="sum")
    loss.backward()
    assert loss.item() == pytest.approx(value, rel=1e-6)
    np.testing.assert_allclose(layer.bias.grad.numpy(), g.sum(0), rtol=1e-5, atol=1e-6)


def test_squared_hinge_skips_what_is_zero(simd):
    layer, x = make(40, 16, 300, 4, 1)
    with torch.no_grad():
        layer.bias.fill_(-1e3)  # every margin is met
        layer.bias[7] = 0
    loss = fanin.sparse_squared_hinge(x, layer, sp.csr_matrix((40, 300)))
    loss.backward()
    assert layer.weight.grad[7].abs().sum() > 0
    assert layer.weight.grad.abs().sum() == layer.weight.grad[7].abs().sum()


def test_nan_reaches_the_loss(simd):
    layer, x = make(3, 8, 20, 4, 1)
    x[1, int(layer.indices[4, 0])] = float("nan")
    for loss in (fanin.sparse_squared_hinge, fanin.sparse_bce):
        assert loss(x, layer, sp.csr_matrix((3, 20))).isnan()


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_topk_matches_reference(simd, size):
    layer, x = make(*size)
    with torch.no_grad():  # small whole numbers: many equal scores, no rounding
        layer.weight.round_()
        layer.bias.round_()
    x.round_()
    x_, w_, b_, idx = arrays(layer, x)
    z = reference.forward(x_, reference.dense(w_, idx, layer.group_size, layer.in_features), b_)
    for k in {0, min(1, layer.out_features), min(5, layer.out_features), layer.out_features}:
        scores, ids = layer.topk(x, k)
        want_scores, want_ids = reference.topk(z, k) if len(z) else (np.empty((0, k)), np.empty((0, k)))
        np.testing.assert_array_equal(ids.numpy(), want_ids)
        np.testing.assert_array_equal(scores.numpy(), want_scores)


def test_topk_with_nan_and_infinity(simd):
    layer, x = make(2, 8, 600, 4, 1)
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.fill_(float("nan"))
        layer.bias[500:520] = float("-inf")
        layer.bias[550] = 1.0
    _, ids = layer.topk(x, 3)
    assert ids.tolist() == [[550, 500, 501]] * 2


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [s for s in SIZES if s[0] and s[2]], ids=str)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
def test_sparse_gradient_matches_dense(size, dtype):
    layer, x = make(*size, dtype)
    dense = torch.randn(size[0], size[2], generator=torch.Generator().manual_seed(3))
    dense[torch.rand(dense.shape, generator=torch.Generator().manual_seed(4)) > 0.2] = 0
    g = sp.csr_matrix(dense.to(dtype).float().numpy())
    x_, w_, _, idx = arrays(layer, x)
    W = reference.dense(w_, idx, layer.group_size, layer.in_features)
    wanted = reference.gradients(x_, W, g.toarray().astype(float), idx, layer.group_size)
    csr = torch.sparse_csr_tensor(g.indptr, g.indices, g.data, size=g.shape, check_invariants=True)
    gx = layer.backward_sparse(x, csr)
    got = (gx, layer.weight.grad.to_dense(), layer.bias.grad.to_dense())
    for a, b in zip(got, wanted, strict=True):
        close(a, b, dtype, np.abs(b).max(initial=1))
    assert set(layer.weight.grad.coalesce().indices()[0].tolist()) == set(g.indices.tolist())


def test_bit_equal_over_threads():
    layer, rows = make(100, 60, 9000, 16, 1)
    shared, _ = make(100, 60, 9000, 16, 16)
    far, far_x = make(100, 9000, 9000, 64, 1)
    targets = sp.random(100, 9000, 0.01, format="csr", random_state=0) != 0

    def everything():
        results = []
        for module, x in ((layer, rows), (shared, rows), (far, far_x)):
            a = x.clone().requires_grad_()
            module.zero_grad()
            module(a).square().sum().backward()
            results += [module(x), a.grad, module.weight.grad, *module.topk(x, 7)]
            b = x.clone().requires_grad_()
            module.zero_grad()
            loss = fanin.sparse_bce(b, module, targets)
            loss.backward()
            results += [loss, b.grad, module.weight.grad, module.bias.grad]
        return [r.detach().clone() for r in results]

    before = torch.get_num_threads()
    first = None
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            ops_limit = _core.default_threads()
            _core.set_default_threads(threads)
            got = everything()
            _core.set_default_threads(ops_limit)
            first = first or got
            for a, b in zip(first, got, strict=True):
                assert torch.equal(a, b)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("needs", "group"), [*((n, 1) for n in range(8)), (7, 4)])
def test_gradcheck_any_subset(needs, group):
    layer, x = make(3, 5, 10, 2, group, torch.float64)
    weight, bias = layer.weight.detach(), layer.bias.detach()
    inputs = [t.clone().requires_grad_(bool(needs >> i & 1)) for i, t in enumerate((x, weight, bias))]

    def linear(x, weight, bias):
        return ops.ops.fan_in_linear(x, weight, layer.indices, bias, group)

    if needs:
        assert torch.autograd.gradcheck(linear, inputs)
    else:
        assert not linear(*inputs).requires_grad

    def loss(x, weight, bias, kind):
        crow, col = torch.tensor([0, 2, 2, 3]), torch.tensor([1, 4, 9])
        args = (weight, layer.indices, bias, group, crow, col, kind, 0.3)
        return ops.ops.fan_in_loss(x, *args, *(t.requires_grad for t in inputs))[0]

    for kind in (0, 1):
        if needs:
            assert torch.autograd.gradcheck(loss, [*inputs, kind])


def test_float32_backward_any_subset():
    layer, x = make(5, 9, 40, 4, 1)
    full = None
    for needs in (7, 1, 2, 3, 4, 5, 6):
        a = x.clone().requires_grad_(bool(needs & 1))
        layer.weight.requires_grad_(bool(needs & 2))
        layer.bias.requires_grad_(bool(needs & 4))
        layer.zero_grad()
        layer(a).square().sum().backward()
        got = [a.grad, layer.weight.grad, layer.bias.grad]
        full = full or [t.clone() for t in got]
        for i in range(3):
            if needs >> i & 1:
                torch.testing.assert_close(got[i], full[i])
            else:
                assert got[i] is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_opcheck(dtype):
    layer, x = make(3, 9, 10, 4, 1, dtype)
    layer.requires_grad_(dtype != torch.bfloat16)
    x.requires_grad_(dtype != torch.bfloat16)
    args = (x, layer.weight, layer.indices, layer.bias, 1)
    crow, col = torch.tensor([0, 2, 2, 3]), torch.tensor([1, 4, 9])
    g = torch.ones(3, 10, dtype=dtype)
    w, i = layer.weight.detach(), layer.indices
    checks = {
        "fan_in_linear": args,
        "fan_in_linear_t": args,
        "fan_in_loss": (*args, crow, col, 0, 1.0, True, True, True),
        "fan_in_topk": (*(t.detach() if isinstance(t, torch.Tensor) else t for t in args), 2),
        "fan_in_grad_features": (g, w, i, 1, 9, dtype),
        "fan_in_grad_weights": (x.detach(), g, i, 1, True, dtype),
    }
    if dtype != torch.float64:
        values = torch.ones(3)
        checks["fan_in_grad_sparse"] = (x.detach(), w, i, 1, crow, col, values)
    for name, arguments in checks.items():
        torch.library.opcheck(getattr(torch.ops.xmc_fast, name).default, arguments)


def has_compiler():
    """And no sanitizer preloaded, which the compiler would inherit."""
    compilers = (os.environ.get("CXX", "g++"), "g++", "clang++")
    return any(map(shutil.which, compilers)) and "LD_PRELOAD" not in os.environ


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # inductor's own
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_fullgraph(backend, tmp_path, monkeypatch):
    if backend == "inductor" and not has_compiler():
        pytest.skip("inductor needs a C++ compiler")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    model = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.ReLU(), make(1, 12, 40, 4, 1)[0])
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    x = torch.randn(5, 6, requires_grad=True)
    want = torch.autograd.grad(model(x).square().sum(), [x, *model.parameters()])
    got = torch.autograd.grad(compiled(x).square().sum(), [x, *model.parameters()])
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)
    if backend == "aot_eager":  # another batch size, compiled again
        torch.testing.assert_close(compiled(torch.ones(3, 6)), model(torch.ones(3, 6)))


@pytest.mark.parametrize("labels", [65_536, 65_541])
@pytest.mark.parametrize("group", [1, 3, 16])
def test_large_outputs(simd, labels, group):
    """Outputs that are streamed past the caches, with rows that start at a cache line and rows that do not."""
    layer, x = make(33, 10, labels, 2, group)
    with torch.no_grad():
        out = layer(x)
        assert out.numel() * 4 > 8 << 20
        assert torch.equal(out, torch.cat([layer(x[i : i + 8]) for i in range(0, 33, 8)]))
        for some in (
            x,
            torch.cat([x, x])[:48],
        ):  # the same as (labels, batch), not in whole lines and in them
            args = (some, layer.weight, layer.indices, layer.bias, group)
            assert torch.equal(ops.ops.fan_in_linear_t(*args).t(), layer(some))
        narrow = layer.bfloat16()(x.bfloat16())
        few = torch.cat([layer(x[i : i + 8].bfloat16()) for i in range(0, 33, 8)])
    assert torch.equal(narrow, few)


@pytest.mark.parametrize("group", [1, 16])
def test_large_gradients(simd, group):
    """A gradient for the weights that is streamed past the caches, in whole lines."""
    labels, half = 65_541, 32_768
    layer, x = make(5, 40, labels, 32, group)
    g = torch.randn(5, labels, generator=torch.Generator().manual_seed(1))
    indices = layer.indices
    gw, gb = ops.ops.fan_in_grad_weights(x, g, indices, group, True, x.dtype)
    assert gw.numel() * 4 > 8 << 20
    parts = [(g[:, :half], indices[: half // group]), (g[:, half:], indices[half // group :])]
    few = [ops.ops.fan_in_grad_weights(x, a.contiguous(), i, group, True, x.dtype) for a, i in parts]
    assert torch.equal(gw, torch.cat([a for a, _ in few]))
    assert torch.equal(gb, torch.cat([b for _, b in few]))


def test_memory_of_large_results_is_reused():
    layer, x = make(16, 10, 70_000, 2, 1)
    _core.recycled_bytes(True)
    with torch.no_grad():
        first = layer(x)
        kept = first.clone()
        second = layer(-x)
        assert torch.equal(first, kept)  # alive: nobody else writes there
        assert _core.recycled_bytes(False) == 0
        place = first.data_ptr()
        view = first[3:]
        del first
        assert _core.recycled_bytes(False) == 0  # the view keeps it
        del view
        assert 0 < _core.recycled_bytes(False) < 8 << 20
        again = layer(x)
    assert again.data_ptr() == place
    assert torch.equal(again, kept)
    del again, second
    large = _core.new_result(300 << 20)  # more than is ever kept
    del large
    assert _core.recycled_bytes(False) <= 256 << 20
    assert _core.recycled_bytes(True) == 0


@pytest.mark.memory
def test_memory_of_the_fused_paths():
    """670,091 labels, fan-in 64: layer, gradients and Adam under 1 GB, no batch x labels buffer (343 MB)."""
    pytest.importorskip("resource")
    code = """
import resource, torch, scipy.sparse as sp
from xmc_fast.nn import fanin
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
x = torch.randn(128, 768, requires_grad=True)
warm = fanin.FixedFanInLinear(768, 300, 64)
fanin.sparse_squared_hinge(x, warm, sp.csr_matrix((128, 300))).backward()
torch.optim.Adam(warm.parameters(), foreach=False, fused=True).step()
start = peak()
layer = fanin.FixedFanInLinear(768, 670_091, 64)
optimizer = torch.optim.Adam(layer.parameters(), foreach=False, fused=True)
targets = sp.random(128, 670_091, 1e-5, format="csr", random_state=0) != 0
fanin.sparse_squared_hinge(x, layer, targets).backward()
optimizer.step()
layer.topk(x[:32], 5)
print(peak() - start)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    used = float(out.stdout)
    tensors = (670_091 * 64 * (4 * 4 + 2) + 670_091 * 4 * 4) / 2**20  # weight, gradient, 2 moments, indices
    assert used < 1e9 / 2**20
    assert used < tensors + 100
