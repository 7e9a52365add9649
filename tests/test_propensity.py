"""Propensity models, surrogate weights, the mis-specification warning."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from xmc_fast import metrics, propensity
from xmc_fast.propensity import JPV, PRESETS, Constant, PropensityWarning, Richards, Vector


def labels_of(counts, n):
    rows = np.concatenate([np.arange(c) for c in counts])
    columns = np.repeat(np.arange(len(counts)), counts)
    return sp.csr_matrix((np.ones(len(rows)), (rows, columns)), shape=(n, len(counts)))


@pytest.mark.parametrize("preset", ["default", "wikipedia", "amazon"])
def test_jpv_formula(preset):
    a, b = {"wikipedia": (0.5, 0.4), "amazon": (0.6, 2.6), "default": (0.55, 1.5)}[preset]
    counts, n = np.array([0, 1, 7, 300]), 1000
    want = [1 / (1 + (np.log(n) - 1) * (b + 1) ** a * np.exp(-a * np.log(c + b))) for c in counts]
    np.testing.assert_allclose(propensity.estimate(labels_of(counts, n), preset), want, rtol=1e-14)
    assert (PRESETS[preset].a, PRESETS[preset].b) == (a, b)


def test_jpv_stays_a_probability_on_tiny_sets():
    for n in (0, 1, 2, 3):
        p = JPV()(np.array([0, 1]), n)
        assert np.all((p > 0) & (p <= 1))


def test_estimate_takes_models_numbers_and_vectors():
    Y = labels_of([3, 1], 4)
    assert propensity.estimate(Y, 0.5).tolist() == [0.5, 0.5]
    assert propensity.estimate(Y, Constant(0.25)).tolist() == [0.25, 0.25]
    assert propensity.estimate(Y, [0.5, 1.0]).tolist() == [0.5, 1.0]
    assert propensity.estimate(Y, lambda counts, n: counts / n).tolist() == [0.75, 0.25]
    with pytest.raises(ValueError, match="model must be one of"):
        propensity.estimate(Y, "netflix")
    with pytest.raises(ValueError, match=r"p has shape \(3,\), expected \(2,\)"):
        propensity.estimate(Y, Vector([1, 1, 1]))
    for bad, message in (
        (0.0, r"must be in \(0, 1\]"),
        (1.5, r"must be in \(0, 1\]"),
        (np.nan, "must be finite"),
    ):
        with pytest.raises(ValueError, match=message):
            propensity.estimate(Y, bad)


def test_richards_recovers_a_noisy_curve():
    rng = np.random.default_rng(0)
    counts = np.round(np.exp(rng.uniform(0, 9, 400)))
    true = Richards(0.05, 0.95, 0.9, 4.0, 0.7)
    noisy = np.clip(true(counts, 0) + rng.normal(0, 0.05, 400), 0.01, 1)
    fitted = Richards.fit(counts, noisy)
    assert np.abs(fitted(counts, 0) - true(counts, 0)).max() < 0.04
    assert np.all(np.diff(fitted(np.arange(2000), 0)) >= 0)


def test_richards_can_be_the_jpv_curve():
    counts = np.unique(np.round(np.logspace(0, 4, 60)))
    known = JPV()(counts, 50_000)
    assert np.abs(Richards.fit(counts, known)(counts, 0) - known).max() < 0.02
    with pytest.raises(ValueError, match="at least 5 counts"):
        Richards.fit([1, 2], [0.5, 0.5])


def test_direct_estimate_shrinks_rare_labels():
    rng = np.random.default_rng(1)
    prior = np.array([0.3] * 5 + [0.002] * 200)
    p = np.concatenate([np.linspace(0.2, 0.9, 5), np.full(200, 0.5)])
    Y = rng.random((20_000, 205)) < prior
    observed = sp.csr_matrix(Y & (rng.random(Y.shape) < p))
    controlled = sp.csr_matrix(rng.random((2000, 205)) < prior)
    plain = propensity.direct(observed, controlled, shrinkage=0).p
    shrunk = propensity.direct(observed, controlled).p
    assert np.abs(shrunk[:5] - p[:5]).max() < 0.1
    assert np.mean((shrunk[5:] - 0.5) ** 2) < 0.3 * np.mean((plain[5:] - 0.5) ** 2)
    unseen = np.asarray(controlled.sum(axis=0)).ravel() == 0
    assert unseen.any()
    assert np.all(plain[unseen] == plain[unseen][0])
    with pytest.raises(ValueError, match="at least one positive"):
        propensity.direct(observed, sp.csr_matrix((3, 205)))


def test_surrogate_weights():
    p, counts = np.array([1.0, 0.5, 0.1]), np.array([0, 1, 100])
    np.testing.assert_allclose(propensity.surrogate_weights(p), [1, 3, 19])
    balance = [1.0, 1.0, 0.01 / (1 - 0.99**100)]
    both = propensity.surrogate_weights(p, counts=counts, beta=0.99)
    np.testing.assert_allclose(both, np.array([1, 3, 19]) * balance)
    np.testing.assert_allclose(
        propensity.surrogate_weights(p, counts=labels_of(counts, 200), beta=0.99), both
    )
    assert propensity.surrogate_weights(p, normalize=True).mean() == pytest.approx(1)
    with pytest.raises(ValueError, match="beta needs counts"):
        propensity.surrogate_weights(p, beta=0.9)
    with pytest.raises(ValueError, match=r"beta must be in \[0, 1\)"):
        propensity.surrogate_weights(p, beta=1.0, counts=counts)


def masked_set(seed=0, n=4000, n_labels=50):
    """Complete labels, predictions that are often right, and labels that went missing with known p."""
    rng = np.random.default_rng(seed)
    Y = rng.random((n, n_labels)) < 0.3
    p = rng.uniform(0.2, 0.9, n_labels)
    observed = Y & (rng.random(Y.shape) < p)
    ids = np.argsort(-(Y * 0.9 + rng.random(Y.shape)), axis=1)[:, :3]
    return Y, observed, p, ids


def test_unnormalised_psp_estimates_precision_on_complete_labels():
    Y, observed, p, ids = masked_set()
    clean = metrics.precision_at_k(Y, ids, k=(1, 3))
    estimate = metrics.psp_at_k(observed, ids, p, k=(1, 3), normalize=False)
    assert np.all(clean > 0.9), "close to 1, so that a right model is near the warning"
    np.testing.assert_allclose(estimate, clean, atol=0.05)


def test_misspecification_warns_and_a_right_model_does_not():
    for seed in range(20):
        _, observed, p, ids = masked_set(seed, n=1000)
        with warnings.catch_warnings():
            warnings.simplefilter("error", PropensityWarning)
            metrics.report(observed, ids, propensity=p)
    with pytest.warns(PropensityWarning, match=r"above 100 % \(@1: .*does not fit"):
        metrics.report(observed, ids, propensity=p / 2)
    with pytest.warns(PropensityWarning, match="does not fit"):
        metrics.psp_at_k(observed, ids, p / 2, normalize=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PropensityWarning)
        metrics.psp_at_k(observed, ids, p / 2)  # normalised values say nothing about the fit


def run_example(name, *arguments):
    command = [sys.executable, "-m", f"bench.experiments.{name}", *arguments]
    root = Path(__file__).parents[1]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=root)


def test_missing_labels_example(data_dir, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setenv("XMC_RESULTS", str(tmp_path))
    data_dir("bibtex")
    out = run_example("missing_labels", "--data", "bibtex", "--repetitions", "3")
    assert out.returncode == 0, out.stderr
    assert (tmp_path / "missing_recall.json").exists()
    rows = {
        line.split("|")[1].strip(): line.split("|")[2:-1] for line in out.stdout.splitlines() if "|" in line
    }
    figures = {
        name: np.array(cells, float) for name, cells in rows.items() if name.startswith("incomplete, p")
    }
    assert len(figures) == 3
    plain = np.array(rows["incomplete labels"], float)
    assert np.all(figures["incomplete, p known"][-3:] > plain[-3:]), "macro-F1 gains"
    complete, naive, scored = (
        float(rows[name][0])
        for name in (
            "complete labels",
            "incomplete labels, plain P@k",
            "incomplete labels, un-normalised PSP@k",
        )
    )
    assert abs(scored - complete) < 0.3 * abs(naive - complete)


def test_head_labels_example(data_dir):
    data_dir("bibtex")
    out = run_example("head_labels", "--data", "bibtex", "--labels", "30")
    assert out.returncode == 0, out.stderr
    rows = [line.split("|") for line in out.stdout.splitlines() if line.startswith("| 30")]
    lost = {row[2].strip(): float(row[-2]) for row in rows}  # change @5, in percent
    assert lost["macro-F1"] < 2 * lost["P"] < 0, lost
