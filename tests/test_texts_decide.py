"""The stored rule of how many labels a text gets."""

from __future__ import annotations

import numpy as np
import pytest

import xmc_fast
from xmc_fast import TextClassifier

WORDS = [f"word{i}" for i in range(12)]


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    tags = [
        sorted({f"tag{t}" for t in rng.choice(12, rng.integers(1, 4), p=np.arange(12, 0, -1) / 78)})
        for _ in range(600)
    ]
    texts = [" ".join([f"word{tag[3:]}" for tag in row] + list(rng.choice(WORDS, 2))) for row in tags]
    return texts, tags


def held_out(model, rows):
    keep = model.state_.held_rows
    return [rows[0][i] for i in keep], model.encode([rows[1][i] for i in keep]).Y


@pytest.mark.parametrize("rule", ["macro-f1", "micro-f1", "precision>=0.9", 2])
def test_rule_is_stored_and_followed(rule, rows, tmp_path):
    model = TextClassifier(calibrate=0.3).fit(*rows, decide=rule, keep_state=True)
    model.save(tmp_path / "m")
    opened = xmc_fast.load(tmp_path / "m")
    texts, Y = held_out(model, rows)
    chosen = opened.predict(texts, output="csr")
    assert (chosen != model.predict(texts, output="csr")).nnz == 0
    one = [[s.label for s in opened.predict_one(text)] for text in texts[:20]]
    assert one == [[s.label for s in found] for found in opened.predict(texts[:20])]
    right = chosen.astype(bool).multiply(Y.astype(bool)).sum()
    if rule == 2:
        assert set(np.diff(chosen.indptr)) == {2}
    elif rule == "precision>=0.9":
        assert right / chosen.nnz >= 0.9
        lower = model.decision_.thresholds[0] * 0.8
        more = model.predict(texts, 12, threshold=lower, output="csr")
        assert more.astype(bool).multiply(Y.astype(bool)).sum() / more.nnz < right / chosen.nnz
    elif rule == "micro-f1":
        best = 2 * right / (chosen.nnz + Y.nnz)
        for limit in np.linspace(0.05, 0.95, 19):
            other = model.predict(texts, 12, threshold=limit, output="csr")
            f1 = 2 * other.astype(bool).multiply(Y.astype(bool)).sum() / (other.nnz + Y.nnz)
            assert f1 <= best + 1e-9
    else:
        assert len(model.decision_.thresholds) == len(model.label_names_)
    assert len(opened.predict(texts[:1], 3)[0]) == 3  # k given: the rule rests
    before = model.decision_.rule
    assert model.update(rows[0][:5], rows[1][:5]).decision_.rule == before


def test_mistakes_are_told(rows):
    with pytest.raises(ValueError, match="decide must be"):
        TextClassifier().fit(*rows, decide="accuracy")
    with pytest.raises(ValueError, match="needs probabilities"):
        TextClassifier(calibrate=0).fit(*rows, decide="macro-f1")
