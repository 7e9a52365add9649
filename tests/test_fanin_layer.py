"""The fixed fan-in layer as a torch module: contracts, errors, dense head with sparse tail, rewiring."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import scipy.sparse as sp

torch = pytest.importorskip("torch")

from reference import fanin as reference  # noqa: E402
from reference.fanin_layer import make  # noqa: E402
from xmc_fast.nn import fanin, ops  # noqa: E402


def test_autocast():
    layer, x = make(5, 9, 40, 4, 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(x)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, ops.ops.fan_in_linear(x.bfloat16(), layer.weight, layer.indices, layer.bias, 1))
    out.float().sum().backward()
    assert layer.weight.grad.dtype == torch.float32


def test_module_contracts(tmp_path):
    layer, x = make(5, 9, 40, 4, 1)
    other = fanin.FixedFanInLinear(9, 40, 4, random_state=5)
    assert not torch.equal(layer.indices, other.indices)
    torch.save(layer.state_dict(), tmp_path / "layer.pt")
    other.load_state_dict(torch.load(tmp_path / "layer.pt"))
    for same in (other, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(same(x), layer(x))
    assert layer.indices.dtype == torch.int16
    assert fanin.FixedFanInLinear(65537, 3, 2).indices.dtype == torch.int32
    assert fanin.FixedFanInLinear(65536, 3, 2).indices.dtype == torch.int16
    # any layout and number of dimensions, as nn.Linear
    wide = torch.randn(9, 5, 2)
    assert torch.equal(layer(wide.permute(1, 2, 0)), layer(wide.permute(1, 2, 0).contiguous()))
    assert layer(torch.randn(0, 9)).shape == (0, 40)
    assert layer(torch.randn(9)).shape == (40,)
    expanded = layer(x).sum()
    expanded.backward()  # the gradient arrives expanded, not contiguous
    want = reference.gradients(
        x.double().numpy(), np.zeros((40, 9)), np.ones((5, 40)), layer.indices.numpy(), 1
    )
    np.testing.assert_allclose(layer.weight.grad.numpy(), want[1], rtol=1e-5, atol=1e-5)


def test_errors_say_what_is_wrong():
    layer, x = make(5, 9, 40, 4, 1)
    with pytest.raises(ValueError, match="x must have 9 features"):
        layer(torch.zeros(2, 8))
    with pytest.raises(ValueError, match="fan_in must be"):
        fanin.FixedFanInLinear(4, 3, 5)
    bad = layer.indices.clone()
    bad[39, 3] = 9
    with pytest.raises(ValueError, match="below the number of features 9"):
        ops.ops.fan_in_linear(x, layer.weight, bad, layer.bias, 1)
    with pytest.raises(ValueError, match="targets has 39 columns"):
        fanin.sparse_bce(x, layer, sp.csr_matrix((5, 39)))
    with pytest.raises(ValueError, match="reduction"):
        fanin.sparse_bce(x, layer, sp.csr_matrix((5, 40)), reduction="none")
    with pytest.raises(ValueError, match="k must be"):
        layer.topk(x, 41)
    with pytest.raises(ValueError, match="dtype"):
        layer(x.to(torch.int32))


@pytest.mark.parametrize("features", [40, 9000, 70000])
@pytest.mark.parametrize("label", [0, 299])
def test_bad_index_is_refused_by_every_pass(simd, features, label):
    layer, x = make(40, features, 300, 9, 1)
    g = torch.randn(40, 300)
    bad = layer.indices.clone()
    bad[label, 8] = features
    w, dtype = layer.weight, torch.float32
    targets = (torch.arange(41), torch.zeros(40, dtype=torch.int64))
    calls = {
        "linear": (x, w, bad, None, 1),
        "linear_t": (x, w, bad, None, 1),
        "topk": (x, w, bad, None, 1, 3),
        "loss": (x, w, bad, None, 1, *targets, 0, 1.0, True, True, False),
        "grad_features": (g, w, bad, 1, features, dtype),
        "grad_weights": (x, g, bad, 1, False, dtype),
    }
    for name, arguments in calls.items():
        with pytest.raises(ValueError, match=f"below the number of features {features}"):
            getattr(ops.ops, f"fan_in_{name}")(*arguments)


def test_labels_first():
    layer, x = make(5, 9, 40, 4, 1)
    other = fanin.FixedFanInLinear(9, 40, 4, labels_first=True)
    other.load_state_dict(layer.state_dict())
    other = pickle.loads(pickle.dumps(other))
    x.requires_grad_()
    got, want = other(x), layer(x)
    assert got.shape == want.shape
    assert got.stride() == (1, 5)
    assert torch.equal(got, want)
    wide = torch.randn(2, 3, 9)
    assert torch.equal(other(wide), layer(wide))
    targets = torch.rand(5, 40).round()
    gradients = []
    for module, out in ((other, got), (layer, want)):
        grad_out: list[torch.Tensor] = []
        out.register_hook(grad_out.append)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(out, targets)
        gradients.append(torch.autograd.grad(loss, [x, module.weight, module.bias]))
        assert grad_out[0].stride() == out.stride()  # the loss keeps the order
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_dense_head_sparse_tail():
    layer = fanin.DenseHeadSparseTail(12, 50, head=[40, 3, 17], fan_in=5, group_size=4)
    x = torch.randn(6, 12, requires_grad=True)
    out = layer(x)
    torch.testing.assert_close(out[:, [3, 17, 40]], layer.head(x))
    torch.testing.assert_close(out[:, layer.tail_labels], layer.tail(x))
    scores, ids = layer.topk(x, 10)
    want = torch.sort(out.detach(), 1, descending=True)
    torch.testing.assert_close(scores, want.values[:, :10])
    assert torch.equal(ids, want.indices[:, :10])
    y = np.random.default_rng(0).random((6, 50)) < 0.2
    for name in ("squared_hinge", "bce"):
        value, _ = getattr(reference, name)(out.detach().double().numpy(), np.where(y, 1.0, -1.0))
        loss = getattr(fanin, f"sparse_{name}")(x, layer, sp.csr_matrix(y), reduction="sum")
        assert loss.item() == pytest.approx(value, rel=1e-5)
        logits = layer(x)
        s = torch.from_numpy(np.where(y, 1.0, -1.0)).float()
        hinge = (1 - s * logits).clamp(min=0).square().sum()
        dense = hinge if name == "squared_hinge" else torch.nn.functional.softplus(-s * logits).sum()
        parameters = [x, *layer.parameters()]
        for a, b in zip(
            torch.autograd.grad(loss, parameters), torch.autograd.grad(dense, parameters), strict=True
        ):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("group", [1, 4])
@pytest.mark.parametrize("features", [40, 70000])
def test_rewire(group, features):
    layer, _ = make(1, features, 37, 8, group)
    optimizer = torch.optim.Adam(layer.parameters())
    for p in layer.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    before = copy.deepcopy(layer)
    strength = ops.magnitude(before.weight, group)
    changed = layer.rewire(fraction=0.5, random_state=3, optimizer=optimizer)
    assert (changed.sum(1) == 4).all()
    lists, old = layer.indices.long(), before.indices.long()
    assert all(len(set(row.tolist())) == 8 for row in lists)
    assert (lists < features).all()
    assert torch.equal(lists[~changed], old[~changed])
    assert not any(set(a[c].tolist()) & set(b.tolist()) for a, b, c in zip(lists, old, changed, strict=True))
    # the weakest four go
    weakest = torch.argsort(strength, 1)[:, :4]
    assert torch.equal(changed, torch.zeros_like(changed).scatter_(1, weakest, True))
    per_label = changed.repeat_interleave(group, 0)[:37]
    assert (layer.weight[per_label] == 0).all()
    assert torch.equal(layer.weight[~per_label], before.weight[~per_label])
    moment = optimizer.state[layer.weight]["exp_avg"]
    assert (moment[per_label] == 0).all()
    assert (moment[~per_label] != 0).all()
    # the same seed gives the same connections, another one does not
    again = copy.deepcopy(before)
    again.rewire(fraction=0.5, random_state=3)
    assert torch.equal(again.indices, layer.indices)
    different = copy.deepcopy(before)
    different.rewire(fraction=0.5, random_state=4)
    assert not torch.equal(different.indices, layer.indices)


def test_rewire_threshold_candidates_and_full_lists():
    layer, _ = make(1, 20, 5, 6, 1)
    with torch.no_grad():
        layer.weight.fill_(1.0)
        layer.weight[2, 1] = 0.01
    absent = [d for d in range(20) if d not in layer.indices[2].tolist()]
    present = int(layer.indices[2, 0])
    candidates = torch.zeros(5, 3, dtype=torch.int32)
    candidates[2] = torch.tensor([present, absent[4], absent[5]])
    changed = layer.rewire(threshold=0.1, candidates=candidates)
    assert changed.nonzero().tolist() == [[2, 1]]
    assert int(layer.indices[2, 1]) == absent[4]
    full = fanin.FixedFanInLinear(6, 5, 6)  # nothing left to grow
    assert not full.rewire(fraction=1.0).any()
