"""Texts and tag names on the command line, from a messy table to suggestions."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from xmc_fast import data
from xmc_fast.cli import main
from xmc_fast.model import SparseModel, read_predictions
from xmc_fast.texts import TextClassifier

MESSY = '''id,title,body,tags
1,"Käse, ""frisch""","Milch und Käse aus den Alpen 🧀","food|dairy"
2,Iron ore,"steel,
iron and ore",metal|mining
3,,,
4,Käsekuchen,Kuchen mit Käse und Milch,food|baking|food
5,Stahl,"Eisen, Stahl und Erz ⛏️",metal
6,,no title but steel and iron,metal
7,Kuchen backen,Milch und Mehl,
8,Milk,"milk, cheese and ""butter""",food|dairy
'''


@pytest.fixture
def table(tmp_path):
    """A CSV file with German and English text, quotes, line breaks, emoji, empty rows."""
    path = tmp_path / "posts.csv"
    lines = MESSY.partition("\n")
    path.write_text(lines[0] + "\n" + lines[2] * 12, encoding="utf-8")
    return path


@pytest.fixture
def call(capsys):
    def run(*arguments):
        code = main([*map(str, arguments), "--json"])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        return json.loads(captured.out)

    return run


OPTIONS = ("--text", "title,body", "--label", "tags", "--sep", "|")


@pytest.fixture
def model(table, call):
    folder = table.parent / "model"
    call("train", table, folder, *OPTIONS)
    return folder


def test_from_a_messy_table_to_suggestions(table, tmp_path, capsys):
    folder = str(tmp_path / "model")
    assert main(["train", str(table), folder, *OPTIONS, "--valid", "0.2"]) == 0
    out = capsys.readouterr().out
    for part in (
        "read 96 rows of CSV (columns title, body; labels tags split at '|')",
        "without text",
        "without labels",
        "labels in",
        "on disk",
        "validation rows",
        "nDCG",
        "micro-F1",
        "macro-F1",
        "best for these rows: -k",
    ):
        assert part in out
    assert main(["tag", folder, "Eisen und Stahl", "qqq zzz"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[1].split()[1] == "metal"
    assert "no suggestion: no known word" in out
    assert main(["tag", folder, "Käse", "-k", "1"]) == 0
    assert capsys.readouterr().out.split()[1] == "food"


def test_tag_reads_files_and_lines(model, tmp_path, call, monkeypatch):
    (tmp_path / "letter.txt").write_text("Käse\nund Milch", encoding="utf-8")
    (found,) = call("tag", model, "--file", tmp_path / "letter.txt", "-k", 2)
    assert found["text"] == "Käse\nund Milch"
    assert [s["label"] for s in found["suggestions"]] == ["food", "dairy"]
    assert found["known_terms"] == 3
    with open(tmp_path / "letter.txt", encoding="utf-8") as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert [row["text"] for row in call("tag", model)] == ["Käse", "und Milch"]
    (found,) = call("tag", model, "Käse", "--threshold", 1.1)
    assert found["suggestions"] == []


def test_tag_explains(model, tmp_path, call, capsys):
    page = tmp_path / "why.html"
    (found,) = call("tag", model, "<b>Eisen & Stahl", "-k", 1, "--explain", "--html", page)
    reason = found["explanations"][0]
    total = reason["bias"] + sum(c["contribution"] for c in reason["contributions"])
    assert total == pytest.approx(reason["score"], abs=1e-6)
    assert "&lt;b&gt;" in page.read_text()
    assert main(["tag", str(model), "Eisen", "--explain", "-k", "1"]) == 0
    assert "(bias)" in capsys.readouterr().out
    (label,) = call("explain", model, "metal")
    assert label["positive"][0][1] > 0
    assert label["rows"] == 36
    assert main(["explain", str(model), "nothing"]) == 1
    assert "no label 'nothing'" in capsys.readouterr().err


@pytest.mark.parametrize("ending", ["txt", "jsonl", "csv", "tsv"])
def test_predict_writes_names(model, table, tmp_path, call, ending):
    out = tmp_path / f"out.{ending}"
    assert call("predict", model, table, out, "-k", 2)["rows"] == 96  # columns as in training
    raw = out.read_text(encoding="utf-8")
    if ending == "txt":
        assert raw.splitlines()[1].split("\t")[0].startswith("metal:")
        assert raw.splitlines()[2] == ""
    elif ending == "jsonl":
        assert json.loads(raw.splitlines()[1])[0]["label"] == "metal"
    else:
        sep = "," if ending == "csv" else "\t"
        assert raw.splitlines()[0].split(sep) == ["row", "rank", "label", "value"]
        assert raw.splitlines()[1].split(sep)[:3] == ["0", "1", "food"]
    call("predict", model, table, tmp_path / "ids.txt", "--ids", "--threshold", 0.5)
    names = TextClassifier.load(model).label_names_
    top = read_predictions(tmp_path / "ids.txt", len(names))
    assert top.data.min() >= 0.5
    assert names[top[1].indices[0]] == "metal"
    call("predict", model, table, tmp_path / "scores.txt", "--ids", "--scores")
    assert read_predictions(tmp_path / "scores.txt", len(names)).data.min() < 0


def test_json_lines_are_parsed(model, tmp_path, call):
    lines = [{"title": "Käse", "body": None}, {"title": None, "body": "Eisen"}, {"title": "", "body": "qqq"}]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert call("predict", model, tmp_path / "t.jsonl", tmp_path / "out.jsonl", "-k", 1)["rows"] == 3
    got = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [[s["label"] for s in row] for row in got] == [["food"], ["metal"], []]


def test_columns_with_other_names_take_the_places_of_the_models(model, tmp_path, call):
    lines = [{"doc": {"body": "Eisen und Stahl", "head": "Stahl"}, "tags": ["metal"]}]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "t.csv").write_text("title,body,tags\nStahl,Eisen und Stahl,metal\n")
    for name, columns in (("t.jsonl", "doc.head,doc.body"), ("t.csv", "body,title")):
        call("predict", model, tmp_path / name, tmp_path / f"{name}.out", "--text", columns)
        assert call("evaluate", model, tmp_path / name, "--text", columns)["metrics"]["precision"]["1"] == 1
    assert (tmp_path / "t.jsonl.out").read_text() == (tmp_path / "t.csv.out").read_text()


def test_pipes(model, tmp_path):
    code = f"from xmc_fast.cli import main; main(['predict', {str(model)!r}, '-', '-', '--format', 'text', '-k', '1'])"
    run = subprocess.run(
        [sys.executable, "-c", code], input=b"Eisen\nK\xc3\xa4se\n", capture_output=True, check=True
    )
    assert [line.split(b":")[0] for line in run.stdout.splitlines()] == [b"metal", b"food"]
    assert b"2 rows of text lines in" in run.stderr


@pytest.mark.skipif(os.name == "nt", reason="needs /dev/stdout")
def test_a_device_is_written_to(model, table):
    code = f"from xmc_fast.cli import main; main(['predict', {str(model)!r}, {str(table)!r}, '/dev/stdout', '-k', '1'])"
    before = os.lstat("/dev/stdout")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert len(run.stdout.splitlines()) == 96
    assert os.lstat("/dev/stdout").st_mode == before.st_mode


def test_evaluate_maps_names_and_counts_unknown_ones(model, tmp_path, call, capsys):
    path = tmp_path / "test.csv"
    path.write_text(
        "tags,body,title\nmetal|unheard of|metal,Eisen,Stahl\n,Milch,\nfood,Käse,\n", encoding="utf-8"
    )
    found = call("evaluate", model, path, "-k", 1)
    assert found["counts"] == {
        "rows": 2,
        "unlabelled_rows": 1,
        "rows_without_suggestion": 0,
        "unknown_labels": 1,
        "unknown_assignments": 1,
        "repeated_labels": 0,  # the reader has merged them
    }
    assert found["metrics"]["precision"]["1"] == 1
    assert main(["evaluate", str(model), str(path)]) == 0
    assert "1 assignment of 1 label that the model does not have" in capsys.readouterr().out


@pytest.fixture
def features(tmp_path):
    """Repository files: training rows with 30 labels, test rows without the highest ones."""
    X, Y = data.make_synthetic(300, 100, 30, random_state=0)
    data.write_xmc(tmp_path / "train.txt", X[:200], Y[:200])
    data.write_xmc(tmp_path / "few.txt", X[200:], Y[200:, :25])
    more = np.array(Y[200:].toarray())
    wide = np.hstack([more, more[:, :2]])
    data.write_xmc(tmp_path / "many.txt", X[200:], wide)
    return tmp_path


def test_a_test_file_may_have_fewer_or_more_labels(features, call):
    model = features / "model"
    call("train", features / "train.txt", model, "--calibrate", features / "few.txt")
    assert SparseModel.load(model).calibration is not None
    few = call("evaluate", model, features / "few.txt", "--train", features / "few.txt", "--bins")
    assert few["counts"]["unknown_labels"] == 0
    many = call("evaluate", model, features / "many.txt", "--train", features / "train.txt", "--bins")
    assert many["counts"]["unknown_labels"] == 2
    assert many["metrics"]["precision"]["1"] >= few["metrics"]["precision"]["1"]


def test_the_model_is_saved_before_it_is_calibrated(features, capsys):
    model = features / "model"
    assert (
        main(["train", str(features / "train.txt"), str(model), "--calibrate", str(features / "no.txt")]) == 1
    )
    assert "no.txt" in capsys.readouterr().err
    assert SparseModel.load(model).n_labels == 30


def test_optimize_takes_text_lines_and_gives_probabilities(model, tmp_path, call):
    (tmp_path / "lines.txt").write_text("Eisen und Stahl\nKäse\nmilk and cheese\n", encoding="utf-8")
    options = ("--optimize", "macro-f1", "--ids", "-k", 2)
    call("predict", model, tmp_path / "lines.txt", tmp_path / "out.txt", *options)
    loaded = TextClassifier.load(model)
    n = len(loaded.label_names_)
    top = read_predictions(tmp_path / "out.txt", n)
    every = loaded.predict(["Eisen und Stahl", "Käse", "milk and cheese"], n, output="csr").toarray()
    for i in range(3):
        row = top[i]
        np.testing.assert_allclose(row.data, every[i, row.indices], rtol=1e-6)
        assert (np.diff(row.data) <= 0).all()
    call("predict", model, tmp_path / "lines.txt", tmp_path / "gains.txt", *options, "--gains")
    gains = read_predictions(tmp_path / "gains.txt", n)
    assert sorted(gains.indices) == sorted(top.indices)
    assert not np.allclose(np.sort(gains.data), np.sort(top.data))
    assert main(["predict", str(model), "a", "b", "--gains"]) == 2


def test_merge_keeps_vectorizer_and_names_or_refuses(table, tmp_path, call, capsys):
    whole = call("train", table, tmp_path / "whole", *OPTIONS, "--block-labels", 3)
    for name, part in (("b", "3:5"), ("a", "0:3")):
        call("train", table, tmp_path / name, *OPTIONS, "--labels", part, "--block-labels", 3)
    facts = call("merge", tmp_path / "b", tmp_path / "a", tmp_path / "merged")
    assert (facts["labels"], facts["bytes"]) == (5, whole["bytes"])
    merged, expected = (TextClassifier.load(tmp_path / name) for name in ("merged", "whole"))
    assert merged.label_names_ == expected.label_names_
    texts = ["Eisen", "Käse und Milch"]
    assert merged.predict(texts, proba=False) == expected.predict(texts, proba=False)
    SparseModel.load(tmp_path / "a" / "model").save(tmp_path / "plain")
    assert main(["merge", *(str(tmp_path / name) for name in ("a", "plain", "out"))]) == 1
    assert "one is a text model, the other takes features" in capsys.readouterr().err
    call("train", table, tmp_path / "other", *OPTIONS, "--min-df", 20)
    assert main(["merge", *(str(tmp_path / name) for name in ("whole", "other", "out"))]) == 1
    assert "another vectorizer" in capsys.readouterr().err


def test_train_and_info_tell_the_same_size(table, features, tmp_path, call, capsys):
    for inputs, options in (((table,), OPTIONS), ((features / "train.txt",), ())):
        trained = call("train", *inputs, tmp_path / "m", *options)
        facts = call("info", tmp_path / "m")
        assert (facts["bytes"], facts["disk_bytes"]) == (trained["bytes"], trained["disk_bytes"])


def test_options_of_the_features(table, tmp_path, call):
    call("train", table, tmp_path / "m", *OPTIONS, "--ngrams", 2, "--calibrate", 0, "--random-state", 3)
    model = TextClassifier.load(tmp_path / "m")
    assert model.get_params()["ngram_range"] == (1, 2)
    assert not model.calibrated
    assert any(" " in term for term in model.feature_names_)


def test_the_demo_warns_of_nothing(tmp_path, capsys):
    assert main(["demo", "--out", str(tmp_path / "demo"), "--files"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "PSP" not in captured.out
    table = data.read(tmp_path / "demo" / "train.csv")
    assert (len(table), table.sep) == (8393, "|")


def test_old_option_names_are_accepted_but_not_shown(features, call, capsys):
    new = call("train", features / "train.txt", features / "new", "--tol", 0.1, "--random-state", 3)
    old = call("train", features / "train.txt", features / "old", "--eps", 0.1, "--seed", 3)
    assert new["weights"] == old["weights"]
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    out = capsys.readouterr().out
    assert "--eps" not in out
    assert "--seed" not in out


def test_a_misspelt_label_is_met_with_the_nearest(model, capsys):
    assert main(["explain", str(model), "meta"]) == 1
    assert "no label 'meta', did you mean 'metal'?" in capsys.readouterr().err


def test_errors_name_the_options(table, tmp_path, capsys):
    assert main(["train", str(table), str(tmp_path / "m")]) == 1
    assert "which column is the text? Name it with --text; it could be title, body" in capsys.readouterr().err
    assert main(["train", str(table), str(tmp_path / "m"), "--text", "title", "--label", "no"]) == 1
    assert "no" in capsys.readouterr().err


def test_an_ensemble_of_texts(table, call, capsys):
    folder = table.parent / "ensemble"
    facts = call("train", table, folder, *OPTIONS, "--model", "ensemble", "--valid", 0.2)
    assert facts["fit_report"]["held_out"] == 0
    assert call("info", folder)["kind"] == "text_classifier"
    call("predict", folder, table, table.parent / "out.csv", "--text", "title,body")
    assert "metal" in (table.parent / "out.csv").read_text(encoding="utf-8")
    for option in (("--checkpoint", "run"), ("--calibrate", "0.1"), ("--keep-state",)):
        assert main(["train", str(table), str(folder), *OPTIONS, "--model", "ensemble", *option]) == 1
        assert f"{option[0]} is not for --model ensemble" in capsys.readouterr().err


def test_a_label_tree_of_texts(table, call):
    folder = table.parent / "tree"
    assert call("train", table, folder, *OPTIONS, "--model", "tree", "--max-leaf", 2)["labels"] == 5
    assert call("info", folder)["kind"] == "text_classifier"
    found = call("explain", folder, "metal")[0]
    assert found["rows"] == 36
    assert found["positive"]
    call("predict", folder, table, table.parent / "out.csv", "--text", "title,body")
    assert "metal" in (table.parent / "out.csv").read_text(encoding="utf-8")
