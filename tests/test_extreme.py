"""SparseClassifier on texts under a tiny random transformer: learning, the auxiliary head, freezing, resume, files."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from reference import tiny_encoder  # noqa: E402
from xmc_fast.metrics import precision_at_k  # noqa: E402
from xmc_fast.model import ModelFormatError  # noqa: E402
from xmc_fast.nn import ExtremeClassifier, Rewire, SparseClassifier, load_encoder, tokenize  # noqa: E402
from xmc_fast.nn._embed import bag_of_tokens  # noqa: E402
from xmc_fast.nn.train import Callback  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_torch_thread")

LABELS, WORDS, N = 50, 60, 96


@pytest.fixture(scope="module")
def texts():
    """Each label has a word of its own; texts are the words of their labels and some others."""
    rng = np.random.default_rng(0)
    Y = np.zeros((N, LABELS), bool)
    out = []
    for i in range(N):
        labels = rng.choice(LABELS, 2, replace=False)
        Y[i, labels] = True
        out.append(" ".join([f"w{label}" for label in labels] + [f"w{rng.integers(LABELS, WORDS)}"]))
    return out, sp.csr_matrix(Y)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory, texts):
    words = " ".join(f"w{i}" for i in range(WORDS))
    return load_encoder(tiny_encoder.save(tmp_path_factory.mktemp("encoder"), [words], layers=2))


def fit(encoder, texts, **options):
    base = {
        "fan_in": 4,
        "meta": 8,
        "epochs": 3,
        "batch_size": 16,
        "lr": 1e-2,
        "encoder_lr": 3e-3,
        "dropout": 0.0,
    }
    rewire = Rewire(interval=4, grow="gradient")
    files = {name: options.pop(name) for name in ("checkpoint", "checkpoint_every") if name in options}
    model = SparseClassifier(encoder=encoder, **{**base, "rewire": rewire, **options})
    return model.fit(*texts, **files)


def same(a, b):
    for (name, x), y in zip(a.network_.state_dict().items(), b.network_.state_dict().values(), strict=True):
        assert torch.equal(x, y), name


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"meta": None},
        {"output": "head_tail", "head": 10, "meta": None},
        {"output": "dense"},
        {"group_size": 4},
    ],
    ids=str,
)
def test_learns_saves_and_loads(encoder, texts, options, tmp_path):
    before = {name: p.clone() for name, p in encoder.model.state_dict().items()}
    model = fit(encoder, texts, epochs=12, **options)
    assert model.history_[-1]["loss"] < 0.8 * model.history_[0]["loss"]
    top = model.predict(texts[0], 5)
    assert np.all(np.diff(top.data.reshape(-1, 5), axis=1) <= 0)
    assert precision_at_k(texts[1], top, 1) > 0.3  # chance: 0.04
    for name, p in encoder.model.state_dict().items():  # the caller's encoder is not touched
        assert torch.equal(p, before[name])
    model.save(tmp_path / "m")
    back = SparseClassifier.load(tmp_path / "m")
    again = back.predict(texts[0], 5)
    assert np.array_equal(top.indices, again.indices)
    assert np.array_equal(top.data, again.data)
    assert (back.fan_in, back.history_) == (4, model.history_)
    assert set(model.memory()) == {"output", "encoder", "gradients", "state"}


def test_meta_loss_decays_and_is_cut_off(encoder, texts):
    """With lr 0 the loss is that of the start: it differs from the plain one by the weight of the meta loss."""
    frozen = {"lr": 0.0, "encoder_lr": 0.0, "rewire": None, "epochs": 4, "meta_stop": 0.5}
    plain = [r["loss"] for r in fit(encoder, texts, **{**frozen, "meta": None}).history_]
    extra = [
        a["loss"] - b
        for a, b in zip(fit(encoder, texts, **frozen, meta_weight=2.0).history_, plain, strict=True)
    ]
    assert extra[0] > extra[1] > 0
    assert extra[2:] == [0.0, 0.0]
    # means over 6 steps of the weights 2 (1 - t / 12)
    assert extra[0] / extra[1] == pytest.approx((6 * 12 - 15) / (6 * 12 - 51), rel=0.05)


def test_meta_head_is_gone_after_training_and_clusters_cover_the_labels(encoder, texts):
    seen = []

    class Watch(Callback):
        def on_start(self, run):
            seen.append(run.model.meta.out_features)

    model = fit(encoder, texts, epochs=1, callbacks=[Watch()])
    assert model.network_.meta is None
    assert LABELS / 8 <= seen[0] <= LABELS / 4 + 1


@pytest.mark.parametrize(("layers", "trained"), [(0, "all"), (1, "one"), (-1, "none")])
def test_frozen_layers(encoder, texts, layers, trained):
    model = fit(encoder, texts, epochs=1, frozen_layers=layers)
    start = encoder.model.state_dict()
    moved = {n for n, p in model.network_.embed.encoder.state_dict().items() if not torch.equal(p, start[n])}
    assert any(n.startswith("encoder.layer.1.") for n in moved) == (trained != "none")
    assert any(n.startswith("encoder.layer.0.") for n in moved) == (trained == "all")
    assert any(n.startswith("embeddings.") for n in moved) == (trained == "all")


class Die(Callback):
    def on_step(self, run):
        if run.step == 11:
            raise KeyboardInterrupt


def test_deterministic_and_resumable(encoder, texts, tmp_path):
    whole = fit(encoder, texts, dropout=0.1)
    same(whole, fit(encoder, texts, dropout=0.1))
    resumable = {"checkpoint": tmp_path / "run.pt", "checkpoint_every": 2, "dropout": 0.1}
    with pytest.raises(KeyboardInterrupt):
        fit(encoder, texts, **resumable, callbacks=[Die()])
    same(whole, fit(encoder, texts, **resumable, callbacks=[Callback()]))


def test_pooling_precision_and_tokens(encoder, texts):
    words, Y = texts
    made = tokenize(words, encoder, max_length=20)
    model = SparseClassifier(4, encoder=encoder, pooling="cls", epochs=1, precision="bf16", max_length=20)
    model.fit(made, Y, validation=(made, Y))
    assert model.history_[-1]["p@1"] == pytest.approx(precision_at_k(Y, model.predict(words), 1))


def test_bag_of_tokens(encoder):
    made = tokenize(["w1 w1 w2", "", "w2"], encoder)
    bag = bag_of_tokens(made, len(encoder.tokenizer))
    norms = np.sqrt(np.asarray(bag.multiply(bag).sum(1)).ravel())
    np.testing.assert_allclose(norms, 1, rtol=1e-5)
    ids = encoder.tokenizer.convert_tokens_to_ids(["w1", "w2"])
    counts = np.array([[1 + np.log(2), 1], [0, 0], [0, 1.0]])
    idf = 1 + np.log(4 / (1 + np.array([1, 2])))
    raw = counts * idf
    got = bag.toarray()[:, ids]
    np.testing.assert_allclose(got[0, 0] / got[0, 1], raw[0, 0] / raw[0, 1], rtol=1e-5)
    assert got[1].tolist() == [0, 0]


def test_errors(encoder, texts, tmp_path):
    for options, message in (
        ({"pooling": "max"}, "pooling must be one of"),
        ({"meta": 0}, "meta must be at least 1 label"),
        ({"meta_stop": 2}, r"meta_stop must be in \[0, 1\], got 2"),
        ({"frozen_layers": 3}, r"frozen_layers must be in \[-1, 2\]"),
        ({"output": "x"}, "output must be one of"),
    ):
        with pytest.raises(ValueError, match=message):
            fit(encoder, texts, **options)
    with pytest.raises(ValueError, match="not fitted"):
        SparseClassifier(encoder=encoder).predict(["x"])
    with pytest.raises(ValueError, match="Y has 96 rows, expected 1"):
        SparseClassifier(encoder=encoder).fit(["x"], texts[1])
    with pytest.raises(ModelFormatError, match="file is missing"):
        SparseClassifier.load(tmp_path)
    model = fit(encoder, texts, epochs=1)
    with pytest.raises(ValueError, match=r"k must be in \[1, 50\], got 0"):
        model.predict(["x"], 0)


def test_the_old_name_warns_and_means_the_same(encoder, texts):
    with pytest.warns(DeprecationWarning, match="use SparseClassifier"):
        old = ExtremeClassifier(encoder, 4, lr=3e-3, output_lr=1e-2, meta=8, epochs=1, random_state=3)
    new = SparseClassifier(4, encoder=encoder, lr=1e-2, encoder_lr=3e-3, meta=8, epochs=1, random_state=3)
    same(old.fit(*texts), new.fit(*texts))
    ids, scores = new.predict_one(texts[0][0], 3)
    assert ids.tolist() == new.predict(texts[0][:1], 3).indices.tolist()
    assert scores.shape == (3,)
