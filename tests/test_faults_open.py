"""Model folders from somebody else: what is damaged or made up is refused by name and never ends the process.

`bench/experiments/mutations.py` makes thousands of such folders; here a few of each kind, and each defect it found.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import xmc_fast
from bench.experiments import mutate, mutations
from xmc_fast import _core, _folder
from xmc_fast._folder import ModelFormatError, count, file_in, part_of
from xmc_fast._threads import resolve_threads
from xmc_fast.model import _storage

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs POSIX files")
X = mutations.data()[0]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """kind -> a folder of it, made once."""
    folders: dict[str, Path] = {}

    def get(kind):
        if kind in mutations.NETWORKS:
            pytest.importorskip("torch")
        if kind.startswith("lightxml"):
            pytest.importorskip("transformers")
        if kind not in folders:
            folders[kind] = tmp_path_factory.mktemp(kind) / "model"
            mutations.KINDS[kind](folders[kind])
        return folders[kind]

    return get


@pytest.fixture
def change(made, tmp_path):
    """A copy of a folder with one thing changed: (kind, file, function of its arrays or of its JSON)."""
    import shutil

    def make(kind, file, function):
        folder = tmp_path / "changed"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(made(kind), folder)
        path = folder / file
        if path.suffix == ".json":
            value = json.loads(path.read_text())
            function(value)
            path.write_text(json.dumps(value))
        else:
            tensors = mutate.Tensors(path)
            function(tensors.arrays)
            tensors.write(path)
            mutate.refresh(folder)
        return folder

    return make


def setting(name, value, at=0):
    """A function that puts a value into an array."""

    def put(arrays):
        arrays[name].reshape(-1)[at] = value

    return put


def test_every_kind_is_mutated():
    """What `load` opens; two names are those of earlier versions."""
    mutated = {kind.partition("-")[0] for kind in mutations.KINDS}
    assert mutated == set(_folder.KINDS) - {"text_model", "extreme_classifier"}


@pytest.mark.parametrize("kind", ["label_tree", "linear_declare", "mach"])
def test_mutations(kind, made):
    """Nothing but predictions and clear errors; `python -m bench.experiments.mutations` for more."""
    found = mutations.run(kind, range(1000, 1025), source=made(kind))
    assert found["bad"] == []
    assert found["refused"] > 5


@pytest.mark.parametrize(
    ("kind", "file", "function"),
    [
        ("label_tree", "tree-0.safetensors", setting("0.child_start", 7, -1)),
        ("label_tree", "tree-0.safetensors", setting("0.bucket", 2**31)),
        ("label_tree", "tree-0.safetensors", setting("1.child", 255)),
        ("label_tree", "tree-0.safetensors", setting("order", 99)),
        # converted, the array was gone before it was looked at
        ("label_tree", "tree-0.safetensors", lambda a: a.update({"0.scale": a["0.scale"].astype("f8")})),
        ("label_tree", "tree-0.safetensors", lambda a: a.update({"order": a["order"].astype("i8")})),
        ("label_tree", "tree-0.safetensors", lambda a: a.update({"999999999.tag": a["0.tag"]})),
        ("label_tree", "manifest.json", lambda m: m["params"].update(n_trees=0)),
        ("label_tree", "manifest.json", lambda m: m["params"].update(power=7)),
        ("label_tree", "manifest.json", lambda m: m.update(n_features=2**31)),
        ("sparse_model", "manifest.json", lambda m: m.update(files=3)),
        ("sparse_model", "manifest.json", lambda m: m.update(files=None)),
        ("sparse_model-small", "manifest.json", lambda m: m.update(files=0.5)),
        ("sparse_model", "manifest.json", lambda m: m.update(params=[])),
        ("text_classifier", "manifest.json", lambda m: m.update(text_columns=[3])),
        ("text_classifier", "vectorizer.safetensors", lambda a: a.update(idf=a["idf"][:-1].copy())),
        ("text_classifier", "vectorizer.safetensors", setting("idf", np.nan)),
        ("linear_declare", "manifest.json", lambda m: m["params"].update(n_jobs="linear")),
        ("linear_declare", "declare.safetensors", setting("coef", np.inf)),
        ("linear_declare", "manifest.json", lambda m: m.update(n_labels=2**31 - 1)),
        ("neighbours", "manifest.json", lambda m: m.update(n_labels=2**31 - 1)),
        ("linear_declare", "manifest.json", lambda m: m["params"].update(neighbours=0.5)),
        ("linear_declare", "manifest.json", lambda m: m["params"].update(neighbours=2**62)),
        ("text_classifier", "vectorizer.json", lambda m: m["parameters"].update(sublinear_tf="cosine")),
        ("text_classifier", "vectorizer.json", lambda m: m["parameters"].update(stop_words=0.5)),
        ("label_tree", "manifest.json", lambda m: m["params"].update(normalize="")),
        ("mach", "manifest.json", lambda m: m.update(n_labels=None)),
        ("mach", "manifest.json", lambda m: m.update(n_labels=2**31 - 1)),
        ("mach", "manifest.json", lambda m: m.update(random_state=[[]])),
        ("mach", "manifest.json", lambda m: m.update(n_repeats=2**31)),
        ("mach", "manifest.json", lambda m: m.update(n_buckets=5)),
        ("mach", "manifest.json", lambda m: m.update(n_features="12")),
        ("mach", "manifest.json", lambda m: m.update(aggregate="sum")),
        ("linear_declare", "declare.safetensors", setting("Y.indices", 99)),
        ("linear_declare", "declare.safetensors", setting("Y.indptr", -5, 3)),
        ("linear_declare", "declare.safetensors", lambda a: a.pop("coef")),
        ("linear_declare", "declare.safetensors", lambda a: a.update(coef=a["coef"][:, :2].copy())),
        ("linear_declare", "manifest.json", lambda m: m.update(n_labels=[6])),
        ("declare", "declare.safetensors", setting("Y.indices", -1)),
        ("declare", "manifest.json", lambda m: m["params"].update(hidden=2**30)),
        ("sparse_classifier", "weights.safetensors", setting("output.connections", 200, 1)),
        ("sparse_classifier", "manifest.json", lambda m: m["params"].update(fan_in=2**30)),
        ("sparse_classifier", "manifest.json", lambda m: m.update(texts=[1])),
        ("sparse_classifier", "manifest.json", lambda m: m["dtypes"].update({"output.bias": "nn"})),
        ("sparse_classifier-groups", "weights.safetensors", setting("order", 6)),
        ("sparse_classifier-groups", "weights.safetensors", setting("output.position", -9)),
        ("text_classifier", "vectorizer.safetensors", setting("offsets", 2**40, 1)),
        ("text_classifier", "vectorizer.json", lambda v: v["parameters"].update(n_features=0)),
        ("text_classifier", "vectorizer.json", lambda v: v["parameters"].update(ngram_range=[1, -1])),
        ("text_classifier", "labels.json", lambda v: v["names"].append(3)),
        ("text_classifier", "labels.json", lambda v: v["counts"].append(3)),
        ("lightxml", "network.safetensors", setting("offsets", 2**40, 1)),
        ("lightxml", "network.safetensors", setting("order", 77)),
        ("lightxml", "encoder/config.json", lambda c: c.update(num_hidden_layers=2**31)),
        ("lightxml", "encoder/config.json", lambda c: c.update(vocab_size=2**31)),
        ("lightxml", "encoder/tokenizer_config.json", lambda c: c.update(model_max_length=float("-inf"))),
        ("lightxml", "encoder/tokenizer_config.json", lambda c: c.update(model_max_length=-5)),
        ("lightxml_ensemble", "manifest.json", lambda m: m.update(members=0)),
    ],
)  # fmt: skip
def test_what_is_out_of_range_is_refused(change, kind, file, function):
    folder = change(kind, file, function)
    with pytest.raises(ModelFormatError, match=r"damaged|expected|must be|has \(buckets") as caught:
        xmc_fast.load(folder)
    assert str(folder) in str(caught.value)


BAD_ROWS = {
    "index past the last": setting("indices", 99),
    "index twice": lambda a: a["indices"].__setitem__(1, a["indices"][0]),
    "negative index": lambda a: a.update(indices=-a["indices"].astype("i4") - 1),
    "indices of another type": lambda a: a.update(indices=a["indices"].astype("i8")),
    "indptr falls": setting("indptr", 2**40, 1),
    "indptr negative": setting("indptr", -1, 1),
    "indptr starts late": setting("indptr", 1, 0),
}


@pytest.mark.parametrize("name", BAD_ROWS)
@pytest.mark.parametrize("mmap", [True, False])
def test_weights_are_checked_on_opening(change, name, mmap):
    folder = change("sparse_model-blocks", "block-00000.safetensors", BAD_ROWS[name])
    with pytest.raises(ModelFormatError, match=r"block-00000\.safetensors: the weights of labels 0 to 5"):
        xmc_fast.load(folder, mmap=mmap)
    with pytest.raises(ModelFormatError, match="the weights of labels 0 to 5"):
        xmc_fast.model.read_block(folder, 0, mmap=mmap)


def test_a_checked_file_is_remembered_until_it_changes(made, tmp_path, monkeypatch):
    import shutil

    folder = tmp_path / "model"
    shutil.copytree(made("sparse_model-blocks"), folder)
    checks = []
    check = _storage.check_block
    monkeypatch.setattr(_storage, "check_block", lambda *of: checks.append(of) or check(*of))
    for _ in range(3):
        xmc_fast.load(folder)
    assert len(checks) == 1
    path = folder / "block-00000.safetensors"
    tensors = mutate.Tensors(path)
    tensors.arrays["indices"][0] = 99
    tensors.write(path)  # in place: the same size
    mutate.refresh(folder)
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))  # a clock may be too coarse to tell them apart
    with pytest.raises(ModelFormatError, match="the weights of labels 0 to 5"):
        xmc_fast.load(folder)
    assert len(checks) == 2


def test_weights_in_memory_are_checked_at_their_first_use():
    block = xmc_fast.model.Block(0, 3, np.array([0, 1]), np.array([7], np.int32), np.ones(1, np.float32))
    with pytest.raises(ValueError, match="the weights of labels 0 to 0 are damaged"):
        xmc_fast.SparseModel([block]).predict(np.ones((1, 3)), 1)


def test_a_packed_model_without_labels_is_unpacked_at_once(tmp_path):
    """Whatever number of columns it claims."""
    empty = {"label": "i4", "bias": "f4", "step": "f4", "ptr": "u4"}
    arrays = {name: np.empty(0, dtype) for name, dtype in empty.items()}
    arrays |= {"list": np.zeros(72, np.uint8), "first": np.zeros(1, np.int64)}
    rows = _core.PackedModel.open(0, 2**31 - 1, arrays).unpack()
    assert [len(part) for part in rows] == [1, 0, 0]


def test_a_layout_is_checked_on_opening(change):
    for function in (setting("entry", 99), lambda a: a.update(label=a["label"].astype("i8"))):
        folder = change("sparse_model", "layout.safetensors", function)
        with pytest.raises(ModelFormatError, match=r"layout\.safetensors: the weights are damaged"):
            xmc_fast.load(folder)


@pytest.mark.parametrize(
    "kind",
    [
        *("sparse_model", "sparse_model-blocks", "sparse_model-small", "text_classifier", "label_tree"),
        *("mach", "linear_declare", "neighbours", "lexical", "ensemble"),
    ],
)
def test_every_changed_byte_of_weights_is_noticed(made, tmp_path, kind):
    import shutil

    folder = tmp_path / "model"
    shutil.copytree(made(kind), folder)
    rng = np.random.default_rng(0)
    for path in folder.rglob("*.safetensors"):
        raw = path.read_bytes()
        start = 8 + int.from_bytes(raw[:8], "little")
        for at in rng.integers(start, len(raw), 5):
            damaged = bytearray(raw)
            damaged[at] ^= 1 << rng.integers(8)
            path.write_bytes(damaged)
            with pytest.raises(ModelFormatError, match="checksum"):
                xmc_fast.load(folder, **mutations.options_of(kind, True))
        path.write_bytes(raw)


def test_names_in_manifests_stay_in_the_folder(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "outside").write_text("{}")
    (folder / "inside").write_text("{}")
    (folder / "link").symlink_to(tmp_path / "outside")
    (folder / "here").symlink_to("inside")
    os.mkfifo(folder / "pipe")
    assert file_in(folder, "inside").is_file()
    assert file_in(folder, "here").is_file()
    assert not file_in(folder, "missing").exists()
    for name in (
        "../outside",
        str(tmp_path / "outside"),
        "link",
        "a/../../outside",
        "",
        None,
        3,
        "a\0b",
        "pipe",
    ):
        with pytest.raises(ModelFormatError):
            file_in(folder, name)
    (folder / "sub").symlink_to(tmp_path)
    with pytest.raises(ModelFormatError, match="leads out of the folder"):
        part_of(folder, "sub")


@pytest.mark.parametrize("name", ["manifest.json", "tree-1.safetensors"])
def test_links_out_of_the_folder_are_refused(made, tmp_path, name):
    import shutil

    folder, elsewhere = tmp_path / "model", tmp_path / "elsewhere"
    shutil.copytree(made("label_tree"), folder)
    shutil.move(folder / name, elsewhere)
    (folder / name).symlink_to(elsewhere)
    with pytest.raises(ModelFormatError, match="leads out of the folder"):
        xmc_fast.load(folder)
    (folder / name).unlink()
    (folder / name).symlink_to("/dev/zero")
    with pytest.raises(ModelFormatError, match=r"leads out|not a regular|missing"):
        xmc_fast.load(folder)


def test_counts():
    assert count(5, "n") == 5
    for value in (True, 2.0, "3", None, -1, 2**31, [1]):
        with pytest.raises(ModelFormatError, match="n must be an integer in"):
            count(value, "n")


def test_opening_keeps_what_is_not_the_folders_fault(made):
    with pytest.raises(TypeError, match="verfy"):
        xmc_fast.Mach.load(made("mach"), verfy=True)
    with pytest.raises(ModelFormatError, match=r"manifest\.json: file is missing"):
        xmc_fast.Mach.load(made("mach") / "nowhere")


def test_a_folder_does_not_decide_how_many_threads_there_are(change):
    """Each has memory of its own: 2^31 of them took all there was."""
    folder = change("label_tree", "manifest.json", lambda m: m["params"].update(n_jobs=2**62))
    assert resolve_threads(xmc_fast.load(folder).n_jobs) <= 4096


def test_nesting_too_deep_is_not_json(tmp_path):
    (tmp_path / _folder.MANIFEST).write_text("[" * 100_000)
    with pytest.raises(ModelFormatError, match="not JSON"):
        xmc_fast.load(tmp_path)


def test_a_mapped_model_survives_what_happens_to_its_folder(tmp_path):
    """Saving over it or removing it leaves the old pages to whoever has mapped them; ``mmap=False`` needs no file."""
    import shutil

    mutations.KINDS["label_tree"](tmp_path / "model")
    mapped = xmc_fast.load(tmp_path / "model")
    read = xmc_fast.load(tmp_path / "model", mmap=False)
    rows = sp.csr_matrix(np.random.default_rng(0).random((4, 12)), dtype=np.float32)
    before = read.predict(rows, 3)
    xmc_fast.LabelTree(max_leaf=4).fit(*mutations.data(60, 12, 20)).save(tmp_path / "model")
    assert (mapped.predict(rows, 3) != before).nnz == 0
    shutil.rmtree(tmp_path / "model")
    assert (mapped.predict(rows, 3) != before).nnz == 0
    mutations.KINDS["label_tree"](tmp_path / "model")
    read = xmc_fast.load(tmp_path / "model", mmap=False)
    for path in (tmp_path / "model").glob("*.safetensors"):
        os.truncate(path, 16)
    assert (read.predict(rows, 3) != before).nnz == 0


@pytest.mark.parametrize("kind", ["mach", "text_classifier"])
def test_any_model_can_be_read_instead_of_mapped(made, kind):
    model = xmc_fast.load(made(kind), mmap=False, verify=True)
    given = mutations.TEXTS[:3] if kind == "text_classifier" else X[:3]
    assert len(model.predict(given, 2, **({"output": "csr"} if kind == "text_classifier" else {})).data) <= 6
