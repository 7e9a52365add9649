"""tf-idf against scikit-learn's TfidfVectorizer, which is its definition."""

from __future__ import annotations

import json
import pickle
import random
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer as Sklearn

from xmc_fast import text as module
from xmc_fast.data import read_text
from xmc_fast.text import TfidfVectorizer

TEXTS = [
    "Green tea, black tea; GREEN tea!",
    "",
    "a b c",
    "the_cat's 42 toys x1 1x",
    "Grüner Tee mit ÄPFELN und Straße, ẞ ﬁsch",
    "ΟΔΥΣΣΕΥΣ ΣΑΣ Σ",  # final sigma
    "İstanbul ISTANBUL ıssız \u0130\u0130",
    "naïve cafe\u0301 ½ ² ٣٤ 漢字 かな \u200bzero\u200dwidth \ud83d\ude00 😀😀 𝒳𝒴",
    "tea " * 70 + "green",
    "x" * 300 + " " + "é" * 200,
    "lone \ud800 surrogate\udfff here",
    "tea\x00pot tab\tnew\nline\x85next\xa0end",
]


def same(ours, theirs, texts, more=()):
    A, B = ours.fit_transform(texts), theirs.fit_transform(texts)
    assert ours.get_feature_names_out().tolist() == theirs.get_feature_names_out().tolist()
    assert A.dtype == np.float32
    assert np.array_equal(A.indptr, B.indptr)
    for X in (A, ours.transform(texts)):
        assert X.shape == B.shape
        assert X.has_canonical_format
        assert abs(X - B).max() <= 1e-6
    if more:
        X, Y = ours.transform(more), theirs.transform(more)
        assert X.shape == Y.shape
        assert (abs(X - Y).max() if Y.nnz else X.nnz) <= 1e-6


OPTIONS = [
    {},
    {"sublinear_tf": True, "min_df": 2},
    {"lowercase": False},
    {"ngram_range": (1, 2)},
    {"ngram_range": (2, 3), "sublinear_tf": True},
    {"smooth_idf": False, "norm": "l1"},
    {"use_idf": False, "norm": None},
    {"min_df": 0.2},
    {"max_df": 0.25},
    {"max_df": 60, "min_df": 30},
    {"max_features": 7},
    {"max_features": 5, "ngram_range": (1, 3), "max_df": 0.9},
    {"max_features": 10_000},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("threads", [1, 3])
def test_like_scikit_learn(options, threads):
    more = ["black tea is new", "neu: grüner tee Straße", "", "ΣΑΣ"]
    same(TfidfVectorizer(**options, n_jobs=threads), Sklearn(**options), TEXTS * 20, more)


@given(
    st.lists(st.text(alphabet=st.one_of(st.characters(), st.sampled_from("abAB _1é'ß \u0345Σς"))), min_size=1)
)
@settings(max_examples=300, deadline=None)
def test_any_unicode(texts):
    texts = [*texts, "some words"]
    same(TfidfVectorizer(n_jobs=1), Sklearn(), texts)
    same(
        TfidfVectorizer(n_jobs=1, lowercase=False, ngram_range=(1, 2)),
        Sklearn(lowercase=False, ngram_range=(1, 2)),
        texts,
    )


def test_every_code_point():
    every = [chr(c) + "a" for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    texts = [" ".join(every[i : i + 4096]) for i in range(0, len(every), 4096)]
    ours, theirs = TfidfVectorizer().fit(texts), Sklearn().fit(texts)
    assert ours.get_feature_names_out().tolist() == theirs.get_feature_names_out().tolist()


@pytest.mark.parametrize("name", ["debtags", "tibkat-gnd"])
def test_real_texts(data_dir, name):
    folder = data_dir(name)
    texts = read_text(
        folder / "test_texts.txt.xz" if name == "debtags" else folder / "dev_texts.txt.xz"
    ).texts
    random.Random(0).shuffle(texts)
    options = {"sublinear_tf": True, "min_df": 2, "ngram_range": (1, 2)}
    same(
        TfidfVectorizer(**options, n_jobs=2),
        Sklearn(**options, dtype=np.float32),
        texts[:1000],
        texts[1000:1200],
    )


def test_bit_equal_for_any_threads():
    rng = random.Random(1)
    texts = [
        " ".join(f"w{int(rng.paretovariate(0.6))}" for _ in range(rng.randrange(60))) for _ in range(1500)
    ]
    one = TfidfVectorizer(n_jobs=1, sublinear_tf=True, min_df=2, max_features=500)
    X = one.fit_transform(texts)
    for threads in (2, 5):
        many = TfidfVectorizer(n_jobs=threads, sublinear_tf=True, min_df=2, max_features=500)
        for A in (many.fit_transform(texts), many.transform(texts)):
            assert A.data.tobytes() == X.data.tobytes()
            assert A.indices.tobytes() == X.indices.tobytes()
            assert A.indptr.tobytes() == X.indptr.tobytes()
        assert many._terms == one._terms


@pytest.mark.parametrize("n", [1, 63, 64, 65, 129])
def test_block_sizes(n):
    texts = [f"text{i} common" for i in range(n)]
    same(TfidfVectorizer(), Sklearn(), texts)
    assert TfidfVectorizer().fit(texts).transform([]).shape == (0, n + 1)


def test_to_dict_and_back():
    fitted = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), max_features=20).fit(TEXTS)
    state = fitted.to_dict()
    state["params"] = json.loads(json.dumps(state["params"]))
    assert {k: v.dtype for k, v in state.items() if k != "params"} == {
        "terms": np.uint8,
        "offsets": np.int64,
        "idf": np.float32,
    }
    for again in (TfidfVectorizer.from_dict(state), pickle.loads(pickle.dumps(fitted))):
        assert again.get_params() == fitted.get_params()
        assert again.vocabulary_ == fitted.vocabulary_
        A, B = again.transform(TEXTS), fitted.transform(TEXTS)
        assert A.data.tobytes() == B.data.tobytes()
        assert A.indices.tobytes() == B.indices.tobytes()
    for bad in ({"offsets": state["offsets"] + 1}, {"offsets": state["offsets"][::-1].copy()}):
        with pytest.raises(ValueError, match="offsets do not fit"):
            TfidfVectorizer.from_dict({**state, **bad})
    doubled = {"terms": np.frombuffer(b"aaaa", np.uint8), "offsets": np.array([0, 2, 4]), "idf": np.ones(2)}
    with pytest.raises(ValueError, match="not distinct"):
        TfidfVectorizer.from_dict({**state, **doubled})


UNICODE = [
    "Äpfel, Öl und Straße; STRASSE ẞ",
    "İstanbul'da ISPARTA ılık çay",
    "cafe\u0301 naïve Ångström ﬁsch ½ ①",
    "東京都の天気  漢字かな交じり文",
    "한국어 텍스트 \u1112\u1161\u11ab",
    "emoji 😀😀 👩\u200d👩\u200d👧 \u0301start",
    "ΟΔΥΣΣΕΥΣ ΣΑΣ. Σ ΑΣ̈Σ İΣ",
    "tabs\t\tand\n\nlines \u3000 \xa0\u2003x \x1c\x1d y\x85",
    "the cat and the dog, it is what it is",
    "",
    " a ",
    "\ufdfa \u0958 \u1e9b\u0323",
]
CHOICES = [
    {"analyzer": "char", "ngram_range": (1, 3)},
    {"analyzer": "char", "ngram_range": (2, 5), "lowercase": False},
    {"analyzer": "char_wb", "ngram_range": (1, 1)},
    {"analyzer": "char_wb", "ngram_range": (2, 6), "sublinear_tf": True},
    {"analyzer": "char_wb", "ngram_range": (4, 4), "strip_accents": "unicode"},
    {"analyzer": "char", "ngram_range": (1, 2), "strip_accents": "ascii"},
    {"strip_accents": "unicode"},
    {"strip_accents": "unicode", "lowercase": False},
    {"strip_accents": "ascii", "ngram_range": (1, 2)},
    {"stop_words": "english", "ngram_range": (1, 2)},
    {"stop_words": ["und", "the", "straße", "not there"], "ngram_range": (1, 3)},
]


@pytest.mark.parametrize("options", CHOICES, ids=str)
@pytest.mark.parametrize("texts", [TEXTS, UNICODE], ids=["mixed", "unicode"])
def test_choices_like_scikit_learn(options, texts):
    # all choices, with TextColumn input as well
    from xmc_fast.data import TextColumn

    same(
        TfidfVectorizer(**options, n_jobs=2), Sklearn(**options), texts * 12, ["neue STRASSE", "  ", "cafés"]
    )
    ours = TfidfVectorizer(**options).fit(texts)
    A, B = ours.transform(TextColumn.from_texts(texts)), ours.transform(texts)
    assert A.data.tobytes() == B.data.tobytes()
    assert A.indices.tobytes() == B.indices.tobytes()


@given(
    st.lists(
        st.text(alphabet=st.one_of(st.characters(), st.sampled_from("abAB  \t\n\u3000é'ß\u0345\u0301ΣςİÄ"))),
        min_size=1,
    ),
    st.sampled_from(["word", "char", "char_wb"]),
    st.sampled_from([None, "unicode", "ascii"]),
    st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_any_unicode_any_choice(texts, analyzer, strip_accents, lowercase):
    options = {"analyzer": analyzer, "strip_accents": strip_accents, "lowercase": lowercase}
    options["ngram_range"] = (1, 3)
    same(TfidfVectorizer(**options), Sklearn(**options), [*texts, "some words"])


@pytest.mark.parametrize("strip_accents", [None, "unicode", "ascii"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_every_code_point_by_character(strip_accents, lowercase):
    every = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    texts = ["x" + "x".join(every[i : i + 4096]) for i in range(0, len(every), 4096)]
    options = {"analyzer": "char", "strip_accents": strip_accents, "lowercase": lowercase}
    ours, theirs = TfidfVectorizer(**options), Sklearn(**options)
    A, B = ours.fit_transform(texts), theirs.fit_transform(texts)
    assert ours.get_feature_names_out().tolist() == theirs.get_feature_names_out().tolist()
    assert abs(A - B).max() <= 1e-6


@pytest.mark.parametrize("options", [{}, *CHOICES[::2]], ids=str)
@pytest.mark.parametrize("n_features", [1, 7, 1000, 2**20])
def test_hashing_like_scikit_learn(options, n_features):
    from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer

    texts = [text.encode("utf-8", "replace").decode() for text in TEXTS + UNICODE]  # it refuses surrogates
    chosen = {k: v for k, v in options.items() if k != "sublinear_tf"}
    theirs = HashingVectorizer(**chosen, n_features=n_features, alternate_sign=False, norm=None)
    weigh = TfidfTransformer(sublinear_tf=options.get("sublinear_tf", False))
    B = weigh.fit_transform(theirs.transform(texts))
    ours = TfidfVectorizer(**options, n_features=n_features, n_jobs=2)
    for A in (ours.fit_transform(texts), ours.transform(texts), ours.fit(texts).transform(texts)):
        assert A.shape == B.shape
        assert abs(A - B).max() <= 1e-6
        assert A.has_canonical_format
    again = TfidfVectorizer.from_dict(ours.to_dict())
    assert (again.transform(texts) != ours.transform(texts)).nnz == 0
    assert len(ours.get_feature_names_out()) == n_features


@pytest.mark.parametrize("n_features", [100, 3000, 2**20, 2**31 - 1])
@pytest.mark.parametrize("rows", [3, 40])
def test_hashing_of_long_rows(n_features, rows):
    from sklearn.feature_extraction.text import HashingVectorizer

    rng = np.random.default_rng(0)
    words = [f"w{number}" * (1 + number % 3) for number in range(900)]
    texts = [" ".join(rng.choice(words, size)) for size in rng.integers(0, 700, rows)]
    theirs = HashingVectorizer(n_features=n_features, alternate_sign=False, norm="l1")
    A = TfidfVectorizer(n_features=n_features, use_idf=False, norm="l1", n_jobs=2).fit_transform(texts)
    assert A.has_canonical_format
    assert abs(A - theirs.transform(texts)).max() <= 1e-6


@pytest.mark.parametrize("weights", [None, {"title": 2}, {"title": 0.3, "body": 1.7}])
@pytest.mark.parametrize("n_features", [None, 64])
def test_fields_with_weights(weights, n_features):
    from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfTransformer

    fields = {"title": TEXTS[:6] * 20, "body": TEXTS[6:12] * 20}
    if n_features:
        fields = {k: [t.encode("utf-8", "replace").decode() for t in v] for k, v in fields.items()}
        count = HashingVectorizer(n_features=n_features, alternate_sign=False, norm=None)
    else:
        count = CountVectorizer().fit(fields["title"] + fields["body"])
    tf = sum((weights or {}).get(name, 1) * count.transform(texts) for name, texts in fields.items())
    B = TfidfTransformer(sublinear_tf=True).fit_transform(tf)
    for threads in (1, 3):
        ours = TfidfVectorizer(weights=weights, n_features=n_features, sublinear_tf=True, n_jobs=threads)
        for A in (ours.fit_transform(fields), ours.transform(dict(reversed(fields.items())))):
            assert A.shape == B.shape
            assert abs(A - B).max() <= 1e-6
    assert ours.fields_ == ["title", "body"]
    for again in (TfidfVectorizer.from_dict(ours.to_dict()), pickle.loads(pickle.dumps(ours))):
        assert (again.transform(fields) != ours.transform(fields)).nnz == 0
    with pytest.raises(
        ValueError, match=r"texts with the fields \['title', 'body'\] expected as in fit, got None"
    ):
        ours.transform(["a"])


def test_fields_of_a_frame():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"title": ["Tea", None], "body": ["green tea", "pot"]})
    A = TfidfVectorizer(weights={"title": 2}).fit_transform(frame)
    B = TfidfVectorizer(weights={"title": 2}).fit_transform(
        {"title": ["Tea", ""], "body": ["green tea", "pot"]}
    )
    assert (A != B).nnz == 0


def spans_by_hand(vectorizer, text):
    """The spans of an ASCII text, term by term."""
    names = vectorizer.vocabulary_
    low, high = vectorizer.ngram_range
    words = [(m.start(), m.end(), m[0].lower()) for m in re.finditer(r"\b\w\w+\b", text)]
    found = []
    for n in range(low, high + 1):
        for i in range(len(words) - n + 1):
            term = " ".join(word for _, _, word in words[i : i + n])
            if term in names:
                found.append((words[i][0], words[i + n - 1][1], names[term]))
    return found


def test_spans_of_words():
    vectorizer = TfidfVectorizer(ngram_range=(1, 3)).fit(TEXTS)
    for text in [*TEXTS, "Green  TEA and black tea", "die Straße, ÄPFELN"]:
        if "İ" in text:  # becomes two characters, of which one separates words
            continue
        assert vectorizer.spans(text) == spans_by_hand(vectorizer, text)


@pytest.mark.parametrize("analyzer", ["word", "char", "char_wb"])
@pytest.mark.parametrize("strip_accents", [None, "unicode", "ascii"])
def test_spans_cover_the_terms(analyzer, strip_accents):
    options = {"analyzer": analyzer, "strip_accents": strip_accents, "ngram_range": (1, 3)}
    vectorizer = TfidfVectorizer(**options, use_idf=False, norm=None).fit(UNICODE)
    names = vectorizer.get_feature_names_out()
    preprocess = Sklearn(**options).build_preprocessor()
    for text in UNICODE:
        row = vectorizer.transform([text])
        counts = np.zeros(row.shape[1])
        for start, end, column in vectorizer.spans(text):
            counts[column] += 1
            assert 0 <= start <= end <= len(text)
            if analyzer == "word" and " " not in names[column] and "Σ" not in text:
                assert names[column] in preprocess(text[start:end])
        assert np.array_equal(counts, row.toarray()[0])


def test_is_an_estimator():
    fitted = TfidfVectorizer(min_df=2).fit(TEXTS * 2)
    fresh = clone(fitted)
    assert fresh.get_params() == fitted.get_params()
    assert not hasattr(fresh, "idf_")
    for call in (fresh.transform, lambda _: fresh.to_dict(), fresh.get_feature_names_out):
        with pytest.raises(NotFittedError, match="call fit first"):
            call(TEXTS)


@pytest.mark.parametrize(
    ("options", "texts", "message"),
    [
        ({}, "one string", "texts must be a sequence of str, got the single string 'one string'"),
        ({}, ["a", 3], "texts must hold str, got int at position 1"),
        ({}, [], "empty vocabulary"),
        ({}, ["a b", "!"], "empty vocabulary"),
        ({"min_df": 3}, TEXTS[:2], "max_df=1.0 means fewer texts than min_df=3, of 2 texts"),
        ({"min_df": 2}, TEXTS[:2], "no terms remain with min_df=2"),
        ({"min_df": 0}, TEXTS, "min_df must be a count >= 1"),
        ({"max_df": 1.5}, TEXTS, "max_df must be a count >= 1"),
        ({"max_features": 0}, TEXTS, "max_features must be at least 1, got 0"),
        ({"ngram_range": (2, 1)}, TEXTS, "ngram_range must be (low, high)"),
        ({"norm": "max"}, TEXTS, "norm must be 'l1', 'l2' or None, got 'max'"),
        ({"analyzer": "line"}, TEXTS, "analyzer must be 'word', 'char' or 'char_wb', got 'line'"),
        ({"strip_accents": "all"}, TEXTS, "strip_accents must be 'unicode', 'ascii' or None, got 'all'"),
        (
            {"stop_words": "german"},
            TEXTS,
            "stop_words must be 'english', a list of str or None, got 'german'",
        ),
        ({"stop_words": ["a"], "analyzer": "char"}, TEXTS, "stop_words needs analyzer='word', got 'char'"),
        ({"n_features": 0}, TEXTS, "n_features must be in 1..2147483647, got 0"),
        (
            {"n_features": 8, "min_df": 2},
            TEXTS,
            "n_features (hashing) excludes min_df, max_df and max_features",
        ),
        ({"weights": {"title": 2}}, TEXTS, "weights names title, the texts have the fields None"),
        ({"weights": {"title": 0}}, TEXTS, "weights must be positive numbers, got 0 for 'title'"),
        ({"analyzer": "char"}, ["", ""], "empty vocabulary: no text has a character"),
    ],
)
def test_errors(options, texts, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        TfidfVectorizer(**options).fit(texts)


def test_invalid_utf8_separates_words():
    bad = [b"ab\xffcd", b"ab\xc3", b"ab\xc0\x80cd", b"ab\xe2\x82 cd", b"ab\xf5\x80\x80\x80cd"]
    corpus = module._core.Corpus([bad], [1.0], None)
    counts = module._core.TermCounts(corpus, TfidfVectorizer()._analyzer(), 0, True, 1)
    assert counts.select(1, 100)[0] == b"abcd"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"analyzer": "char_wb", "ngram_range": (2, 4)},
        {"n_features": 2**20},
        {"ngram_range": (1, 2), "stop_words": "english", "strip_accents": "unicode", "sublinear_tf": True},
    ],
)
def test_few_rows_and_one_row_have_the_bits_of_many(options):
    vectorizer = TfidfVectorizer(**options).fit(TEXTS * 2)
    many = vectorizer.transform(TEXTS * 2)  # 24 rows: counted in a table of all terms
    for i, text in enumerate(TEXTS):  # 1 row: sorted
        indices, values = vectorizer.transform_one(text)
        row = many[i]
        assert np.array_equal(indices, row.indices)
        assert np.array_equal(values, row.data)


def test_few_rows_with_weighted_fields():
    weights = {"title": 0.3, "body": 1.7}
    columns = {"title": TEXTS * 2, "body": TEXTS[::-1] * 2}
    vectorizer = TfidfVectorizer(weights=weights, sublinear_tf=True).fit(columns)
    many = vectorizer.transform(columns)
    few = vectorizer.transform({name: texts[:16] for name, texts in columns.items()})
    assert np.array_equal(few.data, many[:16].data)
    assert np.array_equal(few.indices, many[:16].indices)
    indices, values = vectorizer.transform_one({"body": TEXTS[-1], "title": TEXTS[0]})
    assert np.array_equal(indices, many[0].indices)
    assert np.array_equal(values, many[0].data)
    with pytest.raises(ValueError, match="texts with the fields"):
        vectorizer.transform_one("green tea")


def test_a_changed_parameter_changes_the_analyzer():
    words = ["tea"]
    vectorizer = TfidfVectorizer(stop_words=words).fit(["green tea", "black bread"])
    assert len(vectorizer.transform_one("green bread")[0]) == 2
    words.append("green")
    assert len(vectorizer.transform_one("green bread")[0]) == 1
    assert len(vectorizer.transform_one("Bread")[0]) == 1
    vectorizer.set_params(lowercase=False)
    assert len(vectorizer.transform_one("Bread")[0]) == 0
    assert len(pickle.loads(pickle.dumps(vectorizer)).transform_one("bread")[0]) == 1
