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
        ({}, "one string", "texts must be an iterable of str, got a single string"),
        ({}, ["a", None], "texts must hold str, got NoneType at position 1"),
        ({}, [], "empty vocabulary"),
        ({}, ["a b", "!"], "empty vocabulary"),
        ({"min_df": 3}, TEXTS[:2], "max_df=1.0 means fewer texts than min_df=3, of 2 texts"),
        ({"min_df": 2}, TEXTS[:2], "no terms remain with min_df=2"),
        ({"min_df": 0}, TEXTS, "min_df must be a count >= 1"),
        ({"max_df": 1.5}, TEXTS, "max_df must be a count >= 1"),
        ({"max_features": 0}, TEXTS, "max_features must be at least 1, got 0"),
        ({"ngram_range": (2, 1)}, TEXTS, "ngram_range must be (low, high)"),
        ({"norm": "max"}, TEXTS, "norm must be 'l1', 'l2' or None, got 'max'"),
    ],
)
def test_errors(options, texts, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        TfidfVectorizer(**options).fit(texts)


def test_invalid_utf8_separates_words():
    words = np.packbits(np.ones(0x110000, bool), bitorder="little")
    bad = [b"ab\xffcd", b"ab\xc3", b"ab\xc0\x80cd", b"ab\xe2\x82 cd", b"ab\xf5\x80\x80\x80cd"]
    counts = module._core.TermCounts(bad, True, words, 1, 1, True, 1)
    assert counts.select(1, 100)[0] == b"abcd"
