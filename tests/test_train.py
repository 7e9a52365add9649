"""The common training loop: exact resume, accumulation, averaging, early stopping, schedules, logs."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from xmc_fast.nn.schedule import cosine, linear  # noqa: E402
from xmc_fast.nn.train import Callback, Trainer, clip_gradients  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_torch_thread")

N, D = 37, 6


@pytest.fixture
def problem():
    torch.manual_seed(1)
    x = torch.randn(N, D)
    y = x @ torch.randn(D, 1) + 0.1 * torch.randn(N, 1)

    def model():
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(D, 8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 1))

    def loss(m, rows):
        return ((m(x[rows]) - y[rows]) ** 2).mean()

    return model, loss


def adam(model):
    return torch.optim.Adam(model.parameters(), 0.01)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


class Die(Callback):
    def __init__(self, at):
        self.at = at

    def on_step(self, run):
        if run.step == self.at:
            raise KeyboardInterrupt


def fit(problem, model=None, **options):
    make, loss = problem
    model = model or make()
    trainer = Trainer(options.pop("optimizer", adam), batch_size=8, **{"epochs": 4, **options})
    return model, trainer.fit(model, loss, N, torch.from_numpy)


def test_training_reduces_the_loss_and_is_deterministic(problem):
    a, history = fit(problem, epochs=20)
    b, _ = fit(problem, epochs=20)
    assert history[-1]["loss"] < 0.7 * history[0]["loss"]
    assert [row["epoch"] for row in history] == list(range(1, 21))
    assert torch.equal(weights(a), weights(b))


@pytest.mark.parametrize("died_at", [3, 5, 9, 14])
def test_resume_gives_the_same_weights_bit_for_bit(problem, tmp_path, died_at):
    whole, history = fit(problem, schedule=cosine(0.1), swa_start=2)
    file = tmp_path / "run.pt"
    with pytest.raises(KeyboardInterrupt):
        fit(
            problem,
            schedule=cosine(0.1),
            swa_start=2,
            checkpoint=file,
            checkpoint_every=2,
            callbacks=[Die(died_at)],
        )
    resumed, again = fit(
        problem,
        schedule=cosine(0.1),
        swa_start=2,
        checkpoint=file,
        checkpoint_every=2,
        callbacks=[Callback()],
    )
    assert torch.equal(weights(whole), weights(resumed))
    assert [r["loss"] for r in history] == [r["loss"] for r in again]


def test_checkpoint_of_another_run_is_refused(problem, tmp_path):
    fit(problem, checkpoint=tmp_path / "run.pt", random_state=1)
    with pytest.raises(ValueError, match="is of another run"):
        fit(problem, checkpoint=tmp_path / "run.pt", random_state=2)


def test_a_changed_rate_on_resume_is_refused(problem, tmp_path):
    """Optimizers keep the rate of the checkpoint: the new one would silently do nothing."""
    fit(problem, checkpoint=tmp_path / "run.pt")
    with pytest.raises(ValueError, match=r"is of another run: it has .*'lr': \[\[0.01\]\]"):
        fit(
            problem,
            checkpoint=tmp_path / "run.pt",
            optimizer=lambda m: torch.optim.Adam(m.parameters(), 0.02),
        )


def test_half_precision_with_an_optimizer_without_gradients(problem):
    """Its step would fail: "No inf checks were recorded"."""

    def two(model):
        return [adam(model), torch.optim.SGD([nn.Parameter(torch.zeros(2))], 0.1)]

    _, history = fit(problem, optimizer=two, precision="fp16")
    assert history[-1]["loss"] < history[0]["loss"]


def test_accumulation_equals_the_large_batch():
    x, y = torch.randn(32, D), torch.randn(32, 1)
    results = []
    for batch_size, accumulate in ((16, 1), (4, 4)):
        torch.manual_seed(0)
        model = nn.Linear(D, 1)
        trainer = Trainer(
            lambda m: torch.optim.SGD(m.parameters(), 0.1),
            epochs=3,
            batch_size=batch_size,
            accumulate=accumulate,
        )
        trainer.fit(model, lambda m, r: ((m(x[r]) - y[r]) ** 2).mean(), 32, torch.from_numpy)
        results.append(weights(model))
    torch.testing.assert_close(*results)


def test_swa_is_the_mean_of_the_epochs(problem):
    seen = []

    class Keep(Callback):
        def on_epoch(self, run):
            seen.append(weights(run.model).clone())

    model, _ = fit(problem, swa_start=1, callbacks=[Keep()])
    torch.testing.assert_close(weights(model), torch.stack(seen[1:]).mean(0))


def test_early_stopping_restores_the_best_weights(problem):
    make, loss = problem
    values = iter([0.1, 0.5, 0.4, 0.3, 0.9])
    kept = []

    def validate(model):
        kept.append(weights(model).clone())
        return {"p@1": next(values)}

    model = make()
    history = Trainer(adam, epochs=10, batch_size=8, patience=2).fit(
        model, loss, N, torch.from_numpy, validate
    )
    assert len(history) == 4
    assert torch.equal(weights(model), kept[1])


def test_schedule_sets_the_rates(problem):
    rates = []

    class Watch(Callback):
        def on_step(self, run):
            rates.append(run.optimizers[0].param_groups[0]["lr"])

    fit(problem, schedule=linear(), callbacks=[Watch()], epochs=2)
    assert rates[0] == pytest.approx(0.01)
    assert rates[-1] == pytest.approx(0.0, abs=1e-12)
    assert np.allclose(np.diff(rates), np.diff(rates)[0])


def test_two_optimizers_and_clipping(problem):
    def two(model):
        return [torch.optim.SGD(model[0].parameters(), 0.1), torch.optim.Adam(model[3].parameters(), 0.01)]

    norms = []

    class Norm(Callback):
        def on_step(self, run):
            norms.append(float(nn.utils.get_total_norm([p.grad for p in run.model.parameters()])))

    fit(problem, optimizer=two, clip_norm=0.5, callbacks=[Norm()])
    assert max(norms) <= 0.5 + 1e-5


@pytest.mark.parametrize("largest", [0.1, 1e6])
def test_sparse_gradients_are_clipped_with_the_dense_ones(largest):
    found = []
    for sparse in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(9, 4, sparse=sparse), nn.Linear(4, 2)).to(torch.float64)
        model(torch.tensor([1, 5, 5])).square().sum().backward()
        clip_gradients(model, largest)
        found.append([p.grad.to_dense() if p.grad.is_sparse else p.grad for p in model.parameters()])
    for dense, other in zip(*found, strict=True):
        torch.testing.assert_close(dense, other)
    norm = float(nn.utils.get_total_norm(found[1]))
    assert norm == pytest.approx(largest, rel=1e-4) if largest < 1 else 0.1 < norm < 1e3


def test_bf16_autocast_trains(problem):
    _, history = fit(problem, precision="bf16", epochs=20)
    assert history[-1]["loss"] < 0.8 * history[0]["loss"]


def test_log_files(problem, tmp_path):
    _, history = fit(problem, log=tmp_path / "log.csv")
    with open(tmp_path / "log.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(r["loss"]) for r in rows] == [r["loss"] for r in history]
    assert json.loads((tmp_path / "log.json").read_text()) == history


def test_the_global_generator_is_left_alone(problem):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    make, loss = problem
    model = make()
    torch.set_rng_state(before)
    Trainer(adam, epochs=1, batch_size=8).fit(model, loss, N, torch.from_numpy)
    assert torch.equal(torch.get_rng_state(), before)


def test_errors(problem):
    make, _ = problem
    with pytest.raises(ValueError, match='precision must be "fp32"'):
        Trainer(adam, precision="int8")
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        Trainer(adam, batch_size=0)
    with pytest.raises(RuntimeError, match="the loss became nan at step 0"):
        Trainer(adam).fit(make(), lambda m, r: m[0].weight.sum() * float("nan"), N, torch.from_numpy)


def test_rows_of_similar_length_share_a_batch():
    lengths = np.arange(64) % 32
    seen = []

    def loss(model, rows):
        seen.append(lengths[rows.numpy()])
        return model.weight.sum() * 0

    trainer = Trainer(lambda m: torch.optim.SGD(m.parameters(), 0.1), epochs=2, batch_size=4)
    trainer.fit(torch.nn.Linear(1, 1), loss, 64, torch.from_numpy, lengths=lengths)
    assert len(seen) == 32
    assert max(np.ptp(batch) for batch in seen) <= 1  # about 20 in random order
    for epoch in (seen[:16], seen[16:]):
        assert sorted(np.concatenate(epoch)) == sorted(lengths)
    assert [b.tolist() for b in seen[:16]] != [b.tolist() for b in seen[16:]]


def test_a_failing_validation_leaves_the_trained_weights():
    """Validation sees averaged weights; the model must not keep them when it fails."""
    seen = []

    class Watch(Callback):
        def on_step(self, run):
            seen.append(run.model.state_dict()["weight"].clone())

    def validate(model):
        if len(seen) > 8:
            assert not torch.equal(model.state_dict()["weight"], seen[-1])
            raise KeyError("no such figure")
        return {}

    x, y = torch.randn(32, 5), torch.randn(32, 1)
    model = nn.Linear(5, 1)
    trainer = Trainer(
        lambda m: torch.optim.SGD(m.parameters(), 0.1),
        epochs=4,
        batch_size=8,
        swa_start=0,
        callbacks=[Watch()],
    )
    with pytest.raises(KeyError):
        trainer.fit(
            model, lambda m, rows: ((m(x[rows]) - y[rows]) ** 2).mean(), 32, torch.from_numpy, validate
        )
    assert torch.equal(model.weight, seen[-1])


def test_an_interrupt_leaves_gradients_on():
    def loss(model, rows):
        torch.set_grad_enabled(False)  # as when Ctrl-C hits the end of torch.no_grad
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Trainer(lambda m: torch.optim.SGD(m.parameters(), 0.1)).fit(
            torch.nn.Linear(1, 1), loss, 1, lambda r: r
        )
    assert torch.is_grad_enabled()
