"""LightXML's folders, ensembles, errors and command line, on a tiny random encoder."""

from __future__ import annotations

import json
import pickle
import warnings

import numpy as np
import pytest
import scipy.sparse as sp

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from reference import tiny_encoder  # noqa: E402
from reference.lightxml_case import TEXTS, Y, make  # noqa: E402
from xmc_fast.nn import LightXML, LightXMLEnsemble  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_encoder.save(tmp_path_factory.mktemp("encoder"), TEXTS, layers=2)


@pytest.fixture(scope="module")
def fitted(folder):
    return make(folder, epochs=25, activation="identity").fit(TEXTS, Y)


def test_save_load(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    names = {p.name for p in (tmp_path / "model").rglob("*") if p.is_file()}
    assert {"manifest.json", "network.safetensors", "config.json", "tokenizer.json"} <= names
    assert not any(name.endswith((".bin", ".pt", ".pkl")) for name in names)
    again = LightXML.load(tmp_path / "model", device="cpu")
    a, b = fitted.predict(TEXTS, 5), again.predict(TEXTS, 5)
    assert (a.indices == b.indices).all()
    assert (a.data == b.data).all()
    again.save(tmp_path / "twice")
    assert (tmp_path / "twice" / "network.safetensors").read_bytes() == (
        tmp_path / "model" / "network.safetensors"
    ).read_bytes()
    lines = tmp_path / "texts.txt"
    lines.write_text("\n".join(TEXTS[:7]) + "\n")
    assert again.predict_file(lines, tmp_path / "out.txt", 2, chunk_rows=3) == 7
    first = (tmp_path / "out.txt").read_text().splitlines()[0].split()[0].split(":")
    assert int(first[0]) == a.indices[0]


def test_names_survive(folder, fitted, tmp_path):
    assert fitted.label_names_ is None
    names = [f"label {i:02}" for i in range(Y.shape[1])]
    rows = [[names[label] for label in Y[i].indices] for i in range(len(TEXTS))]
    model = make(folder, epochs=1).fit(TEXTS, rows, label_names=names, validation=(TEXTS[:5], rows[:5]))
    assert model.label_names_ == names
    by_column = make(folder, epochs=1).fit(TEXTS, Y, label_names=names)
    assert (model.predict(TEXTS, 3) != by_column.predict(TEXTS, 3)).nnz == 0
    ensemble = LightXMLEnsemble([model])
    ensemble.save(tmp_path / "both")
    model.save(tmp_path / "model")
    for again in (
        LightXML.load(tmp_path / "model", device="cpu"),
        pickle.loads(pickle.dumps(model)),
        LightXMLEnsemble.load(tmp_path / "both", device="cpu"),
    ):
        assert again.label_names_ == names
    with pytest.raises(ValueError, match="label_names has 1 entries, the model has"):
        make(folder, epochs=1).fit(TEXTS, Y, label_names=["one"])
    (tmp_path / "model" / "label_names.json").write_text("[1]")
    with pytest.raises(ValueError, match="missing or damaged"):
        LightXML.load(tmp_path / "model", device="cpu")


def test_names_on_the_command_line(folder, tmp_path, capsys):
    from xmc_fast.cli import main

    rows = [
        "text,tags",
        *(f"{text},{'|'.join(f'tag {j}' for j in Y[i].indices)}" for i, text in enumerate(TEXTS)),
    ]
    data, model = tmp_path / "rows.csv", str(tmp_path / "model")
    data.write_text("\n".join(rows) + "\n")
    options = [
        "--model",
        "lightxml",
        "--device",
        "cpu",
        "--encoder",
        str(folder),
        "--epochs",
        "1",
        "--sep",
        "|",
    ]
    assert main(["train", str(data), model, *options]) == 0
    assert main(["predict", model, str(data), str(tmp_path / "out.txt"), "-k", "2"]) == 0
    assert "tag " in (tmp_path / "out.txt").read_text().splitlines()[0]
    capsys.readouterr()
    assert main(["evaluate", model, str(data), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"]["unknown_labels"] == 0


def test_damaged_folders(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    manifest = tmp_path / "model" / "manifest.json"
    text = manifest.read_text()
    with pytest.raises(ValueError, match="file is missing"):
        LightXML.load(tmp_path / "nothing")
    manifest.write_text(json.dumps({**json.loads(text), "kind": "other"}))
    with pytest.raises(ValueError, match="lightxml expected, got other"):
        LightXML.load(tmp_path / "model")
    manifest.write_text(json.dumps({**json.loads(text), "format_version": 9}))
    with pytest.raises(ValueError, match="format version 9"):
        LightXML.load(tmp_path / "model")
    manifest.write_text(text)
    network = tmp_path / "model" / "network.safetensors"
    data = network.read_bytes()
    network.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ValueError, match="damaged, checksum"):
        LightXML.load(tmp_path / "model")


def test_ensemble(folder, tmp_path):
    members = [make(folder, random_state=seed, epochs=5) for seed in (0, 1)]
    ensemble = LightXMLEnsemble(members, depth=8).fit(TEXTS, Y)
    assert members[0].order_.tolist() != members[1].order_.tolist()
    P = ensemble.predict(TEXTS, 3)
    total = sum(member.predict(TEXTS, 8).toarray() for member in members) / 2
    np.testing.assert_allclose(P.toarray()[P.nonzero()], total[P.nonzero()], rtol=1e-6)
    assert (np.sort(total, 1)[:, ::-1][:, 0] == P.max(1).toarray().ravel()).all()
    ensemble.save(tmp_path / "both")
    again = LightXMLEnsemble.load(tmp_path / "both", device="cpu")
    assert again.depth == 8
    assert (again.predict(TEXTS, 3) != P).nnz == 0
    with pytest.raises(ValueError, match="at least one model"):
        LightXMLEnsemble([])


# ---- errors


def test_errors(folder, fitted):
    with pytest.raises(ValueError, match="texts has 63 entries, Y has 64 rows"):
        make(folder).fit(TEXTS[:-1], Y)
    with pytest.raises(ValueError, match=r"text 3 is empty but has \d label\(s\): 1 such row"):
        make(folder).fit([*TEXTS[:3], "  ", *TEXTS[4:]], Y)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        make("./no-such-folder").fit(TEXTS, Y)
    with pytest.raises(ValueError, match="got a single string"):
        fitted.predict("a text")
    for name, value in (("mode", "x"), ("negatives", "x"), ("activation", "x"), ("beam", 0), ("max_leaf", 0)):
        with pytest.raises(ValueError, match=f"{name} must be"):
            make(folder, **{name: value}).fit(TEXTS, Y)
    with pytest.raises(
        ValueError, match="epochs and warmup_epochs must not be negative or both 0, got 0 and 0"
    ):
        make(folder, epochs=0).fit(TEXTS, Y)
    with pytest.raises(ValueError, match="not fitted"):
        make(folder).predict(["a"])
    with pytest.raises(ValueError, match="k must be at least 1"):
        fitted.predict(TEXTS[:1], 0)
    with pytest.raises(ValueError, match="at least one text"):
        make(folder).fit([], sp.csr_matrix((0, 3)))


def test_long_texts_are_said_once(folder):
    texts = [f"{text} " * 20 for text in TEXTS]
    with pytest.warns(
        UserWarning, match=r"64 of 64 texts have more than 40 tokens \(the encoder's limit\)"
    ) as said:
        model = make(folder, epochs=1, max_length=512).fit(texts, Y)
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(texts[:2], 1)


# ---- command line


def test_command_line(folder, tmp_path, capsys):
    from xmc_fast.cli import main

    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    (tmp_path / "labels.txt").write_text(
        "\n".join(" ".join(map(str, Y[i].indices)) for i in range(len(TEXTS))) + "\n"
    )
    files = [str(tmp_path / name) for name in ("texts.txt", "labels.txt", "model")]
    lightxml = ["train", "--model", "lightxml", "--device", "cpu", "--json"]
    options = ["--mode", "clusters", "--max-leaf", "4", "--beam", "2", "--epochs", "2", "--bottleneck", "8"]
    assert main([*lightxml, "--encoder", str(folder), *options, *files]) == 0
    assert json.loads(capsys.readouterr().out)["clusters"] == 8
    out = str(tmp_path / "out.txt")
    assert main(["predict", files[2], files[0], out, "-k", "3"]) == 0
    want = LightXML.load(files[2], device="cpu").predict(TEXTS, 3)
    lines = (tmp_path / "out.txt").read_text().splitlines()
    assert [int(line.split()[0].split(":")[0]) for line in lines] == want.indices[::3].tolist()
    assert main(["predict", files[2], files[0], files[1], out, "-k", "3"]) == 0  # texts and labels
    assert (tmp_path / "out.txt").read_text().splitlines() == lines
    capsys.readouterr()
    assert main(["info", files[2], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["params"]["max_leaf"] == 4
    for arguments, message in (
        ([*lightxml, *files], "needs --encoder"),
        ([*lightxml, "--encoder", "./nothing", *files], "encoder folder ./nothing does not exist"),
        ([*lightxml, "--encoder", str(folder), files[0], files[2]], "no labels"),
    ):
        assert main(arguments) in (1, 2)
        assert message in capsys.readouterr().err
