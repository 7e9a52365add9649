"""A vectorizer and a model together as a TextClassifier; its folders, today's and earlier ones."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.feature_extraction.text import TfidfVectorizer as SklearnVectorizer

from test_texts import TEXTS
from xmc_fast._folder import replace_folder
from xmc_fast.model import ModelFormatError, SparseModel
from xmc_fast.model._tensors import write_tensors
from xmc_fast.text import TfidfVectorizer
from xmc_fast.texts import TextClassifier

OPTIONS = [
    {},
    {"sublinear_tf": True, "min_df": 1, "dtype": np.float32},
    {"ngram_range": (1, 2), "norm": "l1", "stop_words": "english"},
    {"analyzer": "char_wb", "ngram_range": (2, 3), "strip_accents": "unicode", "norm": None},
    {"binary": True, "use_idf": False, "lowercase": False, "stop_words": ["and"]},
    {"smooth_idf": False, "token_pattern": r"[a-zß-ÿ]+", "dtype": np.float32},
]


def from_parts(vectorizer, **options):
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(70, len(vectorizer.vocabulary_) + 1)).astype(np.float32)
    weights[rng.random(weights.shape) < 0.5] = 0
    return TextClassifier.from_parts(vectorizer, SparseModel(sp.csr_matrix(weights), bias=1.0, **options))


@pytest.mark.parametrize("options", [*OPTIONS, {"own": True}, {"own": True, "norm": "l1"}], ids=str)
def test_a_vectorizer_and_a_model(tmp_path, options):
    kind = TfidfVectorizer if options.get("own") else SklearnVectorizer
    vectorizer = kind(**{k: v for k, v in options.items() if k != "own"}).fit(TEXTS[:-1])
    model = from_parts(vectorizer, label_names=[f"l{i}" for i in range(70)])
    expected = model.predict(TEXTS)
    model.save(tmp_path / "m")
    loaded = TextClassifier.load(tmp_path / "m")
    assert loaded.predict(TEXTS) == expected
    X, again = vectorizer.transform(TEXTS), loaded.vectorizer_.transform(TEXTS)
    assert X.dtype == again.dtype
    assert X.data.tobytes() == again.data.tobytes()
    for text, row in zip(TEXTS, expected, strict=True):
        assert [s.label for s in loaded.predict_one(text)] == [s.label for s in row]


@pytest.mark.parametrize("own", [True, False])
def test_folders_of_earlier_versions(tmp_path, own):
    """A model's folder with the vectorizer beside its blocks, as version 0.1.0 wrote it."""
    vectorizer = (TfidfVectorizer if own else SklearnVectorizer)().fit(TEXTS[:-1])
    model = from_parts(vectorizer, label_names=[f"l{i}" for i in range(70)])
    if own:
        arrays = vectorizer.to_dict()
        state = {"kind": "xmc_fast.TfidfVectorizer", "parameters": arrays.pop("params")}
    else:
        names = "encoding decode_error strip_accents lowercase analyzer stop_words token_pattern ngram_range"
        names += " binary norm use_idf smooth_idf sublinear_tf"
        parameters = {name: vectorizer.get_params()[name] for name in names.split()}
        state = {"kind": "sklearn.TfidfVectorizer", "parameters": {**parameters, "dtype": "float64"}}
        arrays = {"idf": vectorizer.idf_}
    with replace_folder(tmp_path / "old") as folder:
        (folder / "vectorizer.json").write_text(json.dumps(state))
        write_tensors(folder / "vectorizer.safetensors", arrays, {"kind": state["kind"]})
        files = {"vectorizer": "vectorizer.json", "vectorizer_arrays": "vectorizer.safetensors"}
        terms = vectorizer.get_feature_names_out().tolist()
        model.model_.write(folder, feature_names=terms, files=files)
    loaded = TextClassifier.load(tmp_path / "old")
    assert loaded.predict(TEXTS) == model.predict(TEXTS)
    assert loaded.label_names_[3] == "l3"
    model.model_.save(tmp_path / "plain")
    with pytest.raises(ModelFormatError, match="without a vectorizer"):
        TextClassifier.load(tmp_path / "plain")


def test_errors_of_parts_and_folders(tmp_path):
    vectorizer = TfidfVectorizer().fit(TEXTS)
    with pytest.raises(ValueError, match="terms, the model 3 features"):
        TextClassifier.from_parts(vectorizer, SparseModel(sp.csr_matrix((2, 3), dtype=np.float32)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        own = SklearnVectorizer(tokenizer=str.split).fit(TEXTS)
    with pytest.raises(ValueError, match="its own tokenizer"):
        from_parts(own).save(tmp_path / "m")
    assert not list(tmp_path.iterdir())
    from_parts(vectorizer).save(tmp_path / "m")
    (tmp_path / "m" / "vectorizer.json").write_text("{")
    with pytest.raises(ModelFormatError, match=r"vectorizer.json.*damaged"):
        TextClassifier.load(tmp_path / "m")
    (tmp_path / "m" / "vectorizer.safetensors").unlink()
    with pytest.raises(ModelFormatError, match=r"vectorizer.json.*damaged|vectorizer.safetensors.*missing"):
        TextClassifier.load(tmp_path / "m")
