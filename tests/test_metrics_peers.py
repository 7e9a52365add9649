"""Metrics on real data agree with napkinXC and xCOLUMNs."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from test_metrics import quiet_report
from xmc_fast import metrics, propensity
from xmc_fast.data import read_xmc
from xmc_fast.linear import OneVsAll


def peer_problem(data_dir):
    """Real truth and real predictions: a one-vs-all model of bibtex, its five best labels."""
    train, test = (read_xmc(data_dir("bibtex") / f"{part}.txt.xz") for part in ("train", "test"))
    pred = OneVsAll().fit(train.X, train.Y).predict(test.X, k=5)
    ids = pred.indices.reshape(-1, 5).astype(int)
    last = train.Y.shape[1] - 1
    if last not in ids[:, 0]:  # napkinXC takes the largest id it sees at k for L - 1
        ids[0] = [last, *(j for j in ids[0] if j != last)][:5]
    return sp.csr_matrix(test.Y, dtype=np.float64), ids


def test_agrees_with_napkinxc(data_dir):
    peer = pytest.importorskip("napkinxc.metrics")
    Y, ids = peer_problem(data_dir)
    p = propensity.estimate(Y)
    np.testing.assert_allclose(1 / p, peer.Jain_et_al_inverse_propensity(Y), rtol=1e-12)
    truth, lists = [Y[i].indices.tolist() for i in range(Y.shape[0])], ids.tolist()
    r = quiet_report(Y, ids, range(1, 6), propensity=p)
    shared = {
        "precision": peer.precision_at_k(truth, lists, k=5),
        "recall": peer.recall_at_k(truth, lists, k=5),
        "ndcg": peer.ndcg_at_k(truth, lists, k=5),
        "psp": peer.psprecision_at_k(truth, lists, 1 / p, k=5),
        "psp_unnormalized": peer.psprecision_at_k(truth, lists, 1 / p, k=5, normalize=False),
        "psndcg": peer.psndcg_at_k(truth, lists, 1 / p, k=5),
        "psndcg_unnormalized": peer.psndcg_at_k(truth, lists, 1 / p, k=5, normalize=False),
        "abandonment": 1 - peer.abandonment_at_k(truth, lists, k=5),
        "macro_precision": peer.macro_precision_at_k(truth, lists, k=5),
        "macro_recall": peer.macro_recall_at_k(truth, lists, k=5),
        "macro_f1": peer.macro_f1_measure_at_k(truth, lists, k=5),
    }
    for name, values in shared.items():
        np.testing.assert_allclose(r[name], values, rtol=0, atol=1e-9, err_msg=name)
    coverage = metrics.coverage_at_k(Y, ids, range(1, 6), labels="positive")
    np.testing.assert_allclose(coverage, peer.coverage_at_k(truth, lists, k=5), rtol=0, atol=1e-9)
    wrong = r["hamming_loss@5"] * Y.shape[1]
    assert wrong == pytest.approx(peer.hamming_loss(truth, lists), abs=1e-9)


def test_agrees_with_xcolumns(data_dir):
    peer = pytest.importorskip("xcolumns.metrics")
    Y, ids = peer_problem(data_dir)
    n = Y.shape[0]
    for k in (1, 3, 5):
        columns = np.sort(ids[:, :k], axis=1).ravel().astype(np.int32)
        pred = sp.csr_matrix((np.ones(n * k), columns, np.arange(0, n * k + 1, k)), shape=Y.shape)
        tiny = {"epsilon": 1e-300}  # theirs divides by (... + epsilon), ours has 0/0 = 0
        shared = {
            "precision": peer.precision_at_k(Y, pred, k=k),
            "macro_precision": peer.macro_precision(Y, pred, **tiny),
            "macro_recall": peer.macro_recall(Y, pred, **tiny),
            "macro_f1": peer.macro_f1_score(Y, pred, **tiny),
            "macro_balanced_accuracy": peer.macro_balanced_accuracy(Y, pred, **tiny),
            "macro_gmean": peer.macro_gmean(Y, pred, **tiny),
            "macro_jaccard": peer.macro_jaccard_score(Y, pred, **tiny),
            "coverage": peer.coverage(Y, pred),
            "hamming_loss": peer.hamming_loss(Y, pred),
        }
        r = metrics.report(Y, ids, k)
        for name, value in shared.items():
            assert r[f"{name}@{k}"] == pytest.approx(float(value), abs=1e-9), name
