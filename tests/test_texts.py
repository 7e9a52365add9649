"""TextClassifier: texts and names in, suggestions out."""

from __future__ import annotations

import copy
import json
import lzma
import math
import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone

from xmc_fast import data
from xmc_fast.linear import OneVsAll
from xmc_fast.mach import Mach
from xmc_fast.texts import Suggestion, TextClassifier
from xmc_fast.texts._labels import encode

TEXTS = [
    "The cheese market: regulation of milk and cheese.",
    "Iron ore, iron and steel",
    "milk powder exports; Käse aus Österreich",
    "",
    "steel tariffs and the STEEL industry",
    "unknown wörds only qqq",
]


@pytest.fixture(scope="module")
def demo():
    """Texts and names of the demo data: (train texts, train names, test texts, test names)."""
    raw = data.load_demo()

    def named(X, Y, n):
        texts = [" ".join(raw.feature_names[j] for j in X[i].indices) for i in range(n)]
        return texts, [[raw.label_names[j] for j in Y[i].indices] for i in range(n)]

    return (*named(raw.X_train, raw.Y_train, 2500), *named(raw.X_test, raw.Y_test, 400))


@pytest.fixture(scope="module")
def fitted(demo):
    return TextClassifier().fit(demo[0], demo[1])


# Labels in every form


def test_every_form_of_labels_is_encoded_alike():
    rows = [["b", "a"], [], ["c", "a"]]
    expected = np.array([[1, 1, 0], [0, 0, 0], [1, 0, 1]])
    for labels, sep in (
        (rows, None),
        (["b|a", "", "c|a"], "|"),
        (["b | a", None, " c|a|"], "|"),
        ([("b", "a", "b"), float("nan"), {"c", "a"}], None),
        ([np.array(["b", "a"]), None, ["c", "a", None, ""]], None),
        (["b, a", "", "c, a"], None),
    ):
        encoded = encode(labels, sep=sep)
        assert encoded.names == ["a", "b", "c"]
        np.testing.assert_array_equal(encoded.Y.toarray(), expected)
        assert encoded.labelled.tolist() == [True, False, True]
    for labels in ([[1, 0], [], [2, 0]], expected, sp.csc_matrix(expected), [np.array([1, 0]), (), [2, 0]]):
        encoded = encode(labels)
        assert encoded.names == ["0", "1", "2"]
        np.testing.assert_array_equal(encoded.Y.toarray(), expected)
    assert encode([["a", "a", "b"], "b"]).repeated == 1
    assert encode(["a", "b", "a"]).Y.toarray().tolist() == [[1, 0], [0, 1], [1, 0]]
    assert encode([3, 0]).Y.shape == (2, 4)


def test_labels_are_matched_to_known_names():
    encoded = encode([["z", "b"], ["a", "y", "y"], []], ["b", "a"])
    assert encoded.Y.toarray().tolist() == [[1, 0, 0, 1], [0, 1, 1, 0], [0, 0, 0, 0]]
    assert (encoded.unknown, encoded.unknown_count, encoded.repeated) == (["y", "z"], 2, 1)
    by_number = encode([[7], [3, 9]], ["3", "7"])  # ids against names that are numbers
    assert by_number.Y.toarray().tolist() == [[0, 1, 0], [1, 0, 1]]
    by_position = encode([[1], [0, 5]], ["b", "a"])
    assert by_position.Y.toarray().tolist() == [[0, 1, 0], [1, 0, 1]]
    wide = encode(sp.csr_matrix(np.array([[0, 1, 0, 1]])), ["b", "a"])
    assert (wide.Y.toarray().tolist(), wide.unknown) == ([[0, 1, 1]], ["3"])
    assert encode(np.array([[1]]), ["b", "a"]).Y.shape == (1, 2)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([["a"], [1]], "integers and strings"),
        ([[-1]], "expected, got -1"),
        ([[1.5]], "a list of strings or of ids expected, got"),
        ([object()], "labels of row 0: a string"),
    ],
)
def test_wrong_labels(labels, message):
    with pytest.raises(ValueError, match=message):
        encode(labels)


# Training


def test_rows_that_cannot_be_used_are_counted(demo):
    texts, names = list(demo[0][:300]), [list(row) for row in demo[1][:300]]
    texts[3], texts[4], texts[5], names[6], names[7] = None, float("nan"), " \n", None, []
    names[8] = [*names[8], names[8][0]]
    model = TextClassifier(calibrate=0).fit(texts, names)
    report = model.fit_report_
    unlabelled = sum(not row for row in names)
    assert (report["rows"], report["missing_texts"]) == (300, 2)
    assert (report["unlabelled_rows"], report["repeated_labels"]) == (unlabelled, 1)
    filled = [i for i in range(300) if isinstance(texts[i], str) and texts[i].strip()]
    assert report["empty_texts"] == 300 - len(filled)
    usable = [i for i in filled if names[i]]
    assert report["trained"] == len(usable)
    again = TextClassifier(calibrate=0).fit([texts[i] for i in usable], [names[i] for i in usable])
    assert again.label_names_ == model.label_names_ == sorted(model.label_names_)
    assert (again.model_.to_csr() != model.model_.to_csr()).nnz == 0
    with pytest.raises(ValueError, match="none of the 2 rows has both"):
        TextClassifier().fit(["a", None], [None, "x"])
    with pytest.raises(ValueError, match="texts has 2 rows, labels has 1"):
        TextClassifier().fit(["a", "b"], ["x"])
    with pytest.raises(ValueError, match="got int at position 1"):
        TextClassifier().fit(["a", 1], ["x", "y"])
    with pytest.raises(ValueError, match="calibrate must be a share"):
        TextClassifier(calibrate=1).fit(["a"], ["x"])


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_frames(demo, library):
    module = pytest.importorskip(library)
    texts, names = demo[0][:300], ["|".join(row) or None for row in demo[1][:300]]
    columns = {"text": texts, "tags": names}
    frame = module.table(columns) if library == "pyarrow" else module.DataFrame(columns)
    expected = TextClassifier(calibrate=0).fit(texts, demo[1][:300])
    model = TextClassifier(calibrate=0).fit(frame["text"], frame["tags"], sep="|")
    assert model.predict(frame["text"]) == expected.predict(texts)


def test_several_text_columns(demo):
    pd = pytest.importorskip("pandas")
    texts, names = demo[0][:400], demo[1][:400]
    split = [text.split(" ", 2) for text in texts]
    frame = pd.DataFrame(
        {"title": [" ".join(p[:2]) for p in split], "body": [" ".join(p[2:]) for p in split]}
    )
    frame.loc[3, "body"] = None
    model = TextClassifier(weights={"title": 2}).fit(frame, names)
    assert model.text_columns_ == ["title", "body"]
    best = model.predict(frame[:5])
    assert model.predict(frame[["body", "title"]][:5]) == best  # by name, not by position
    one = model.predict_one({"title": frame["title"][0], "body": frame["body"][0]})
    assert [s.label for s in one] == [s.label for s in best[0]]
    with pytest.raises(ValueError, match="text column 'body' is missing"):
        model.predict(frame[["title"]].assign(other="x"))
    with pytest.raises(ValueError, match="weights names abstract"):
        TextClassifier(weights={"abstract": 2}).fit(frame, names)
    plain = TextClassifier().fit(frame, names)
    assert plain.predict(frame[:50]) != model.predict(frame[:50])


def test_results_do_not_depend_on_threads_or_the_order_of_names(demo):
    texts, names = demo[0][:400], demo[1][:400]
    model = TextClassifier(n_jobs=1).fit(texts, names)
    other = TextClassifier(n_jobs=2).fit(texts, [row[::-1] for row in names])
    assert model.predict(texts) == other.predict(texts)
    assert clone(model).get_params() == model.get_params()


def test_a_matrix_with_names_and_given_label_names(demo):
    texts, names = demo[0][:300], demo[1][:300]
    encoded = encode(names)
    model = TextClassifier(calibrate=0).fit(texts, names)
    from_matrix = TextClassifier(calibrate=0).fit(texts, encoded.Y, label_names=encoded.names)
    assert from_matrix.predict(texts) == model.predict(texts)
    few = encoded.names[:10]
    restricted = TextClassifier(calibrate=0).fit(texts, names, label_names=few)
    assert restricted.label_names_ == few
    assert restricted.fit_report_["unknown_labels"] == len(encoded.names) - 10


# Suggestions


def test_suggestions(demo, fitted):
    test = demo[2]
    best = fitted.predict(test, 3)
    assert all(isinstance(s, Suggestion) for row in best for s in row)
    assert all(0 <= s.probability <= 1 for row in best for s in row)
    top = fitted.predict(test, 3, output="csr")
    assert [[fitted.label_names_[j] for j in top[i].indices] for i in range(3)] == [
        [s.label for s in row] for row in best[:3]
    ]
    for text, row in zip(test[:50], best, strict=False):
        one = fitted.predict_one(text, 3)
        assert [s.label for s in one] == [s.label for s in row]
        assert [s.probability for s in one] == pytest.approx([s.probability for s in row], abs=1e-6)
    high = fitted.predict(test, 3, threshold=0.3)
    assert high == [[s for s in row if s.probability >= 0.3] for row in best]
    assert fitted.predict_one(test[0], 3, threshold=0.3) == high[0]
    frame = fitted.predict(test[:5], 2, output="frame")
    assert list(frame.columns) == ["row", "rank", "label", "probability"]
    assert frame["label"].tolist() == [s.label for row in fitted.predict(test[:5], 2) for s in row]
    assert frame["rank"].tolist() == [1, 2] * 5
    scores = fitted.predict(test[:5], 3, proba=False)
    assert all(row[0].probability >= row[1].probability for row in scores)
    assert fitted.predict([]) == []
    with pytest.raises(ValueError, match="a single string: see predict_one"):
        fitted.predict("eggs")
    with pytest.raises(ValueError, match="output must be"):
        fitted.predict(["eggs"], output="list")


def test_unknown_text_gets_no_suggestion(fitted):
    assert fitted.predict(["qqqq zzzz", None, "", "egg"], 1)[:3] == [[], [], []]
    assert fitted.predict_one("qqqq") == []
    assert fitted.known_terms(["qqqq egg egg", ""]).tolist() == [1, 0]


def test_probabilities_are_calibrated_on_held_out_rows(demo, fitted):
    top = fitted.predict(demo[2], 5, output="csr")
    truth = fitted.encode(demo[3]).Y[:, : top.shape[1]]
    hits = np.asarray(truth[np.repeat(np.arange(400), np.diff(top.indptr)), top.indices]).ravel()
    assert top.data.mean() == pytest.approx(hits.mean(), abs=0.05)
    scores = TextClassifier(calibrate=0).fit(demo[0][:200], demo[1][:200])
    assert not scores.calibrated
    assert scores.predict(["egg"])[0][0].probability == scores.predict(["egg"], proba=False)[0][0].probability
    with pytest.raises(ValueError, match="train with calibrate above 0"):
        scores.predict(["egg"], proba=True)


def test_the_model_is_trained_on_all_rows_after_its_probabilities_were_fitted(demo, monkeypatch):
    texts, tags = demo[0][:300], demo[1][:300]
    plain = TextClassifier(model=OneVsAll(), calibrate=0).fit(texts, tags)
    model = TextClassifier(model=OneVsAll(), calibrate=0.2).fit(texts, tags)
    asked = {"k": 5, "proba": False, "output": "csr"}
    assert (model.predict(demo[2], **asked) != plain.predict(demo[2], **asked)).nnz == 0
    assert model.fit_report_ == plain.fit_report_ | {
        "held_out": model.fit_report_["held_out"],
        "calibrated": True,
    }
    assert model.calibrated
    assert model.fit_report_["held_out"] > 40
    kept = TextClassifier(model=OneVsAll(), calibrate=0.2).fit(
        texts, tags, keep_state=True
    )  # an update needs rows apart
    assert kept.fit_report_["trained"] == model.fit_report_["trained"] - model.fit_report_["held_out"]
    assert kept.fit_report_["labels_without_rows"] > 0 == model.fit_report_["labels_without_rows"]
    np.testing.assert_array_equal(kept.model_.calibration.scale, model.model_.calibration.scale)
    monkeypatch.setattr(
        "xmc_fast.texts._fit.MOST_HELD_OUT", 10
    )  # of many rows a few are enough, and left out
    few = TextClassifier(model=OneVsAll(), calibrate=0.2).fit(texts, tags)
    assert (few.fit_report_["held_out"], few.fit_report_["trained"]) == (
        10,
        plain.fit_report_["trained"] - 10,
    )
    decided = TextClassifier(model=OneVsAll(), calibrate=0.2).fit(texts, tags, decide="macro-f1")
    assert decided.fit_report_ == model.fit_report_


def test_evaluate_counts_what_cannot_be_compared(demo, fitted):
    from xmc_fast import metrics

    texts, names = demo[2], demo[3]
    found = fitted.evaluate(texts, names)
    known = set(fitted.label_names_)
    rows = [i for i, row in enumerate(names) if row]
    assert found.rows == len(rows)
    assert found.unlabelled_rows == 400 - len(rows)
    assert found.unknown_labels == len({n for row in names for n in row} - known)
    best = fitted.predict(texts, 1)
    right = [best[i][:1] and best[i][0].label in names[i] for i in rows]
    assert found["precision@1"] == pytest.approx(np.mean([bool(r) for r in right]))
    shuffled = fitted.evaluate(texts, [[*row[::-1], *row[:1]] for row in names])
    assert shuffled["ndcg@5"] == found["ndcg@5"]
    assert shuffled.repeated_labels == len(rows)
    more = fitted.evaluate(texts, [[*row, "a label nobody knows"] if row else [] for row in names])
    assert more["recall@5"] < found["recall@5"]
    assert more["precision@5"] == found["precision@5"]
    assert more.unknown_labels == found.unknown_labels + 1
    assert "counted as misses" in str(more)
    assert json.loads(json.dumps(more.to_dict()))["counts"]["rows"] == found.rows
    few = fitted.evaluate(texts[:3], names[:3])
    assert isinstance(few.report, metrics.Report)
    with pytest.raises(ValueError, match="none of the 2 rows has a label"):
        fitted.evaluate(texts[:2], [[], None])


# Explanations


def test_contributions_add_up_to_the_score(demo, fitted):
    rng = np.random.default_rng(0)
    X = fitted.transform(demo[2])
    for i in rng.integers(400, size=60).tolist():
        label = int(rng.integers(len(fitted.label_names_)))
        found = fitted.explain(demo[2][i], fitted.label_names_[label])
        score = fitted.model_.predict(X[i], len(fitted.label_names_))
        expected = float(score.data[score.indices == label][0])
        assert found.score == pytest.approx(expected, abs=1e-6)
        assert found.bias + sum(c.contribution for c in found.contributions) == pytest.approx(
            expected, abs=1e-6
        )
        assert {c.term for c in found.contributions} == {fitted.feature_names_[j] for j in X[i].indices}
    best = fitted.predict_one(demo[2][0], 1)[0]
    found = fitted.explain(demo[2][0])
    assert (found.label, found.probability) == (best.label, pytest.approx(best.probability, abs=1e-5))
    assert "(bias)" in str(found)
    assert json.dumps(found.to_dict())
    with pytest.raises(ValueError, match="no label 'nothing'"):
        fitted.explain("egg", "nothing")


def test_html_marks_the_words_and_escapes_the_text(fitted):
    text = '<script>alert("egg")</script> Egg & bacon, egg'
    html = fitted.explain(text, "eggs").to_html()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert html.count(">egg</mark>") == 2
    assert ">Egg</mark>" in html


def test_describe_label(demo, fitted):
    found = fitted.describe_label("eggs", top=5)
    assert found.rows == sum("eggs" in row for text, row in zip(*demo[:2], strict=True) if text.strip())
    assert found.positive[0][0] == "egg"
    weights = [w for _, w in found.positive]
    assert weights == sorted(weights, reverse=True)
    assert all(w < 0 for _, w in found.negative)
    W = fitted.model_.to_csr()[:, : fitted.model_.n_features].toarray().astype(np.float64)
    W /= np.maximum(np.linalg.norm(W, axis=1, keepdims=True), 1e-30)
    number = fitted.label_names_.index("eggs")
    cosines = W @ W[number]
    cosines[number] = -1
    assert found.similar[0][0] == fitted.label_names_[int(cosines.argmax())]
    assert found.similar[0][1] == pytest.approx(cosines.max(), abs=1e-5)
    assert json.dumps(found.to_dict())
    assert "for " in str(found)


# Storage


def test_save_load_pickle_and_copy(demo, fitted, tmp_path):
    expected = fitted.predict(demo[2])
    fitted.save(tmp_path / "m")
    assert not list((tmp_path / "m").rglob("*.pkl"))
    loaded = TextClassifier.load(tmp_path / "m", verify=True)
    assert loaded.get_params() == fitted.get_params()
    assert loaded.fit_report_ == fitted.fit_report_
    np.testing.assert_array_equal(loaded.label_counts_, fitted.label_counts_)
    for other in (loaded, pickle.loads(pickle.dumps(loaded)), copy.deepcopy(fitted)):
        assert other.predict(demo[2]) == expected
        assert other.label_names_ == fitted.label_names_
        assert other.feature_names_ == fitted.feature_names_
        assert other.model_.label_names == fitted.label_names_
    loaded.save(tmp_path / "m")
    assert TextClassifier.load(tmp_path / "m").predict(demo[2]) == expected
    assert fitted.nbytes == fitted.model_.nbytes


def test_concat_keeps_vectorizer_and_names_or_refuses(demo, fitted):
    middle = len(fitted.label_names_) // 2
    parts = [
        TextClassifier(model=OneVsAll(block_labels=middle)).fit(demo[0], demo[1], label_range=labels)
        for labels in ((0, middle), (middle, len(fitted.label_names_)))
    ]
    whole = TextClassifier.concat(parts)
    assert whole.label_names_ == fitted.label_names_
    np.testing.assert_array_equal(whole.label_counts_, fitted.label_counts_)
    expected = TextClassifier(model=OneVsAll(block_labels=middle)).fit(demo[0], demo[1])
    assert whole.predict(demo[2], proba=False) == expected.predict(demo[2], proba=False)
    assert whole.calibrated
    with pytest.raises(ValueError, match="is in two parts"):
        TextClassifier.concat([fitted, fitted])
    other = TextClassifier().fit(demo[0][:100], demo[1][:100])
    with pytest.raises(ValueError, match="another vectorizer"):
        TextClassifier.concat([fitted, other])


def test_another_model(demo, tmp_path):
    model = TextClassifier(model=Mach(60, 4), calibrate=0).fit(demo[0], demo[1])
    expected = model.predict(demo[2], 3)
    assert model.evaluate(demo[2], demo[3])["precision@1"] > 0.2
    model.save(tmp_path / "m")
    assert TextClassifier.load(tmp_path / "m").predict(demo[2], 3) == expected
    with pytest.raises(ValueError, match="only linear models and label trees are explained, got a Mach"):
        model.explain("egg")


def test_real_texts(data_dir, tmp_path):
    """debtags: names in, names out, one text at a time gives what the batch gives."""

    def lines(name, n):
        with lzma.open(data_dir("debtags") / f"{name}.txt.xz", "rt", encoding="utf-8") as file:
            return [next(file).rstrip("\n") for _ in range(n)]

    with lzma.open(data_dir("debtags") / "label_names.txt.xz", "rt", encoding="utf-8") as file:
        names = file.read().splitlines()
    tags = [[names[int(j)] for j in line.split()] for line in lines("train_labels", 3000)]
    model = TextClassifier().fit(lines("train_texts", 3000), tags)
    texts = lines("test_texts", 300)
    truth = [[names[int(j)] for j in line.split()] for line in lines("test_labels", 300)]
    assert model.evaluate(texts, truth)["precision@1"] > 0.7
    best = model.predict(texts, 3)
    for text, row in zip(texts, best, strict=True):
        one = model.predict_one(text, 3)
        assert math.isclose(sum(s.probability for s in one), sum(s.probability for s in row), abs_tol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"analyzer": "char_wb", "ngram_range": (2, 4)},
        {"ngram_range": (1, 2), "stop_words": "english"},
        {"strip_accents": "unicode", "stop_words": ["the", "and"]},
        {"hashing": 512},
        {"analyzer": "char", "ngram_range": (3, 3), "hashing": 2048},
    ],
    ids=str,
)
def test_choices_of_the_vectorizer(demo, tmp_path, options):
    model = TextClassifier(**options).fit(demo[0][:600], demo[1][:600])
    assert model.evaluate(demo[2], demo[3])["precision@1"] > 0.2
    model.save(tmp_path / "m")
    loaded = TextClassifier.load(tmp_path / "m")
    assert loaded.get_params() == model.get_params()
    assert loaded.predict(demo[2][:50]) == model.predict(demo[2][:50])
    text = demo[2][0]
    found = loaded.explain(text)
    assert found.bias + sum(c.contribution for c in found.contributions) == pytest.approx(
        found.score, abs=1e-6
    )
    for part in found.contributions:
        assert part.spans
        if "hashing" not in options:
            assert {text[a:b].strip() for a, b in part.spans} == {part.term.strip()}
    assert "<mark" in found.to_html()


def test_languages_without_spaces():
    texts = ["緑茶はおいしい", "紅茶とミルク", "鉄鉱石の採掘", "鉄と鋼の産業"] * 5
    tags = [["drink"], ["drink"], ["metal", "mining"], ["metal"]] * 5
    model = TextClassifier(analyzer="char", ngram_range=(1, 2), calibrate=0).fit(texts, tags)
    assert model.predict_one("茶", 1)[0].label == "drink"
    assert model.predict_one("鋼鉄", 1)[0].label == "metal"


def test_explain_several_columns(demo):
    columns = {"title": demo[0][:300], "body": demo[0][300:600]}
    model = TextClassifier(weights={"title": 3}).fit(columns, demo[1][:300])
    one = {"title": demo[0][1], "body": demo[0][301]}
    found = model.explain(one)
    best = model.predict_one(one, 1)[0]
    assert (found.label, found.probability) == (best.label, pytest.approx(best.probability, abs=1e-5))
    assert found.text == f"{one['title']}\n{one['body']}"
