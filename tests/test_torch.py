"""Our layers as torch users expect them: any device, torch.func, checkpointing, export, meta, DDP."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from xmc_fast.nn import FixedFanInLinear, _fanin_torch, gather_dot, ops, weighted_topk  # noqa: E402

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
            gather_dot._plain_forward(h, table, candidates, True),
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
        got, want = weighted_topk._plain(eta, *weights, 8), weighted_topk.weighted_topk(eta, 8, *weights)
        torch.testing.assert_close(got[0], want[0], equal_nan=True)
        assert torch.equal(got[1], want[1])


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


DDP = """
import sys, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from xmc_fast.nn import FixedFanInLinear
rank, port = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
torch.manual_seed(rank)
layer = FixedFanInLinear(40_000, 30, 3, random_state=rank)  # DDP sends the connections of rank 0
model = DistributedDataParallel(layer)
wanted = FixedFanInLinear(40_000, 30, 3, random_state=0)
assert torch.equal(layer.indices, wanted.indices)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
torch.manual_seed(7)
x = torch.randn(8, 40_000)
with torch.no_grad():
    wanted.weight.copy_(layer.weight), wanted.bias.copy_(layer.bias)
model(x[4 * rank : 4 * rank + 4]).square().mean().backward()
optimizer.step()
wanted(x).square().mean().backward()
torch.optim.SGD(wanted.parameters(), 0.1).step()
torch.testing.assert_close(layer.weight, wanted.weight)
dist.destroy_process_group()
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")
def test_two_processes_train_as_one():
    if not torch.distributed.is_gloo_available():
        pytest.skip("torch without gloo")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    both = [
        subprocess.Popen(
            [sys.executable, "-c", DDP, str(rank), port], stderr=subprocess.PIPE, env=dict(os.environ)
        )
        for rank in (0, 1)
    ]
    errors = [process.communicate(timeout=240)[1].decode()[-1500:] for process in both]
    assert [process.returncode for process in both] == [0, 0], errors
