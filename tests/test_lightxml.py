"""LightXML against plain numpy, on a tiny random encoder: candidates, losses, scores, training."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.sparse as sp

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from reference import lightxml as reference  # noqa: E402
from reference import tiny_encoder  # noqa: E402
from reference.lightxml_case import N_LABELS, TEXTS, Y, make, make_data  # noqa: E402
from xmc_fast import metrics  # noqa: E402
from xmc_fast.nn import LightXML, _lightxml_fit, load_encoder  # noqa: E402
from xmc_fast.nn._lightxml_net import LightXMLNet  # noqa: E402
from xmc_fast.nn.tokens import Encoder  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_encoder.save(tmp_path_factory.mktemp("encoder"), TEXTS, layers=2)


@pytest.fixture(scope="module")
def fitted(folder):
    return make(folder, epochs=25, activation="identity").fit(TEXTS, Y)


# ---- the network against the reference

CLUSTERS = [[0, 1, 2], [3, 4, 5, 6], [7], [8, 9, 10]]  # labels by place


def make_net(folder, activation="sigmoid", fan_in=None, label_bias=False):
    offsets = torch.tensor([0, 3, 7, 8, 11])
    torch.manual_seed(0)
    net = LightXMLNet(
        load_encoder(folder).model,
        offsets,
        bottleneck=6,
        layers=2,
        activation=activation,
        label_bias=label_bias,
        fan_in=fan_in,
        group_size=2,
    )
    with torch.no_grad():
        for parameter in (net.generator.weight, net.bottleneck.weight, net.table.weight):
            parameter.copy_(torch.randn(parameter.shape) / 2)
    return net.eval().requires_grad_(False)


def weights(net):
    arrays = [net.generator.weight, net.generator.bias, net.bottleneck.weight, net.bottleneck.bias]
    table = net.table.weight.detach()
    if net.table.fan is not None:
        dense = torch.zeros(len(table), net.bottleneck.out_features)
        for label, row in enumerate(table):
            dense[label, net.table.fan.indices[label // 2].long()] = row
        table = dense
    if net.table.bias:  # a dim more, which is 1 for every text
        arrays[2] = torch.cat([arrays[2], torch.zeros(1, arrays[2].shape[1])])
        arrays[3] = torch.cat([arrays[3], torch.ones(1)])
    return [t.detach().double().numpy() for t in (*arrays, table)]


POSITIVES = [[0, 2, 9], [], [7], [3, 4, 5, 6], [1, 4, 7, 8]]


def padded(rows):
    width = max(map(len, rows))
    return torch.tensor([row + [-1] * (width - len(row)) for row in rows])


@pytest.mark.parametrize(
    ("activation", "fan_in", "label_bias"),
    [("sigmoid", None, False), ("identity", None, False), ("identity", None, True), ("sigmoid", 3, False)],
)
def test_candidates_losses_and_scores_match_reference(folder, activation, fan_in, label_bias):
    net = make_net(folder, activation, fan_in, label_bias)
    e = torch.randn(5, 32, generator=torch.Generator().manual_seed(1))
    w = weights(net)
    logits = net.recall(e)
    for beam in (1, 2, 4):
        chosen = net.choose(logits, beam)
        found = net.candidates(chosen)
        for row, text in enumerate(e.double().numpy()):
            g = reference.sigmoid(w[0] @ text + w[1])
            want = reference.candidates(CLUSTERS, reference.candidate_clusters(g, beam))
            assert sorted(found[row][found[row] >= 0].tolist()) == want
    for n, k in ((4, 2), (4, 3), (5, 4)):  # the last text has positives in four clusters
        positives = padded(POSITIVES[:n])
        wanted = [
            reference.losses(text, set(pos), CLUSTERS, *w, k, activation)
            for text, pos in zip(e[:n].double().numpy(), POSITIVES[:n], strict=True)
        ]
        recall, rank = np.mean(wanted, axis=0)
        chosen = net.choose(logits[:n], k, positives)
        assert float(net.recall_loss(logits[:n], positives)) == pytest.approx(recall, rel=1e-5)
        assert float(net.rank_loss(e[:n], chosen, positives)) == pytest.approx(rank, rel=1e-5)
    for beam in (1, 3):
        net.represent = lambda inputs: e
        values, places = net.best({}, 5, beam)
        for row, text in enumerate(e.double().numpy()):
            want = reference.scores(text, CLUSTERS, *w, beam, activation)
            kept = places[row] >= 0
            got = dict(zip(places[row][kept].tolist(), values[row][kept].tolist(), strict=True))
            assert got == pytest.approx(want, rel=1e-5)
            assert (values[row][~kept] == 0).all()


@pytest.mark.parametrize("beam", [1, 2, 3])
def test_all_positives_are_candidates(folder, beam):
    """Whatever the generator says: true clusters come first, and a batch takes as many as its texts need."""
    net = make_net(folder)
    offsets = net.offsets.numpy()
    y = sp.csr_matrix(
        (np.ones(12), ([0, 0, 0, 2, 3, 3, 3, 3, 4, 4, 4, 4], np.concatenate(POSITIVES).astype(int))), (5, 11)
    )
    csr = _lightxml_fit.by_place(
        _lightxml_fit.Csr(y.indptr.astype(np.int64), y.indices, None, y.shape), np.arange(11)
    )
    tokens = type("T", (), {"batch": lambda self, rows: {}, "n_texts": 5})()
    data = _lightxml_fit.Data(tokens, csr, offsets, beam)
    assert data.true_clusters.tolist() == [2, 0, 1, 1, 4]
    for rows in ([0, 1], [2, 3], [4], [0, 1, 2, 3, 4]):
        batch = data.fetch(np.array(rows))
        assert batch["k"] == max(beam, data.true_clusters[rows].max())
        worst = torch.where(torch.rand(len(rows), 4) < 0.5, -50.0, 50.0)
        chosen = net.choose(worst, batch["k"], batch["positives"])
        found, targets = net.candidates(chosen), net.targets(chosen, batch["positives"])
        for row, text in enumerate(rows):
            assert set(POSITIVES[text]) <= set(found[row].tolist())
            assert sorted(found[row][targets[row] > 0].tolist()) == POSITIVES[text]
            assert len(set(chosen[row].tolist())) == batch["k"]


# ---- training


def test_learns_and_predicts(fitted):
    P = fitted.predict(TEXTS, 3)
    assert P.shape == Y.shape
    assert metrics.precision_at_k(Y, P, k=1) > 0.75  # 0.12 by chance
    for row in range(len(TEXTS)):
        scores = P.data[P.indptr[row] : P.indptr[row + 1]]
        assert (np.diff(scores) <= 0).all()
        ids, one = fitted.predict_one(TEXTS[row], 3)
        assert ids.tolist() == P.indices[P.indptr[row] : P.indptr[row + 1]].tolist()
        np.testing.assert_allclose(one, scores, rtol=1e-4)
        if row == 5:
            break
    assert ((P.data >= 0) & (P.data <= 1)).all()
    few = make_few(fitted)
    assert few.shape == (2, N_LABELS)
    assert (np.diff(few.indptr) <= 8).all()  # two clusters of at most four labels
    assert (np.diff(few.indptr) >= 4).all()
    assert fitted.predict([], 3).shape == (0, N_LABELS)


def make_few(model):
    return model.predict(TEXTS[:2], N_LABELS)


def test_equal_scores_by_lower_label(fitted):
    class Fixed:
        offsets = fitted.net_.offsets
        flat = False

        def best(self, inputs, k, beam):
            places = torch.tensor([[5, 0, 9, 3, -1]])
            return torch.tensor([[0.5, 0.5, 0.5, 0.75, 0.0]]), places

    copy = LightXML("unused")
    copy.net_, copy.order_, copy.n_labels_ = (
        Fixed(),
        np.arange(N_LABELS, dtype=np.int32)[::-1].copy(),
        N_LABELS,
    )
    ids, scores = copy._best({}, 4)
    assert ids.tolist() == [[20, 14, 18, 23]]
    assert scores.tolist() == [[0.75, 0.5, 0.5, 0.5]]
    assert copy._best({}, 2)[0].tolist() == [[20, 14]]
    assert copy._best({}, 7)[0].tolist() == [[20, 14, 18, 23, -1, -1, -1]]


def test_negatives_change_as_the_generator_learns(folder, fitted):
    """Dynamic: the candidates of a text are others after training than before, and get harder to tell apart."""
    young = make(folder, epochs=1, lr=1e-6, head_lr=1e-6, activation="identity").fit(TEXTS, Y)
    before, after = young.candidates(TEXTS), fitted.candidates(TEXTS)
    assert young.order_.tolist() == fitted.order_.tolist()
    changed = np.mean([a.tolist() != b.tolist() for a, b in zip(before, after, strict=True)])
    assert changed > 0.5
    true = [set(Y[i].indices) for i in range(len(TEXTS))]
    recall = [
        np.mean([len(t & set(c)) / len(t) for t, c in zip(true, found, strict=True)])
        for found in (before, after)
    ]
    assert recall[1] > recall[0] + 0.2


@pytest.mark.parametrize("negatives", ["static", "static_copy", "random"])
def test_static_negatives(folder, negatives):
    model = make(folder, negatives=negatives, epochs=3).fit(TEXTS, Y)
    phases = 1 if negatives == "random" else 2
    assert len(model.history_) == 3 * phases
    assert (model.net_.rank_encoder is not None) == (negatives == "static_copy")
    last = [row["loss"] for row in model.history_[-3:]]
    assert last[-1] < last[0]
    assert model.predict(TEXTS[:3], 2).nnz == 6
    assert all(p.requires_grad for p in model.net_.parameters())


def test_static_negatives_stay(folder, monkeypatch):
    """Fixed clusters are the same in each epoch; dynamic ones are not."""
    seen = {}

    def spy(net, scores, k, positives=None):
        chosen = original(net, scores, k, positives)
        if positives is not None:
            for p, c in zip(positives.tolist(), chosen.tolist(), strict=True):
                seen.setdefault(tuple(x for x in p if x >= 0), []).append(tuple(sorted(c)))
        return chosen

    original = LightXMLNet.choose
    monkeypatch.setattr(LightXMLNet, "choose", spy)
    varied = {}
    rows = [i for i in range(len(TEXTS)) if (abs(Y - Y[i].toarray()).sum(1) == 0).sum() == 1]  # no equal rows
    for negatives in ("random", "dynamic"):
        seen.clear()
        make(folder, negatives=negatives, epochs=3, beam=5, max_leaf=2, batch_size=1).fit(
            [TEXTS[i] for i in rows], Y[rows]
        )
        assert {len(chosen) for chosen in seen.values()} == {3}
        varied[negatives] = np.mean([len(set(chosen)) > 1 for chosen in seen.values()])
    assert varied["random"] == 0
    assert varied["dynamic"] > 0.5


@pytest.mark.parametrize("n", [1, 2, 7])
def test_distinct_draws(n):
    draws = np.random.default_rng(0).random((200, n))
    found = _lightxml_fit._distinct(draws, 7)
    assert all(len(set(row)) == n and min(row) >= 0 and max(row) < 7 for row in found.tolist())
    if n == 2:
        assert np.bincount(found[:, 0], minlength=7).min() > 10
        assert np.bincount(found[:, 1], minlength=7).min() > 10


def test_flat_mode(folder):
    model = make(folder, mode="auto", epochs=25).fit(TEXTS, Y)
    assert model.net_.flat
    assert model.order_.tolist() == list(range(N_LABELS))
    P = model.predict(TEXTS, 3)
    assert metrics.precision_at_k(Y, P, k=1) > 0.9
    with torch.no_grad():
        tokens = model.tokenizer_([TEXTS[0]], return_tensors="pt", return_token_type_ids=False)
        logits = model.net_.recall(model.net_.represent(tokens))[0]
    np.testing.assert_allclose(P[0].toarray()[0][P[0].indices], logits.sigmoid()[P[0].indices], rtol=1e-4)
    assert set(P[0].indices) == set(logits.topk(3).indices.tolist())


def test_representation_is_the_last_layers(folder):
    net = make_net(folder)
    inputs = {"input_ids": torch.tensor([[2, 5, 3]]), "attention_mask": torch.ones(1, 3, dtype=torch.long)}
    with torch.no_grad():
        states = net.encoder(**inputs, output_hidden_states=True).hidden_states
        e = net.represent(inputs)
    assert torch.equal(e, torch.cat([states[-1][:, 0], states[-2][:, 0]], 1))
    net.cls_last = True
    assert torch.equal(net.represent(inputs), torch.cat([states[-1][:, -1], states[-2][:, -1]], 1))


def test_label_table_as_fan_in_layer(folder, tmp_path):
    model = make(folder, fan_in=3, group_size=4, epochs=20).fit(TEXTS, Y)
    assert model.net_.table.weight.shape == (N_LABELS, 3)
    P = model.predict(TEXTS, 3)
    assert metrics.precision_at_k(Y, P, k=1) > 0.6
    model.save(tmp_path / "m")
    again = LightXML.load(tmp_path / "m", device="cpu").predict(TEXTS, 3)
    assert (again != P).nnz == 0


def test_same_seed_same_bits_also_when_resumed(folder, tmp_path, monkeypatch):
    whole = make(folder, epochs=3, swa_start=1, dropout=0.5).fit(TEXTS, Y)
    file = tmp_path / "run.pt"

    class Stopped(Exception):
        pass

    steps = []
    loss = _lightxml_fit.both_losses

    def stop(net, batch, rank_weight):
        steps.append(1)
        if len(steps) == 12:  # in the second of three epochs
            raise Stopped
        return loss(net, batch, rank_weight)

    monkeypatch.setattr(_lightxml_fit, "both_losses", stop)
    with pytest.raises(Stopped):
        make(folder, epochs=3, swa_start=1, dropout=0.5).fit(TEXTS, Y, checkpoint=file, checkpoint_every=2)
    resumed = make(folder, epochs=3, swa_start=1, dropout=0.5).fit(
        TEXTS, Y, checkpoint=file, checkpoint_every=2
    )
    assert len(steps) == 12 + 24 - 10
    for (name, a), b in zip(whole.net_.state_dict().items(), resumed.net_.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_warm_up_trains_the_heads_only(folder, tmp_path, monkeypatch):
    untouched = load_encoder(folder).model.state_dict()
    model = make(folder, warmup_epochs=30, epochs=0, dropout=0.1).fit(TEXTS, Y)
    for name, t in model.net_.encoder.state_dict().items():
        assert torch.equal(t, untouched[name]), name
    assert all(p.requires_grad for p in model.net_.parameters())
    assert len(model.history_) == 30
    assert model.history_[-1]["loss"] < 0.95 * model.history_[0]["loss"]
    forwards = []
    represent = LightXMLNet.represent

    def count(net, inputs, **options):
        forwards.append("vectors" not in inputs)
        return represent(net, inputs, **options)

    monkeypatch.setattr(LightXMLNet, "represent", count)
    options = {"warmup_epochs": 3, "epochs": 2, "dropout": 0.1}
    whole = make(folder, **options).fit(TEXTS, Y, checkpoint=tmp_path / "a.pt")
    assert len(whole.history_) == 5
    assert sum(forwards) == 8 + 2 * 8  # every text once for the warm-up, then two epochs
    (tmp_path / "a.pt").unlink()
    forwards.clear()
    again = make(folder, **options).fit(TEXTS, Y, checkpoint=tmp_path / "a.pt")  # after the warm-up
    assert sum(forwards) == 2 * 8
    for (name, a), b in zip(whole.net_.state_dict().items(), again.net_.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_cool_down_trains_the_heads_on_the_trained_encoder(folder, tmp_path):
    short = make(folder, epochs=2).fit(TEXTS, Y)
    long = make(folder, epochs=2, cooldown_epochs=3).fit(TEXTS, Y, checkpoint=tmp_path / "a.pt")
    assert len(long.history_) == 5
    assert (tmp_path / "a.pt.cooldown").exists()
    for name, t in long.net_.encoder.state_dict().items():
        assert torch.equal(t, short.net_.encoder.state_dict()[name]), name
    assert not torch.equal(long.net_.table.weight, short.net_.table.weight)
    assert all(p.requires_grad for p in long.net_.parameters())
    again = make(folder, epochs=2, cooldown_epochs=3).fit(TEXTS, Y, checkpoint=tmp_path / "a.pt")  # all done
    for (name, a), b in zip(long.net_.state_dict().items(), again.net_.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    frozen = make(folder, warmup_epochs=1, epochs=0, cooldown_epochs=3).fit(TEXTS, Y)
    assert len(frozen.history_) == 1  # the warm-up was all of it
    with pytest.raises(ValueError, match="cooldown_epochs must not be negative, got -1"):
        make(folder, cooldown_epochs=-1).fit(TEXTS, Y)


def test_label_biases_start_at_log_odds(folder):
    model = make(folder, warmup_epochs=1, epochs=0, head_lr=1e-12).fit(TEXTS, Y)
    table, offsets = model.net_.table.weight.detach().numpy(), model.net_.offsets.numpy()
    counts = np.asarray(Y.sum(0)).ravel()[model.order_]
    clusters = [
        np.asarray(Y[:, model.order_[a:b]].max(1).todense()).sum() for a, b in itertools.pairwise(offsets)
    ]
    shown = 2 * np.repeat(clusters, np.diff(offsets)) + 1.5
    np.testing.assert_allclose(table[:, -1], np.log((counts + 0.5) / (shown - counts - 0.5)), rtol=1e-5)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
@pytest.mark.parametrize("kind", ["Roberta", "XLNet", "DebertaV2"])
def test_encoders(folder, kind):
    """Other families of transformers, XLNet with its [CLS] at the end of the text."""
    import transformers
    from tokenizers.processors import TemplateProcessing

    tokenizer = load_encoder(folder).tokenizer
    sizes = {"vocab_size": len(tokenizer)}
    if kind == "XLNet":
        ends = [("[CLS]", 2), ("[SEP]", 3)]
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing("$A [SEP] [CLS]", None, ends)
        tokenizer.padding_side = "left"
        sizes |= {"d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 32, "use_mems_eval": False}
    else:
        sizes |= {
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 32,
        }
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**sizes)
    encoder = Encoder(getattr(transformers, f"{kind}Model")(config), tokenizer)
    model = make(encoder, epochs=2, warmup_epochs=1).fit(TEXTS, Y)
    assert model.history_[-1]["loss"] < model.history_[0]["loss"]
    P = model.predict(TEXTS[:5], 3)
    ids, scores = model.predict_one(TEXTS[0], 3)
    np.testing.assert_array_equal(P[0].indices, ids)
    np.testing.assert_allclose(P[0].data, scores, rtol=1e-4)  # the same without padding


def test_mixed_precision(folder):
    model = make(folder, precision="bf16", epochs=15).fit(TEXTS, Y)
    assert model.net_.table.weight.dtype == torch.float32
    assert model.history_[-1]["loss"] < 0.7 * model.history_[0]["loss"]


def test_predictions_have_the_precision_of_training(folder):
    model = make(folder, precision="bf16").fit(TEXTS, Y)
    seen = []
    hook = model.net_.generator.register_forward_hook(lambda module, x, out: seen.append(out.dtype))
    model.predict(TEXTS[:2])
    hook.remove()
    assert seen == [torch.bfloat16]


def test_static_negatives_in_half_precision(folder):
    model = make(folder, precision="fp16", negatives="static").fit(TEXTS, Y)
    assert np.isfinite([row["loss"] for row in model.history_]).all()


def test_options_of_the_training_loop(folder):
    """Each reaches the loop: it changes the weights, or ends the training."""
    plain = make(folder, epochs=1).fit(TEXTS, Y).net_.generator.weight
    for options in ({"accumulate": 2}, {"clip_norm": 1e-3}, {"schedule": "linear"}):
        other = make(folder, epochs=1, **options).fit(TEXTS, Y).net_.generator.weight
        assert not torch.equal(plain, other), options
    model = make(folder, epochs=6, lr=0.0, head_lr=1e-12, patience=1).fit(TEXTS, Y, validation=(TEXTS, Y))
    assert len(model.history_) == 2


def test_validation_log_and_cache(folder, tmp_path):
    held_out = make_data(20, seed=1)
    model = make(folder, token_cache=tmp_path / "cache").fit(
        TEXTS, Y, validation=held_out, log=tmp_path / "log.csv"
    )
    assert {"p@1", "p@3", "p@5"} <= set(model.history_[-1])
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 3
    assert len(list((tmp_path / "cache").iterdir())) == 1
    want = metrics.precision_at_k(held_out[1], model.predict(held_out[0], 5), k=1)
    assert model.history_[-1]["p@1"] == pytest.approx(float(want))
