"""Our layers as torch users expect them: any device, torch.func, checkpointing, export, ONNX, meta, int8."""

from __future__ import annotations

import copy
import os
import shutil

import pytest
import scipy.sparse as sp

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from xmc_fast.nn import (  # noqa: E402
    FixedFanInLinear,
    GroupSharedLinear,
    LabelLoss,
    _cuda,
    _fanin_torch,
    fused_cross_entropy,
    gather_dot,
    ops,
    quantize_,
    sparse_bce,
    weighted_topk,
)
from xmc_fast.nn.export import decompositions  # noqa: E402

OPERATORS = [
    *(
        f"fan_in_{n}"
        for n in ("linear", "linear_t", "grad_features", "grad_weights", "grad_sparse", "loss", "topk")
    ),
    *("gather_dot", "gather_dot_grad_h", "gather_dot_grad_rows", "weighted_topk"),
]


@pytest.mark.parametrize("name", OPERATORS)
def test_every_device_has_an_implementation(name):
    rows = torch._C._dispatch_dump_table(f"xmc_fast::{name}").splitlines()
    kernels = {row.split(":")[0]: row for row in rows}
    for device in ("CPU", "CUDA", "MPS", "XPU", "PrivateUse1"):
        assert "kernel]" in kernels[device], kernels[device]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("group", [1, 4])
def test_plain_torch_equals_the_kernels(group, dtype):
    torch.manual_seed(0)
    batch, features, labels, fan_in = 6, 20, 33, 5
    layer = FixedFanInLinear(features, labels, fan_in, group_size=group, dtype=dtype).requires_grad_(False)
    x, g = torch.randn(batch, features).to(dtype), torch.randn(batch, labels).to(dtype)
    sparse = torch.rand(batch, labels) < 0.2
    crow = torch.cat([torch.zeros(1), sparse.sum(1).cumsum(0)]).to(torch.int64)
    col, values = sparse.nonzero()[:, 1], torch.randn(int(sparse.sum()))
    weights = (layer.weight, layer.indices, layer.bias, group)
    calls = {
        "linear": (x, *weights),
        "linear_t": (x, *weights),
        "grad_features": (g, layer.weight, layer.indices, group, features, dtype),
        "grad_weights": (x, g, layer.indices, group, True, dtype),
        "grad_sparse": (x, layer.weight, layer.indices, group, crow, col, values),
        "loss": (x, *weights, crow, col, 0, 0.5, True, True, True),
        "topk": (x, *weights, 5),
    }
    close = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    for name, arguments in calls.items():
        got = getattr(_fanin_torch, name)(*arguments)
        want = getattr(ops.ops, f"fan_in_{name}")(*arguments)
        for a, b in zip(*((r,) if isinstance(r, torch.Tensor) else r for r in (got, want)), strict=True):
            torch.testing.assert_close(a, b, **close, msg=lambda text, name=name: f"{name}: {text}")


def test_plain_gather_dot_and_topk_equal_the_kernels():
    torch.manual_seed(0)
    h, table, g = torch.randn(4, 7), torch.randn(9, 7), torch.randn(4, 5)
    candidates = torch.randint(-1, 9, (4, 5))
    for got, want in (
        (
            gather_dot.plain_forward(h, table, candidates, True),
            ops.ops.gather_dot(h, table, candidates, True),
        ),
        (gather_dot._plain_grad_h(g, table, candidates), ops.ops.gather_dot_grad_h(g, table, candidates)),
        *zip(
            gather_dot._plain_grad_rows(g, h, candidates, 9),
            ops.ops.gather_dot_grad_rows(g, h, candidates, 9),
            strict=True,
        ),
    ):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    eta = torch.rand(3, 8).round(decimals=1)
    eta[1, 2] = float("nan")
    a = torch.rand(8)
    for weights in ((None, None), (a, None), (None, a)):
        got, want = weighted_topk.plain(eta, *weights, 8), weighted_topk.weighted_topk(eta, 8, *weights)
        torch.testing.assert_close(got[0], want[0], equal_nan=True)
        assert torch.equal(got[1], want[1])


class Plain(TorchDispatchMode):
    """Inside, our operators take what serves devices without kernels."""

    def __torch_dispatch__(self, operator, types, arguments=(), options=None):
        name = operator.name().removeprefix("xmc_fast::").removeprefix("fan_in_")
        if operator.namespace != "xmc_fast":
            return operator(*arguments, **(options or {}))
        modules = {
            "gather_dot": gather_dot.plain_forward,
            "gather_dot_grad_h": gather_dot._plain_grad_h,
            "gather_dot_grad_rows": gather_dot._plain_grad_rows,
            "weighted_topk": weighted_topk.plain,
        }
        return (modules.get(name) or getattr(_fanin_torch, name))(*arguments)


def test_training_without_kernels():
    """Layer, fused loss, gather, top-k with their gradients, all in plain torch: as on a device without kernels."""
    torch.manual_seed(0)
    layer, x, table = GroupSharedLinear(12, 30, 3), torch.randn(4, 12), torch.randn(9, 30)
    labels, candidates = torch.tensor([[1, 5], [2, -1], [7, 29], [0, 3]]), torch.randint(-1, 9, (4, 5))

    def step():
        h = x.clone().requires_grad_()
        rows = table.clone().requires_grad_()
        loss = sparse_bce(h, layer, labels) + gather_dot.gather_dot(layer(h), rows, candidates).square().sum()
        gradients = torch.autograd.grad(loss, [h, layer.weight, layer.bias, rows])
        found = weighted_topk.weighted_topk(layer(h).detach(), 3)[1], layer.topk(h, 3)[1]
        return *found, loss.detach(), *(g.to_dense() for g in gradients)

    want = step()
    with Plain():
        got = step()
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_func_grad_and_vmap():
    torch.manual_seed(0)
    layer, x = FixedFanInLinear(12, 30, 3), torch.randn(4, 12)

    def loss(params, rows):
        return torch.func.functional_call(layer, params, (rows,)).square().sum()

    params = {name: p.detach() for name, p in layer.named_parameters()}
    got = torch.func.grad(loss)(params, x)
    loss(dict(layer.named_parameters()), x).backward()
    torch.testing.assert_close(got["weight"], layer.weight.grad)
    torch.testing.assert_close(got["bias"], layer.bias.grad)
    each = torch.vmap(torch.func.grad(loss), (None, 0))(params, x[:, None])  # of each row
    torch.testing.assert_close(each["weight"].sum(0), layer.weight.grad)
    torch.testing.assert_close(torch.vmap(layer)(x), layer(x))


def test_activation_checkpointing():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(12, 12), FixedFanInLinear(12, 30, 3)), torch.randn(4, 12)
    model(x).square().sum().backward()
    want = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    checkpoint(model, x, use_reentrant=False).square().sum().backward()
    for p, grad in zip(model.parameters(), want, strict=True):
        assert torch.equal(p.grad, grad)


def test_export():
    torch.manual_seed(0)
    layer, x = FixedFanInLinear(12, 30, 3), torch.randn(4, 12)
    rows = {"x": {0: torch.export.Dim("batch")}}
    program = torch.export.export(layer, (x,), dynamic_shapes=rows)
    assert torch.equal(program.module()(x[:3]), layer(x[:3]))


@pytest.mark.parametrize("how", ["argument", "context"])
def test_meta_device(how):
    layer, x = FixedFanInLinear(12, 30, 3, random_state=5), torch.randn(4, 12)
    with torch.device("meta" if how == "context" else "cpu"):
        empty = FixedFanInLinear(12, 30, 3, device="meta" if how == "argument" else None)
    assert {t.device.type for t in empty.state_dict().values()} == {"meta"}
    assert empty(x.to("meta")).shape == (4, 30)
    empty.load_state_dict(layer.state_dict(), assign=True)
    assert torch.equal(empty(x), layer(x))


def test_fused_losses_under_func_and_checkpointing():
    torch.manual_seed(0)
    output, x = LabelLoss(FixedFanInLinear(12, 30, 3)), torch.randn(4, 12)
    labels = torch.tensor([[1, 5], [2, -1], [7, 29], [0, 3]])
    parameters = {name: p.detach() for name, p in output.named_parameters()}
    got = torch.func.grad(lambda p: torch.func.functional_call(output, p, (x, labels)))(parameters)
    checkpoint(output, x, labels, use_reentrant=False).backward()
    for name, p in output.named_parameters():
        torch.testing.assert_close(got[name], p.grad)


@pytest.mark.parametrize("dtype", [torch.int16, torch.uint16, torch.int32])
def test_old_state_dicts_load(dtype):
    layer = FixedFanInLinear(70_000 if dtype == torch.int32 else 40_000, 30, 3, random_state=1)
    old = {"model.weight": layer.weight, "model.bias": layer.bias, "model.indices": layer.indices.view(dtype)}
    model = nn.ModuleDict({"model": FixedFanInLinear(layer.in_features, 30, 3)})
    model.load_state_dict(old)
    assert torch.equal(model["model"].indices, layer.indices)


@pytest.mark.parametrize("targets", [torch.tensor([[5, 1, 1], [-100, 2, -100]]), None])
def test_targets_as_padded_ids(targets):
    layer, x = FixedFanInLinear(12, 30, 3), torch.randn(2, 12)
    if targets is None:
        with pytest.raises(ValueError, match=r"shape \(2, width\), got \(3, 1\)"):
            sparse_bce(x, layer, torch.zeros(3, 1, dtype=torch.int64))
        return
    matrix = sp.csr_matrix(([1, 1, 1], ([0, 0, 1], [1, 5, 2])), (2, 30))
    assert torch.equal(sparse_bce(x, layer, targets), sparse_bce(x, layer, matrix))


def test_big_model_initialisation(tmp_path):
    """accelerate makes a model without memory and fills it from files, on the disk if need be."""
    accelerate = pytest.importorskip("accelerate")
    model, x = (
        nn.Sequential(nn.Linear(12, 12), FixedFanInLinear(12, 30, 3, random_state=5)),
        torch.randn(4, 12),
    )
    torch.save(model.state_dict(), tmp_path / "model.bin")
    with accelerate.init_empty_weights(include_buffers=True):
        empty = nn.Sequential(nn.Linear(12, 12), FixedFanInLinear(12, 30, 3))
    assert {t.device.type for t in empty.state_dict().values()} == {"meta"}
    places = {"0": "cpu", "1": "disk"}
    filled = accelerate.load_checkpoint_and_dispatch(
        empty,
        str(tmp_path / "model.bin"),
        device_map=places,
        offload_folder=str(tmp_path),
        offload_buffers=True,
    )
    assert filled[1].weight.device.type == "meta"  # its values are on the disk
    assert torch.equal(filled(x), model(x))


def needs_compiler():
    if "LD_PRELOAD" in os.environ or not any(
        map(shutil.which, (os.environ.get("CXX", "g++"), "g++", "clang++"))
    ):
        pytest.skip("needs a C++ compiler, and no sanitizer that it would inherit")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_aot_inductor_package(tmp_path, monkeypatch):
    needs_compiler()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch.manual_seed(0)
    layer, x = FixedFanInLinear(12, 30, 3).eval().requires_grad_(False), torch.randn(4, 12)
    program = torch.export.export(layer, (x,), dynamic_shapes={"x": {0: torch.export.Dim("batch")}})
    package = torch._inductor.aoti_compile_and_package(
        program,
        package_path=str(tmp_path / "layer.pt2"),
        inductor_configs={"aot_inductor.compile_wrapper_opt_level": "O0"},  # the compiler's time
    )
    loaded = torch._inductor.aoti_load_package(package)
    assert torch.equal(loaded(x[:3]), layer(x[:3]))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(("features", "group"), [(40_000, 1), (70_000, 4)])
def test_decompositions_are_plain_torch(features, group):
    layer = FixedFanInLinear(features, 30, 3, group_size=group)
    x = torch.randn(4, features)
    program = torch.export.export(layer, (x,)).run_decompositions(decompositions())
    operators = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert not any("xmc_fast" in name for name in operators)
    assert "aten.view.dtype" not in operators
    torch.testing.assert_close(program.module()(x), layer(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_decompositions_of_the_other_operators():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = FixedFanInLinear(12, 30, 3, labels_first=True)
            self.table = nn.Parameter(torch.randn(9, 30))

        def forward(self, x, candidates):
            z = self.layer(x)
            dots = gather_dot.gather_dot(z, self.table, candidates)
            return dots, *self.layer.topk(x, 4), *weighted_topk.weighted_topk(z.contiguous(), 2)

    torch.manual_seed(0)
    model, inputs = Model(), (torch.randn(4, 12), torch.randint(-1, 9, (4, 5)))
    program = torch.export.export(model, inputs).run_decompositions(decompositions())
    assert "xmc_fast" not in str(program.graph)
    for got, want in zip(program.module()(*inputs), model(*inputs), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_onnx(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    layer, x = FixedFanInLinear(40_000, 30, 3, group_size=4), torch.randn(4, 40_000)
    rows = {"x": {0: torch.export.Dim("batch")}}
    program = torch.export.export(layer, (x,), dynamic_shapes=rows).run_decompositions(decompositions())
    torch.onnx.export(program, (x,), tmp_path / "layer.onnx", verbose=False)
    session = runtime.InferenceSession(tmp_path / "layer.onnx")
    (got,) = session.run(None, {session.get_inputs()[0].name: x[:3].numpy()})
    torch.testing.assert_close(torch.from_numpy(got), layer(x[:3]).detach())


@pytest.mark.parametrize("group", [1, 4])
def test_int8(group, monkeypatch):
    torch.manual_seed(0)
    layer, x = FixedFanInLinear(64, 1000, 16, group_size=group), torch.randn(3, 5, 64)
    with torch.no_grad():
        layer.weight[7] = 0
    monkeypatch.setattr("xmc_fast.nn.quantize._CHUNK", 4096)  # several chunks, the last one short
    small = quantize_(nn.Sequential(copy.deepcopy(layer)))[0]
    small.load_state_dict(quantize_(copy.deepcopy(layer)).state_dict())
    stored = {name: t.numel() * t.element_size() for name, t in small.state_dict().items()}
    assert stored["codes"] + stored["scale"] < 0.32 * layer.weight.numel() * 4
    rounded = copy.deepcopy(layer)
    with torch.no_grad():
        scale = layer.weight.abs().amax(1, keepdim=True) / 127
        rounded.weight.copy_((layer.weight / scale.clamp(min=1e-30)).round() * scale)
    torch.testing.assert_close(small(x), rounded(x))
    bound = (scale[:, 0] / 2 * x.abs().amax() * 16).max()
    assert (small(x) - layer(x)).abs().max() <= bound
    for k in (0, 5, 1000):
        scores, ids = small.topk(x, k)
        want = torch.sort(small(x), dim=-1, descending=True, stable=True)
        assert torch.equal(scores, want.values[..., :k])
        assert torch.equal(ids, want.indices[..., :k])


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("kind", ["dense", "no bias", "fan_in"])
def test_fused_cross_entropy(kind, reduction):
    torch.manual_seed(0)
    dense = nn.Linear(12, 30, bias=kind == "dense")
    layer = FixedFanInLinear(12, 30, 3, group_size=4) if kind == "fan_in" else dense
    x, targets = torch.randn(7, 12, requires_grad=True), torch.tensor([3, -100, 29, 0, 0, -100, 7])
    inputs = [x, *layer.parameters()]
    want = nn.functional.cross_entropy(layer(x), targets, reduction=reduction)
    gradients = torch.autograd.grad(3 * want, inputs)
    for chunk in (1, 60, 10**6):
        got = fused_cross_entropy(x, layer, targets, reduction=reduction, chunk=chunk)
        torch.testing.assert_close(got, want)
        for a, b in zip(torch.autograd.grad(3 * got, inputs), gradients, strict=True):
            torch.testing.assert_close(a, b)
    with torch.no_grad():
        torch.testing.assert_close(fused_cross_entropy(x, layer, targets, reduction=reduction), want)
    with pytest.raises(ValueError, match=r"targets \(rows,\), got \(7, 12\) and \(6,\)"):
        fused_cross_entropy(x, layer, targets[:6])


class Largest(TorchDispatchMode):
    """The most entries that a tensor made inside has."""

    entries = 0

    def __torch_dispatch__(self, operator, types, arguments=(), options=None):
        out = operator(*arguments, **(options or {}))
        made = [
            t.numel()
            for t in (out if isinstance(out, (tuple, list)) else [out])
            if isinstance(t, torch.Tensor)
        ]
        self.entries = max(self.entries, *made, 0)
        return out


@pytest.mark.parametrize("fan_in", [None, 3])
def test_fused_cross_entropy_makes_no_logits(fan_in):
    rows, labels, width = 40, 500, 4
    layer = nn.Linear(width, labels) if fan_in is None else FixedFanInLinear(width, labels, fan_in)
    x, targets = torch.randn(rows, width, requires_grad=True), torch.randint(labels, (rows,))
    with Largest() as fused:
        fused_cross_entropy(x, layer, targets, chunk=2 * labels).backward()
    with Largest() as plain:
        nn.functional.cross_entropy(layer(x), targets).backward()
    assert plain.entries == rows * labels
    assert fused.entries <= max(2 * labels, labels * width)


def test_the_cuda_library_is_loaded_at_the_first_call(tmp_path):
    library = _cuda.Library(tmp_path / "none.so")  # nothing is opened yet
    with pytest.raises(OSError, match=r"none\.so"):
        library.run("fanin_forward", torch.zeros(1))
