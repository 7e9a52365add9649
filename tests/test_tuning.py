"""Successive halving: it finds the better setting, is deterministic and goes on where it stopped."""

from __future__ import annotations

import json

import numpy as np
import pytest

import xmc_fast
from tests.test_update import data
from xmc_fast import OneVsAll
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
