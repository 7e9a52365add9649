"""The stored form of exact models: the weights' bits, the same predictions, and what damage is refused."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.sparse as sp

from reference import model_folder
from xmc_fast import SparseModel, _core
from xmc_fast.model import Block, ModelFormatError


def weights(n_labels, n_columns, seed=0):
    """Few labels with many weights, and some large ones; columns alike; weights that no format may lose."""
    rng = np.random.default_rng(seed)
    density = np.outer(rng.pareto(1, n_labels) + 0.02, rng.pareto(1, n_columns) + 0.02) * 0.05
    W = np.where(rng.random(density.shape) < np.minimum(density, 0.9), rng.normal(size=density.shape), 0)
    W *= 1 + 30 * (rng.random(W.shape) < 0.01)
    return sp.csr_matrix(W.astype(np.float32))


def in_blocks(W, size):
    return SparseModel([W[i : i + size] for i in range(0, W.shape[0], size)], bias=1.0, normalize=True)


@pytest.mark.parametrize(
    ("n_labels", "n_columns"), [(1, 1), (63, 5), (64, 40), (65, 40), (700, 60), (9000, 30)]
)
@pytest.mark.parametrize("mmap", [False, True])
def test_weights_and_predictions_keep_their_bits(tmp_path, n_labels, n_columns, mmap):
    model = in_blocks(weights(n_labels, n_columns), 400)
    model.save(tmp_path / "m")
    loaded = SparseModel.load(tmp_path / "m", mmap=mmap)
    assert {"layout.safetensors", "manifest.json"} == {f.name for f in (tmp_path / "m").iterdir()}
    assert (loaded.nnz, loaded.dtype, loaded.compressed) == (model.nnz, np.float32, False)
    X = sp.random(40, model.n_features, 0.3, "csr", np.float32, random_state=1)
    expected = model.predict(X, 5)
    for threads in (1, 2):
        top = loaded.predict(X, 5, n_jobs=threads)
        assert top.indices.tobytes() == expected.indices.tobytes()
        assert top.data.tobytes() == expected.data.tobytes()
    assert loaded._blocks is None  # predicts without the weights by label
    np.testing.assert_array_equal(model_folder.weights(tmp_path / "m"), model.to_csr().toarray())
    for a, b in zip(loaded.blocks, model.blocks, strict=True):
        assert a.first_label == b.first_label
        for name in ("indptr", "indices", "data"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    loaded.save(tmp_path / "again")
    name = "layout.safetensors"
    assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "m" / name).read_bytes()
    again = pickle.loads(pickle.dumps(loaded))
    assert again.predict(X, 5).data.tobytes() == expected.data.tobytes()


def test_weights_that_are_no_ordinary_numbers_keep_their_bits(tmp_path):
    special = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-45, 3e38, 1.0], np.float32)
    rng = np.random.default_rng(0)
    data = rng.choice(special, 200 * 12)
    block = Block(0, 12, np.arange(0, 2401, 12), np.tile(np.arange(12, dtype=np.int32), 200), data)
    SparseModel(block).save(tmp_path / "m")
    (loaded,) = SparseModel.load(tmp_path / "m", verify=True).blocks
    assert loaded.data.tobytes() == data.tobytes()


ARRAYS = ["label", "parts", "entry", "cell", "weight", "heavy", "byte", "step", "error", "spread", "norm"]
ARRAYS += ["posting", "out_ptr", "outlier"]


def put(name, at, value):
    def change(arrays):
        arrays[name] = arrays[name].copy()
        arrays[name][at] = value(arrays[name][at]) if callable(value) else value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *((lambda a, n=n: a.update({n: a[n][:-6]}), "length|shape|cover|follow") for n in ARRAYS),
        *((lambda a, n=n: a.pop(n), "is missing") for n in (*ARRAYS, "block")),
        *((lambda a, n=n: a.update({n: a[n].astype("f8")}), "wrong dtype") for n in ARRAYS),
        (put("block", 0, 0), "block is out of range"),
        (put("block", 0, 96), "block is out of range"),
        (put("block", 0, 1 << 40), "block is out of range"),
        (put("label", 3, 700), "no permutation"),
        (put("label", 3, -1), "no permutation"),
        (put("label", 3, lambda old: (old + 1) % 700), "no permutation"),
        (put("parts", 0, lambda old: old + 1), "length|follow"),
        (put("parts", 1, -1), "number of columns"),
        (put("parts", 2, 64), "follow each other"),
        (put("parts", 5, 1), "follow each other"),
        (put("entry", "dense", 1 << 30), "share a slot"),
        (put("entry", "dense", -1), "cover its block"),
        (put("entry", "sparse", -1), "follow each other"),
        (put("entry", "sparse", -(1 << 31)), "follow each other"),
        (put("cell", 0, lambda old: ~old), "cell does not"),
        (put("cell", 1, 1 << 40), "cell does not"),
        (put("posting", 1, 60000), "posting list"),
        (put("posting", 3, 700), "leaves its block"),
        (put("out_ptr", 1, -5), "ascending"),
        (put("out_ptr", -1, 1 << 30), "cover"),
        (put("outlier", 0, 700), "leaves its block"),
        (put("outlier", -3, 7), "of place 0"),
        (put("error", 0, -1.0), "below 0"),
        (put("norm", 5, np.nan), "below 0"),
    ],
)
def test_damaged_arrays_are_refused(tmp_path, change, message):
    model = in_blocks(weights(700, 1200), 400)
    arrays = dict(model.prepare()._layout.arrays())
    assert all(arrays[name].size for name in ARRAYS)
    entry = arrays["entry"]
    places = {"dense": int(np.argmax(entry >= 0)), "sparse": int(np.argmax(entry < -1))}
    for cell in getattr(change, "__closure__", None) or ():
        if cell.cell_contents in ("dense", "sparse"):
            cell.cell_contents = places[cell.cell_contents]
    assert _core.PredictLayout.open(700, 1200, arrays).rows(1)[1].size == model.nnz
    change(arrays)
    with pytest.raises(ValueError, match=message):
        _core.PredictLayout.open(700, 1200, arrays)


def test_two_weights_of_a_label_for_a_column_are_refused():
    model = in_blocks(weights(700, 1200), 400)
    arrays = dict(model.prepare()._layout.arrays())
    postings = arrays["posting"].reshape(-1, 3).copy()
    entry = arrays["entry"][arrays["entry"] < -1]
    head = next(h for h in -2 - entry if postings[h, 1] > 1)
    postings[head + 2, 0] = postings[head + 1, 0]
    arrays["posting"] = postings.ravel()
    with pytest.raises(ValueError, match="two weights"):
        _core.PredictLayout.open(700, 1200, arrays).rows(2)


def test_the_manifest_must_fit(tmp_path):
    import json

    in_blocks(weights(700, 60), 400).save(tmp_path / "m")
    path = tmp_path / "m" / "manifest.json"
    good = json.loads(path.read_text())
    assert good["format_version"] == 3
    assert good["layout"]["ends"] == [400, 700]
    for ends in (None, [], [400], [500, 400, 700], [-1, 700], [400.0, 700], "xx"):
        path.write_text(json.dumps({**good, "layout": {**good["layout"], "ends": ends}}))
        with pytest.raises(ModelFormatError, match=r"layout\.safetensors.*blocks of labels"):
            SparseModel.load(tmp_path / "m")
