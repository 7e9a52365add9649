"""How LightXML trains its encoder: defaults by the length of a run, frozen layers cached, LoRA, checkpointing, DDP."""

from __future__ import annotations

import contextlib
import traceback

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from reference import tiny_encoder  # noqa: E402
from reference.lightxml_case import TEXTS, Y, make  # noqa: E402
from xmc_fast.nn import LightXML, _layers, load_encoder, tokenize  # noqa: E402
from xmc_fast.nn._lightxml_net import LightXMLNet  # noqa: E402
from xmc_fast.nn.tokens import Encoder  # noqa: E402
from xmc_fast.nn.train import Trainer, prepared  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_encoder.save(tmp_path_factory.mktemp("encoder"), TEXTS, layers=4)


def state(model):
    return {name: t.clone() for name, t in model.net_.state_dict().items()}


# ---- frozen layers


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
@pytest.mark.parametrize("kind", ["Bert", "Roberta", "DebertaV2", "DistilBert", "MPNet"])
@pytest.mark.parametrize("count", [1, 2])
def test_upper_layers_on_cached_states(folder, kind, count, tmp_path):
    """The last [CLS] states are those of the whole encoder, up to the rounding of bfloat16."""
    tokenizer = load_encoder(folder).tokenizer
    sizes = {"vocab_size": len(tokenizer), "num_hidden_layers": 3, "intermediate_size": 32}
    sizes |= {"hidden_size": 16, "num_attention_heads": 2}
    if kind == "DistilBert":
        sizes = {"vocab_size": len(tokenizer), "n_layers": 3, "dim": 16, "hidden_dim": 32, "n_heads": 2}
    torch.manual_seed(0)
    encoder = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**sizes)).eval()
    net = LightXMLNet(encoder, torch.tensor([0, 2, 4]), bottleneck=4, layers=4).eval()
    tokens = tokenize(TEXTS[:9], Encoder(encoder, tokenizer), max_length=12, warn=False)
    kept = _layers.States(encoder, count, tokens, folder=tmp_path, batch_size=4)
    rows = np.array([7, 0, 3, 8])
    with torch.no_grad():
        want = net.represent(tokens.batch(rows))
        got = net.represent(kept.batch(rows))
        again = net.represent(tokens.batch(rows))
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
    assert not torch.equal(got, want)  # it is another way there
    assert torch.equal(again, want)  # and the encoder is whole again


def test_frozen_layers_stay_and_are_computed_once(folder, tmp_path, monkeypatch):
    before = {name: t.clone() for name, t in load_encoder(folder).model.state_dict().items()}
    options = {"epochs": 3, "frozen_layers": 2, "layer_cache": tmp_path / "cache"}
    model = make(folder, **options).fit(TEXTS, Y)
    moved = {n for n, t in model.net_.encoder.state_dict().items() if not torch.equal(t, before[n])}
    assert moved
    assert all(n.startswith(("encoder.layer.2", "encoder.layer.3")) for n in moved)
    assert all(p.requires_grad for p in model.net_.parameters())
    assert model.history_[-1]["loss"] < model.history_[0]["loss"]
    (file,) = (tmp_path / "cache").iterdir()
    monkeypatch.setattr(_layers, "_fill", lambda *_: pytest.fail("computed again"))
    again = make(folder, **options).fit(TEXTS, Y)
    assert all(torch.equal(a, b) for a, b in zip(state(model).values(), state(again).values(), strict=True))
    monkeypatch.undo()
    with pytest.warns(UserWarning, match="were cut"):
        make(folder, **{**options, "max_length": 4}).fit(TEXTS, Y)  # other tokens, another file
    assert len(list((tmp_path / "cache").iterdir())) == 2
    with pytest.raises(ValueError, match=r"frozen_layers must be in \[0, 3\], got 4"):
        make(folder, frozen_layers=4).fit(TEXTS, Y)
    assert file.is_file()


def test_lora_becomes_part_of_the_weights(folder, tmp_path):
    before = {name: t.clone() for name, t in load_encoder(folder).model.state_dict().items()}
    model = make(folder, epochs=2, lora=2, frozen_layers=1).fit(TEXTS, Y)
    after = model.net_.encoder.state_dict()
    assert sorted(after) == sorted(before)
    moved = {name for name, t in after.items() if not torch.equal(t, before[name])}
    wanted = {f"encoder.layer.{i}.attention.self.{w}.weight" for i in (1, 2, 3) for w in ("query", "value")}
    assert moved == wanted
    for name in moved:
        assert torch.linalg.matrix_rank(after[name] - before[name], atol=1e-5) == 2
    model.save(tmp_path / "m")
    assert (LightXML.load(tmp_path / "m", device="cpu").predict(TEXTS, 3) != model.predict(TEXTS, 3)).nnz == 0


def test_gradient_checkpointing_has_the_same_weights(folder):
    plain, encoder = make(folder, dropout=0.3).fit(TEXTS, Y), load_encoder(folder)
    calls = []
    attention = encoder.model.encoder.layer[1].attention
    attention.register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    model = make(encoder, dropout=0.3, gradient_checkpointing=True, epochs=2).fit(TEXTS, Y)
    assert len(calls) == 2 * 2 * 8  # once more in the backward pass of each step
    for (name, a), b in zip(state(plain).items(), state(model).values(), strict=True):
        torch.testing.assert_close(a, b, msg=lambda text, name=name: f"{name}: {text}")


# ---- defaults


def test_defaults_of_a_short_run(folder):
    model = make(folder, lr=1e-4, head_lr=None, warmup_epochs=None, epochs=2)
    chosen = model._chosen(len(TEXTS))
    assert (chosen.head_lr, chosen.warmup_epochs, chosen.swa_start) == (2e-3, 10, None)
    model.fit(TEXTS, Y)
    assert len(model.history_) == 12
    long = model._chosen(200_000)
    assert (long.head_lr, long.warmup_epochs, long.swa_start) == (1e-4, 0, 1)
    rates = [make(folder, head_lr=None, lr=1.0)._chosen(n).head_lr for n in range(100, 100_000, 100)]
    assert (np.diff(rates) <= 0).all()  # never faster for a longer run
    fixed = make(folder, head_lr=0.5, warmup_epochs=3, swa_start=1)._chosen(10)
    assert (fixed.head_lr, fixed.warmup_epochs, fixed.swa_start) == (0.5, 3, 1)


def test_default_beam(folder, tmp_path):
    model = make(folder, beam=None, epochs=1).fit(TEXTS, Y)
    assert model._beam() == 10
    model.save(tmp_path / "m")
    loaded = LightXML.load(tmp_path / "m", device="cpu")
    assert loaded.beam is None
    assert (loaded.predict(TEXTS, 3) != model.predict(TEXTS, 3)).nnz == 0
    loaded.n_labels_ = 670_091
    assert loaded._beam() == 75


# ---- the two losses, one step


def test_the_weight_of_the_rank_loss(folder):
    net = make(folder, epochs=1).fit(TEXTS, Y).net_
    batch = {"positives": torch.tensor([[0, 5], [7, -1]]), "k": 3}
    batch["inputs"] = {"vectors": torch.randn(2, net.generator.in_features)}
    total, parts = net(batch, 0.25)
    torch.testing.assert_close(total, parts["recall"] + 0.25 * parts["rank"])
    one, other = (make(folder, epochs=1, rank_weight=w).fit(TEXTS, Y) for w in (0.0, 1.0))
    assert one.history_[0]["loss"] == pytest.approx(one.history_[0]["train_recall"], rel=1e-5)
    assert not torch.equal(one.net_.bottleneck.weight, other.net_.bottleneck.weight)


@pytest.mark.parametrize("more", [1, 8])
def test_losses_do_not_depend_on_the_number_of_easy_labels(folder, more):
    """More clusters and candidates that are rightly "no" change neither loss nor their relation by much."""
    net = make(folder, epochs=1).fit(TEXTS, Y).net_
    e, positives = torch.randn(2, net.generator.in_features), torch.tensor([[0], [1]])
    n = 16 * more
    wide = LightXMLNet(net.encoder, torch.arange(0, 4 * n + 1, 4), bottleneck=8, layers=net.layers).eval()
    torch.nn.init.zeros_(wide.generator.weight)
    torch.nn.init.constant_(wide.generator.bias, -12.0)
    torch.nn.init.zeros_(wide.bottleneck.weight)
    torch.nn.init.constant_(wide.bottleneck.bias, 1.0)
    torch.nn.init.constant_(wide.table.rows, -1.5)  # every candidate's logit is -12
    batch = {"inputs": {"vectors": e}, "positives": positives, "k": n}
    with torch.no_grad():
        _, parts = wide(batch)
    assert float(parts["recall"]) == pytest.approx(12, rel=0.01)
    assert float(parts["rank"]) == pytest.approx(12, rel=0.01)


@contextlib.contextmanager
def counted_reads(monkeypatch):
    """Counts what moves a value from the device to Python, except in torch's optimizers, whose step counts are on the
    CPU whatever the device."""
    seen = []
    for name in ("item", "tolist", "numpy", "__float__", "__int__", "__bool__", "__index__"):
        original = getattr(torch.Tensor, name)

        def method(self, *a, _original=original, _name=name, **k):
            stack = traceback.extract_stack(limit=4)
            if not any("torch/optim" in frame.filename for frame in stack):
                seen.append(_name)
            return _original(self, *a, **k)

        monkeypatch.setattr(torch.Tensor, name, method)
    yield seen
    monkeypatch.undo()


@pytest.mark.parametrize("accumulate", [1, 2])
def test_one_wait_for_the_device_in_a_step(folder, monkeypatch, accumulate):
    """Counted in the loss and the loop (the encoder and backward are torch's and transformers')."""
    net = make(folder, epochs=1).fit(TEXTS, Y).net_
    width = net.generator.in_features
    batch = {
        "inputs": {"vectors": torch.randn(2, width)},
        "positives": torch.tensor([[0, 5], [7, -1]]),
        "k": 3,
    }
    net.table.sparse_grad = False
    trainer = Trainer(
        lambda m: torch.optim.SGD(m.parameters(), 0.1),
        epochs=1,
        batch_size=2,
        accumulate=accumulate,
        clip_norm=1.0,
        device="cpu",
    )
    with counted_reads(monkeypatch) as seen:
        trainer.fit(net, lambda model, b: model(b), 8 * accumulate, lambda rows: batch)
    assert seen == ["tolist"] * 4


def test_worker_threads_keep_the_order(folder):
    rows = [np.array([i]) for i in range(23)]
    for workers in (0, 1, 3):
        assert [int(b) for b in prepared(lambda r: r[0], rows, workers, torch.device("cpu"))] == list(
            range(23)
        )

    def failing(r):
        if r[0] == 5:
            raise OSError("gone")
        return r

    with pytest.raises(OSError, match="gone"):
        list(prepared(failing, rows, 2, torch.device("cpu")))
    one, other = (make(folder, workers=w).fit(TEXTS, Y) for w in (0, 2))
    assert all(torch.equal(a, b) for a, b in zip(state(one).values(), state(other).values(), strict=True))
