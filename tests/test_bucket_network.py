"""xmc_fast.nn._bucket_network: the network base of Mach, and fitting by pieces."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import BaseEstimator

from xmc_fast import Mach, mach

pytest.importorskip("torch")
from xmc_fast.nn._bucket_network import BucketNetwork

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def blobs(n=240, n_labels=24, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % n_labels
    centres = rng.normal(size=(n_labels, 20))
    X = sp.csr_matrix((centres[y] + 0.1 * rng.normal(size=(n, 20))).astype(np.float32))
    return X, y


NET = BucketNetwork(32, epochs=25, lr=0.02, batch_size=32)


def test_multiclass_and_multilabel():
    X, y = blobs()
    soft = BucketNetwork(32, epochs=25, lr=0.02, batch_size=32, loss="softmax")
    for model in (
        Mach(10, 6, base=NET),
        Mach(10, 6, base=soft, outputs="softmax", aggregate="unbiased"),
    ):
        assert (model.fit(X, y).predict(X, k=1).indices == y).mean() > 0.95
    p = model.bucket_scores(X)
    np.testing.assert_allclose(p.sum(axis=2), 1, rtol=1e-5)
    Y = sp.csr_matrix((np.ones(480), (np.tile(np.arange(240), 2), np.r_[y, (y + 1) % 24])), (240, 24))
    top = Mach(12, 6, base=NET).fit(X, Y).predict(X, k=2)
    found = np.sort(top.indices.reshape(-1, 2), axis=1)
    assert (found == np.sort(Y.indices.reshape(-1, 2), axis=1)).mean() > 0.9


def test_forward_equals_numpy():
    X, y = blobs()
    net = BucketNetwork(5, n_hashed=7, epochs=1, random_state=3).fit(X, np.eye(24)[y])
    w = {name: t.numpy() for name, t in net.network_.state_dict().items()}
    hashed = np.zeros((240, 7), np.float32)
    np.add.at(hashed.T, mach.bucket_table(20, 7, 1, random_state=3)[0], X.toarray().T)
    hidden = np.maximum(hashed @ w["0.weight"] + w["0.bias"], 0)
    np.testing.assert_allclose(net.decision_function(X), hidden @ w["2.weight"].T + w["2.bias"], atol=1e-4)
    assert net.nbytes == 4 * (7 * 5 + 5 + 5 * 24 + 24)


def test_repetitions_hash_features_apart(tmp_path):
    X, y = blobs()
    model = Mach(10, 3, base=BucketNetwork(8, n_hashed=6, epochs=2)).fit(X, y)
    columns = [tuple(m._columns) for m in model.models_]
    assert len(set(columns)) == 3
    model.save(tmp_path / "m")
    loaded = Mach.load(tmp_path / "m")
    assert [tuple(m._columns) for m in loaded.models_] == columns
    assert loaded.nbytes == model.nbytes
    assert loaded.predict(X).data.tobytes() == model.predict(X).data.tobytes()
    again = Mach(10, 3, base=BucketNetwork(8, n_hashed=6, epochs=2)).fit(X, y)
    assert again.predict(X).data.tobytes() == model.predict(X).data.tobytes()


def test_stream(tmp_path):
    """Pieces in memory one at a time; repetitions in separate jobs give the model of one fit."""
    X, y = blobs()
    calls = []

    def chunks():
        calls.append(1)
        for start in range(0, 240, 100):
            yield X[start : start + 100], y[start : start + 100]

    options = {"n_features": 20, "n_labels": 24, "passes": 25}
    whole = Mach(10, 4, base=NET).fit_stream(chunks, **options)
    assert len(calls) == 25
    assert (whole.predict(X, k=1).indices == y).mean() > 0.9
    folder = tmp_path / "c"
    Mach(10, 4, base=NET).fit_stream(chunks, **options, repeats=(2, 4), checkpoint=folder)
    done = Mach(10, 4, base=NET).fit_stream(chunks, **options, checkpoint=folder)
    assert len(calls) == 75
    Mach(10, 4, base=NET).fit_stream(chunks, **options, checkpoint=folder)
    assert len(calls) == 75  # nothing left to do
    for model in (done, Mach.load(folder)):
        assert model.predict(X).data.tobytes() == whole.predict(X).data.tobytes()


class NoPieces(BaseEstimator):
    def fit(self, X, Y):
        return self


def test_errors():
    X, y = blobs()
    with pytest.raises(TypeError, match="needs a base with partial_fit, NoPieces has none"):
        Mach(4, 2, base=NoPieces()).fit_stream(lambda: [(X, y)], n_features=20, n_labels=24)
    with pytest.raises(ValueError, match="X has 20 columns, expected 19"):
        Mach(4, 2, base=NET).fit_stream(lambda: [(X, y)], n_features=19, n_labels=24)
    with pytest.raises(ValueError, match="Y has class 23, expected classes below 20"):
        Mach(4, 2, base=NET).fit_stream(lambda: [(X, y)], n_features=20, n_labels=20)
    with pytest.raises(ValueError, match="passes must be at least 1"):
        Mach(4, 2, base=NET).fit_stream(lambda: [(X, y)], n_features=20, n_labels=24, passes=0)
    with pytest.raises(ValueError, match="loss must be one of bce, softmax, got 'hinge'"):
        BucketNetwork(4, loss="hinge").fit(X, np.eye(24)[y])
    with pytest.raises(ValueError, match="base must be an estimator or one of linear, network, got 'x'"):
        Mach(4, 2, base="x").fit(X, y)
    net = BucketNetwork(4, epochs=1).fit(X, np.eye(24)[y])
    with pytest.raises(ValueError, match="X has 3 columns, expected 20"):
        net.decision_function(X[:, :3])
    with pytest.raises(ValueError, match="columns, expected 20 and 24"):
        net.partial_fit(X[:, :3], np.eye(24)[y])
    assert net.decision_function(X[:0]).shape == (0, 24)
