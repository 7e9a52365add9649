"""Text in, labels out: the vectorizer and the model as one artefact."""

from __future__ import annotations

import lzma
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.feature_extraction.text import TfidfVectorizer

from xmc_fast import pipeline
from xmc_fast.model import ModelFormatError, SparseModel, read_predictions
from xmc_fast.pipeline import TextModel
from xmc_fast.text import TfidfVectorizer as OwnVectorizer

TEXTS = [
    "The cheese market: regulation of milk and cheese.",
    "Iron ore, iron and steel",
    "milk powder exports; Käse aus Österreich",
    "",
    "steel tariffs and the STEEL industry",
    "unknown wörds only qqq",
]

OPTIONS = [
    {},
    {"sublinear_tf": True, "min_df": 1, "dtype": np.float32},
    {"ngram_range": (1, 2), "norm": "l1", "stop_words": "english"},
    {"analyzer": "char_wb", "ngram_range": (2, 3), "strip_accents": "unicode", "norm": None},
    {"binary": True, "use_idf": False, "lowercase": False, "stop_words": ["and"]},
    {"smooth_idf": False, "token_pattern": r"[a-zß-ÿ]+", "dtype": np.float32},
]


OWN_OPTIONS = [{"own": True}, {"own": True, "sublinear_tf": True, "ngram_range": (1, 2), "norm": "l1"}]


def text_model(options, **model_options):
    options = dict(options)
    kind = OwnVectorizer if options.pop("own", False) else TfidfVectorizer
    vectorizer = kind(**options).fit(TEXTS[:-1])
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(70, len(vectorizer.vocabulary_) + 1)).astype(np.float32)
    weights[rng.random(weights.shape) < 0.5] = 0
    return TextModel(vectorizer, SparseModel(sp.csr_matrix(weights), bias=1.0, **model_options))


@pytest.mark.parametrize("options", OPTIONS + OWN_OPTIONS, ids=str)
def test_round_trip_and_one_text(tmp_path, options):
    model = text_model(options, label_names=[f"l{i}" for i in range(70)])
    expected = model.predict(TEXTS, 5)
    model.save(tmp_path / "m", prepared=True)
    loaded = TextModel.load(tmp_path / "m", verify=True)
    X, again = model.vectorizer.transform(TEXTS), loaded.vectorizer.transform(TEXTS)
    assert X.dtype == again.dtype
    assert X.data.tobytes() == again.data.tobytes()
    np.testing.assert_array_equal(X.indices, again.indices)
    assert loaded.model.label_names == model.model.label_names
    top = loaded.predict(TEXTS, 5)
    assert top.data.tobytes() == expected.data.tobytes()
    np.testing.assert_array_equal(top.indices, expected.indices)
    for i, text in enumerate(TEXTS):
        labels, scores = loaded.predict_one(text, 5)
        np.testing.assert_allclose(scores, expected.data[5 * i : 5 * i + 5], atol=1e-6)
        np.testing.assert_array_equal(labels, expected.indices[5 * i : 5 * i + 5])
    assert not list((tmp_path / "m").glob("*.pkl"))


def test_file_of_texts(tmp_path):
    model = text_model({})
    (tmp_path / "in.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    for chunk_rows in (1, 4, 100):
        assert model.predict_file(tmp_path / "in.txt", tmp_path / "out.txt", 3, chunk_rows=chunk_rows) == 6
        top = read_predictions(tmp_path / "out.txt", 70)
        np.testing.assert_array_equal(top.indices, model.predict(TEXTS, 3).indices)


def test_load_model_knows_both_kinds(tmp_path):
    model = text_model({})
    model.save(tmp_path / "text")
    model.model.save(tmp_path / "plain")
    assert isinstance(pipeline.load_model(tmp_path / "text"), TextModel)
    assert isinstance(pipeline.load_model(tmp_path / "plain"), SparseModel)
    assert SparseModel.load(tmp_path / "text").feature_names == sorted(model.vectorizer.vocabulary_)
    with pytest.raises(ModelFormatError, match="without a vectorizer"):
        TextModel.load(tmp_path / "plain")


def test_errors(tmp_path):
    model = text_model({})
    with pytest.raises(ValueError, match="terms, the model 3 features"):
        TextModel(model.vectorizer, SparseModel(sp.csr_matrix((2, 3), dtype=np.float32)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        own = TfidfVectorizer(tokenizer=str.split).fit(TEXTS)
    columns = len(own.vocabulary_)
    with pytest.raises(ValueError, match="its own tokenizer"):
        TextModel(own, SparseModel(sp.csr_matrix((2, columns), dtype=np.float32))).save(tmp_path / "m")
    assert not list(tmp_path.iterdir())
    model.save(tmp_path / "m")
    (tmp_path / "m" / "vectorizer.json").write_text("{")
    with pytest.raises(ModelFormatError, match=r"vectorizer.json.*damaged"):
        TextModel.load(tmp_path / "m")
    (tmp_path / "m" / "vectorizer.safetensors").unlink()
    with pytest.raises(ModelFormatError, match=r"vectorizer.safetensors.*missing"):
        TextModel.load(tmp_path / "m")


def test_real_texts(data_dir, tmp_path):
    """One text at a time gives what the batch gives."""
    with lzma.open(data_dir("debtags") / "test_texts.txt.xz", "rt", encoding="utf-8") as file:
        texts = [next(file).rstrip("\n") for _ in range(300)]
    vectorizer = OwnVectorizer(sublinear_tf=True, min_df=2).fit(texts)
    weights = sp.random(
        500, len(vectorizer.vocabulary_), 0.2, "csr", np.float32, random_state=np.random.default_rng(0)
    )
    TextModel(vectorizer, SparseModel(weights)).save(tmp_path / "m")
    model = TextModel.load(tmp_path / "m")
    top = model.predict(texts, 3)
    for i, text in enumerate(texts):
        _, scores = model.predict_one(text, 3)
        np.testing.assert_allclose(scores, top.data[3 * i : 3 * i + 3], atol=1e-6)
