"""Runs in parts from the command line: engines, label ranges, merging, progress."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from xmc_fast import data
from xmc_fast.cli import main
from xmc_fast.cli.status import duration, status
from xmc_fast.linear import OneVsAll
from xmc_fast.mach import Mach
from xmc_fast.model import read_predictions


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """A training file of 300 points, 40 labels, and its X and Y."""
    path = tmp_path_factory.mktemp("runs") / "train.txt"
    X, Y = data.make_synthetic(300, 200, 40, random_state=2)
    data.write_xmc(path, X, Y)
    return path


def files(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def call(capsys, *arguments):
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


OPTIONS = ("--block-labels", 10, "--threads", 1)


def test_parts_merge_to_the_model_of_one_run(train, tmp_path, capsys):
    call(capsys, "train", train, tmp_path / "whole", *OPTIONS)
    call(capsys, "train", train, tmp_path / "b", "--labels", "20:40", *OPTIONS)
    call(capsys, "train", train, tmp_path / "a", "--labels", "0:20", *OPTIONS)
    facts = call(capsys, "merge", tmp_path / "b", tmp_path / "a", tmp_path / "model")
    assert facts["labels"] == 40
    assert files(tmp_path / "model") == files(tmp_path / "whole")
    assert main(["merge", *(str(tmp_path / p) for p in "aax")]) == 1
    assert "labels 0 to 19, expected a part that starts at 20" in capsys.readouterr().err

    for part in "ab":
        call(capsys, "predict", tmp_path / part, train, tmp_path / f"{part}.txt", "-k", 4)
    call(capsys, "predict", tmp_path / "whole", train, tmp_path / "want.txt", "-k", 4)
    arguments = ("-k", 4, "--first-labels", 0, 20, "--", tmp_path / "a.txt", tmp_path / "b.txt")
    assert main(["merge", "--json", *map(str, arguments), str(tmp_path / "got.txt")]) == 0
    got, want = ((tmp_path / f"{name}.txt").read_text().split() for name in ("got", "want"))
    assert len(got) == len(want)
    scores = [[float(entry.split(":")[1]) for entry in entries] for entries in (got, want)]
    np.testing.assert_allclose(*scores, rtol=1e-5, atol=1e-6)


def test_train_and_predict_on_an_engine(train, tmp_path, capsys):
    call(capsys, "train", train, tmp_path / "one", *OPTIONS)
    run = ("--checkpoint", tmp_path / "run", "--engine", "threading")
    call(capsys, "train", train, tmp_path / "two", *OPTIONS, *run)
    assert files(tmp_path / "one") == files(tmp_path / "two")
    facts = call(capsys, "predict", tmp_path / "two", train, tmp_path / "p.txt", "--engine", "threading")
    assert facts["rows"] == 300
    assert main(["train", str(train), str(tmp_path / "x"), "--address", "tcp://127.0.0.1:1"]) == 2
    assert "--address needs --engine" in capsys.readouterr().err


def test_status_counts_blocks_and_tells_the_time_left(train, tmp_path, capsys):
    X, Y = data.read_xmc(train)
    OneVsAll(block_labels=10).fit(X, Y, labels=(5, 40), checkpoint=tmp_path)
    facts = call(capsys, "status", tmp_path)
    assert (facts["done"], facts["total"], facts["finished"]) == (4, 4, True)
    (tmp_path / "manifest.json").unlink()
    assert main(["status", str(tmp_path)]) == 0
    assert "run again" in capsys.readouterr().out
    (tmp_path / "block-00003.safetensors").unlink()
    for i in range(3):
        os.utime(tmp_path / f"block-0000{i}.safetensors", (1000 + 60 * i, 1000 + 60 * i))
    facts = status(tmp_path, now=1150)
    assert facts["done"] == 3
    assert facts["per_hour"] == pytest.approx(60)
    assert facts["seconds_left"] == pytest.approx(60)
    assert facts["seconds_since_last"] == pytest.approx(30)
    assert main(["status", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "3 of 4 blocks done" in out
    assert "1 min 0 s left at that rate" in out


def test_status_of_other_folders(train, tmp_path, capsys):
    X, Y = data.read_xmc(train)
    Mach(5, 3).fit(X, Y, repeats=(1, 2), checkpoint=tmp_path / "mach")
    facts = call(capsys, "status", tmp_path / "mach")
    assert (facts["unit"], facts["done"], facts["total"], facts["finished"]) == ("repetitions", 1, 3, False)
    assert facts["seconds_left"] is None
    assert main(["status", str(tmp_path)]) == 1
    assert "neither fit.json nor mach.json" in capsys.readouterr().err
    assert [duration(s) for s in (5, 65, 3700)] == ["5 s", "1 min 5 s", "1 h 1 min"]


def test_mach_trains_predicts_and_tells_its_size(train, tmp_path, capsys):
    options = ("--model", "mach", "--buckets", 12, "--repeats", 3, "--C", 2, "--seed", 5)
    facts = call(capsys, "train", train, tmp_path / "model", *options, "--checkpoint", tmp_path / "run")
    assert (facts["labels"], facts["buckets"], facts["repeats"]) == (40, 12, 3)
    assert call(capsys, "info", tmp_path / "model")["bytes"] == facts["bytes"]
    call(capsys, "predict", tmp_path / "model", train, tmp_path / "out.txt", "-k", 2)
    X, Y = data.read_xmc(train)
    expected = Mach(12, 3, base=OneVsAll(C=2, random_state=5), random_state=5).fit(X, Y).predict(X, 2)
    assert (read_predictions(tmp_path / "out.txt", 40) != expected).nnz == 0
    for extra, message in (
        (("--labels", "0:5"), "--labels is for --model linear"),
        (("--buckets", 0), "n_buckets"),
    ):
        assert main([*map(str, ("train", train, tmp_path / "other", *options, *extra))]) == 1
        assert message in capsys.readouterr().err
    out = str(tmp_path / "out.txt")
    assert main(["predict", str(tmp_path / "model"), str(train), out, "--optimize", "macro-f1"]) == 1
    assert "no calibrated probabilities" in capsys.readouterr().err


def test_an_ensemble_of_features(train, tmp_path, capsys):
    facts = call(capsys, "train", train, tmp_path / "model", "--model", "ensemble", "--C", 2, "--threads", 1)
    assert facts["labels"] == 40
    told = call(capsys, "info", tmp_path / "model")
    assert (told["kind"], told["bytes"]) == ("ensemble", facts["bytes"])
    call(capsys, "predict", tmp_path / "model", train, tmp_path / "out.txt", "--optimize", "macro-f1")
    assert call(capsys, "evaluate", tmp_path / "model", train)["metrics"]["precision"]["1"] > 0.5


def test_tree_trains_resumes_predicts_and_tells_its_size(train, tmp_path, capsys):
    options = ("--model", "tree", "--max-leaf", 8, "--trees", 2, "--C", 2, "--seed", 5, "--threads", 1)
    run = ("train", train, tmp_path / "model", *options, "--checkpoint", tmp_path / "run", "--calibrate", 0.3)
    facts = call(capsys, *run)
    assert (facts["labels"], facts["trees"]) == (40, 2)
    assert call(capsys, *run)["bytes"] == facts["bytes"]
    told = call(capsys, "info", tmp_path / "model")
    assert (told["kind"], told["bytes"], told["weights"]) == ("label_tree", facts["bytes"], facts["weights"])
    assert call(capsys, "status", tmp_path / "run") | {"seconds_since_last": 0, "per_hour": 0, "seconds_left": 0} == {
        "unit": "trees", "total": 2, "done": 2, "finished": True,
        "per_hour": 0, "seconds_left": 0, "seconds_since_last": 0,
    }  # fmt: skip
    call(capsys, "predict", tmp_path / "model", train, tmp_path / "out.txt", "-k", 2, "--proba")
    call(capsys, "predict", tmp_path / "model", train, tmp_path / "out.txt", "--optimize", "macro-f1")
    assert call(capsys, "evaluate", tmp_path / "model", train)["metrics"]["precision"]["1"] > 0.5
    assert main([*map(str, ("train", train, tmp_path / "other", *options, "--labels", "0:5"))]) == 1
    assert "--labels is for --model linear" in capsys.readouterr().err
    assert main([*map(str, ("merge", tmp_path / "model", tmp_path / "model", tmp_path / "other"))]) == 1
