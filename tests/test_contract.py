"""One contract for every model class: found in the public modules and among the kinds of folders, tested alike.

What a class cannot do stands in LIMITS, with the reason; everything else must work.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.util
import inspect
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone

import xmc_fast
from reference import tiny_encoder
from xmc_fast import _folder

FIXED = "made of parts that are fitted already: it has no parameters"
OWN_SCORES = "its scores are no probabilities, and are not calibrated"
LIMITS = {
    ("SparseModel", "clone"): FIXED,
    ("SparseModel", "fit"): FIXED,
    ("LightXMLEnsemble", "clone"): "made of members, which are estimators",
    ("LightXMLEnsemble", "proba"): "means of the members' scores",
    ("Mach", "proba"): "scores are what the parameter `outputs` says",
    ("LinearDeclare", "proba"): OWN_SCORES,
    ("Declare", "proba"): OWN_SCORES,
}
# Old names of parameters, and the name to use.
OLD_NAMES = {
    "seed": "random_state", "eps": "tol", "max_iterations": "max_iter", "show_progress": "set_progress()",
    "metric_": "metric", "mix_": "mix", "threads": "n_jobs", "checkpoint": "an argument of fit",
}  # fmt: skip

WORDS = ["green tea leaves", "iron ore mine", "cheese milk bread", "ocean ship port", "tree wood leaf"]
TEXTS = [f"{WORDS[i % 5]} {WORDS[(i * i + 1) % 5]}" for i in range(60)]
LABELS = sp.csr_matrix(
    np.eye(5, dtype=np.float32)[np.arange(60) % 5] + np.eye(5)[(np.arange(60) ** 2 + 1) % 5] > 0
)
ROWS = sp.random(60, 30, 0.3, format="csr", dtype=np.float32, random_state=0)
Y = sp.hstack([LABELS, LABELS[::-1]]).tocsr()  # ten labels


def predict(model, X, k=5, **options):
    """The best labels as CSR, also of a class that gives names by default."""
    if "output" in inspect.signature(model.predict).parameters:
        options["output"] = "csr"
    return model.predict(X, k, **options)


def encoder(folder):
    return str(tiny_encoder.save(Path(folder), TEXTS, layers=2, hidden=8))


SMALL = {"epochs": 1, "device": "cpu"}
LIGHT = {
    **SMALL,
    "warmup_epochs": 0,
    "max_leaf": 4,
    "bottleneck": 4,
    "layers": 1,
    "max_length": 8,
    "batch_size": 16,
}
# Class name -> (its input, what makes one from an empty folder).
MAKERS = {
    "SparseModel": (ROWS, lambda _: xmc_fast.OneVsAll().fit(ROWS, Y).model_),
    "TextClassifier": (TEXTS, lambda _: xmc_fast.TextClassifier(min_df=1)),
    "OneVsAll": (ROWS, lambda _: xmc_fast.OneVsAll()),
    "LabelTree": (ROWS, lambda _: xmc_fast.LabelTree(max_leaf=3)),
    "Neighbours": (ROWS, lambda _: xmc_fast.Neighbours(5)),
    "Lexical": (
        TEXTS,
        lambda _: xmc_fast.Lexical([[*line.split(), line] for line in [*WORDS, *WORDS[::-1]]]),
    ),
    "Ensemble": (ROWS, lambda _: xmc_fast.Ensemble(folds=2)),
    "Mach": (ROWS, lambda _: xmc_fast.Mach(6, 3)),
    "LinearDeclare": (ROWS, lambda _: xmc_fast.LinearDeclare(4, neighbours=5)),
    "Declare": (ROWS, lambda _: xmc_fast.nn.Declare(4, hidden=8, neighbours=5, epochs=1)),
    "SparseClassifier": (
        ROWS,
        lambda _: xmc_fast.nn.SparseClassifier(hidden=8, fan_in=4, loss="bce", **SMALL),
    ),
    "LightXML": (TEXTS, lambda folder: xmc_fast.nn.LightXML(encoder(folder), **LIGHT)),
    "LightXMLEnsemble": (
        TEXTS,
        lambda folder: xmc_fast.nn.LightXMLEnsemble([xmc_fast.nn.LightXML(encoder(folder), **LIGHT)]),
    ),
}


def model_classes():
    """Public classes with fit and predict, and those that folders are opened with; name -> class."""
    have_torch = importlib.util.find_spec("torch") and importlib.util.find_spec("transformers")
    found = [getattr(xmc_fast, name) for name in xmc_fast.__all__]
    if have_torch:
        found += [getattr(xmc_fast.nn, name) for name in xmc_fast.nn.__all__]
    for target in _folder.KINDS.values():
        module, name = target.split(":")
        if have_torch or not module.startswith("xmc_fast.nn"):
            found.append(getattr(importlib.import_module(module), name))
    classes = {c.__name__: c for c in found if inspect.isclass(c) and hasattr(c, "predict")}
    return {
        n: c for n, c in sorted(classes.items()) if hasattr(c, "fit") or c in found[len(xmc_fast.__all__) :]
    }


CLASSES = model_classes()
every_class = pytest.mark.parametrize("name", CLASSES)
pytestmark = pytest.mark.usefixtures("one_torch_thread")


def can(name, what):
    if (name, what) in LIMITS:
        pytest.skip(f"{name} has no {what}: {LIMITS[name, what]}")


def make(name, folder):
    assert name in MAKERS, f"{name} is a model class: add it to MAKERS of this test"
    X, maker = MAKERS[name]
    return X, maker(folder)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """name -> its input and a fitted model that has not predicted yet, as pickled bytes."""
    made = {}

    def get(name):
        if name not in made:
            X, model = make(name, tmp_path_factory.mktemp(name))
            model = model if (name, "fit") in LIMITS else model.fit(X, Y)
            made[name] = X, pickle.dumps(model)
        return made[name][0], pickle.loads(made[name][1])

    return get


def same(a, b):
    assert a.shape == b.shape
    for part in ("indptr", "indices", "data"):
        assert getattr(a, part).tobytes() == getattr(b, part).tobytes()


def test_limits_name_classes():
    assert {name for name, _ in LIMITS} <= set(MAKERS)


@every_class
def test_clone(name, tmp_path):
    can(name, "clone")
    _, model = make(name, tmp_path)
    again = clone(model)
    assert type(again) is type(model)
    assert repr(again.get_params()) == repr(model.get_params())


@every_class
def test_parameter_names(name):
    for method in ("__init__", "fit", "predict", "predict_one", "save", "load"):
        function = getattr(CLASSES[name], method, None)
        if function is not None:
            old = [p for p in inspect.signature(function).parameters if p in OLD_NAMES]
            old = [p for p in old if (method, p) != ("fit", "checkpoint")]
            assert not old, f"{name}.{method} has {old[0]}, use {OLD_NAMES[old[0]]}"
    for method in ("predict", "predict_one"):
        if (name, method) not in LIMITS:
            default = inspect.signature(getattr(CLASSES[name], method)).parameters["k"].default
            assert default == (None if name == "TextClassifier" else 5)  # None: the stored rule, else 5


@every_class
def test_predict(name, fitted):
    X, model = fitted(name)
    top = predict(model, X)
    assert top.shape == (60, 10)
    assert np.diff(top.indptr).max() <= 5
    for row in range(3):
        scores = top.data[top.indptr[row] : top.indptr[row + 1]]
        assert (np.diff(scores) <= 0).all()
    same(predict(model, X, 5), top)


@every_class
def test_predict_one(name, fitted):
    can(name, "predict_one")
    X, model = fitted(name)
    top = predict(model, X[:1])
    one = model.predict_one(X[0])
    ids, scores = zip(*one, strict=True) if isinstance(one, list) else one  # suggestions have names
    if not isinstance(one, list):
        assert list(ids) == top.indices.tolist()
    np.testing.assert_allclose(scores, top.data, rtol=1e-5)


@every_class
def test_proba(name, fitted):
    can(name, "proba")
    X, model = fitted(name)
    assert inspect.signature(model.predict).parameters["proba"].default in (False, None)
    linear = getattr(model, "model_", getattr(model, "model", model))
    if isinstance(linear, (xmc_fast.SparseModel, xmc_fast.LabelTree)) and linear.calibration is None:
        with pytest.raises(ValueError, match="calibrate"):
            predict(model, X, proba=True)
        rows = X if sp.issparse(X) else model.transform(X)
        linear.calibrate(rows, Y)
    p = predict(model, X, proba=True)
    assert ((p.data >= 0) & (p.data <= 1)).all()


@every_class
def test_save_and_load(name, fitted, tmp_path):
    X, model = fitted(name)
    model.save(tmp_path / "m")
    expected = predict(model, X)
    model.save(tmp_path / "again")
    for folder in ("m", "again"):
        same(predict(xmc_fast.load(tmp_path / folder), X), expected)
        same(predict(CLASSES[name].load(tmp_path / folder), X), expected)
    assert _folder.read_any_manifest(tmp_path / "m")[1]["kind"] in _folder.KINDS
    model.save(tmp_path / "m")  # replaces
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    with pytest.raises(ValueError, match="not overwritten"):
        model.save(tmp_path / "mine")


@every_class
def test_pickle_and_deepcopy(name, fitted):
    X, model = fitted(name)
    before = [pickle.loads(pickle.dumps(model)), copy.deepcopy(model)]
    expected = predict(model, X)
    for other in [*before, pickle.loads(pickle.dumps(model)), copy.deepcopy(model)]:
        same(predict(other, X), expected)


@every_class
def test_nbytes(name, fitted):
    can(name, "nbytes")
    _, model = fitted(name)
    assert isinstance(model.nbytes, int)
    assert model.nbytes > 0


@every_class
def test_ctrl_c(name, tmp_path):
    """A fit that Ctrl-C stops halfway leaves an object that can be fitted."""
    can(name, "fit")
    X, model = make(name, tmp_path)
    calls = 0

    def count(*_):
        nonlocal calls
        calls += 1

    def interrupt(*_):
        nonlocal calls
        calls -= 2
        if calls < 0:
            sys.setprofile(None)
            raise KeyboardInterrupt

    for profile, outcome in (
        (count, contextlib.nullcontext()),
        (interrupt, pytest.raises(KeyboardInterrupt)),
    ):
        with outcome:
            sys.setprofile(profile)
            try:
                model.fit(X, Y)
            finally:
                sys.setprofile(None)
    expected = predict(make(name, tmp_path)[1].fit(X, Y), X)
    same(predict(model.fit(X, Y), X), expected)


@every_class
def test_bad_input(name, fitted, tmp_path):
    X, model = fitted(name)
    if (name, "fit") not in LIMITS:
        _, fresh = make(name, tmp_path)
        with pytest.raises(ValueError, match=r"Y|labels|rows"):
            fresh.fit(X, Y[:7])
    with pytest.raises(ValueError, match="k"):
        predict(model, X, -1)
    if sp.issparse(X):
        with pytest.raises(ValueError, match="X"):
            predict(model, X[:, :7])
        bad = X.copy()
        bad.data[0] = np.nan
        with pytest.raises(ValueError, match="X"):
            model.predict(bad)


def test_load_of_something_else(tmp_path):
    with pytest.raises(_folder.ModelFormatError, match=r"manifest\.json: file is missing"):
        xmc_fast.load(tmp_path)
    (tmp_path / "manifest.json").write_text('{"kind": "cake"}')
    with pytest.raises(_folder.ModelFormatError, match="'cake' is no kind of model"):
        xmc_fast.load(tmp_path)


MISTAKES = """\
from xmc_fast import LinearDeclare, Mach, OneVsAll, SparseModel, load

OneVsAll(random_stat=1)  # [call-arg]
OneVsAll().fit()  # [call-arg]
SparseModel(None, bias="x")  # [arg-type]
Mach(n_buckets="many")  # [arg-type]
LinearDeclare().predict()  # [call-arg]
load("folder").predikt  # [attr-defined]
load(3)  # [arg-type]
"""


def test_type_checkers_see_the_lazy_names(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "mistakes.py").write_text(MISTAKES)
    path = os.pathsep.join([str(Path(xmc_fast.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    options = [
        "--no-incremental",
        "--ignore-missing-imports",
        "--follow-imports=silent",
        "--show-error-codes",
    ]
    run = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "mistakes.py"],
        cwd=tmp_path, env={**os.environ, "MYPYPATH": path}, capture_output=True, text=True,
    )  # fmt: skip
    for number, line in enumerate(MISTAKES.splitlines(), 1):
        if "# " in line:
            code = line.split("# ")[1]
            found = [out for out in run.stdout.splitlines() if out.startswith(f"mistakes.py:{number}:")]
            assert any(code in out for out in found), f"line {number}, {line!r}: {run.stdout}{run.stderr}"
