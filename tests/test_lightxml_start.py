"""Where LightXML's heads start, the mean of states as text vectors, vectors that are kept for other runs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from reference import tiny_encoder  # noqa: E402
from reference.lightxml_case import TEXTS, Y, make  # noqa: E402
from xmc_fast.metrics import precision_at_k  # noqa: E402
from xmc_fast.nn import LightXML, _layers, _lightxml_fit, load_encoder, tokenize  # noqa: E402
from xmc_fast.nn._lightxml_net import LightXMLNet  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_encoder.save(tmp_path_factory.mktemp("encoder"), TEXTS, layers=3)


def vectors_of(model):
    rows = np.arange(len(TEXTS))
    with torch.no_grad():
        return model.net_.represent(model._tokens(TEXTS).batch(rows)).double().numpy()


def log_odds(x, members, prior):
    """The module's formula, for one label or cluster."""
    centred = x - x.mean(0)
    covariance = centred.T @ centred / len(x)
    covariance += 0.01 * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    c, count = centred[members].mean(0), len(members)
    w = count / (count + 10) * np.linalg.solve(covariance, c)
    return prior + centred @ w - 0.5 * w @ c


def test_centroids_are_discriminants(folder):
    model = make(folder, mode="flat", head_start="centroids", epochs=0, pooling="mean", layers=1).fit(
        TEXTS, Y
    )
    x, counts = vectors_of(model), np.asarray(Y.sum(0)).ravel()
    got = model.net_.recall(torch.from_numpy(x).float()).detach().numpy()
    for label in (0, 7, 23):
        share = (counts[label] + 0.5) / (len(TEXTS) + 1)
        want = log_odds(x, Y[:, [label]].nonzero()[0], np.log(share / (1 - share)))
        np.testing.assert_allclose(got[:, label], want, rtol=2e-3, atol=2e-3)
    plain = make(folder, mode="flat", warmup_epochs=1, epochs=0, head_lr=1e-12).fit(TEXTS, Y)
    assert precision_at_k(Y, model.predict(TEXTS, 1), 1) > precision_at_k(Y, plain.predict(TEXTS, 1), 1) + 0.3


@pytest.mark.parametrize("bottleneck", [16, 20])  # as wide as the vectors, and wider
def test_centroids_in_clusters(folder, bottleneck):
    options = {"head_start": "centroids", "epochs": 0, "layers": 1, "bottleneck": bottleneck}
    model = make(folder, **options).fit(TEXTS, Y)
    x, net = vectors_of(model), model.net_
    ranks = net.rank(torch.from_numpy(x).float(), torch.arange(24).repeat(len(x), 1)).detach().numpy()
    counts, offsets = np.asarray(Y.sum(0)).ravel()[model.order_], net.offsets.numpy()
    of_cluster = np.array(
        [np.asarray(Y[:, model.order_[a:b]].max(1).todense()).sum() for a, b in itertools.pairwise(offsets)]
    )
    recalled = net.recall(torch.from_numpy(x).float()).detach().numpy()
    for place in (0, 11, 23):
        cluster = int(np.searchsorted(offsets[1:], place, side="right"))
        true, shown = counts[place] + 0.5, 2 * of_cluster[cluster] + 1.5
        want = log_odds(x, Y[:, [model.order_[place]]].nonzero()[0], np.log(true / (shown - true)))
        np.testing.assert_allclose(ranks[:, place], want, rtol=2e-3, atol=2e-3)
        share = (of_cluster[cluster] + 0.5) / (len(TEXTS) + 1)
        members = np.unique(Y[:, model.order_[offsets[cluster] : offsets[cluster + 1]]].nonzero()[0])
        want = log_odds(x, members, np.log(share / (1 - share)))
        np.testing.assert_allclose(recalled[:, cluster], want, rtol=2e-3, atol=2e-3)


def test_a_narrow_bottleneck_keeps_the_largest_directions(folder):
    options = {"head_start": "centroids", "epochs": 0, "layers": 1, "bottleneck": 3}
    model = make(folder, **options).fit(TEXTS, Y)
    x = vectors_of(model)
    h = model.net_.bottleneck(torch.from_numpy(x).float()).detach().numpy()
    np.testing.assert_allclose(h.mean(0), 0, atol=1e-3)
    first = np.linalg.eigh(np.cov(x.T))[1][:, ::-1][:, :3]
    assert np.abs(np.corrcoef(h.T, ((x - x.mean(0)) @ first).T)[:3, 3:].diagonal()).min() > 0.999
    assert precision_at_k(Y, model.predict(TEXTS, 1), 1) > 0.15  # 0.12 by chance


def test_centroids_need_a_dense_table(folder):
    for options in ({"activation": "sigmoid"}, {"fan_in": 2}):
        with pytest.raises(ValueError, match='head_start="centroids" needs'):
            make(folder, head_start="centroids", **options).fit(TEXTS, Y)
    with pytest.raises(ValueError, match="head_start must be one of random, centroids, got 'zero'"):
        make(folder, head_start="zero").fit(TEXTS, Y)


def test_means_leave_padding_out(folder, tmp_path):
    encoder = load_encoder(folder)
    net = LightXMLNet(encoder.model, torch.arange(4), bottleneck=None, layers=2, pooling="mean").eval()
    tokens = tokenize(["the word1 filler", "word2"], encoder)
    with torch.no_grad():
        both = net.represent(tokens.batch(np.array([0, 1])))
        alone = net.represent(tokens.batch(np.array([1])))
        states = encoder.model(**tokens.batch(np.array([1])), output_hidden_states=True).hidden_states
        kept = _layers.States(encoder.model, 1, tokens, folder=tmp_path).batch(np.array([0, 1]))
        again = net.represent(kept)
    torch.testing.assert_close(both[1:], alone)
    torch.testing.assert_close(alone[0], torch.cat([states[-1][0].mean(0), states[-2][0].mean(0)]))
    torch.testing.assert_close(again, both, rtol=2e-2, atol=2e-2)
    with pytest.raises(
        ValueError, match='layers must be at most 2 with pooling="mean" and frozen layers, got 3'
    ):
        make(folder, pooling="mean", layers=3, frozen_layers=2).fit(TEXTS, Y)


def test_pooling_survives(folder, tmp_path):
    model = make(folder, pooling="mean", layers=1).fit(TEXTS, Y)
    model.save(tmp_path / "m")
    assert (LightXML.load(tmp_path / "m", device="cpu").predict(TEXTS, 3) != model.predict(TEXTS, 3)).nnz == 0


@pytest.mark.parametrize("frozen_layers", [0, 2])
def test_vectors_are_kept_for_other_runs(folder, tmp_path, monkeypatch, frozen_layers):
    options = {"layer_cache": tmp_path, "warmup_epochs": 2, "epochs": 0, "frozen_layers": frozen_layers}
    first = make(folder, **options).fit(TEXTS, Y)
    calls = []
    represent = LightXMLNet.represent

    def count(net, inputs, **how):
        calls.append("vectors" not in inputs)
        return represent(net, inputs, **how)

    monkeypatch.setattr(LightXMLNet, "represent", count)
    again = make(folder, **options).fit(TEXTS, Y)
    assert calls
    assert not any(calls)  # the encoder had nothing to do
    for a, b in zip(first.net_.state_dict().values(), again.net_.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    (known,) = tmp_path.glob("*.known")
    known.write_bytes(b"\1" * 10 + b"\0" * (len(TEXTS) - 10))  # a run that was stopped after ten texts
    calls.clear()
    make(folder, **options).fit(TEXTS, Y)
    assert any(calls)
    make(folder, **{**options, "layers": 1}).fit(TEXTS, Y)  # other vectors, another file
    assert len(list(tmp_path.glob("*.known"))) == 2


def test_the_encoder_reads_few_texts_at_a_time(folder, monkeypatch):
    monkeypatch.setattr(_lightxml_fit, "_AT_ONCE", 10)
    sizes = []
    represent = LightXMLNet.represent

    def count(net, inputs, **how):
        sizes.append(len(inputs["input_ids"]))
        return represent(net, inputs, **how)

    monkeypatch.setattr(LightXMLNet, "represent", count)
    make(folder, head_start="centroids", epochs=0).fit(TEXTS, Y)
    assert sizes == [10] * 6 + [4]
