"""Updates of one-vs-all models: the same bytes or the same optimum as a fit of all the data."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp

from tests.reference import linear as reference
from xmc_fast import OneVsAll
from xmc_fast._screen import added_loss

BLOCK = 10


def data(n=160, features=30, labels=24, seed=0):
    rng = np.random.default_rng(seed)
    centres = rng.random((labels, features)) ** 6
    Y = (rng.random((n, labels)) < np.linspace(0.15, 0.01, labels)).astype(np.float32)
    X = sp.csr_matrix((Y @ centres + rng.random((n, features)) * (rng.random((n, features)) < 0.1)) + 1e-3)
    X.data[rng.random(X.nnz) < 0.5] = 0
    X.eliminate_zeros()
    return X.astype(np.float32), sp.csr_matrix(Y)


def fit(X, Y, **options):
    return OneVsAll(prune=0, block_labels=BLOCK, n_jobs=1, **options).fit(X, Y, keep_state=True)


def bytes_of(model):
    return [(b.indptr.tobytes(), b.indices.tobytes(), b.data.tobytes()) for b in model.blocks]


def worst_ratio(model, X, Y, C=1.0, bias=1.0):
    """The largest f(w) / min f over the labels, the minimum by the numpy reference."""
    A = reference.prepared_rows(sp.csr_matrix(X).toarray(), True, bias)
    W = model.to_csr().toarray().astype(np.float64)
    worst = 1.0
    for label in range(W.shape[0]):
        s = np.where(Y[:, [label]].toarray().ravel() > 0, 1.0, -1.0)
        best = reference.objective(reference.solve(A, s, C=C), A, s, C=C)
        worst = max(worst, reference.objective(W[label], A, s, C=C) / best)
    return worst


@pytest.mark.parametrize("old", [10, 13, 20])
def test_new_labels_have_the_bytes_of_a_fit(old):
    X, Y = data()
    model = fit(X, Y[:, :old]).update(old_labels=Y)
    whole = fit(X, Y)
    assert bytes_of(model.model_) == bytes_of(whole.model_)
    assert model.update_["labels_trained"] == Y.shape[1] - old // BLOCK * BLOCK
    assert model.update_["labels_added"] == Y.shape[1] - old
    assert model.model_.params["updates"] == [model.update_]
    np.testing.assert_array_equal(model.state_.alpha.toarray(), whole.state_.alpha.toarray())


@pytest.mark.parametrize("bias", [1.0, None])
def test_new_rows_and_labels_reach_the_optimum(bias):
    X, Y = data()
    Y = Y.tolil()
    Y[:150, 20:] = 0  # only new rows have them
    Y = Y.tocsr()
    model = fit(X[:150], Y[:150, :20], bias=bias).update(X[150:], Y[150:])
    assert model.update_["labels_added"] == 4
    assert worst_ratio(model.model_, X, Y, bias=bias) <= 1.001
    again = fit(X[:150], Y[:150, :20], bias=bias).update(X[150:], Y[150:])
    assert bytes_of(model.model_) == bytes_of(again.model_)


def test_few_rows_leave_labels_alone():
    X, Y = data(n=900)
    model = fit(X[:898], Y[:898])
    before = model.model_.to_csr()
    model.update(X[898:], Y[898:])
    trained = model.update_["labels_trained"]
    assert 0 < trained < Y.shape[1] / 2
    same = np.abs(before - model.model_.to_csr()).sum(axis=1).A1 == 0
    assert same.sum() == Y.shape[1] - trained
    assert worst_ratio(model.model_, X, Y) <= 1.001


@pytest.mark.parametrize("options", [{}, {"bias": None, "C": 3.0}, {"normalize": False}])
@pytest.mark.parametrize("dense", [False, True])
def test_loss_of_changed_rows_is_that_of_the_weights(options, dense):
    X, Y = data(n=240)
    X = X.toarray() if dense else X
    model = fit(X[:160], Y[:160], **options)
    labels, removed = np.array([0, 3, 23]), np.array([4, 9, 100], np.int32)
    W = np.zeros((3, X.shape[1] + 1))
    W[:, : model.model_.n_columns] = model.model_.to_csr().toarray()[labels]
    A = sp.csr_matrix(X).toarray().astype(np.float64)
    if options.get("normalize", True):
        A /= np.maximum(np.linalg.norm(A, axis=1, keepdims=True), 1e-30)
    Z = A @ W[:, :-1].T + W[:, -1] * (options.get("bias", 1.0) is not None)
    S = np.where(Y[:, labels].toarray() > 0, 1, -1)
    expected = options.get("C", 1.0) * (np.maximum(0, 1 - S * Z)[160:] ** 2).sum(axis=0)
    none = np.empty(0, np.int32)
    found = added_loss(model, model.state_, labels, X[160:], Y[160:][:, labels], none)
    np.testing.assert_allclose(found, expected, rtol=2e-5)  # 80 rows: two chunks
    inside = (Z[removed] > -1).any(axis=0)
    found = added_loss(model, model.state_, labels, X[160:], Y[160:][:, labels], removed)
    np.testing.assert_array_equal(np.isinf(found), inside)


def test_a_new_positive_that_the_model_is_sure_of_trains_nothing():
    X, Y = data(n=2000, labels=4)
    model = fit(X, Y)
    before = bytes_of(model.model_)
    scores = reference.prepared_rows(X.toarray(), True, 1.0) @ model.model_.to_csr().toarray().T
    row = int(np.argmax(scores[:, 0] - scores[:, 1:].max(axis=1)))
    assert Y[[row]].toarray().tolist() == [[1, 0, 0, 0]]
    model.update(X[[row]], Y[[row]])
    assert model.update_["labels_trained"] == 0
    assert bytes_of(model.model_) == before
    assert worst_ratio(model.model_, sp.vstack([X, X[[row]]]), sp.vstack([Y, Y[[row]]]).tocsr()) <= 1.001


def test_removed_and_changed():
    X, Y = data()
    changed = Y.tolil()
    changed[5, 3] = 1 - changed[5, 3]
    changed = changed.tocsr()
    rows, labels = [0, 17, 159], [2, 15]
    model = fit(X, Y).update(old_labels=changed, remove_rows=rows, remove_labels=labels)
    left, kept = np.setdiff1d(np.arange(160), rows), np.setdiff1d(np.arange(24), labels)
    assert model.model_.n_labels == 22
    assert model.update_["rows_removed"] == 3
    assert worst_ratio(model.model_, X[left], changed[left][:, kept]) <= 1.001


def test_removed_labels_alone_train_nothing():
    X, Y = data()
    model = fit(X, Y)
    before = model.model_.to_csr()
    model.update(remove_labels=[0, 11])
    assert model.update_["labels_trained"] == 0
    kept = np.setdiff1d(np.arange(24), [0, 11])
    assert np.abs(model.model_.to_csr() - before[kept]).sum() == 0


def test_new_features_and_dense_rows():
    X, Y = data()
    wide = sp.hstack([X, sp.random(160, 7, 0.2, random_state=0, dtype=np.float32)], format="csr")
    wide.data[:] = np.abs(wide.data)
    start = sp.hstack([X[:120], sp.csr_matrix((120, 7), dtype=np.float32)], format="csr")
    model = fit(X[:120], Y[:120]).update(wide[120:], Y[120:])
    every = sp.vstack([start, wide[120:]], format="csr")
    assert model.model_.n_features == 37
    assert worst_ratio(model.model_, every, Y) <= 1.001
    dense = fit(X[:120].toarray(), Y[:120]).update(X[120:].toarray(), Y[120:])
    assert worst_ratio(dense.model_, X, Y) <= 1.001


@pytest.mark.parametrize(
    "options", [{"loss": "logistic"}, {"penalty": "l1"}, {"positive_weight": "balanced"}]
)
def test_other_problems_end_where_a_fit_does(options):
    X, Y = data(labels=12)
    model = fit(X[:150], Y[:150], **options).update(X[150:], Y[150:])
    whole = fit(X, Y, **options)
    np.testing.assert_allclose(model.report_["objective"], whole.report_["objective"], rtol=2e-3)


def test_saved_state_goes_on(tmp_path):
    X, Y = data()
    model = fit(X[:150], Y[:150])
    model.save(tmp_path / "model")
    opened = OneVsAll.load(tmp_path / "model").update(X[150:], Y[150:])
    model.update(X[150:], Y[150:])
    assert bytes_of(opened.model_) == bytes_of(model.model_)
    opened.save(tmp_path / "model")  # over what it was mapped from
    twice = OneVsAll.load(tmp_path / "model").update(remove_rows=[0])
    assert [u["rows_added"] for u in twice.model_.params["updates"]] == [10, 0]
    checked = OneVsAll(prune=0, block_labels=BLOCK, n_jobs=1)
    checked.fit(X[:150], Y[:150], keep_state=True, checkpoint=tmp_path / "run")
    assert bytes_of(OneVsAll.load(tmp_path / "run").update(X[150:], Y[150:]).model_) == bytes_of(model.model_)


def test_mistakes_are_told():
    X, Y = data(n=50, labels=5)
    with pytest.raises(ValueError, match="keep_state=True"):
        OneVsAll().fit(X, Y).update(X, Y)
    model = fit(X, Y)
    with pytest.raises(ValueError, match="given together"):
        model.update(X)
    with pytest.raises(ValueError, match="the model has 30"):
        model.update(X[:, :20], Y)
    with pytest.raises(ValueError, match="the model has 5"):
        model.update(X, Y[:, :4])
    with pytest.raises(ValueError, match="remove_rows must be numbers from 0 to 49"):
        model.update(remove_rows=[50])


KILLED = """
import os, sys
from tests.test_update import data
from xmc_fast import OneVsAll, _checkpoint
X, Y = data()
model = OneVsAll.load(sys.argv[1])
store = _checkpoint.LabelBlocks.store
done = []
def killed(self, block, result):
    if done:
        os._exit(9)
    done.append(block)
    return store(self, block, result)
_checkpoint.LabelBlocks.store = killed
model.update(X[120:], Y[120:], checkpoint=sys.argv[2]).save(sys.argv[1])
"""


def test_killed_update_goes_on_with_the_same_bytes(tmp_path):
    X, Y = data()
    fit(X[:120], Y[:120]).save(tmp_path / "model")
    folders = [str(tmp_path / "model"), str(tmp_path / "run")]
    path = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, *folders], env={**os.environ, "PYTHONPATH": path}, check=False
    )
    assert ended.returncode == 9
    assert len(list((tmp_path / "run").glob("block-*.safetensors"))) == 1
    old = OneVsAll.load(folders[0])  # as it was
    assert old.model_.params.get("updates") is None
    resumed = old.update(X[120:], Y[120:], checkpoint=folders[1])
    assert np.isnan(resumed.report_["seconds"]).sum() in (BLOCK, Y.shape[1] % BLOCK)
    straight = fit(X[:120], Y[:120]).update(X[120:], Y[120:])
    assert bytes_of(resumed.model_) == bytes_of(straight.model_)
