"""The command line as people use it: each command, its JSON, its errors and exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from xmc_fast import data
from xmc_fast.__main__ import main as entry
from xmc_fast.cli import COMMANDS, main


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A small part of the demo data as files: train, valid and test in repository format, texts and labels."""
    folder = tmp_path_factory.mktemp("cli")
    demo = data.load_demo()
    for name, rows in (("train", slice(0, 600)), ("valid", slice(600, 900)), ("test", slice(900, 1100))):
        X, Y = demo.X_train[rows], demo.Y_train[rows]
        data.write_xmc(folder / f"{name}.txt", X, Y)
        texts = [" ".join(demo.feature_names[j] for j in X[i].indices) for i in range(X.shape[0])]
        (folder / f"{name}_texts.txt").write_text("\n".join(texts) + "\n")
        ids = [" ".join(map(str, Y[i].indices)) for i in range(Y.shape[0])]
        (folder / f"{name}_labels.txt").write_text("\n".join(ids) + "\n")
    return folder


@pytest.fixture(scope="module")
def model(files):
    assert (
        main(
            ["train", str(files / "train.txt"), str(files / "model"), "--calibrate", str(files / "valid.txt")]
        )
        == 0
    )
    return files / "model"


def run(capsys, *args):
    code = main([str(a) for a in args])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def run_json(capsys, *args):
    code, out, err = run(capsys, *args, "--json")
    assert code == 0, err
    return json.loads(out)


def test_demo(tmp_path, capsys):
    facts = run_json(capsys, "demo", "--out", tmp_path / "out")
    assert facts["metrics"]["P"]["1"] > 55
    assert (tmp_path / "out" / "report.svg").read_text().startswith("<svg")
    assert run_json(capsys, "info", tmp_path / "out" / "model")["n_labels"] == 400


def test_info_of_data(files, capsys):
    facts = run_json(capsys, "info", files / "train.txt")
    assert facts["points"] == 600
    code, out, _ = run(capsys, "info", files / "train_texts.txt", files / "train_labels.txt")
    assert code == 0
    assert "600" in out


def test_convert_round_trip(files, tmp_path, capsys):
    assert run(capsys, "convert", files / "test.txt", tmp_path / "t.npz")[0] == 0
    assert run(capsys, "convert", tmp_path / "t.X.npz", tmp_path / "t.Y.npz", tmp_path / "t.txt.gz")[0] == 0
    first, second = data.read_xmc(files / "test.txt"), data.read_xmc(tmp_path / "t.txt.gz")
    assert (first.X != second.X).nnz == 0
    assert (first.Y != second.Y).nnz == 0


def test_train_predict_evaluate(files, model, tmp_path, capsys):
    facts = run_json(capsys, "predict", model, files / "test.txt", tmp_path / "out.txt", "-k", 3)
    assert facts["rows"] == 200
    lines = (tmp_path / "out.txt").read_text().splitlines()
    assert len(lines) == 200
    assert all(len(line.split()) == 3 for line in lines)
    table = run_json(capsys, "evaluate", model, files / "test.txt", "--train", files / "train.txt", "--bins")
    assert table["metrics"]["precision"]["1"] > 0.25
    assert table["bins"]
    code, out, _ = run(capsys, "evaluate", model, files / "test.txt", "-k", 1)
    assert code == 0
    assert "macro-F1" in out


def test_predict_optimized_raises_macro_f1(files, model, tmp_path, capsys):
    from xmc_fast import metrics
    from xmc_fast.model import read_predictions

    values = []
    for options in ((), ("--optimize", "macro-f1"), ("--optimize", "macro-f1", "--mix", "1")):
        run_json(capsys, "predict", model, files / "test.txt", tmp_path / "out.txt", "-k", 3, *options)
        prediction = read_predictions(tmp_path / "out.txt", 400)
        values.append(metrics.macro_f1_at_k(data.read_xmc(files / "test.txt").Y, prediction, 3))
    assert values[1] > values[0]


def test_predict_optimizes_every_metric_by_its_name(files, model, tmp_path, capsys):
    from xmc_fast import decide

    out = tmp_path / "out.txt"
    for name in decide.METRICS:
        if name == "weighted-precision":  # its weights are the caller's own
            continue
        more = ("--train", files / "train.txt") if name == "psp" else ()
        run_json(capsys, "predict", model, files / "test.txt", out, "-k", 2, "--optimize", name, *more)
        assert all(len(line.split()) == 2 for line in out.read_text().splitlines())
    for options, message in (
        (("--optimize", "psp"), "--optimize psp needs --train"),
        (("--optimize", "macro-g"), "unknown metric 'macro-g', known: precision, psp"),
    ):
        code, _, err = run(capsys, "predict", model, files / "test.txt", out, *options)
        assert code == 1
        assert message in err


def test_text_model(files, tmp_path, capsys):
    folder = tmp_path / "text-model"
    facts = run_json(capsys, "train", files / "train_texts.txt", files / "train_labels.txt", folder)
    assert facts["labels"] > 300
    assert run_json(capsys, "predict", folder, files / "test_texts.txt", tmp_path / "out.txt")["rows"] == 200
    assert len((tmp_path / "out.txt").read_text().splitlines()) == 200
    code, _, err = run(capsys, "evaluate", folder, files / "test.txt")
    assert code == 1
    assert "the model takes raw text, the data is features" in err


@pytest.mark.parametrize("kind", ["labels", "weights", "pruning"])
def test_plot(files, model, tmp_path, capsys, kind):
    pytest.importorskip("matplotlib").use("Agg")
    picture = tmp_path / "p.png"
    inputs = {"labels": [files / "train.txt"], "weights": [model], "pruning": [model, files / "test.txt"]}[
        kind
    ]
    assert run(capsys, "plot", kind, *inputs, picture)[0] == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["train", "missing.txt", "m"], "missing.txt: No such file or directory"),
        (["predict", "nowhere", "a", "b"], "nowhere is not a model folder"),
        (["info", "--format", "pair", "a"], "format pair takes two files"),
        (["info", "."], "no files at ."),
        (["train", ".", "m"], "no files at ."),
    ],
)
def test_errors_are_one_line(tmp_path, monkeypatch, capsys, args, message):
    monkeypatch.chdir(tmp_path)
    check_error(capsys, args, message, 1)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["train", "only-one"], "give the data and the model folder"),
        (["predict", "nowhere", "a"], "give the data and the output"),
        (["convert", "x"], "give the input and the output"),
        (["plot", "labels", "x"], "give the input and the picture"),
        (["merge", "x"], "give the parts and the output"),
        (["predict", "m", "a", "b", "--mix", "0.5"], "--mix needs --optimize"),
        (
            ["predict", "m", "a", "b", "--optimize", "coverage", "--mix", "2"],
            "--mix must be from 0 to 1, got 2",
        ),
        (["predict", "m", "a", "b", "--propensity", "amazon"], "--propensity needs --train"),
        (["evaluate", "m", "a", "--propensity", "amazon"], "--propensity needs --train"),
        (["evaluate", "m", "a", "--bins"], "--bins needs --train"),
    ],
)
def test_arguments_that_do_not_go_together_exit_with_2(tmp_path, monkeypatch, capsys, args, message):
    monkeypatch.chdir(tmp_path)
    check_error(capsys, args, message, 2)


def check_error(capsys, args, message, expected):
    code, out, err = run(capsys, *args)
    assert code == expected
    assert out == ""
    assert err.startswith(f"xmc-fast {args[0]}: error: ")
    assert message in err
    assert len(err.splitlines()) == 1


def test_malformed_data_names_file_line_and_column(tmp_path, capsys):
    bad = tmp_path / "bad.txt"
    bad.write_text("2 3 2\n0 0:1\n1 0:x\n")
    code, _, err = run(capsys, "info", bad)
    assert code == 1
    assert f"{bad}:3:3" in err


def test_debug_shows_the_traceback(tmp_path):
    with pytest.raises(OSError, match="missing"):
        main(["info", str(tmp_path / "missing"), "--debug"])


def test_what_could_not_be_saved_is_not_trained(files, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("xmc_fast.linear.OneVsAll.fit", None)
    (tmp_path / "kept").write_text("")
    for folder, message in ((tmp_path, "is not a model folder"), (tmp_path / "kept", "is not a folder")):
        for model in ("linear", "mach"):
            code, _, err = run(capsys, "train", files / "train.txt", folder, "--model", model)
            assert code == 1
            assert message in err


@pytest.mark.parametrize("command", [["predict", "model"], ["convert"]])
def test_an_input_is_not_replaced(files, model, capsys, command):
    before = (files / "test.txt").read_bytes()
    command = [files / "model" if word == "model" else word for word in command]
    code, _, err = run(capsys, *command, files / "test.txt", files / "." / "test.txt")
    assert code == 2
    assert "is also an input" in err
    assert (files / "test.txt").read_bytes() == before


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nonsense"], "invalid choice"),
        (
            ["train", "a", "b", "--treads", "2"],
            "xmc-fast train: error: unknown argument --treads, did you mean",
        ),
        (["predict", "m", "a", "b", "-k", "0"], "argument -k: expected a whole number from 1 on, got '0'"),
        (["train", "a", "b", "--labels", "1-2"], "argument --labels: expected A:B, two label ids, got '1-2'"),
    ],
)
def test_wrong_usage_exits_with_2(capsys, args, message):
    with pytest.raises(SystemExit) as stop:
        main(args)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_probabilities_need_a_calibrated_model(files, tmp_path, capsys):
    train, plain = files / "train.txt", tmp_path / "plain"
    run_json(capsys, "train", train, plain)
    for option in (["--proba"], ["--optimize", "coverage"]):
        code, _, err = run(capsys, "predict", plain, train, tmp_path / "out.txt", *option)
        assert code == 1
        assert f"{option[0]} needs a calibrated model: xmc-fast train ... --calibrate" in err


def test_a_propensity_of_no_known_name(files, model, capsys):
    more = ("--train", files / "train.txt", "--propensity", "wiki")
    code, _, err = run(capsys, "evaluate", model, files / "test.txt", *more)
    assert code == 1
    assert "--propensity must be one of wikipedia, amazon, default, or A,B (two numbers), got 'wiki'" in err


def test_info_lists_the_parameters_once(model, capsys):
    _, out, _ = run(capsys, "info", model)
    assert out.count("squared_hinge") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples(capsys, command):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert "examples:\n  xmc-fast" in capsys.readouterr().out


def test_unwritable_output_leaves_nothing(files, model, tmp_path, capsys):
    code, _, err = run(capsys, "predict", model, files / "test.txt", tmp_path / "no" / "out.txt")
    assert code == 1
    assert (
        err
        == f"xmc-fast predict: error: {tmp_path / 'no' / 'out.txt'}: cannot write: No such file or directory\n"
    )
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    code, _, err = run(capsys, "train", files / "train.txt", tmp_path / "file" / "model")
    assert code == 1
    assert f"{tmp_path / 'file' / 'model'}: cannot write: " in err


@pytest.mark.skipif(not hasattr(signal, "SIGINT") or os.name == "nt", reason="needs POSIX signals")
def test_ctrl_c_is_quiet(tmp_path):
    X, Y = data.make_synthetic(4000, 3000, 6000, random_state=0)
    data.write_xmc(tmp_path / "big.txt", X, Y)
    run = tmp_path / "run"
    options = ["--tol", "1e-3", "--block-labels", "50", "--checkpoint", str(run)]
    command = [sys.executable, "-m", "xmc_fast", "train", *options, tmp_path / "big.txt", tmp_path / "m"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: any(run.glob("*.safetensors")))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130
    assert err.strip() == "xmc-fast: interrupted"
    assert not (tmp_path / "m").exists()
    assert len(list(run.glob("*.safetensors"))) < 6000 / 50


def wait_for(done, seconds=120):
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.01)


def test_ctrl_c_while_importing(monkeypatch, capsys):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("xmc_fast.cli.main", interrupted)
    assert entry() == 130
    assert capsys.readouterr().err == "xmc-fast: interrupted\n"


def test_predictions_do_not_depend_on_threads(files, model, tmp_path, capsys):
    for threads in (1, 3):
        run(capsys, "predict", model, files / "test.txt", tmp_path / f"{threads}.txt", "--threads", threads)
    assert np.array_equal((tmp_path / "1.txt").read_bytes(), (tmp_path / "3.txt").read_bytes())
