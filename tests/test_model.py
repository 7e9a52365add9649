"""Storage of the sparse model: round trips, damage, sharing, pruning."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import numpy as np
import pytest
import scipy.sparse as sp

from xmc_fast import model as xm
from xmc_fast.model import SparseModel


def random_csr(rows, cols, density=0.3, seed=0):
    rng = np.random.default_rng(seed)
    matrix = sp.random(rows, cols, density, "csr", np.float32, random_state=rng)
    matrix.data = rng.normal(size=matrix.nnz).astype(np.float32)
    return matrix


def small_model(**options):
    blocks = [random_csr(3, 11, seed=1), random_csr(0, 11), random_csr(5, 11, seed=2)]
    options = {
        "bias": 1.0,
        "normalize": True,
        "params": {"C": 1.0, "loss": "squared_hinge"},
        "feature_names": [f"wört{i}" for i in range(10)],
        "label_names": [f"l{i}" for i in range(8)],
        **options,
    }
    return SparseModel(blocks, **options)


def assert_same(a, b):
    assert (a.n_labels, a.n_features, a.bias, a.normalize) == (b.n_labels, b.n_features, b.bias, b.normalize)
    assert a.params == b.params
    assert a.feature_names == b.feature_names
    assert a.label_names == b.label_names
    assert [x.first_label for x in a.blocks] == [x.first_label for x in b.blocks]
    for x, y in zip(a.blocks, b.blocks, strict=True):
        assert x.data.dtype == y.data.dtype
        np.testing.assert_array_equal(x.indptr, y.indptr)
        np.testing.assert_array_equal(x.indices, y.indices)
        assert x.data.tobytes() == y.data.tobytes()


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_round_trip(tmp_path, mmap, dtype):
    model = small_model().astype(dtype)
    model.save(tmp_path / "m")
    loaded = SparseModel.load(tmp_path / "m", mmap=mmap, verify=True)
    assert_same(model, loaded)
    assert loaded.dtype == dtype
    assert loaded.blocks[0].indices.dtype == np.uint16
    assert abs(loaded.to_csr() - model.to_csr()).max() == 0
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(("columns", "index"), [(1 << 16, np.uint16), ((1 << 16) + 1, np.int32)])
def test_index_width(tmp_path, columns, index):
    weights = sp.csr_matrix(([1.0, 2.0], ([0, 1], [0, columns - 1])), shape=(2, columns))
    SparseModel(weights).save(tmp_path / "m")
    loaded = SparseModel.load(tmp_path / "m")
    assert loaded.blocks[0].indices.dtype == index
    assert (loaded.to_csr() != weights).nnz == 0


def test_empty_models(tmp_path):
    for shape in [(0, 4), (3, 0), (0, 0)]:
        SparseModel(sp.csr_matrix(shape, dtype=np.float32)).save(tmp_path / "m")
        loaded = SparseModel.load(tmp_path / "m", verify=True)
        assert (loaded.n_labels, loaded.n_features) == shape


def test_save_replaces_only_models(tmp_path):
    small_model().save(tmp_path / "m")
    loaded = SparseModel.load(tmp_path / "m")
    loaded.prune(0.5).save(tmp_path / "m")  # onto the files it is mapped from
    assert SparseModel.load(tmp_path / "m").nnz < loaded.nnz
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious.txt").write_text("x")
    with pytest.raises(ValueError, match="not a model folder"):
        small_model().save(tmp_path / "other")
    assert (tmp_path / "other" / "precious.txt").exists()


def test_failed_save_keeps_the_old_model(tmp_path):
    small_model().save(tmp_path / "m")
    with pytest.raises((TypeError, ValueError)):
        small_model(params={"bad": object()}).save(tmp_path / "m")
    assert_same(SparseModel.load(tmp_path / "m", verify=True), small_model())
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def damage_flip(path):
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


def damage_cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def damage_header(path):
    path.write_bytes(path.read_bytes()[:5])


def damage_json(path):
    raw = bytearray(path.read_bytes())
    raw[8:12] = b"}}}}"
    path.write_bytes(raw)


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_flip, "checksum"),
        (damage_cut, "truncated"),
        (damage_header, "truncated"),
        (damage_json, "not JSON"),
        (lambda path: path.unlink(), "missing"),
    ],
)
@pytest.mark.parametrize("name", ["layout", "block-00002"])  # of 32-bit weights and of 16-bit ones
def test_damaged_weights_are_named(tmp_path, mmap, damage, message, name):
    small_model().astype("float32" if name == "layout" else "float16").save(tmp_path / "m")
    damage(tmp_path / "m" / f"{name}.safetensors")
    with pytest.raises(xm.ModelFormatError, match=rf"{name}.*{message}"):
        SparseModel.load(tmp_path / "m", mmap=mmap, verify=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 99}, "version 99"),
        ({"kind": "other"}, "sparse_model or text_model expected, got other"),
        ({"n_labels": 9}, "n_labels"),
        ({"blocks": None}, "blocks"),
    ],
)
def test_damaged_manifest_is_named(tmp_path, change, message):
    small_model().save(tmp_path / "m")
    path = tmp_path / "m" / "manifest.json"
    manifest = {**json.loads(path.read_text()), **change}
    path.write_text(json.dumps({k: v for k, v in manifest.items() if v is not None}))
    with pytest.raises(xm.ModelFormatError, match=rf"manifest.json.*{message}"):
        SparseModel.load(tmp_path / "m")


def test_truncated_manifest_names_and_missing_folder(tmp_path):
    with pytest.raises(xm.ModelFormatError, match=r"manifest.json.*missing"):
        SparseModel.load(tmp_path / "nothing")
    small_model().save(tmp_path / "m")
    names = tmp_path / "m" / "label_names.json"
    damage_cut(names)
    with pytest.raises(xm.ModelFormatError, match=r"label_names.json"):
        _ = SparseModel.load(tmp_path / "m").label_names
    names.unlink()
    with pytest.raises(xm.ModelFormatError, match=r"label_names.json.*missing"):
        SparseModel.load(tmp_path / "m")
    damage_cut(tmp_path / "m" / "manifest.json")
    (tmp_path / "m" / "manifest.json").write_text('{"format":')
    with pytest.raises(xm.ModelFormatError, match=r"manifest.json.*not JSON"):
        SparseModel.load(tmp_path / "m")


def test_checkpoint_blocks_become_a_model(tmp_path):
    parts = [random_csr(4, 6, seed=3), random_csr(2, 6, seed=4)]
    status = {"iterations": np.array([3, 4], np.int32)}
    xm.write_block(tmp_path, 1, 4, parts[1], status)
    with pytest.raises(xm.ModelFormatError, match=r"block-00000.*missing"):
        xm.write_manifest(tmp_path)
    xm.write_block(tmp_path, 0, 0, parts[0])
    assert xm.block_indices(tmp_path) == [0, 1]
    block, extra = xm.read_block(tmp_path, 1)
    assert (block.first_label, block.n_labels) == (4, 2)
    assert (block.to_csr() != parts[1]).nnz == 0
    np.testing.assert_array_equal(extra["iterations"], status["iterations"])
    with pytest.raises(xm.ModelFormatError, match="expected 7"):
        xm.write_manifest(tmp_path, n_labels=7)
    xm.write_manifest(tmp_path, params={"C": 2.0}, n_labels=6)
    loaded = SparseModel.load(tmp_path, verify=True)
    assert (loaded.to_csr() != sp.vstack(parts)).nnz == 0
    assert loaded.params == {"C": 2.0}


def test_prune_and_keep_top_keep_the_bias():
    weights = sp.csr_matrix(np.array([[0.5, -0.2, 0.05, 0.001], [0.1, 0.1, -0.1, 0.0]], np.float32))
    model = SparseModel(weights, bias=1.0)
    np.testing.assert_array_equal(
        model.prune(0.15).to_csr().toarray(), np.array([[0.5, -0.2, 0, 0.001], [0, 0, 0, 0]], np.float32)
    )
    np.testing.assert_array_equal(
        model.keep_top(1).to_csr().toarray(), np.array([[0.5, 0, 0, 0.001], [0.1, 0, 0, 0]], np.float32)
    )
    assert model.keep_top(0).nnz == 1
    assert model.prune(0).nnz == model.nnz
    assert model.prune(0.15).nbytes < model.nbytes


def test_concat():
    a, b = small_model(), small_model(params={})
    both = SparseModel.concat([a, b])
    assert both.n_labels == 16
    assert both.label_names == a.label_names + b.label_names
    assert (both.to_csr() != sp.vstack([a.to_csr(), b.to_csr()])).nnz == 0
    with pytest.raises(ValueError, match=r"models\[1\] has bias=2.0"):
        SparseModel.concat([a, small_model(bias=2.0)])


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ([np.zeros((2, 2))], {}, "scipy sparse"),
        ([[]], {}, "at least one block"),
        ([[sp.csr_matrix((1, 2)), sp.csr_matrix((1, 3))]], {}, "3 columns"),
        ([sp.csr_matrix((1, 0))], {"bias": 1.0}, "column for the bias"),
        ([sp.csr_matrix((1, 2))], {"label_names": ["a", "b"]}, "label_names has 2"),
        ([sp.csr_matrix((1, 2))], {"bias": float("nan")}, "bias must be finite"),
    ],
)
def test_constructor_errors(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        SparseModel(*arguments, **options)


def big_model(path, gigabytes):
    """A model of that size, blocks of 128 MB, the files sparse on disk where the system allows."""
    labels, columns, per = 4096, 1 << 16, 5461
    block = xm.Block(
        0,
        columns,
        np.arange(labels + 1, dtype=np.int64) * per,
        np.tile(np.arange(per, dtype=np.uint16), labels),
        np.zeros(labels * per, np.float32),
    )
    for i in range(max(1, round(gigabytes * 1e9 / block.nbytes))):
        xm.write_block(path, i, i * labels, block)
    xm.write_manifest(path)


@pytest.mark.memory
def test_opens_at_once_and_shares_pages(tmp_path):
    """Two processes that have read the whole mapped model share its pages: neither owns a copy."""
    pytest.importorskip("psutil")
    big_model(tmp_path, 0.26)
    start = time.perf_counter()
    model = SparseModel.load(tmp_path)
    assert time.perf_counter() - start < 0.2
    assert model.nbytes > 250e6
    assert sum(float(b.data.sum()) + int(b.indices[0]) + int(b.indices.max()) for b in model.blocks) > 0
    script = (
        "import sys, psutil\n"
        "from xmc_fast.model import SparseModel\n"
        "m = SparseModel.load(sys.argv[1])\n"
        "total = sum(float(b.data.sum()) + int(b.indices.max()) for b in m.blocks)\n"
        "info = psutil.Process().memory_full_info()\n"
        "print(info.uss, info.rss)\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], check=True, capture_output=True, text=True
    )
    own, resident = map(int, out.stdout.split())
    assert resident > 250e6
    assert own < 130e6


def test_names_of_another_model_are_not_taken(tmp_path):
    """A model that is opened before its folder is replaced must not name its labels by the new one's names."""
    a, b = (SparseModel([sp.eye(2).tocsr()], label_names=names) for names in (["tea", "ore"], ["ore", "tea"]))
    a.save(tmp_path / "m")
    opened, used = SparseModel.load(tmp_path / "m"), SparseModel.load(tmp_path / "m")
    assert used.label_names == ["tea", "ore"]
    b.save(tmp_path / "m")
    assert used.label_names == ["tea", "ore"]
    with pytest.raises(xm.ModelFormatError, match="replaced since the model was opened"):
        _ = opened.label_names
    assert SparseModel.load(tmp_path / "m").label_names == ["ore", "tea"]
