"""A model that is fitted or updated again while others predict from it or save it: they see one that is whole."""

from __future__ import annotations

import copy
import itertools
import os
import sys
import threading

import numpy as np
import pytest
import scipy.sparse as sp

import xmc_fast

PACKAGE = os.path.dirname(xmc_fast.__file__)
X = sp.random(300, 60, 0.2, format="csr", dtype=np.float32, random_state=0)
Y = sp.csr_matrix(np.random.default_rng(0).random((300, 64)) < 0.05)


def texts_of(rows):
    """One text a row: its columns as words."""
    return [
        " ".join(f"w{c}" for c in rows.indices[a:b]) or "none" for a, b in itertools.pairwise(rows.indptr)
    ]


CHANGED = {  # what is fitted, and fitted again, while others predict from it
    "OneVsAll": lambda: xmc_fast.OneVsAll(n_jobs=1),
    "LabelTree": lambda: xmc_fast.LabelTree(max_leaf=8, n_trees=2, n_jobs=1),
    "Mach": lambda: xmc_fast.Mach(8, 4, n_jobs=1),
    "LinearDeclare": lambda: xmc_fast.LinearDeclare(4, n_jobs=1),
    "Neighbours": lambda: xmc_fast.Neighbours(5, n_jobs=1),
    "Ensemble": lambda: xmc_fast.Ensemble([xmc_fast.Neighbours(5, n_jobs=1)], folds=2, n_jobs=1),
    "TextClassifier": lambda: xmc_fast.TextClassifier(min_df=1, calibrate=0, n_jobs=1),
    "Lexical": lambda: xmc_fast.Lexical([f"w{c}" for c in range(Y.shape[1])], n_jobs=1),
}
OF_TEXTS = ("TextClassifier", "Lexical")


@pytest.mark.parametrize(
    ("name", "how"),
    [*((name, "fit") for name in CHANGED), ("OneVsAll", "update"), ("TextClassifier", "update")],
)
def test_eight_threads_predict_while_the_model_is_changed(name, how):
    """Each prediction is that of a model that was whole."""
    given = texts_of(X) if name in OF_TEXTS else X
    names = [[f"l{c}" for c in Y.indices[a:b]] for a, b in itertools.pairwise(Y.indptr)]
    truth = [names, names[::-1]] if name == "TextClassifier" else [Y, Y[::-1]]
    options = {"output": "csr"} if name == "TextClassifier" else {}
    model = CHANGED[name]().fit(given, truth[0], **({"keep_state": True} if how == "update" else {}))

    def predicted():
        top = model.predict(given, 3, **options)
        return top.indptr.tobytes() + top.indices.tobytes() + top.data.tobytes()

    seen, known, failed, stop = set(), [predicted()], [], threading.Event()

    def predict():
        try:
            while not stop.is_set():
                seen.add(predicted())
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=predict) for _ in range(8)]
    for thread in threads:
        thread.start()
    for number in range(4):
        if how == "fit":
            model.fit(given, truth[(number + 1) % 2])
        else:
            rows = slice(20 * number, 20 * number + 20)
            model.update(given[rows], truth[1][rows])
        known.append(predicted())
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not failed
    assert seen <= set(known)
    assert len(set(known)) > 1


@pytest.mark.parametrize("name", CHANGED)
def test_a_model_whose_second_fit_fails_is_the_old_one(name, monkeypatch):
    given = texts_of(X) if name in OF_TEXTS else X
    truth = [[f"l{c}"] for c in range(len(given))] if name == "TextClassifier" else Y
    options = {"output": "csr"} if name == "TextClassifier" else {}
    model = CHANGED[name]().fit(given, truth)
    before = model.predict(given, 3, **options)
    attributes = dict(model.__dict__)
    with pytest.raises(ValueError, match=r"X|Y|rows|labels"):
        model.fit(given, truth[:-1])
    assert model.__dict__ == attributes
    assert (model.predict(given, 3, **options) != before).nnz == 0


def interrupted(call, at, other):
    """call(), with other() before the at-th line of this package that it runs; whether it has so many."""
    left = at

    def trace(frame, event, _):
        nonlocal left
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                sys.settrace(None)
                other()
        return trace if left > 0 else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return left <= 0


@pytest.mark.parametrize("name", CHANGED)
def test_what_is_saved_while_the_model_is_fitted_again_is_whole(name, tmp_path):
    """Fitted between any two lines of `save`: what is opened then is the old model or the new one."""
    rows, words = X[:60], texts_of(X[:60])
    given = words if name in OF_TEXTS else rows
    options = {"output": "csr"} if name == "TextClassifier" else {}
    names = [[f"l{c}" for c in Y.indices[a:b]] for a, b in itertools.pairwise(Y[:60].indptr)]
    truth = [names, [of[:1] for of in names]] if name == "TextClassifier" else [Y[:60], Y[60:120]]

    def contents(model):
        top = model.predict(given, 3, **options)
        labels = model.label_names_ if name == "TextClassifier" else top.shape[1]
        return top.indptr.tobytes(), top.indices.tobytes(), top.data.tobytes(), str(labels)

    models = [CHANGED[name]().fit(given, of) for of in truth]
    known = {contents(model) for model in models}
    for number, at in enumerate(itertools.count(1, 3)):
        model = copy.copy(models[0])
        # The other model's attributes at once, as `fit` ends; training it anew each time would take long.
        more = interrupted(
            lambda m=model, n=number: m.save(tmp_path / str(n)),
            at,
            lambda m=model: m.__dict__.update(models[1].__dict__),
        )
        assert contents(type(model).load(tmp_path / str(number))) in known
        if not more or number > 60:
            break
    assert number > 3


@pytest.mark.parametrize("name", ["SparseClassifier", "Declare"])
def test_eight_threads_predict_from_a_network(name):
    """Nothing of the training (dropout) comes back while others predict."""
    pytest.importorskip("torch")
    from xmc_fast import nn

    options = {"epochs": 1, "hidden": 16}
    model = (
        nn.SparseClassifier(fan_in=8, dropout=0.5, **options)
        if name == "SparseClassifier"
        else nn.Declare(4, **options)
    ).fit(X, Y)
    expected, wrong = model.predict(X, 3), []

    def predict():
        for _ in range(20):
            if (model.predict(X, 3) != expected).nnz:
                wrong.append(threading.get_ident())

    threads = [threading.Thread(target=predict) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not wrong
