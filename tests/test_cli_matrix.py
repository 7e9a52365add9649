"""Every command with every reader: the same rows in each format, through all commands."""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import sys

import pytest
import scipy.sparse as sp

from xmc_fast import data
from xmc_fast.cli import main

ROWS, TEST = 240, 40


@pytest.fixture(scope="module")
def source():
    """Words, their names and tags of a part of the demo data; labels of the test rows occur in training too."""
    demo = data.load_demo()
    both = (demo.X_train.getnnz(axis=1) > 0) & (demo.Y_train.getnnz(axis=1) > 0)
    X, Y = demo.X_train[both][: ROWS + TEST], demo.Y_train[both][: ROWS + TEST]
    used = Y[:ROWS].getnnz(axis=0) > 0
    Y = Y[:, used]
    names = [name for name, use in zip(demo.label_names, used, strict=True) if use]
    texts = [" ".join(demo.feature_names[j] for j in X[i].indices) for i in range(X.shape[0])]
    tags = [[names[j] for j in Y[i].indices] for i in range(Y.shape[0])]
    return X, Y, texts, tags


def write_rows(folder, form, source, rows):
    """Write some rows in a format; returns the arguments that name them."""
    X, Y, texts, tags = source
    X, Y, texts, tags = X[rows], Y[rows], texts[rows], tags[rows]
    folder.mkdir()
    half = len(texts) // 2

    def table(path, sep, chosen=slice(None), opener=open):
        with opener(path, "wt", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, delimiter=sep)
            writer.writerow(("id", "text", "tags"))
            writer.writerows((i, texts[i], "|".join(tags[i])) for i in range(len(texts))[chosen])

    def lines(path, values, opener=open):
        with opener(path, "wt", encoding="utf-8") as file:
            file.write("".join(f"{value}\n" for value in values))

    if form in ("csv", "tsv"):
        table(folder / f"d.{form}", "," if form == "csv" else "\t")
        return [folder / f"d.{form}"]
    if form == "csv.gz":
        table(folder / "d.csv.gz", ";", opener=gzip.open)
        return [folder / "d.csv.gz"]
    if form == "csv.zst":
        name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
        table(folder / "d.csv.zst", ",", opener=pytest.importorskip(name).open)
        return [folder / "d.csv.zst"]
    if form in ("folder", "glob"):
        table(folder / "1.csv", ",", slice(0, half))
        table(folder / "2.csv", ",", slice(half, None))
        return [folder if form == "folder" else folder / "*.csv"]
    if form == "stdin":
        table(folder / "d.csv", ",")
        return ["-"]
    if form in ("jsonl", "jsonl ids"):
        label = [Y[i].indices.tolist() for i in range(len(texts))] if form == "jsonl ids" else tags
        records = [{"text": t or None, "labels": row} for t, row in zip(texts, label, strict=True)]
        lines(folder / "d.jsonl", map(json.dumps, records))
        return [folder / "d.jsonl"]
    if form in ("text", "text ids", "text.xz"):
        opener, ending = (lzma.open, ".txt.xz") if form == "text.xz" else (open, ".txt")
        lines(folder / f"texts{ending}", texts, opener)
        ids = [" ".join(map(str, Y[i].indices)) for i in range(len(texts))]
        named = ["|".join(row) for row in tags]
        lines(folder / f"labels{ending}", ids if form == "text ids" else named, opener)
        return [folder / f"texts{ending}", folder / f"labels{ending}"]
    if form == "parquet":
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.table({"text": texts, "tags": tags}), folder / "d.parquet")
        return [folder / "d.parquet"]
    if form in ("xmc", "xmc.gz"):
        path = folder / ("d.txt" if form == "xmc" else "d.txt.gz")
        data.write_xmc(path, X, Y)
        return [path]
    if form in ("libsvm", "libsvm1"):
        shift = int(form == "libsvm1")
        made = []
        for i in range(len(texts)):
            pairs = zip(X[i].indices, X[i].data, strict=True)
            made.append(
                ",".join(str(j + shift) for j in Y[i].indices)
                + "".join(f" {j + shift}:{value:g}" for j, value in pairs)
            )
        lines(folder / "d.svm", made)
        return [folder / "d.svm", *(["--format", form] if shift else [])]
    if form == "npz":
        sp.save_npz(folder / "X.npz", X)
        sp.save_npz(folder / "Y.npz", Y)
        return [folder / "X.npz", folder / "Y.npz"]
    assert form == "pair"
    for name, matrix in (("X_Xf", X), ("X_Y", Y)):
        made = [f"{matrix.shape[0]} {matrix.shape[1]}"]
        for i in range(matrix.shape[0]):
            pairs = zip(matrix[i].indices, matrix[i].data, strict=True)
            made.append(" ".join(f"{j}:{value:g}" for j, value in pairs))
        lines(folder / f"{name}.txt", made)
    return [folder / "X_Xf.txt", folder / "X_Y.txt", "--format", "pair"]


TEXT_FORMS = ["csv", "tsv", "csv.gz", "csv.zst", "folder", "glob", "stdin", "jsonl", "jsonl ids"]
TEXT_FORMS += ["text", "text ids", "text.xz", "parquet"]
FEATURE_FORMS = ["xmc", "xmc.gz", "libsvm", "libsvm1", "npz", "pair"]


@pytest.fixture
def call(capsys, monkeypatch):
    """Run a command with --json; a file may be given as standard input."""

    def run(*arguments, stdin=None):
        if stdin is None:
            code = main([*map(str, arguments), "--json"])
        else:
            with io.TextIOWrapper(stdin.open("rb")) as file:
                monkeypatch.setattr(sys, "stdin", file)
                code = main([*map(str, arguments), "--json"])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        return json.loads(captured.out)

    return run


@pytest.mark.parametrize("form", TEXT_FORMS + FEATURE_FORMS)
def test_every_command_with_every_reader(form, source, tmp_path, call, capsys):
    is_text = form in TEXT_FORMS
    train = write_rows(tmp_path / "train", form, source, slice(0, ROWS))
    test = write_rows(tmp_path / "test", form, source, slice(ROWS, ROWS + TEST))
    pipes = [tmp_path / part / "d.csv" if form == "stdin" else None for part in ("train", "test")]
    options = ["--min-df", 1, "--keep-state", "--threads", 1] if is_text else ["--threads", 1]
    model, out = tmp_path / "model", tmp_path / "out.txt"
    data_of, end = train[: 2 if len(train) > 1 and not str(train[1]).startswith("--") else 1], train
    more = end[len(data_of) :]
    test_data = test[: len(data_of)]

    facts = call("info", *data_of, *more, stdin=pipes[0])
    assert facts.get("rows", facts.get("points")) == ROWS
    trained = call("train", *data_of, model, *more, *options, "--valid", 0.1, stdin=pipes[0])
    assert trained["labels"] > 50
    assert trained["valid"]["metrics"]["precision"]["1"] > 0
    assert call("info", model)["bytes"] == trained["bytes"]
    metrics = call("evaluate", model, *test_data, *more, stdin=pipes[1])
    assert metrics["metrics"]["precision"]["1"] > 0.05
    predict_data = test_data[:1] if form.startswith("text") else test_data
    facts = call("predict", model, *predict_data, out, *more, "-k", 3, stdin=pipes[1])
    assert facts["rows"] == TEST
    lines = out.read_text().splitlines()
    assert len(lines) == TEST
    wanted = source[3][ROWS:] if form not in ("jsonl ids", "text ids", *FEATURE_FORMS) else None
    if wanted is not None:
        hits = sum(
            entry.rpartition(":")[0] in row
            for line, row in zip(lines, wanted, strict=True)
            for entry in line.split("\t")
        )
        assert hits > 5  # names, not ids
    small = call("compress", model, tmp_path / "small", "--data", *test_data, *more, stdin=pipes[1])
    assert small["bytes"] < trained["bytes"]
    tuned = call("tune", *data_of, *more, "--budget", 0.02, "--threads", 1, stdin=pipes[0])
    assert tuned["trials"]
    if is_text:
        assert call("update", model, *test_data, *more, stdin=pipes[1])["rows_added"] > 0
        if form != "stdin":
            assert main(["convert", *map(str, data_of), str(tmp_path / "out.npz")]) == 1
            assert "raw text has no features" in capsys.readouterr().err
    else:
        assert call("convert", *data_of, tmp_path / "c.txt", *more)["rows"] == ROWS
        assert call("info", tmp_path / "c.txt")["points"] == ROWS
    if form in ("csv", "xmc"):
        pytest.importorskip("matplotlib").use("Agg")
        for kind, given in (("labels", data_of), ("weights", [model]), ("pruning", [model, *test_data])):
            call("plot", kind, *given, tmp_path / f"{kind}.png", *(more if kind != "weights" else ()))
            assert (tmp_path / f"{kind}.png").stat().st_size > 1000
