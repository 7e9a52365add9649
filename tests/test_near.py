"""Nearly exact prediction: the definition, the bits, the settings, the file, and what is refused."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import scipy.sparse as sp

from reference.near import Rough
from xmc_fast import OneVsAll, SparseModel, _core
from xmc_fast._validate import features
from xmc_fast.model import Block, ModelFormatError, _near

NONE = np.empty(0, np.float32)


def weights(n_labels, n_columns, seed=0):
    """Few frequent features, many rare ones; more positive weights than negative ones for the rare."""
    rng = np.random.default_rng(seed)
    density = np.outer(rng.pareto(2, n_labels) + 0.2, rng.pareto(1, n_columns) + 0.02) * 0.05
    W = np.where(rng.random(density.shape) < np.minimum(density, 0.9), rng.normal(0.2, 0.5, density.shape), 0)
    W[:, -1] = -1 - rng.random(n_labels)
    return sp.csr_matrix(W.astype(np.float32))


def rows(n, n_features, seed=1, signed=False):
    X = sp.random(n, n_features, 0.3, "csr", np.float32, random_state=seed)
    if signed:
        X.data -= 0.4
    return X


def model_of(n_labels, n_columns, bias=1.0, **options):
    return SparseModel(weights(n_labels, n_columns, **options), bias=bias, normalize=True)


@pytest.mark.parametrize(
    ("n_labels", "n_columns"), [(1, 2), (63, 9), (64, 40), (65, 40), (4097, 30), (9000, 12)]
)
@pytest.mark.parametrize("bias", [1.0, None])
@pytest.mark.parametrize("signed", [False, True])
def test_candidates_are_those_of_the_definition(n_labels, n_columns, bias, signed):
    model = model_of(n_labels, n_columns, bias)
    layout = model.prepare()._prepared(1)
    arrays = layout.near(model.bias, 0.1, 1 << 40, 1)
    index = _core.NearIndex.open(model.n_labels, model.n_features, arrays)
    label = layout.arrays()["label"]
    W = model.to_csr().toarray()
    rough = Rough(W, label, bias=bias, density=0.1, most_dense=1 << 40)
    np.testing.assert_array_equal(arrays["dense"], rough.dense)
    np.testing.assert_array_equal(arrays["step"], rough.step)
    np.testing.assert_array_equal(arrays["bias"][: model.n_labels], rough.bias)
    X = rows(7, model.n_features, signed=signed)
    x = features(X, n_features=model.n_features)
    ids, scores = layout.topk(x, True, model.bias, NONE, NONE, model.n_labels, 1)
    exact = np.zeros((7, model.n_labels), np.float32)
    np.put_along_axis(exact, ids.reshape(7, -1), scores.reshape(7, -1), axis=1)
    for k, candidates, margin in ((1, 1, 0.0), (3, 5, np.inf), (3, 20, -0.05), (5, 1 << 20, 0.0)):
        found, values, roughly = index.topk(layout, x, True, model.bias, k, candidates, margin, 1)
        for i, row in enumerate(found.reshape(7, -1)):
            expected = rough.top(X[i].toarray()[0], exact[i], k, candidates, margin, normalize=True)
            assert row.tolist() == expected
            sums, unit = rough.sums(X[i].toarray()[0], True)
            own = {
                int(label): np.float32(unit) * np.float32(s)
                for label, s in zip(rough.labels, sums, strict=True)
            }
            assert [own[int(label)] for label in row] == roughly.reshape(7, -1)[i].tolist()
        np.testing.assert_array_equal(
            values.reshape(7, -1), np.take_along_axis(exact, found.reshape(7, -1), axis=1)
        )


def test_scores_and_threads():
    model = model_of(9001, 40).build_near_index(rows(300, 39), k=5)
    X = rows(101, 39, seed=2)
    exact = model.predict(X, 9001)
    near = [model.predict(X, 5, recall=0.9, n_jobs=n) for n in (1, 2, 3)]
    for other in near[1:]:
        assert other.indices.tobytes() == near[0].indices.tobytes()
        assert other.data.tobytes() == near[0].data.tobytes()
    dense = exact.toarray()
    given = np.repeat(np.arange(101), 5)
    np.testing.assert_array_equal(near[0].data, dense[given, near[0].indices])
    for k in (0, 1, 3):
        few = model.predict(X, k, recall=0.9)
        assert few.indices.reshape(101, k).tolist() == near[0].indices.reshape(101, 5)[:, :k].tolist()


def test_recall_is_what_was_measured(monkeypatch):
    monkeypatch.setattr(_near, "CANDIDATES", (1,))  # too few to find everything
    monkeypatch.setattr(_near, "QUANTILES", (0.2, 0.5))
    held_out, k = rows(400, 59, seed=3), 4
    model = model_of(6000, 60, seed=5).build_near_index(held_out, k=k)
    settings = model.near_index.settings
    assert (np.diff(settings[:, 0]) < 0).all()
    assert (np.diff(settings[:, 1]) < 0).all()
    exact = model.predict(held_out, k).indices.reshape(-1, k)
    assert len(settings)
    assert (settings[:, 0] < 1).all()
    for recall in settings[:, 0]:
        found = model.predict(held_out, k, recall=recall).indices.reshape(-1, k)
        share = [
            np.mean([len(set(a[:j]) & set(b[:j])) / j for a, b in zip(found, exact, strict=True)])
            for j in range(1, k + 1)
        ]
        assert min(share) == pytest.approx(recall)
    with pytest.raises(ValueError, match="recall must be 1 or at most"):
        SparseModel.predict(_with_settings(model, settings * [0.5, 1, 1, 1]), held_out, k, recall=0.9)


def _with_settings(model, settings):
    import dataclasses

    model.near_index = dataclasses.replace(model.near_index, settings=settings)
    return model


def test_trained_model_finds_nearly_all():
    from xmc_fast.data import load_demo

    demo = load_demo()
    model = OneVsAll().fit(demo.X_train, demo.Y_train).model_
    half = demo.X_test.shape[0] // 2
    model.build_near_index(demo.X_test[:half])
    exact = model.predict(demo.X_test[half:]).indices.reshape(-1, 5)
    near = model.predict(demo.X_test[half:], recall=0.95).indices.reshape(-1, 5)
    assert np.mean([len(set(a) & set(b)) / 5 for a, b in zip(near, exact, strict=True)]) > 0.9


def test_no_rows_no_labels_no_features():
    model = model_of(5, 3).build_near_index(rows(4, 2), k=9)
    assert model.near_index.k == 5
    assert model.predict(sp.csr_matrix((0, 2), dtype=np.float32), recall=0.5).shape == (0, 5)
    empty = SparseModel(sp.csr_matrix((3, 4), dtype=np.float32)).build_near_index(rows(4, 4), k=2)
    assert empty.predict(rows(2, 4), 2, recall=0.5).indices.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("mmap", [False, True])
def test_saved_with_the_model(tmp_path, mmap):
    model = model_of(700, 60).build_near_index(rows(100, 59))
    X = rows(50, 59, seed=4)
    expected = model.predict(X, recall=0.9)
    model.save(tmp_path / "m")
    loaded = SparseModel.load(tmp_path / "m", mmap=mmap, verify=True)
    for again in (loaded, pickle.loads(pickle.dumps(loaded)), pickle.loads(pickle.dumps(model))):
        top = again.predict(X, recall=0.9)
        assert top.indices.tobytes() == expected.indices.tobytes()
        assert top.data.tobytes() == expected.data.tobytes()
    loaded.save(tmp_path / "again")
    name = "near.safetensors"
    assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "m" / name).read_bytes()
    for changed in (
        model.prune(0.3),
        model.keep_top(5),
        model.compress(),
        SparseModel.concat([model, model]),
    ):
        assert changed.near_index is None
        changed.save(tmp_path / "m")
        assert not (tmp_path / "m" / name).exists()


def test_of_another_model_is_refused(tmp_path):
    for seed in (0, 1):
        model_of(700, 60, seed=seed).build_near_index(rows(50, 59)).save(tmp_path / str(seed))
    (tmp_path / "0" / "near.safetensors").write_bytes((tmp_path / "1" / "near.safetensors").read_bytes())
    with pytest.raises(ModelFormatError, match="of another model"):
        SparseModel.load(tmp_path / "0")
    manifest = tmp_path / "1" / "manifest.json"
    found = json.loads(manifest.read_text())
    found["files"]["near"] = "layout.safetensors"
    manifest.write_text(json.dumps(found))
    with pytest.raises(ModelFormatError, match=r"xmc_fast\.near 1 expected"):
        SparseModel.load(tmp_path / "1")


ARRAYS = ["unit", "bias", "step", "dense", "byte", "ptr", "posting"]


def put(name, at, value):
    def change(arrays):
        arrays[name] = arrays[name].copy()
        arrays[name][at] = value

    return change


def swap(arrays):
    start = int(arrays["ptr"][np.argmax(np.diff(arrays["ptr"]) > 2)])
    arrays["posting"] = arrays["posting"].copy()
    arrays["posting"][[start, start + 1]] = arrays["posting"][[start + 1, start]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *((lambda a, n=n: a.update({n: a[n][:-1]}), "length|cover|positive|end") for n in ARRAYS),
        *((lambda a, n=n: a.pop(n), "is missing") for n in ARRAYS),
        *((lambda a, n=n: a.update({n: a[n].astype("f8")}), "wrong dtype") for n in ARRAYS),
        (put("unit", 0, 0), "no positive number"),
        (put("unit", 0, np.nan), "no positive number"),
        (put("step", 3, -1), "no positive number"),
        (put("step", 3, np.inf), "no positive number"),
        (put("dense", 0, -1), "dense is not ascending"),
        (put("dense", -1, 1199), "dense is not ascending"),
        (put("dense", 1, 0), "dense is not ascending|no end"),
        (put("ptr", 0, -1), "ptr has a wrong length"),
        (put("ptr", 5, 1 << 40), "ptr is not ascending"),
        (put("ptr", -1, 1 << 40), "ptr does not cover"),
        (put("posting", -1, 0), "a list has no end"),
        (put("posting", 0, 700 << 8), "places of a list"),
        (swap, "places of a list"),
    ],
)
def test_damaged_arrays_are_refused(change, message):
    model = model_of(700, 1200)
    arrays = dict(model.prepare()._prepared(1).near(1.0, 0.2, 1 << 40, 1))
    assert all(arrays[name].size for name in ARRAYS)
    assert arrays["dense"][0] > 0 or arrays["dense"][1] > 1
    _core.NearIndex.open(700, 1199, arrays)
    change(arrays)
    with pytest.raises(ValueError, match=message):
        _core.NearIndex.open(700, 1199, arrays)


def test_damaged_settings_are_refused(tmp_path):
    model = model_of(700, 60).build_near_index(rows(50, 59))
    good = model.near_index.settings
    for bad in (good * np.nan, good * [1, 1, 0, 1], good * [1, 1, 1e12, 1], good[:, :3]):
        _with_settings(model, bad).save(tmp_path / "m")
        with pytest.raises(ModelFormatError, match="settings"):
            SparseModel.load(tmp_path / "m")


def test_bad_arguments():
    model, X = model_of(70, 20), rows(30, 19)
    with pytest.raises(ValueError, match=r"recall must be 1 for a model without a near index, got 0\.99"):
        model.predict(X, recall=0.99)
    for recall in (0, -1, 1.5, np.nan):
        with pytest.raises(ValueError, match="recall must be above 0 and at most 1"):
            model.predict(X, recall=recall)
    with pytest.raises(ValueError, match="X must have at least one row"):
        model.build_near_index(X[:0])
    with pytest.raises(ValueError, match="k must be at least 1"):
        model.build_near_index(X, k=0)
    with pytest.raises(ValueError, match="float32 weights, got a compressed one"):
        model.compress().build_near_index(X)
    with pytest.raises(ValueError, match="float32 weights, got a float16 one"):
        model.astype("float16").build_near_index(X)
    model.build_near_index(X, k=3)
    with pytest.raises(ValueError, match="k must be at most 3"):
        model.predict(X, 5, recall=0.5)
    with pytest.raises(ValueError, match="recall must be 1 with probabilities"):
        model.predict(X, 3, recall=0.5, proba=True)
    for weight in (np.inf, np.nan, 3e38):
        block = Block(0, 2, np.array([0, 2]), np.arange(2, dtype=np.int32), np.array([1, weight], np.float32))
        with pytest.raises(ValueError, match="weights must be finite"):
            SparseModel(block, bias=10.0).build_near_index(np.ones((1, 1), np.float32))
