"""The small form: what it keeps, how it predicts, how it is stored, and what damage it survives."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import scipy.sparse as sp

from reference import model_folder
from reference import predict as reference
from xmc_fast import SparseModel, _core, load
from xmc_fast.model import Calibration, ModelFormatError
from xmc_fast.model._compress import DELTAS, TRIED, largest_delta


def model_like_trained(n_labels, n_columns, seed=0, bias=1.0):
    """Few labels with many weights, many with few; columns alike."""
    rng = np.random.default_rng(seed)
    density = np.outer(rng.pareto(1, n_labels) + 0.02, rng.pareto(1, n_columns) + 0.02)
    W = np.where(
        rng.random(density.shape) < np.minimum(density * 0.05, 0.9), rng.normal(size=density.shape), 0
    )
    if bias is not None:
        W[:, -1] = rng.normal(size=n_labels) - 1
    return SparseModel(sp.csr_matrix(W.astype(np.float32)), bias=bias, normalize=True)


def rounded(X):
    """Values as the small form takes them: multiples of 1/32,767 of a row's largest."""
    unit = np.abs(X).max(1, keepdims=True, initial=0) / 32767
    return np.rint(X / np.maximum(unit, 1e-30)) * unit


def rows(n, n_features, seed=1):
    return sp.random(n, n_features, 0.3, format="csr", dtype=np.float32, random_state=seed)


@pytest.mark.parametrize(
    ("n_labels", "n_columns", "bias"),
    [(1, 1, None), (1, 2, 1.0), (63, 5, None), (64, 40, 1.0), (65, 40, 0.5), (3000, 30, 1.0)],
)
@pytest.mark.parametrize("delta", [0.0, 0.3])
def test_scores_are_those_of_the_stored_weights(tmp_path, n_labels, n_columns, bias, delta):
    model = model_like_trained(n_labels, n_columns, bias=bias)
    small = model.compress(delta=delta)
    small.save(tmp_path / "m")
    W = model_folder.weights(tmp_path / "m")
    np.testing.assert_array_equal(small.to_csr().toarray(), W)
    exact = model.to_csr().toarray()
    kept = np.abs(exact) >= delta
    if bias is not None:
        np.testing.assert_array_equal(W[:, -1], exact[:, -1])
        kept[:, -1] = True
    step = np.abs(np.where(kept, exact, 0))[:, : model.n_features].max(1, initial=0)[:, None] / 127
    off = np.abs(W - np.where(kept, exact, 0))[:, : model.n_features]
    assert (off <= 0.5001 * step).all()
    assert small.nnz == np.count_nonzero(W)
    X = rows(33, model.n_features)
    S = reference.scores(W, rounded(X.toarray()), bias=bias, normalize=True)
    for k in (1, 5, n_labels):
        top = small.predict(X, k)
        _, scores = reference.top_k(S, k)
        np.testing.assert_allclose(top.data.reshape(scores.shape), scores, atol=1e-4)
        given = np.take_along_axis(S, top.indices.reshape(scores.shape), axis=1)
        np.testing.assert_allclose(given, scores, atol=1e-4)


def test_every_width_and_more_than_one_block(tmp_path):
    """70,000 labels: gaps that need fillers in every width, lists in two blocks."""
    rng = np.random.default_rng(0)
    n = 70_000
    columns = [
        np.arange(0, n, 2),
        *(rng.choice(n, m, replace=False) for m in (n // 60, 9)),
        np.array([0, n - 1]),
    ]
    ids = np.concatenate(columns)
    W = sp.csr_matrix(
        (rng.normal(size=len(ids)), (ids, np.repeat(np.arange(4), [len(c) for c in columns]))), shape=(n, 5)
    )
    model = SparseModel(W.astype(np.float32))
    small = model.compress(delta=0.0)
    small.save(tmp_path / "m")
    assert set(small.weights.arrays["ptr"] & 3) == {0, 1, 2}
    assert set(small.weights.arrays["ptr"] & 4) == {0, 4}
    np.testing.assert_array_equal(model_folder.weights(tmp_path / "m"), small.to_csr().toarray())
    X = rng.random((7, 5)).astype(np.float32)
    S = reference.scores(small.to_csr().toarray(), rounded(X))
    top = load(tmp_path / "m").predict(X, 3)
    np.testing.assert_allclose(top.data.reshape(7, 3), reference.top_k(S, 3)[1], atol=1e-6)


def test_same_bits_for_any_threads_and_however_opened(tmp_path):
    model = model_like_trained(2000, 60).compress()
    model.calibration = Calibration(
        np.linspace(0.5, 2, 2000, dtype=np.float32), np.linspace(-1, 1, 2000, dtype=np.float32), 1.0, 0.0
    )
    model.save(tmp_path / "m")
    X = rows(200, 59)
    for proba in (False, True):
        expected = model.predict(X, 5, proba=proba, n_jobs=1)
        others = [model, pickle.loads(pickle.dumps(model))]
        others += [SparseModel.load(tmp_path / "m", mmap=mmap, verify=True) for mmap in (False, True)]
        for other in others:
            for threads in (1, 2, 3):
                top = other.predict(X, 5, proba=proba, n_jobs=threads)
                assert top.indices.tobytes() == expected.indices.tobytes()
                assert top.data.tobytes() == expected.data.tobytes()
    ids, scores = model.predict_one(X[3], 5)
    assert scores.tobytes() == model.predict(X, 5).data[15:20].tobytes()
    assert ids.tobytes() == model.predict(X, 5).indices[15:20].tobytes()


def long_lists(n_labels=7000, n_columns=23, seed=0):
    """Columns with many tiles, fuller among the first labels: several lists at once, of different lengths."""
    rng = np.random.default_rng(seed)
    share = np.outer(1 / (1 + np.arange(n_labels) / 300), np.linspace(0.2, 1, n_columns))
    W = rng.normal(size=(n_labels, n_columns)) * (rng.random((n_labels, n_columns)) < share)
    W[:, -2] *= rng.random(n_labels) < 0.01  # a short list
    W[:, -1] = rng.normal(size=n_labels) - 1
    return SparseModel(sp.csr_matrix(W.astype(np.float32)), bias=1.0, normalize=True)


@pytest.mark.parametrize("share", [0.05, 0.3, 1.0])
def test_tiles_and_postings_add_up(simd, share):
    """Rows with one feature to all, of both signs; every label's score."""
    small = long_lists().compress(delta=0.0)
    assert np.count_nonzero(small.weights.arrays["ptr"] & 4) > 15
    rng = np.random.default_rng(2)
    X = np.where(rng.random((40, 22)) < share, rng.normal(size=(40, 22)), 0).astype(np.float32)
    X[0] = 0
    X[1:4] = np.abs(X[1:4])
    S = reference.scores(small.to_csr().toarray(), rounded(X), bias=1.0, normalize=True)
    whole = small.predict(X, 7000)
    np.testing.assert_allclose(whole.toarray(), S, atol=1e-4)
    top = small.predict(X, 5)
    assert top.data.tobytes() == whole.data.reshape(40, -1)[:, :5].tobytes()
    assert top.indices.tobytes() == whole.indices.reshape(40, -1)[:, :5].tobytes()


def test_sums_are_the_same_whatever_adds_them():
    """The levels of this processor add the same integers: scores differ by the last roundings only."""
    small = long_lists().compress(delta=0.0)
    X, before = rows(50, 22), _core.simd_level()
    tops = []
    try:
        for level in ("baseline", before):
            _core.force_simd_level(level)
            tops.append(small.predict(X, 7000).toarray())
    finally:
        _core.force_simd_level(before)
    np.testing.assert_allclose(tops[0], tops[1], atol=5e-7)


def test_no_sum_runs_over():
    """Many large products of one sign, in a row with small values too."""
    n = 70_000
    W = sp.csr_matrix(np.stack([np.full(n, 2.0), np.full(n, -1.0)]).astype(np.float32))
    small = SparseModel(W).compress()
    X = np.full((2, n), 3.0, np.float32)
    X[1, 1000:] = 0.01
    expected = X.astype(np.float64).sum(1)
    top = small.predict(X, 2).toarray()
    np.testing.assert_allclose(top[:, 0], 2 * expected, rtol=1e-2)
    np.testing.assert_allclose(top[:, 1], -expected, rtol=1e-2)
    np.testing.assert_allclose(top[0, 0], 2 * expected[0], rtol=1e-6)


def test_calibrated_scores_rank():
    model = model_like_trained(300, 20)
    small = model.compress(delta=0.0)
    rng = np.random.default_rng(0)
    scale = rng.uniform(0.5, 2, 300).astype(np.float32)
    shift = rng.normal(size=300).astype(np.float32)
    small.calibration = Calibration(scale, shift, 1.0, 0.0)
    X = rows(20, 19)
    S = reference.scores(small.to_csr().toarray(), rounded(X.toarray()), bias=1.0, normalize=True)
    P = 1 / (1 + np.exp(-(S * scale + shift)))
    top = small.predict(X, 4, proba=True)
    np.testing.assert_allclose(top.data.reshape(20, 4), reference.top_k(P, 4)[1], atol=1e-5)


def test_size_and_loss_are_held():
    rng = np.random.default_rng(0)
    W = rng.normal(size=(200, 101)).astype(np.float32) * (rng.random((200, 101)) < 0.5)
    model = SparseModel(sp.csr_matrix(W))
    X = rng.random((300, 101)).astype(np.float32)
    full = model.compress(delta=0.0).nbytes
    for share in (0.9, 0.6):
        small = model.compress(max_bytes=int(share * full))
        assert 0.5 * share * full < small.nbytes <= share * full
    with pytest.raises(ValueError, match="max_bytes must be at least"):
        model.compress(max_bytes=10)
    Y = model.predict(X, 5)
    Y.data[:] = 1

    def precision(small, k):
        top = small.predict(X, 5).indices.reshape(300, 5)[:, :k]
        return 100 * np.mean([len(set(a) & set(Y.indices[5 * i : 5 * i + 5])) / k for i, a in enumerate(top)])

    sizes = []
    for loss in (1.5, 20.0):
        small = model.compress(X, Y, max_loss=loss)
        sizes.append(small.nbytes)
        for k in (1, 3, 5):
            assert precision(small, k) >= 100 - loss - 1
    assert sizes[1] < sizes[0]
    best = Y.multiply(
        sp.csr_matrix(([1.0] * 300, Y.indices[::5], range(301)), Y.shape)
    )  # P@5 says little here
    first = model.compress(X, best, max_loss=1.5).predict(X, 1).indices
    assert 100 * np.mean(first == Y.indices[::5]) >= 100 - 1.5 - 1
    with pytest.raises(ValueError, match="together"):
        model.compress(X)
    with pytest.raises(ValueError, match="weights must be finite"):
        SparseModel(sp.csr_matrix(np.array([[np.inf]]))).compress()


def test_the_threshold_follows_rising_curves():
    at = np.log(TRIED)
    rising = np.where(at < np.log(0.1), 0.0, at - np.log(0.1))
    lost = np.stack([0.5 * rising, rising, 0 * rising], axis=1)  # P@3 loses most
    assert np.log(0.1) + 0.05 < np.log(largest_delta(lost, 0.2)) <= np.log(0.1) + 0.2 + 1e-9
    assert (
        largest_delta(lost[:, ::-1], 0.2)
        == largest_delta(lost[:, 1:2], 0.2)
        < largest_delta(lost[:, :1], 0.2)
    )
    noisy = lost + 0.15 * ((-1.0) ** np.arange(len(lost)) * (at < np.log(0.1)))[:, None]
    assert abs(np.log(largest_delta(noisy, 0.2) / largest_delta(lost, 0.2))) < 0.3
    assert largest_delta(np.full((len(TRIED), 3), -1.0), 0.1) == DELTAS[-1]
    with pytest.raises(ValueError, match="max_loss must be at least 3"):
        largest_delta(np.full((len(TRIED), 3), 3.0), 0.1)


def test_names_are_packed_and_weights_can_be_edited(tmp_path):
    model = SparseModel(
        sp.csr_matrix(np.array([[1.0, 0.2], [0.5, 2.0]])), feature_names=["ä", "b"], label_names=["x", "y"]
    ).compress()
    model.save(tmp_path / "m")
    loaded = load(tmp_path / "m")
    assert loaded.compressed
    assert loaded.label_names == ["x", "y"]
    assert loaded.feature_names == ["ä", "b"]
    assert not list((tmp_path / "m").glob("*_names.json"))
    exact = loaded.prune(0.3)
    assert not exact.compressed
    assert exact.nnz == 3
    assert SparseModel.concat([loaded, loaded]).n_labels == 4
    (tmp_path / "m" / "label_names.json.gz").write_bytes(b"\x1f\x8b no")
    with pytest.raises(ModelFormatError, match="label_names"):
        _ = load(tmp_path / "m").label_names


def damaged(arrays, name, change):
    arrays = {key: array.copy() for key, array in arrays.items()}
    arrays[name] = change(arrays[name])
    return arrays


def at(index, value):
    def change(array):
        array[index] = value
        return array

    return change


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("label", at(0, -1)),
        ("label", at(0, 10**6)),
        ("label", lambda a: np.zeros_like(a)),
        ("label", lambda a: a[:-1]),
        ("bias", at(3, np.inf)),
        ("bias", lambda a: a[:3]),
        ("step", at(7, np.nan)),
        ("step", lambda a: a[:16]),
        ("first", at(0, 4)),
        ("first", at(1, 2**62)),
        ("first", lambda a: a.astype(np.int32)),
        ("ptr", at(3, 2**32 - 1)),
        ("ptr", at(3, 3)),
        ("ptr", at(-1, 0)),
        ("ptr", lambda a: a[:-1]),
        ("list", lambda a: a[:-1]),
        ("list", lambda a: a[:10]),
    ],
)
def test_damage_is_refused(name, change):
    packed = model_like_trained(300, 40).compress(delta=0.0).weights
    _core.PackedModel.open(300, 40, packed.arrays)
    with pytest.raises(ValueError, match=r"damaged|wrong"):
        _core.PackedModel.open(300, 40, damaged(packed.arrays, name, change))


@pytest.mark.parametrize("seed", range(4))
def test_any_bytes_in_long_lists_are_harmless(seed):
    packed = long_lists(1000).compress(delta=0.0).weights
    noise = np.random.default_rng(seed)
    most = (256, 256, 2, 1)[seed]
    arrays = damaged(packed.arrays, "list", lambda a: noise.integers(0, most, a.shape).astype(np.uint8))
    opened = _core.PackedModel.open(1000, 23, arrays)
    X = rows(40, 22)
    none = np.empty(0, np.float32)
    ids, _ = opened.topk((X.indptr.astype(np.int64), X.indices, X.data, X.shape), True, 1.0, none, none, 5, 1)
    assert ids.min() >= 0
    assert ids.max() < 1000


def test_a_list_that_leaves_its_block_is_harmless_and_found():
    packed = model_like_trained(300, 40).compress(delta=0.0).weights
    arrays = damaged(packed.arrays, "list", lambda a: np.full_like(a, 255))
    opened = _core.PackedModel.open(300, 40, arrays)
    X = rows(5, 39)
    none = np.empty(0, np.float32)
    x = (X.indptr.astype(np.int64), X.indices, X.data, X.shape)
    ids, scores = opened.topk(x, True, 1.0, none, none, 5, 1)
    assert ids.min() >= 0
    assert ids.max() < 300
    assert len(scores) == 25
    with pytest.raises(ValueError, match="leaves its block"):
        opened.unpack()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_labels": -1}, "n_labels"),
        ({"n_labels": 2**40}, "n_labels"),
        ({"n_features": "9"}, "n_features"),
        ({"bias": [1]}, "bias"),
        ({"normalize": 3}, "normalize"),
        ({"params": []}, "params"),
        ({"files": ["a"]}, "files"),
        ({"files": 3}, "files"),
        ({"files": {"label_names": "../m/manifest.json"}}, "not in the folder"),
        ({"files": {"label_names": "/etc/passwd"}}, "not in the folder"),
        ({"files": {"label_names": "link"}}, "leads out"),
        ({"packed": 3}, "packed"),
        ({"packed": {"file": "packed.safetensors"}}, "entry"),
        ({"packed": {"file": "..", "bytes": 1, "nnz": 1}}, "file"),
    ],
)
def test_manifests_are_checked(tmp_path, change, message):
    model_like_trained(30, 10).compress().save(tmp_path / "m")
    (tmp_path / "secret.json").write_text("[]")
    (tmp_path / "m" / "link").symlink_to(tmp_path / "secret.json")
    path = tmp_path / "m" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ModelFormatError, match=message):
        load(tmp_path / "m")


def test_fit_can_give_the_small_form(tmp_path, capsys):
    from xmc_fast import OneVsAll
    from xmc_fast.cli import main
    from xmc_fast.data import load_demo, write_xmc

    demo = load_demo()
    X, Y = demo.X_train[:300], demo.Y_train[:300]
    exact = OneVsAll().fit(X, Y).model_
    small = OneVsAll(size="small").fit(X, Y)
    expected = exact.compress()
    assert small.model_.compressed
    assert (small.model_.to_csr() != expected.to_csr()).nnz == 0
    most = expected.nbytes - 1000
    assert OneVsAll(size=most).fit(X, Y).model_.nbytes <= most
    small.save(tmp_path / "m")
    assert OneVsAll.load(tmp_path / "m").size == "small"
    with pytest.raises(ValueError, match="size must be"):
        OneVsAll(size="tiny").fit(X, Y)
    with pytest.raises(ValueError, match="size must be 'exact'"):
        OneVsAll(size="small").fit(X, Y, keep_state=True)
    write_xmc(tmp_path / "rows.txt", X, Y)
    assert main(["train", str(tmp_path / "rows.txt"), str(tmp_path / "c"), "--size", str(most)]) == 0
    assert load(tmp_path / "c").nbytes <= most
    capsys.readouterr()


@pytest.mark.parametrize(
    "options", [{}, {"solver": "newton"}, {"penalty": "l1"}], ids=["dual", "newton", "l1"]
)
def test_what_compress_would_drop_is_not_kept(options):
    """Solvers drop the weights below the default threshold at once, but not the biases: the same bytes."""
    from xmc_fast import OneVsAll

    rng = np.random.default_rng(0)
    X = sp.random(80, 20, 0.3, "csr", np.float32, random_state=0)
    Y = sp.csr_matrix(rng.random((80, 300)) < 0.3)
    exact = OneVsAll(**options).fit(X, Y).model_
    small = OneVsAll(size="small", **options).fit(X, Y).model_
    biases = np.abs(exact.to_csr()[:, [20]].toarray())
    assert ((biases > 0.011) & (biases < 0.029)).any()
    for name, array in exact.compress().weights.arrays.items():
        np.testing.assert_array_equal(small.weights.arrays[name], array)


def test_auto_leaves_exact_what_cannot_be_large(tmp_path):
    from xmc_fast import OneVsAll

    X = sp.random(30, 1000, 0.05, "csr", np.float32, random_state=0)
    for n_labels, compressed in ((499, False), (500, True)):  # x 1,001 x 8 bytes
        Y = sp.csr_matrix(
            (np.ones(60), (np.repeat(np.arange(30), 2), np.arange(60) % n_labels)), (30, n_labels)
        )
        model = OneVsAll(size="auto").fit(X, Y)
        assert model.model_.compressed == compressed
        model.save(tmp_path / str(n_labels))
        assert OneVsAll.load(tmp_path / str(n_labels)).size == "auto"


def test_the_command_compresses_and_engines_predict(tmp_path, capsys):
    from xmc_fast.cli import main
    from xmc_fast.data import write_xmc
    from xmc_fast.engine import connect

    model = model_like_trained(300, 40)
    model.save(tmp_path / "exact")
    X = rows(50, 39)
    Y = model.predict(X, 3)
    Y.data[:] = 1
    write_xmc(tmp_path / "rows.txt", X, Y)
    data = ["--data", str(tmp_path / "rows.txt"), "--max-loss", "5"]
    for options in ([], ["--delta", "0.2"], ["--max-bytes", "20000"], data):
        assert main(["compress", str(tmp_path / "exact"), str(tmp_path / "small"), *options]) == 0
        small = load(tmp_path / "small")
        assert small.compressed
        assert small.nbytes < model.nbytes
    assert "small" in capsys.readouterr().out
    assert main(["compress", str(tmp_path / "exact"), str(tmp_path / "s"), *data, "--delta", "1"]) == 2
    shards = small.predict(X, 3, engine=connect("threading"))
    np.testing.assert_allclose(shards.data, small.predict(X, 3).data, atol=1e-4)
