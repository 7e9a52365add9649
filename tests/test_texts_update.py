"""Updates of text classifiers: new words and labels, changed and removed rows, the idf, the command."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp

import xmc_fast
from xmc_fast import OneVsAll, TextClassifier
from xmc_fast.cli import main

TEXTS = ["green tea", "black tea", "iron ore", "steel and iron", "oak and tea", "iron in tea"] * 12
TAGS = [["drink"], ["drink"], ["metal", "mining"], ["metal"], ["wood"], ["metal", "drink"]] * 12
NEW = ["oak and pine", "pine", "iron pine", "pine tree"] * 3
NEW_TAGS = [["wood"], ["wood", "conifer"], ["metal", "wood"], ["conifer"]] * 3


def trained(**options):
    return TextClassifier(calibrate=0, model=OneVsAll(prune=0, tol=1e-4), **options).fit(
        TEXTS, TAGS, keep_state=True
    )


def test_new_words_and_labels_come_last():
    model = trained()
    words, labels = list(model.feature_names_), list(model.label_names_)
    idf = model.vectorizer_.idf_.copy()
    model.update(NEW, NEW_TAGS)
    assert model.feature_names_ == [*words, "pine", "tree"]
    assert model.label_names_ == [*labels, "conifer"]
    np.testing.assert_array_equal(model.vectorizer_.idf_[: len(idf)], idf)  # frozen
    assert model.predict_one("a pine", k=1)[0].label in ("conifer", "wood")
    assert model.update_["features_added"] == 2
    assert model.update_["labels_added"] == 1
    whole = OneVsAll(prune=0, tol=1e-4).fit(model.transform(TEXTS + NEW), model.encode(TAGS + NEW_TAGS).Y)
    assert np.abs(whole.model_.to_csr() - model.model_.to_csr()).max() < 0.02
    assert model.label_counts_.tolist() == np.asarray(model.encode(TAGS + NEW_TAGS).Y.sum(0)).ravel().tolist()


def test_relabel_and_remove():
    model = trained().update(relabel={0: ["tea"], 6: ["tea"]}, remove_rows=[1, 7], remove_labels=["mining"])
    assert model.label_names_ == ["drink", "metal", "wood", "tea"]
    tags = [[t for t in row if t != "mining"] for row in TAGS]
    tags[0] = tags[6] = ["tea"]
    left = [i for i in range(len(TEXTS)) if i not in (1, 7)]
    Y = model.encode([tags[i] for i in left]).Y
    whole = OneVsAll(prune=0, tol=1e-4).fit(model.transform([TEXTS[i] for i in left]), Y)
    assert np.abs(whole.model_.to_csr() - model.model_.to_csr()).max() < 0.02
    with pytest.raises(ValueError, match="no label 'mining'"):
        model.update(remove_labels=["mining"])
    with pytest.raises(ValueError, match="remove_rows must be numbers from 0 to 71"):
        model.update(remove_rows=[72])


def test_refreshed_idf_is_that_of_all_rows():
    model = trained(min_df=1).update(NEW, NEW_TAGS, refresh_idf=True)
    fresh = TextClassifier(calibrate=0, min_df=1).fit(TEXTS + NEW, TAGS + NEW_TAGS)
    own, other = model.vectorizer_.vocabulary_, fresh.vectorizer_.vocabulary_
    for term, column in other.items():
        assert model.vectorizer_.idf_[own[term]] == pytest.approx(fresh.vectorizer_.idf_[column], rel=1e-6)
    rows = model.transform(TEXTS + NEW)
    stored = model.state_.linear.X
    order = np.argsort(model.state_.rows)
    assert abs(sp.csr_matrix(stored)[order] - rows).max() < 1e-6
    assert model.update_["idf"] == "refreshed"


def test_advice_when_a_fit_is_better():
    """Of words that became more frequent, and of many new rows; the history tells how many labels moved."""
    model = trained(min_df=1)
    frozen = model.vectorizer_.idf_.astype(np.float64)
    new = ["iron ore"] * 20
    model.update(new, [["metal"]] * 20)
    counted = TextClassifier(calibrate=0, min_df=1).fit(TEXTS + new, TAGS + [["metal"]] * 20).vectorizer_.idf_
    df = (model.transform(TEXTS + new) > 0).sum(axis=0).A1
    drift = float(df @ np.abs(counted / frozen - 1) / df.sum())
    assert model.update_["idf_drift"] == pytest.approx(drift, abs=2e-6)
    assert (
        model.update_["advice"]
        == f"the idf has drifted by {drift:.1%}: refresh_idf=True, or a fit of all texts"
    )
    same = trained().update(TEXTS[:6], TAGS[:6])
    assert "advice" not in same.update_
    assert same.update_["labels_trained"] <= same.update_["labels"] == 4
    many = trained().update(TEXTS[:24], TAGS[:24])
    assert many.update_["advice"] == "33% of the rows changed: a fit of all rows costs about as much"
    assert many.model_.params["updates"] == [many.update_]


def test_probabilities_and_files(tmp_path):
    model = TextClassifier(calibrate=0.2).fit(TEXTS * 3, TAGS * 3, keep_state=True)
    model.save(tmp_path / "model")
    opened = xmc_fast.load(tmp_path / "model").update(NEW, NEW_TAGS)
    again = model.update(NEW, NEW_TAGS)
    assert opened.calibrated
    assert opened.label_names_ == again.label_names_
    np.testing.assert_array_equal(opened.model_.to_csr().data, again.model_.to_csr().data)
    assert opened.predict_one("pine")[0].probability == again.predict_one("pine")[0].probability
    assert len(opened.state_.held_rows) == again.fit_report_["held_out"]
    with pytest.raises(ValueError, match="keep_state=True"):
        TextClassifier().fit(TEXTS, TAGS).update(NEW, NEW_TAGS)


def test_command(tmp_path, capsys):
    def write(name, texts, tags):
        lines = [json.dumps({"text": t, "labels": tag}) for t, tag in zip(texts, tags, strict=True)]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        return str(tmp_path / name)

    model = str(tmp_path / "model")
    assert main(["train", write("old.jsonl", TEXTS * 3, TAGS * 3), model, "--keep-state"]) == 0
    capsys.readouterr()
    new = write("new.jsonl", NEW, NEW_TAGS)
    assert main(["update", model, new, "--remove-labels", "mining", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["labels_added"] == facts["labels_removed"] == 1
    opened = xmc_fast.load(model)
    assert "conifer" in opened.label_names_
    assert "mining" not in opened.label_names_
    assert len(opened.model_.params["updates"]) == 1
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert main(["update", model]) == 2
    assert "nothing to do" in capsys.readouterr().err


KILLED = """
import os, signal, sys
from xmc_fast import TextClassifier
from xmc_fast.cli import main
save = TextClassifier.save
def killed(self, folder):
    if sys.argv[1] == "after":
        save(self, folder)
    os.kill(os.getpid(), signal.SIGKILL)
TextClassifier.save = killed
main(["update", *sys.argv[2:]])
"""


@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_command(tmp_path, capsys, moment):
    """Run again it ends with the same bytes, whether the model was in place already or not."""

    def write(name, texts, tags):
        lines = [json.dumps({"text": t, "labels": tag}) for t, tag in zip(texts, tags, strict=True)]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        return str(tmp_path / name)

    def files(folder):
        return {p.relative_to(folder): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}

    model, straight = tmp_path / "model", tmp_path / "straight"
    new = write("new.jsonl", NEW, NEW_TAGS)
    assert main(["train", write("old.jsonl", TEXTS * 3, TAGS * 3), str(model), "--keep-state"]) == 0
    assert main(["update", str(model), new, "--out", str(straight)]) == 0
    before = files(model)
    ended = subprocess.run([sys.executable, "-c", KILLED, moment, str(model), new], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert (files(model) == before) == (moment == "before")
    assert xmc_fast.load(model).predict_one("green tea")[0].label == "drink"
    left = tmp_path / ".model.update"
    assert list(left.glob("solved/block-*"))
    capsys.readouterr()
    assert main(["update", str(model), new]) == 0
    assert ("complete before it was stopped" in capsys.readouterr().out) == (moment == "after")
    assert not left.exists()
    assert files(model) == files(straight)
    # what another command has left is in nobody's way
    left.mkdir()
    (left / "request.json").write_text('{"model": "", "history": [], "asked": ""}')
    (left / "solved").mkdir()
    (left / "solved" / "fit.json").write_text("{}")
    assert main(["update", str(model), "--remove-labels", "wood"]) == 0
    assert not left.exists()
    assert len(xmc_fast.load(str(model)).model_.params["updates"]) == 2


def test_terms_against_and_nearest_examples():
    model = trained()
    why = model.explain("iron in green tea", "drink")
    assert [c.term for c in why.against][:1] == ["iron"]
    assert why.bias + sum(c.contribution for c in why.contributions) == pytest.approx(why.score, abs=1e-6)
    near = model.nearest_examples("oak", "wood", TEXTS, TAGS, top=2)
    assert [row for row, _ in near] == [4, 10]
    assert near[0][1] > 0.5
    with pytest.raises(ValueError, match="no label"):
        model.nearest_examples("oak", "stone", TEXTS, TAGS)
