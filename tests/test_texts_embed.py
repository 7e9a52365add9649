"""TextClassifier(embed=...): dense columns beside tf-idf, in training, prediction, explanations and folders."""

from __future__ import annotations

import numpy as np
import pytest

from test_texts import TEXTS
from xmc_fast import Ensemble, Neighbours, OneVsAll, TextClassifier, load
from xmc_fast.text import TfidfVectorizer

WORDS = ["green tea", "black tea", "iron ore", "steel and iron", "an oak"] * 8
TAGS = [["drink"], ["drink"], ["metal"], ["metal"], ["wood"]] * 8
TAGS_MATRIX = np.eye(3, dtype=np.int8)[[{"drink": 0, "metal": 1, "wood": 2}[tag] for (tag,) in TAGS]]
KINDS = {"tea": 0, "iron": 1, "steel": 1, "oak": 2, "matcha": 0, "zinc": 1}


def embed(texts):
    """What a text is about, by words that the training texts need not have."""
    out = np.zeros((len(texts), 3), np.float32)
    for row, text in zip(out, texts, strict=True):
        assert text.strip(), "empty texts are not to be embedded"
        for word in text.split():
            if word in KINDS:
                row[KINDS[word]] = 1
    return out


def fitted(**options):
    return TextClassifier(embed=embed, random_state=0, **options).fit(WORDS, TAGS)


@pytest.mark.parametrize("hashing", [None, 32])
def test_rows_are_tfidf_then_the_embedding(hashing):
    model = fitted(hashing=hashing, calibrate=0)
    X = model.transform(["green tea", "", "zinc"]).toarray()
    own = {"min_df": 2} if hashing is None else {"n_features": hashing}
    plain = (
        TfidfVectorizer(sublinear_tf=True, **own).fit(WORDS).transform(["green tea", "", "zinc"]).toarray()
    )
    assert X.dtype == np.float32
    np.testing.assert_allclose(X, np.hstack([plain, [[1, 0, 0], [0, 0, 0], [0, 1, 0]]]), atol=1e-6)
    np.testing.assert_array_equal(model.known_terms(["green tea", "", "zinc"]), [2, 0, plain[2].any()])


def test_the_weights_are_those_of_a_fit_on_the_joined_matrix():
    model = TextClassifier(model=OneVsAll(), embed=embed, calibrate=0).fit(WORDS, TAGS)
    own = OneVsAll(random_state=0).fit(model.transform(WORDS), model.encode(TAGS).Y)
    np.testing.assert_array_equal(model.model_.to_csr().toarray(), own.model_.to_csr().toarray())


@pytest.mark.parametrize("calibrate", [0, 0.2])
def test_texts_without_known_words_are_told_by_their_embedding(calibrate):
    model = fitted(calibrate=calibrate)
    assert [found[0].label for found in model.predict(["matcha", "zinc"], 1)] == ["drink", "metal"]
    assert model.predict_one("zinc", 1)[0].label == "metal"
    assert model.predict([""]) == [[]]
    assert TextClassifier(calibrate=0).fit(WORDS, TAGS).predict(["zinc"]) == [[]]


def test_embeddings_are_computed_once_in_a_fit():
    asked = []

    def counted(texts):
        asked.extend(texts)
        return embed(texts)

    TextClassifier(embed=counted, calibrate=0.2).fit([*WORDS, ""], [*TAGS, ["wood"]])
    assert asked == WORDS


def test_columns_of_a_frame_are_joined():
    model = TextClassifier(embed=embed, calibrate=0).fit({"title": ["", *WORDS[1:]], "body": WORDS}, TAGS)
    assert model.transform({"title": ["iron"], "body": ["oak"]}).toarray()[0, -3:].tolist() == [0, 1, 1]
    assert model.predict_one({"title": "zinc", "body": ""}, 1)[0].label == "metal"


def test_explanations_name_the_embedding_and_add_up():
    model = fitted(calibrate=0)
    why = model.explain("green tea")
    assert why.label == "drink"
    assert {"green", "tea", "embedding 0"} == {c.term for c in why.contributions}
    assert why.score == pytest.approx(why.bias + sum(c.contribution for c in why.contributions))
    assert "embedding 0" in dict(model.describe_label("drink").positive)
    assert model.nearest_examples("matcha", "drink", WORDS, TAGS, top=1)[0][1] > 0


def test_a_saved_model_wants_the_callable_again(tmp_path):
    model = fitted()
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.embedding_size_ == 3
    for ask in (again.predict, again.transform, lambda texts: again.predict_one(texts[0])):
        with pytest.raises(ValueError, match=r"trained with embed.*3 numbers.*set_params\(embed=...\)"):
            ask(["zinc"])
    again.set_params(embed=embed)
    assert again.predict(TEXTS + WORDS) == model.predict(TEXTS + WORDS)
    with pytest.raises(ValueError, match=r"embed must return numbers of shape \(1, 3\), got shape \(1, 2\)"):
        again.set_params(embed=lambda texts: np.ones((len(texts), 2))).predict(["zinc"])


def test_as_a_member_of_an_ensemble(tmp_path):
    members = [
        TextClassifier(embed=embed, calibrate=0),
        TextClassifier(model=Neighbours(5), embed=embed, calibrate=0),
    ]
    model = Ensemble(members, folds=1).fit(WORDS, TAGS_MATRIX)
    assert model.predict(["zinc"], 1).indices.tolist() == [1]
    model.save(tmp_path / "ensemble")
    again = load(tmp_path / "ensemble")
    for member in again.members_:
        member.set_params(embed=embed)
    np.testing.assert_array_equal(again.predict(WORDS, 2).data, model.predict(WORDS, 2).data)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda texts: np.ones(len(texts)), r"return numbers of shape \(40, d\), got float64 of shape \(40,\)"),
        (lambda texts: np.ones((3, 4)), r"shape \(40, d\), got float64 of shape \(3, 4\)"),
        (lambda texts: np.ones((len(texts), 0)), r"shape \(40, d\), got shape \(40, 0\)"),
        (lambda texts: [["a"]] * len(texts), r"got <U1 of shape \(40, 1\)"),
        (lambda texts: np.full((len(texts), 2), np.nan), "embed must return finite numbers, got inf or nan"),
    ],
)  # fmt: skip
def test_what_a_callable_may_not_return(wrong, message):
    with pytest.raises(ValueError, match=message):
        TextClassifier(embed=wrong).fit(WORDS, TAGS)


def test_no_state_is_kept():
    with pytest.raises(ValueError, match="keep_state is not for a classifier with embed"):
        TextClassifier(embed=embed).fit(WORDS, TAGS, keep_state=True)
