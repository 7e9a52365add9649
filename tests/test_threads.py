"""Eight threads that fit, predict, save, load and update at once, on shared objects and on their own.

Under a Python without the global lock (tests/platforms/free_threaded.sh) they really run side by side; with it, while
the core works and between any two steps of Python.
"""

from __future__ import annotations

import os
import sys
import threading

import numpy as np
import pytest
import scipy.sparse as sp

import xmc_fast
from xmc_fast import _core, metrics
from xmc_fast.knn import InnerProductIndex

THREADS = 8


def data(seed=0, n=60, features=20, labels=12):
    rng = np.random.default_rng(seed)
    X = sp.csr_matrix(rng.random((n, features)) * (rng.random((n, features)) < 0.4), dtype=np.float32)
    Y = sp.csr_matrix((rng.random((n, labels)) < 0.2).astype(np.float32))
    return X, Y


def at_once(work, turns=1):
    """work(thread) in eight threads that start together; the first error of any of them is raised."""
    start, errors = threading.Barrier(THREADS), []

    def run(thread):
        try:
            start.wait(60)
            for _ in range(turns):
                work(thread)
        except BaseException as error:
            errors.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=run, args=(t,)) for t in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
    finally:
        sys.setswitchinterval(before)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


def weights(model):
    return [
        (b.indptr.tobytes(), b.indices.astype(np.int64).tobytes(), b.data.tobytes()) for b in model.blocks
    ]


def same(a, b):
    return (a != b).nnz == 0


@pytest.mark.parametrize("compressed", [False, True])
def test_a_new_model_shared_from_its_first_call(compressed):
    """What a model makes at first use (layout, calibration, blocks, names) is made by all of them."""
    X, Y = data()
    made = xmc_fast.OneVsAll(n_jobs=1).fit(X, Y).model_
    made.calibrate(X, Y)
    expected = made.predict(X, 3), made.predict(X, 3, proba=True), made.nnz
    for _ in range(2):
        model = xmc_fast.SparseModel(made.weights, bias=made.bias, normalize=made.normalize)
        model.calibration = made.calibration
        if compressed:
            model = model.compress()
            model.calibration = made.calibration
            expected = model.predict(X, 3), model.predict(X, 3, proba=True), model.nnz
            model = xmc_fast.SparseModel(model.weights, bias=model.bias, normalize=model.normalize)
            model.calibration = made.calibration

        def use(thread, model=model, expected=expected):
            if thread % 2:
                assert same(model.predict(X, 3, n_jobs=1 + thread % 3), expected[0])
            assert same(model.predict(X, 3, proba=True), expected[1])
            assert model.nnz == expected[2]

        at_once(use)


def test_own_objects(tmp_path):
    """Fit, predict, save, load and update: each thread ends with what it has alone."""
    problems = [data(seed) for seed in range(THREADS)]

    def all_steps(thread, folder):
        X, Y = problems[thread]
        model = xmc_fast.OneVsAll(n_jobs=1 + thread % 2).fit(X[:50], Y[:50], keep_state=True)
        model.save(folder / str(thread))
        again = xmc_fast.load(folder / str(thread))
        assert same(again.predict(X, 3), model.predict(X, 3))
        model.update(X[50:], Y[50:])
        tree = xmc_fast.LabelTree(max_leaf=4, n_jobs=1).fit(X, Y)
        return weights(model.model_), tree.predict(X, 3)

    (tmp_path / "alone").mkdir()
    alone = [all_steps(thread, tmp_path / "alone") for thread in range(THREADS)]
    together = [None] * THREADS
    (tmp_path / "together").mkdir()

    def run(thread):
        together[thread] = all_steps(thread, tmp_path / "together")

    at_once(run)
    for (w, p), (v, q) in zip(alone, together, strict=True):
        assert w == v
        assert same(p, q)


def test_one_folder_saved_loaded_and_updated(tmp_path):
    """Whoever loads gets the old or a new model, whole; the umask and the folder stay as they were."""
    X, Y = data()
    folder = tmp_path / "model"
    first = xmc_fast.OneVsAll(n_jobs=1).fit(X[:50], Y[:50], keep_state=True)
    first.save(folder)
    second = xmc_fast.OneVsAll.load(folder).update(X[50:], Y[50:])
    known = [weights(first.model_), weights(second.model_)]
    mask = os.umask(0o027)
    try:

        def work(thread):
            if thread == 0:
                first.save(folder)
            elif thread == 1:
                second.save(folder)
            else:
                assert weights(xmc_fast.load(folder, mmap=thread % 2 == 0)) in known
                assert same(first.model_.predict(X, 2), first.model_.predict(X, 2, n_jobs=2))

        at_once(work, turns=5)
        assert os.umask(0o027) == 0o027
        if os.name != "nt":
            assert folder.stat().st_mode & 0o777 == 0o750
            assert all(p.stat().st_mode & 0o777 == 0o640 for p in folder.rglob("*") if p.is_file())
    finally:
        os.umask(mask)
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_texts_with_one_classifier():
    """One vectoriser, one vocabulary and the places of label names, all made at first use."""
    texts = [f"tea{i % 5} green{i % 3} kettle" for i in range(40)]
    labels = [[f"label{i % 5}"] for i in range(40)]
    fitted = xmc_fast.TextClassifier().fit(texts, labels)
    expected = fitted.predict(texts[:10])

    def use(thread):
        assert fitted.predict(texts[:10]) == expected
        assert str(fitted.explain(texts[thread], f"label{thread % 5}"))
        assert fitted.vectorizer_.transform(texts[:3]).shape[0] == 3

    at_once(use, turns=3)


def test_shared_buffers_and_settings():
    """The pool of result blocks, the threads' limit and the SIMD level, while others compute."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((300, 16)).astype(np.float32)
    index = InnerProductIndex(rows)
    X, Y = data(n=300)
    expected, value = index.search(rows[:20], 4), metrics.precision_at_k(Y, X[:, :12], 3)
    level = _core.simd_level()

    def work(thread):
        if thread == 0:
            xmc_fast.release_memory()
        elif thread == 1:
            _core.set_default_threads(1 + thread % 2)
            _core.force_simd_level(level)
        for found, known in zip(index.search(rows[:20], 4), expected, strict=True):
            np.testing.assert_array_equal(found, known)
        np.testing.assert_array_equal(metrics.precision_at_k(Y, X[:, :12], 3), value)
        big = _core.new_result(3 << 20)
        big[:] = thread
        assert (big == thread).all()

    before = _core.default_threads()
    try:
        at_once(work, turns=5)
    finally:
        _core.set_default_threads(before)


def test_the_lock_stays_off():
    """Under a Python without the global lock importing the core does not switch it on."""
    if not hasattr(sys, "_is_gil_enabled"):
        pytest.skip("this Python always has the global lock")
    import sysconfig

    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("this Python was built with the global lock")
    assert not sys._is_gil_enabled()
