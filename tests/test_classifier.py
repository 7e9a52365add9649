"""SparseClassifier, its optimizers and the mined loss: references, determinism, memory, save and load, resume."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp

torch = pytest.importorskip("torch")

from sklearn.base import clone  # noqa: E402
from torch import nn  # noqa: E402

from bench.experiments.masked import stored_bytes  # noqa: E402
from reference import fanin as ref  # noqa: E402
from xmc_fast import data  # noqa: E402
from xmc_fast.metrics import precision_at_k  # noqa: E402
from xmc_fast.model import ModelFormatError  # noqa: E402
from xmc_fast.nn import FixedFanInLinear, Rewire, SparseClassifier, mined_squared_hinge  # noqa: E402
from xmc_fast.nn._estimator import module_bytes as layer_bytes  # noqa: E402
from xmc_fast.nn._outputs import KINDS, make_output, output_loss  # noqa: E402
from xmc_fast.nn.optim import SparseAwareAdam, SparseAwareSGD, stochastic_round  # noqa: E402
from xmc_fast.nn.train import Callback  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_torch_thread")

RULES = Rewire(interval=5, grow="gradient")


@pytest.fixture(scope="module")
def small():
    d = data.make_synthetic(160, 60, 50, features_per_point=15, labels_per_point=3, random_state=1)
    return d.X, d.Y


def fit(small, **options):
    X, Y = small
    base = {"fan_in": 8, "hidden": 32, "epochs": 4, "batch_size": 32, "lr": 0.01, "rewire": RULES}
    files = {name: options.pop(name) for name in ("checkpoint", "checkpoint_every") if name in options}
    return SparseClassifier(**{**base, **options}).fit(X, Y, **files)


def same(a, b):
    for (name, x), y in zip(a.network_.state_dict().items(), b.network_.state_dict().values(), strict=True):
        assert torch.equal(x, y), name


# ---- the mined loss


@pytest.mark.parametrize("group_size", [1, 4])
@pytest.mark.parametrize("chunk", [1, 60, 1 << 22])
def test_mined_loss_equals_the_formula(chunk, group_size):
    torch.manual_seed(0)
    rows, features, labels = 7, 20, 33
    layer = FixedFanInLinear(features, labels, 5, group_size=group_size)
    nn.init.constant_(layer.bias, -2.0)
    x = torch.randn(rows, features, requires_grad=True)
    y = sp.csr_matrix(np.random.default_rng(0).random((rows, labels)) < 0.1)
    value = mined_squared_hinge(x, layer, y, reduction="sum", chunk=chunk)
    value.backward()
    weight, indices = layer.weight.detach().numpy().astype(float), layer.indices.numpy()
    W = ref.dense(weight, indices, group_size, features)
    z = ref.forward(x.detach().numpy().astype(float), W, layer.bias.detach().numpy())
    wanted, g = ref.squared_hinge(z, 2 * y.toarray() - 1.0)
    gx, gw, gb = ref.gradients(x.detach().numpy().astype(float), W, g, indices, group_size)
    assert float(value.detach()) == pytest.approx(wanted, rel=1e-5)
    np.testing.assert_allclose(x.grad.numpy(), gx, rtol=1e-4, atol=1e-4)
    assert layer.weight.grad.is_sparse
    np.testing.assert_allclose(layer.weight.grad.to_dense().numpy(), gw, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(layer.bias.grad.to_dense().numpy(), gb, rtol=1e-4, atol=1e-4)
    touched = set(layer.weight.grad.coalesce().indices()[0].tolist())
    assert touched == set(np.flatnonzero((g != 0).any(0)).tolist())
    assert len(touched) < labels


def test_mined_loss_of_empty_batches_and_labels():
    for rows, labels in ((0, 9), (3, 0), (3, 1)):
        layer = FixedFanInLinear(6, labels, 2)
        x = torch.zeros(rows, 6, requires_grad=True)
        value = mined_squared_hinge(x, layer, sp.csr_matrix((rows, labels), dtype=bool))
        value.backward()
        assert x.grad.shape == (rows, 6)


# ---- optimizers


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_dense_gradients_give_torchs_own_update(name):
    torch.manual_seed(0)
    a = nn.Parameter(torch.randn(5, 3))
    b = nn.Parameter(a.detach().clone())
    if name == "adam":
        ours, theirs = (
            SparseAwareAdam([a], 0.01, weight_decay=0.1),
            torch.optim.AdamW([b], 0.01, weight_decay=0.1),
        )
    else:
        ours, theirs = SparseAwareSGD([a], 0.01, momentum=0.9), torch.optim.SGD([b], 0.01, momentum=0.9)
    for _ in range(5):
        a.grad = torch.randn(5, 3)
        b.grad = a.grad.clone()
        ours.step()
        theirs.step()
    torch.testing.assert_close(a, b)


@pytest.mark.parametrize("make", [SparseAwareAdam, lambda p, lr: SparseAwareSGD(p, lr, momentum=0.9)])
def test_sparse_gradients_touch_only_their_rows(make):
    torch.manual_seed(0)
    full, part = nn.Parameter(torch.ones(6, 2)), nn.Parameter(torch.ones(6, 2))
    a, b = make([full], 0.1), make([part], 0.1)
    for _ in range(3):
        g = torch.zeros(6, 2)
        g[[1, 4]] = torch.randn(2, 2)
        full.grad = g
        part.grad = torch.sparse_coo_tensor([[4, 1]], g[[4, 1]], (6, 2), check_invariants=False)
        a.step()
        b.step()
    assert torch.equal(part.detach()[[0, 2, 3, 5]], torch.ones(4, 2))
    torch.testing.assert_close(part, full)  # rows without gradient do not move in either


def test_stochastic_rounding_is_fair_and_exact_values_stay():
    torch.manual_seed(0)
    x = torch.tensor([1.0 + 1 / 512, -3.001, 1e-20]).repeat(200_000, 1)
    out = stochastic_round(x)
    assert out.dtype == torch.bfloat16
    np.testing.assert_allclose(out.double().mean(0), x[0].double(), rtol=1e-4)
    assert out[:, 0].unique().tolist() == [1.0, 1.0078125]
    exact = torch.tensor([0.0, 1.0, -2.5, float("inf"), float("nan")])
    torch.testing.assert_close(stochastic_round(exact).float(), exact, equal_nan=True, rtol=0, atol=0)


def test_small_updates_of_bf16_weights_are_not_lost():
    torch.manual_seed(0)
    p = nn.Parameter(torch.ones(4000, dtype=torch.bfloat16))
    optimizer = SparseAwareSGD([p], 1.0)
    for _ in range(50):
        p.grad = torch.full_like(p, 1e-3)  # a quarter of the distance of two bfloat16 numbers
        optimizer.step()
    assert float(p.detach().float().mean()) == pytest.approx(0.95, abs=2e-3)


# ---- output layers


def test_output_layers_and_their_memory():
    h, labels, fan_in = 64, 300, 8
    layers = {k: make_output(k, h, labels, fan_in=fan_in, head=[1, 2]) for k in KINDS}
    assert layer_bytes(layers["dense"]) == labels * (h + 1) * 4
    assert layer_bytes(layers["fan_in"]) == labels * (fan_in * 6 + 4)
    assert layer_bytes(layers["bottleneck"]) <= 1.2 * layer_bytes(layers["fan_in"])
    assert stored_bytes(layers["masked"]) < layer_bytes(layers["dense"])
    x, y = torch.randn(5, h), sp.csr_matrix(np.eye(5, labels, dtype=bool))
    for kind, layer in layers.items():
        assert layer(x).eq(-1).all(), kind  # where negatives have no loss
        for parameter in layer.parameters():
            nn.init.normal_(parameter)
        for loss in ("squared_hinge", "bce"):
            sign = torch.from_numpy(2 * y.toarray() - 1.0).float()
            z = layer(x)
            each = (
                (1 - sign * z).clamp(min=0) ** 2
                if loss == "squared_hinge"
                else nn.functional.softplus(-sign * z)
            )
            torch.testing.assert_close(
                output_loss(layer, x, y, loss=loss), each.sum() / 5, msg=lambda m, k=kind: f"{k}: {m}"
            )


# ---- the classifier


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dense", [False, True])
def test_learns_with_every_output(small, kind, dense):
    X, Y = (small[0].toarray(), small[1]) if dense else small
    model = fit((X, Y), output=kind, head=5, rank=8, epochs=30, lr=0.03)
    assert model.history_[-1]["loss"] < 0.7 * model.history_[0]["loss"]
    top = model.predict(X, 5)
    assert top.shape == Y.shape
    assert np.all(np.diff(top.indptr) == 5)
    scores = top.data.reshape(-1, 5)
    assert np.all(np.diff(scores, axis=1) <= 0)
    frequent = np.argsort(-np.asarray(Y.sum(0)).ravel())[:1]
    assert precision_at_k(Y, top, 1) > 0.2 + precision_at_k(Y, np.repeat(frequent[None], len(scores), 0), 1)


@pytest.mark.parametrize(
    "options",
    [
        {"hidden": None},
        {"gradient": "sparse"},
        {"dtype": "bfloat16"},
        {"optimizer": "sgd", "lr": 0.05},
        {"group_size": 8},
        {"loss": "bce"},
        {"dropout": 0.2, "swa_start": 2},
    ],
    ids=str,
)
def test_options_learn_save_and_load(small, options, tmp_path):
    model = fit(small, **options)
    assert model.history_[-1]["loss"] < model.history_[0]["loss"]
    same(model, fit(small, **options))
    model.save(tmp_path / "m")
    back = SparseClassifier.load(tmp_path / "m")
    a, b = model.predict(small[0], 5), back.predict(small[0], 5)
    assert np.array_equal(a.indices, b.indices)
    assert np.array_equal(a.data, b.data)
    assert (back.fan_in, back.rewire.options(), back.history_) == (8, RULES.options(), model.history_)
    model.save(tmp_path / "m")  # a model is replaced
    assert (tmp_path / "m" / "weights.safetensors").stat().st_size > 0


def test_sparse_and_fused_gradients_train_alike(small):
    fused, mined = (fit(small, gradient=g, optimizer="sgd", lr=0.01, epochs=2) for g in ("fused", "sparse"))
    assert fused.history_[-1]["loss"] == pytest.approx(mined.history_[-1]["loss"], rel=0.05)
    one, other = (
        fit(small, gradient=g, optimizer="sgd", lr=0.01, epochs=1, batch_size=160, rewire=None)
        for g in ("fused", "sparse")
    )
    torch.testing.assert_close(one.network_.output.weight, other.network_.output.weight)


def test_grouped_labels_come_back_in_their_own_order(small):
    X, Y = small
    model = fit(small, group_size=8, epochs=15, lr=0.02)
    assert sorted(model.order_.tolist()) == list(range(50))
    assert model.order_.tolist() != list(range(50))
    assert precision_at_k(Y, model.predict(X, 5), 1) > 0.5


@pytest.mark.parametrize("hidden", [None, 32])
def test_the_scale_of_rows_does_not_matter(small, hidden):
    """Rows are brought to one length, sparse or dense; without that, only the intermediate layer adapts."""
    X, Y = small
    factors = sp.diags(np.random.default_rng(0).uniform(1, 1000, X.shape[0]).astype(np.float32))
    model, other = fit(small, hidden=hidden), fit(((factors @ X).tocsr(), Y), hidden=hidden)
    assert model.network_.embed.norm == pytest.approx((X.nnz / X.shape[0]) ** 0.5)
    a, b = model.predict(X, 5), other.predict(X * np.float32(7), 5)
    np.testing.assert_allclose(a.data, b.data, rtol=1e-3, atol=1e-3)
    dense = fit((X.toarray(), Y), hidden=hidden)
    np.testing.assert_allclose(a.data, dense.predict(X.toarray(), 5).data, rtol=1e-3, atol=1e-3)
    assert fit(small, hidden=hidden, normalize=False).network_.embed.norm is None


def test_memory_counts_bytes(small):
    memory = fit(small, epochs=1).memory()
    assert memory == {
        "output": 50 * 8 * 6 + 50 * 4,
        "hidden": 61 * 32 * 4,
        "gradients": (50 * 9 + 61 * 32) * 4,
        "state": (50 * 9 + 61 * 32) * 8,
    }
    assert fit(small, epochs=1, gradient="sparse").memory()["gradients"] == 61 * 32 * 4


class Die(Callback):
    def on_step(self, run):
        if run.step == 13:
            raise KeyboardInterrupt


@pytest.mark.parametrize(
    "options", [{}, {"dtype": "bfloat16", "gradient": "sparse", "dropout": 0.3}], ids=str
)
def test_resume_gives_the_same_weights(small, options, tmp_path):
    whole = fit(small, **options)
    resumable = {**options, "checkpoint": tmp_path / "run.pt", "checkpoint_every": 2}
    with pytest.raises(KeyboardInterrupt):
        fit(small, **resumable, callbacks=[Die()])
    resumed = fit(small, **resumable, callbacks=[Callback()])
    same(whole, resumed)
    drop = ("seconds",)
    rows = [[{k: v for k, v in r.items() if k not in drop} for r in m.history_] for m in (whole, resumed)]
    assert rows[0] == rows[1]


def test_validation_figures_and_plot(small):
    X, Y = small
    model = SparseClassifier(8, epochs=3, batch_size=16, lr=0.01, rewire=RULES).fit(X, Y, validation=(X, Y))
    assert model.history_[-1]["p@1"] == pytest.approx(precision_at_k(Y, model.predict(X, 5), 1))
    assert any("train_p@1" in row for row in model.history_)
    pytest.importorskip("matplotlib").use("Agg")
    from xmc_fast.plots import plot_run

    ax = plot_run(model.history_)
    assert ax.get_lines()[0].get_ydata().tolist() == [r["loss"] for r in model.history_]
    with pytest.raises(ValueError, match="at least one epoch"):
        plot_run([])


LARGE = """
import resource, sys
import numpy as np, scipy.sparse as sp, torch
from xmc_fast.nn import Rewire, SparseClassifier
torch.set_num_threads(1)
labels, features, rows = 200_000, 512, 32
rng = np.random.default_rng(0)
X = rng.standard_normal((rows, features), np.float32)
Y = sp.csr_matrix((np.ones(rows * 4), rng.integers(0, labels, rows * 4), np.arange(0, rows * 4 + 1, 4)), (rows, labels))
Y = Y > 0
SparseClassifier(2, epochs=1, batch_size=16, rewire=None).fit(X, Y[:, :1000])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model = SparseClassifier(8, epochs=1, batch_size=16, gradient=sys.argv[1],
                         rewire=Rewire(interval=1, stop=1.0, grow="gradient", chunk=1 << 20)).fit(X, Y)
model.predict(X, 5)
assert model.network_.output.record is None
print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / (labels * features * 4))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no resource module")
def test_peak_memory_is_far_below_the_dense_matrix():
    """A run on 200,000 labels x 512 features, rewiring by gradient, against the 410 MB of one dense matrix."""
    run = subprocess.run([sys.executable, "-c", LARGE, "fused"], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert float(run.stdout) < 0.4


def test_errors(small, tmp_path):
    X, Y = small
    for options, message in (
        ({"output": "x"}, "output must be one of"),
        ({"gradient": "sparse", "output": "dense"}, 'gradient="sparse" needs'),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        ({"dtype": "bfloat16", "output": "dense"}, 'needs output="fan_in"'),
    ):
        with pytest.raises(ValueError, match=message):
            SparseClassifier(8, **options).fit(X, Y)
    with pytest.raises(ValueError, match="not fitted"):
        SparseClassifier().predict(X)
    model = fit(small, epochs=1)
    with pytest.raises(ValueError, match="X has 59 columns, expected 60"):
        model.predict(X[:, :59])
    with pytest.raises(ValueError, match=r"k must be in \[1, 50\], got 51"):
        model.predict(X, 51)
    with pytest.raises(ValueError, match="X must be finite"):
        model.predict(np.full((1, 60), np.nan))
    with pytest.raises(ModelFormatError, match="file is missing"):
        SparseClassifier.load(tmp_path)
    model.save(tmp_path / "m")
    weights = tmp_path / "m" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\xff")
    with pytest.raises(ModelFormatError, match="damaged"):
        SparseClassifier.load(tmp_path / "m")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("way", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_predict_the_same(small, way, when):
    model = fit(small, epochs=1, group_size=4)
    if when == "after":
        model.predict(small[0])
    a, b = model.predict(small[0]), way(model).predict(small[0])
    assert np.array_equal(a.indices, b.indices)
    assert np.array_equal(a.data, b.data)


def test_clone_one_row_probabilities_and_size(small):
    X, Y = small
    model = clone(SparseClassifier(4, loss="bce", epochs=2, rewire=RULES, patience=1))
    assert (model.fan_in, model.loss, model.patience, model.rewire.interval) == (4, "bce", 1, 5)
    model.fit(X, Y, validation=(X, Y))
    top = model.predict(X, proba=True)
    np.testing.assert_allclose(top.data, 1 / (1 + np.exp(-model.predict(X).data)), rtol=1e-5)
    row = X[3]
    for one in (row, row.toarray()[0], (row.indices, row.data)):
        ids, scores = model.predict_one(one, proba=True)
        assert ids.tolist() == top[3].indices.tolist()
        np.testing.assert_allclose(scores, top[3].data, rtol=1e-6)
    assert model.nbytes == 50 * (4 * 6 + 4)
    with pytest.raises(ValueError, match='proba=True needs loss="bce"'):
        fit(small, epochs=1).predict(X, proba=True)
    with pytest.raises(ValueError, match="schedule must be constant, linear, cosine or a function"):
        fit(small, schedule="x")
