"""What features and words add to a score: the sums, the places, the pictures."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest

from tests.test_update import data
from xmc_fast import OneVsAll, TextClassifier
from xmc_fast.model import explain_row

TEXTS = ["green tea", "black tea", "iron ore", "steel and iron ore", "iron in green tea"] * 12
TAGS = [["drink"], ["drink"], ["metal", "mining"], ["metal"], ["drink", "metal"]] * 12


def test_contributions_of_features_add_up_to_the_score():
    X, Y = data()
    for bias, normalize in ((1.0, True), (None, False)):
        model = OneVsAll(bias=bias, normalize=normalize).fit(X, Y)
        scores = model.decision_function(X)
        for row, label in zip(range(0, X.shape[0], 17), range(Y.shape[1]), strict=False):
            why = model.explain(X[row], label)
            assert why.bias + why.contributions.sum() == pytest.approx(why.score, abs=1e-12)
            assert why.score == pytest.approx(scores[row, label], abs=1e-5)
            np.testing.assert_array_equal(why.columns, X[row].indices)
            np.testing.assert_allclose(why.contributions, why.values * why.weights)
        assert model.explain(X[0]).label == model.predict_one(X[0], 1)[0][0]


def test_probability_beside_the_score():
    X, Y = data()
    model = OneVsAll().fit(X, Y)
    assert model.explain(X[0], 1).probability is None
    model.model_.calibrate(X, Y)
    ids, proba = model.predict_one(X[0], Y.shape[1], proba=True)
    found = model.explain(X[0], int(ids[0]))
    assert found.probability == pytest.approx(proba[0], abs=1e-6)


def test_rows_and_labels_that_do_not_fit():
    X, Y = data()
    model = OneVsAll().fit(X, Y)
    with pytest.raises(ValueError, match=r"label must be from 0 to \d+, got 999"):
        model.explain(X[0], 999)
    with pytest.raises(ValueError, match="columns of x"):
        explain_row(model.model_, ([5, 2], [1.0, 1.0]), 0)
    empty = explain_row(model.model_, ([], []), 0)
    assert empty.score == empty.bias
    assert len(empty.contributions) == 0


def test_pairs_of_words_are_marked_where_they_stand():
    model = TextClassifier(ngram_range=(1, 2), min_df=1).fit(TEXTS, TAGS)
    text = "GREEN  Tea & iron"
    why = model.explain(text, "drink")
    spans = {c.term: c.spans for c in why.contributions}
    assert spans["green tea"] == ((0, 10),)
    assert spans["tea"] == ((7, 10),)
    html = why.to_html()
    plain = re.sub(r"<[^>]*>", "", html[html.index("pre-wrap") :])
    assert "GREEN  Tea &amp; iron" in plain
    assert all(c.contribution < 0 for c in why.against)


def test_capital_sigma_keeps_its_places():
    model = TextClassifier(min_df=1).fit(["ΟΔΟΣ tea", "iron"] * 9, [["a"], ["b"]] * 9)
    why = model.explain("iron ΟΔΟΣ", "a")
    assert {c.term: c.spans for c in why.contributions} == {"iron": ((0, 4),), "οδος": ((5, 9),)}


def test_pictures():
    pytest.importorskip("matplotlib").use("Agg")
    from matplotlib import pyplot

    import xmc_fast
    from xmc_fast import plots

    model = TextClassifier(min_df=1).fit(TEXTS, TAGS)
    why = model.explain("green tea and iron ore", "metal")
    ax = plots.plot_explanation(why, top=2)
    widths = [bar.get_width() for bar in ax.patches]
    assert sum(widths) == pytest.approx(why.score)
    assert [t.get_text() for t in ax.get_yticklabels()][-1] == "(bias)"
    found = xmc_fast.tune(TEXTS, TAGS, settings=[{}, {"C": 0.1}, {"C": 8.0}], metric="precision@1", n_jobs=1)
    ax = plots.plot_tuning(found)
    assert sum(len(line.get_xdata()) for line in ax.lines) == len(found.trials)
    pyplot.close("all")


@pytest.mark.parametrize("hashing", [None, 1 << 16])
def test_terms_that_are_made_when_looked_at_are_a_list(hashing):
    model = TextClassifier(hashing=hashing, min_df=1).fit(TEXTS, TAGS)
    text = "iron ore in green tea, unseen"
    why, other = (model.explain(text, "drink") for _ in range(2))
    shown = str(other)  # the table alone does not look for places
    assert [type(c).__name__ for c in why.contributions] == ["Contribution"] * len(why.contributions)
    sizes = [abs(c.contribution) for c in why.contributions]
    assert sizes == sorted(sizes, reverse=True)
    for c in why.contributions[:3]:
        assert c.contribution == c.value * c.weight
        assert f"{c.term}" in shown
        assert {text[slice(*span)].lower() for span in c.spans} == {c.term}
    assert why.contributions == other.contributions == list(other.contributions)
    again = pickle.loads(pickle.dumps(why))
    assert again == why
    assert str(again) == str(why) == shown
