"""Successive halving: it finds the better setting, is deterministic and goes on where it stopped."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse as sp

import xmc_fast
from tests.test_update import data
from xmc_fast import OneVsAll, metrics
from xmc_fast._trials import Data, _from_first, scores, shortened
from xmc_fast.cli import main
from xmc_fast.tuning import default_settings

TEXTS = ["green tea", "black tea", "iron ore", "steel and iron", "tea leaves", "iron in tea"] * 20
TAGS = [["drink"], ["drink"], ["metal", "mining"], ["metal"], ["drink", "leaf"], ["metal", "drink"]] * 20


def test_bad_settings_lose():
    X, Y = data(n=400)
    settings = [{"C": 1e-6}, {}, {"C": 1e-5}, {"prune": 10.0}]
    found = xmc_fast.tune(X, Y, settings=settings, metric="precision@1", n_jobs=1)
    assert found.best == {}
    assert found.last[0]["setting"] == {}
    rounds = [trial["round"] for trial in found.trials]
    assert rounds.count(1) == 4
    assert rounds.count(2) == 1  # a third of four
    assert found.trials[0]["rows"] == 320  # small data: all training rows in each round


def test_the_default_stays_to_the_end():
    X, Y = data(n=400)
    settings = [{"C": 0.5}, {"C": 2.0}, {}, *({"C": 1.0 + i / 100} for i in range(1, 9))]
    for metric in ("ndcg@5", "macro_f1@5"):
        found = xmc_fast.tune(X, Y, settings=settings, metric=metric, n_jobs=1)
        rounds = sorted({trial["round"] for trial in found.trials})
        assert rounds == [1, 2, 3]
        default = {trial["round"]: trial["score"] for trial in found.trials if trial["setting"] == {}}
        assert sorted(default) == rounds
        best = {t["round"]: t["score"] for t in found.trials if t["setting"] == found.best}
        assert best[3] >= default[3]


def test_places_of_a_row_are_shared_by_labels():
    # rows with 3, 2, 3 and 1 suggestions, best first
    indices, data = np.array([1, 2, 0, 1, 0, 0, 1, 2, 2]), np.arange(9, 0, -1, dtype=np.float32)
    top = sp.csr_matrix((data, indices, [0, 3, 5, 8, 9]), (4, 3))
    kept = shortened(top, 1.5)  # 1, 2, 1 and 2 places
    assert kept.indptr.tolist() == [0, 1, 3, 4, 5]
    assert kept.indices.tolist() == [1, 1, 0, 0, 2]
    assert kept.data.tolist() == [9, 6, 5, 4, 1]
    assert np.diff(shortened(top, 0.5).indptr).tolist() == [0, 1, 0, 1]
    np.testing.assert_array_equal(shortened(top, 3).indices, top.indices)


def test_macro_metrics_are_those_of_all_labels():
    """Of all rows and labels a trial's score is the plain metric; rows without these labels count as well."""
    X, Y = data(n=800)
    found = Data(X, Y, None, 0.2, None, 0, 1)
    part = found.part(0, 1.0, 1.0)
    assert part.share == 1
    ((_, score),) = scores(found, [{}], [{}], part, "macro_f1@3")
    model = OneVsAll(n_jobs=1).fit(X[part.rows], Y[part.rows][:, part.labels])
    truth = Y[part.valid][:, part.labels]
    assert score == round(metrics.report(truth, model.predict(X[part.valid], 3), k=[3])["macro_f1@3"], 9)


def test_same_result_again_and_in_threads():
    first, second = (xmc_fast.tune(TEXTS, TAGS, n_jobs=n) for n in (1, 2))
    assert first.trials == second.trials
    assert first.best == second.best
    assert len({json.dumps(t["setting"]) for t in first.trials}) == len(default_settings(True)) >= 20
    model = first.make(n_jobs=1).fit(TEXTS, TAGS)
    assert model.predict_one("green tea", k=1)[0].label == "drink"
    assert len(str(first).splitlines()) == 1 + len(first.last)


def test_goes_on_from_its_file(tmp_path, monkeypatch):
    X, Y = data()
    settings = [{"C": c} for c in (0.5, 1.0, 2.0)]
    whole = xmc_fast.tune(X, Y, settings=settings, checkpoint=tmp_path / "trials.json")
    content = json.loads((tmp_path / "trials.json").read_text())
    content["scores"] = dict(list(content["scores"].items())[:2])  # as if stopped there
    (tmp_path / "trials.json").write_text(json.dumps(content))
    fits = []
    fit = OneVsAll.fit
    monkeypatch.setattr(OneVsAll, "fit", lambda self, *a, **k: (fits.append(self.C), fit(self, *a, **k))[1])
    again = xmc_fast.tune(X, Y, settings=settings, checkpoint=tmp_path / "trials.json")
    assert again.trials == whole.trials
    assert len(fits) == len(whole.trials) - 2
    with pytest.raises(ValueError, match="another fit"):
        xmc_fast.tune(X, Y, settings=settings[:2], checkpoint=tmp_path / "trials.json")


def test_pruning_shares_a_fit_and_c_a_start():
    X, Y = data(n=600)
    settings = [
        {},
        {"prune": 0.2},
        {"prune": 0.001},
        {"C": 3.0},
        {"positive_weight": "balanced^0.5", "C": 0.3},
    ]
    parts = Data(X, Y, None, 0.2, None, 0, 1)
    part = parts.part(0, 1.0, 1.0)
    found = [(s, score) for s, score in scores(parts, settings, settings, part, "precision@1")]
    assert sorted(map(str, settings)) == sorted(str(s) for s, _ in found)
    for setting, score in found:
        alone = OneVsAll(**setting, n_jobs=1).fit(X[part.rows], Y[part.rows][:, part.labels])
        truth = Y[part.valid][:, part.labels]
        asked = np.flatnonzero(np.diff(truth.indptr))
        top = alone.predict(X[part.valid][asked], 1)
        expected = metrics.precision_at_k(truth[asked], top, k=1)
        # pruning is exact; from another start the last bits differ, which may move a row or two
        exact = set(setting) <= {"prune"}
        assert score == pytest.approx(expected, abs=1e-8 if exact else 2.01 / len(asked))


def test_models_from_another_start_are_those_of_a_fit():
    X, Y = data(n=300)
    first = OneVsAll(prune=0, C=0.5, n_jobs=1).fit(X, Y, keep_state=True)
    for setting in ({"C": 4.0}, {"positive_weight": "balanced"}, {"C": 0.1, "positive_weight": 3.0}):
        found = _from_first(first, {"C": 0.5}, setting, X, Y).to_csr().toarray()
        close = OneVsAll(prune=0, **setting, tol=1e-4, n_jobs=1).fit(X, Y).model_.to_csr().toarray()
        np.testing.assert_allclose(found, close, atol=0.03 * np.abs(close).max())
        assert np.abs(found - first.model_.to_csr().toarray()).max() > 0.1 * np.abs(close).max()


def test_folds(tmp_path):
    X, Y = data(n=400)
    settings = [{}, {"C": 4.0}, {"prune": 0.1}]
    found = xmc_fast.tune(
        X, Y, settings=settings, folds=3, metric="precision@1", n_jobs=1, checkpoint=tmp_path / "t.json"
    )
    stored = json.loads((tmp_path / "t.json").read_text())["scores"]
    assert len(stored) == 3 * len(found.trials)
    first = [stored[f"1 {fold} {{}}"] for fold in range(3)]
    assert found.trials[0]["score"] == pytest.approx(sum(first) / 3, abs=1e-8)
    held = np.concatenate([valid for _, valid in Data(X, Y, None, 0.2, 3, 0, 1).folds])
    np.testing.assert_array_equal(np.sort(held), np.arange(400))  # every row is held out once
    for train, valid in Data(X, Y, None, 0.2, 3, 0, 1).folds:
        assert not set(train) & set(valid)


def test_powers_of_balanced():
    X, Y = data()
    counts = np.asarray(Y.sum(0)).ravel()
    cost = ((Y.shape[0] - counts) / counts) ** 0.5
    named = OneVsAll(positive_weight="balanced^0.5").fit(X, Y).model_.to_csr()
    given = OneVsAll(positive_weight=cost).fit(X, Y).model_.to_csr()
    np.testing.assert_allclose(named.toarray(), given.toarray(), atol=0.01)
    with pytest.raises(ValueError, match="positive_weight"):
        OneVsAll(positive_weight="balanced^x").fit(X, Y)


def test_mistakes_are_told():
    X, Y = data(n=30, labels=3)
    for options, said in (
        ({"valid": 1.0}, "valid"),
        ({"budget": 0}, "budget"),
        ({"settings": []}, "settings"),
        ({"folds": 1}, "folds"),
    ):
        with pytest.raises(ValueError, match=said):
            xmc_fast.tune(X, Y, **options)


def test_command(tmp_path, capsys):
    lines = [json.dumps({"text": t, "labels": tag}) for t, tag in zip(TEXTS, TAGS, strict=True)]
    (tmp_path / "data.jsonl").write_text("\n".join(lines) + "\n")
    out = str(tmp_path / "model")
    assert (
        main(["tune", str(tmp_path / "data.jsonl"), "--metric", "precision@1", "--model", out, "--json"]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["metric"] == "precision@1"
    assert xmc_fast.load(out).predict_one("green tea", k=1)[0].label == "drink"
