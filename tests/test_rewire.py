"""Rewiring: rules against numpy, schedules, optimizer state, no dense matrix, exact resume."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from bench.experiments.masked import MaskedLinear  # noqa: E402
from reference import rewire as ref  # noqa: E402
from xmc_fast.nn import (  # noqa: E402
    DenseHeadSparseTail,
    FixedFanInLinear,
    Rewire,
    Trainer,
    mined_squared_hinge,
    sparse_bce,
    sparse_squared_hinge,
)
from xmc_fast.nn._recording import missing_connections  # noqa: E402
from xmc_fast.nn.rewire import sparse_layers  # noqa: E402
from xmc_fast.nn.train import Callback  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_torch_thread")

D, L, S = 40, 53, 6


def make(group_size=1, seed=0):
    torch.manual_seed(seed)
    return FixedFanInLinear(D, L, S, group_size=group_size, random_state=seed)


def targets(rows, seed=0, density=0.05):
    rng = np.random.default_rng(seed)
    return sp.csr_matrix(rng.random((rows, L)) < density)


def one_rewire(layer, rule, **options):
    """Connections before and after one change, at step 1 of 10."""
    callback = Rewire(prune=rule, interval=1, stop=1.0, decay="constant", **options)
    callback.before_step(layer, 0, 10)
    before = layer.indices.clone(), layer.weight.detach().clone()
    return callback, before


def no_duplicates(layer):
    return all(len(set(row.tolist())) == layer.fan_in for row in layer.indices)


@pytest.mark.parametrize("group_size", [1, 8])
@pytest.mark.parametrize("rule", ["magnitude", "threshold", "sign"])
def test_prune_rules(rule, group_size):
    layer = make(group_size)
    callback, (indices, weight) = one_rewire(layer, rule, fraction=0.5, threshold=0.2)
    with torch.no_grad():  # what a step would do: about a third of the signs change
        layer.weight.copy_(weight * torch.where(torch.rand_like(weight) < 0.33, -1.0, 1.0))
    wanted = ref.pruned(
        layer.weight.detach().numpy(),
        rule,
        fraction=0.5,
        threshold=0.2,
        before=weight.numpy(),
        group_size=group_size,
    )
    now = layer.weight.detach().clone()
    replaced = callback.after_step(layer, [], 1, 10)
    changed = (layer.indices.to(torch.int64) != indices.to(torch.int64)).numpy()
    assert np.array_equal(changed, wanted)
    assert replaced == wanted.sum() > 0
    per_label = np.repeat(wanted, group_size, 0)[:L]
    assert np.array_equal(layer.weight.detach().numpy(), np.where(per_label, 0, now.numpy()))
    assert no_duplicates(layer)


@pytest.mark.parametrize("loss", ["squared_hinge", "bce", "mined", "logits"])
@pytest.mark.parametrize("group_size", [1, 8])
def test_gradient_growth(loss, group_size):
    """Candidates are the missing connections of largest gradient, whatever way the loss was computed."""
    layer, x = make(group_size), torch.randn(9, D)
    y = targets(9)
    layer.record = []
    h = x.clone().requires_grad_()
    if loss == "logits":
        z = layer(h)
        (1 - torch.from_numpy(2.0 * y.toarray() - 1) * z).clamp(min=0).square().sum().backward()
    else:
        fused = {"squared_hinge": sparse_squared_hinge, "bce": sparse_bce, "mined": mined_squared_hinge}
        fused[loss](h, layer, y, reduction="sum").backward()
    z = layer(x).detach().double().requires_grad_()
    sign = torch.from_numpy(2.0 * y.toarray() - 1)
    if loss == "bce":
        nn.functional.softplus(-sign * z).sum().backward()
    else:
        (1 - sign * z).clamp(min=0).square().sum().backward()
    wanted = ref.missing(x.numpy(), z.grad.numpy(), layer.indices.numpy(), 5, group_size)
    seen = layer.record[:1]
    for chunk in (1, D * group_size * 3, 1 << 22):
        assert np.array_equal(missing_connections(layer, seen, 5, chunk).numpy(), wanted)


def test_rewire_grows_the_candidates_and_falls_back_to_chance():
    layer, x = make(), torch.randn(9, D)
    nn.init.constant_(layer.bias, -30.0)  # no negative has a loss: labels without positives have no gradient
    y = targets(9)
    callback, (indices, _) = one_rewire(layer, "magnitude", fraction=0.5, grow="gradient")
    optimizer = torch.optim.SGD(layer.parameters(), 0.0)
    sparse_squared_hinge(x, layer, y).backward()
    best = missing_connections(layer, layer.record, S, 1 << 20)
    callback.find_candidates(layer)
    callback.after_step(layer, [optimizer], 1, 10)
    has = np.asarray(y.sum(0)).ravel() > 0
    for label in range(L):
        new = set(layer.indices[label].tolist()) - set(indices[label].tolist())
        assert len(new) == S // 2
        if has[label]:
            assert new == set(best[label, : S // 2].tolist())
        else:
            assert best[label].eq(-1).all()


def test_schedule():
    callback = Rewire(fraction=0.4, interval=10, stop=0.5)
    steps = [s for s in range(101) if callback.due(s, 100)]
    assert steps == [10, 20, 30, 40, 50]
    for s in steps:
        assert 0.4 * callback.factor(s, 100) == pytest.approx(ref.cosine(0.4, s, 50))
    assert Rewire(decay="constant").factor(70, 100) == 1.0


@pytest.mark.parametrize("kind", ["fan_in", "masked"])
def test_optimizer_state_of_new_connections_is_zero(kind):
    layer = make() if kind == "fan_in" else MaskedLinear(D, L, L * S)
    optimizers = [torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1), torch.optim.Adam(layer.parameters())]
    layer(torch.randn(4, D)).square().sum().backward()
    optimizers[1].step()
    before = {k: v.clone() for k, v in optimizers[1].state[layer.weight].items()}
    callback = Rewire(interval=1, stop=1.0, decay="constant", fraction=0.5)
    old = layer.indices.clone() if kind == "fan_in" else layer.mask.clone()
    callback.after_step(layer, optimizers, 1, 2)
    if kind == "fan_in":
        new = layer.indices.to(torch.int64) != old.to(torch.int64)
        kept = ~new
    else:
        new, kept = layer.mask & ~old, layer.mask & old
        assert int(layer.mask.sum()) == L * S
        assert layer.weight[~layer.mask].abs().max() == 0
    assert int(new.sum()) > 0
    for name in ("exp_avg", "exp_avg_sq"):
        state = optimizers[1].state[layer.weight][name]
        assert state[new].abs().max() == 0
        assert torch.equal(state[kept], before[name][kept])
        assert before[name][new if kind == "fan_in" else kept].abs().max() > 0


def test_masked_layer_grows_by_gradient():
    layer = MaskedLinear(D, L, L * S)
    x = torch.randn(8, D)
    callback = Rewire(interval=1, stop=1.0, decay="constant", fraction=0.1, grow="gradient")
    callback.before_step(layer, 0, 2)
    layer(x).square().sum().backward()
    full = (2 * layer(x).detach()).T @ x
    full[layer.mask] = 0
    count = int(0.1 * L * S)
    wanted = torch.topk(full.abs().view(-1), count).indices
    callback.find_candidates(layer)
    old = layer.mask.clone()
    callback.after_step(layer, [], 1, 2)
    assert set((layer.mask & ~old).view(-1).nonzero().squeeze(1).tolist()) == set(wanted.tolist())


def problem():
    torch.manual_seed(3)
    x = torch.randn(96, 12)
    y = targets(96, density=0.06)
    model = nn.Sequential(nn.Linear(12, D), nn.ReLU(), make())

    def loss(m, rows):
        return sparse_squared_hinge(m[1](m[0](x[rows])), m[2], y[rows.numpy()])

    return model, loss


class Die(Callback):
    def __init__(self, at):
        self.at = at

    def on_step(self, run):
        if run.step == self.at:
            raise KeyboardInterrupt


@pytest.mark.parametrize("rules", [("magnitude", "random"), ("sign", "gradient"), ("threshold", "gradient")])
def test_deterministic_and_resumable(rules, tmp_path):
    def fit(**options):
        model, loss = problem()
        rewire = Rewire(prune=rules[0], grow=rules[1], interval=3, threshold=0.05, random_state=5)
        trainer = Trainer(
            lambda m: torch.optim.Adam(m.parameters(), 0.01),
            epochs=4,
            batch_size=16,
            **{**options, "callbacks": [rewire, *options.get("callbacks", [])]},
        )
        trainer.fit(model, loss, 96, torch.from_numpy)
        return model, rewire

    whole, rewire = fit()
    assert rewire.replaced > 0
    again, _ = fit()
    for died_at in (5, 6, 13):
        file = tmp_path / f"{died_at}.pt"
        with pytest.raises(KeyboardInterrupt):
            fit(checkpoint=file, checkpoint_every=1, callbacks=[Die(died_at)])
        resumed, other = fit(checkpoint=file, checkpoint_every=1, callbacks=[Callback()])
        assert other.replaced == rewire.replaced
        for model in (again, resumed):
            for (name, a), b in zip(whole.state_dict().items(), model.state_dict().values(), strict=True):
                assert torch.equal(a, b), name


def test_a_loop_of_ones_own_gives_the_trainers_weights():
    """Rewire needs a module and its optimizer, no Trainer: any other loop can call it."""
    rules = {"grow": "gradient", "interval": 3, "random_state": 5}
    trained, loss = problem()
    trainer = Trainer(lambda m: torch.optim.Adam(m.parameters(), 0.01), epochs=2, batch_size=16, random_state=1,
                      callbacks=[Rewire(**rules)])  # fmt: skip
    trainer.fit(trained, loss, 96, torch.from_numpy)
    model, loss = problem()
    rewire, optimizer = Rewire(**rules), torch.optim.Adam(model.parameters(), 0.01)
    for step in range(12):
        order = np.random.default_rng([1, step // 6]).permutation(96)
        rewire.before_step(model, step, 12)
        optimizer.zero_grad()
        loss(model, torch.from_numpy(order[step % 6 * 16 :][:16])).backward()
        rewire.find_candidates(model)
        optimizer.step()
        rewire.after_step(model, [optimizer], step + 1, 12)
    assert rewire.replaced > 0
    for (name, a), b in zip(trained.state_dict().items(), model.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


KILLED = """
import os, signal, sys
import torch
from test_rewire import problem
from xmc_fast.nn import Rewire, Trainer
from xmc_fast.nn.train import Callback

class Kill(Callback):
    def on_step(self, run):
        if run.step == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)

torch.set_num_threads(1)
model, loss = problem()
trainer = Trainer(lambda m: torch.optim.Adam(m.parameters(), 0.01), epochs=4, batch_size=16, checkpoint=sys.argv[1],
                  checkpoint_every=2, callbacks=[Rewire(grow="gradient", interval=3), Kill()])
trainer.fit(model, loss, 96, torch.from_numpy)
torch.save(model.state_dict(), sys.argv[1] + ".done")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_kill_9_and_resume_gives_the_same_weights(tmp_path):
    def run(name, at):
        command = [sys.executable, "-c", KILLED, str(tmp_path / name), str(at)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
        return subprocess.run(command, capture_output=True, timeout=120, env=environment).returncode

    assert run("whole", -1) == 0
    assert run("killed", 11) == -9
    assert run("killed", -1) == 0
    whole, resumed = (torch.load(tmp_path / f"{name}.done") for name in ("whole", "killed"))
    for name, value in whole.items():
        assert torch.equal(value, resumed[name]), name


class Largest(TorchDispatchMode):
    """Watches the elements of every tensor that any operation makes."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, tuple | list) else (out,):
            if isinstance(t, torch.Tensor) and not t.is_sparse:
                self.elements = max(self.elements, t.numel())
        return out


@pytest.mark.parametrize("mined", [False, True])
def test_no_dense_matrix_is_made(mined):
    """Training and gradient growth of 20,000 x 512 never hold a tensor of labels x features, nor of its half."""
    labels, features, fan_in, batch = 20_000, 512, 8, 16
    layer = FixedFanInLinear(features, labels, fan_in)
    nn.init.constant_(layer.bias, -3.0)  # few negatives violate their margin
    rng = np.random.default_rng(0)
    y = sp.csr_matrix((np.ones(48), (np.repeat(np.arange(16), 3), rng.integers(0, labels, 48))), (16, labels))
    y = (y > 0).tocsr()
    callback = Rewire(interval=1, stop=1.0, grow="gradient", chunk=1 << 18)
    optimizer = torch.optim.SGD(layer.parameters(), 0.01)
    x = torch.randn(batch, features, requires_grad=True)
    with Largest() as largest:
        callback.before_step(layer, 0, 4)
        (mined_squared_hinge if mined else sparse_squared_hinge)(x, layer, y).backward()
        callback.find_candidates(layer)
        optimizer.step()
        assert callback.after_step(layer, [optimizer], 1, 4) > 0
    # the layer itself, logits of a chunk, gradients of a chunk
    assert largest.elements <= max(labels * fan_in, labels * batch, 1 << 18)
    assert largest.elements * 20 < labels * features


def test_finds_the_layers_of_any_module():
    model = nn.ModuleDict({"a": nn.Linear(3, 4), "b": DenseHeadSparseTail(D, L, [1, 2], S), "c": make()})
    assert list(sparse_layers(model)) == ["b.tail", "c"]
    with pytest.raises(ValueError, match="no layer to rewire"):
        Rewire().before_step(nn.Linear(2, 3), 0, 1)


def test_averages_restart_when_connections_change():
    model, loss = problem()
    seen = []

    class Keep(Callback):
        def on_epoch(self, run):
            seen.append(run.model[2].weight.detach().clone())

    trainer = Trainer(
        lambda m: torch.optim.Adam(m.parameters(), 0.01),
        epochs=6,
        batch_size=16,
        swa_start=0,
        callbacks=[Rewire(interval=4, stop=0.5, fraction=1.0, decay="constant"), Keep()],
    )
    trainer.fit(model, loss, 96, torch.from_numpy)  # 36 steps, the last change after step 16, in epoch 3
    torch.testing.assert_close(model[2].weight.detach(), torch.stack(seen[2:]).mean(0))


def test_errors():
    for options, message in (
        ({"prune": "x"}, "prune must be one of"),
        ({"grow": "x"}, "grow must be one of"),
        ({"fraction": 2}, r"fraction must be in \[0, 1\], got 2"),
        ({"interval": 0}, "interval must be at least 1 step, got 0"),
        ({"threshold": -1}, "threshold must not be negative"),
    ):
        with pytest.raises(ValueError, match=message):
            Rewire(**options)
