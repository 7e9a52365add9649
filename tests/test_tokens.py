"""Encoders and tokens: batches, cache, cutting, errors."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from reference import tiny_encoder  # noqa: E402
from xmc_fast.nn import tokens  # noqa: E402

TEXTS = ["green tea", "", "black tea with milk and sugar", "tea", "unknownword tea"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_encoder.save(tmp_path_factory.mktemp("encoder"), TEXTS[:4], positions=40)


@pytest.fixture(scope="module")
def encoder(folder):
    return tokens.load_encoder(folder)


def as_lists(made):
    return [made.ids[a:b].tolist() for a, b in zip(made.offsets[:-1], made.offsets[1:], strict=True)]


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_tokens_are_the_tokenizers(encoder, n_jobs, monkeypatch):
    monkeypatch.setattr(tokens, "_CHUNK", 2)
    made = tokens.tokenize(TEXTS, encoder, max_length=30, n_jobs=n_jobs)
    assert as_lists(made) == [encoder.tokenizer(text)["input_ids"] for text in TEXTS]
    assert made.lengths.tolist() == [4, 2, 8, 3, 4]
    assert (made.truncated, made.n_texts, made.ids.dtype) == (0, 5, np.uint16)


@pytest.mark.parametrize("texts", [[], [""], TEXTS])
def test_batch_pads_to_its_longest(encoder, texts):
    made = tokens.tokenize(texts, encoder, max_length=30)
    rows = np.arange(len(texts))[::-1].copy()
    batch = made.batch(rows)
    lists = [as_lists(made)[i] for i in rows]
    width = max(map(len, lists), default=0)
    assert batch["input_ids"].tolist() == [ids + [0] * (width - len(ids)) for ids in lists]
    assert batch["attention_mask"].tolist() == [[1] * len(ids) + [0] * (width - len(ids)) for ids in lists]


def test_batch_pads_in_front_when_cls_is_last():
    made = tokens.Tokens(np.array([7, 2, 5, 6, 2], np.int32), np.array([0, 2, 5]), 0, True, 0)
    batch = made.batch(np.array([0, 1]))
    assert batch["input_ids"].tolist() == [[0, 7, 2], [5, 6, 2]]
    assert batch["attention_mask"].tolist() == [[0, 1, 1], [1, 1, 1]]


def test_cls_at_the_end_is_seen(encoder):
    from tokenizers import processors
    from transformers import PreTrainedTokenizerFast

    assert not tokens.cls_last(encoder.tokenizer)
    backend = type(encoder.tokenizer.backend_tokenizer).from_str(encoder.tokenizer.backend_tokenizer.to_str())
    backend.post_processor = processors.TemplateProcessing(
        single="$A [SEP] [CLS]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    assert tokens.cls_last(PreTrainedTokenizerFast(tokenizer_object=backend, cls_token="[CLS]"))


def test_long_texts_are_cut_and_said_once(encoder):
    with pytest.warns(UserWarning, match=r"1 of 5 texts have more than 6 tokens \(max_length\)") as said:
        made = tokens.tokenize(TEXTS, encoder, max_length=6)
    assert len(said) == 1
    assert made.lengths.tolist() == [4, 2, 6, 3, 4]
    assert made.ids[made.offsets[3] - 1] == encoder.tokenizer.sep_token_id
    with pytest.warns(UserWarning, match=r"1 of 1 texts have more than 40 tokens \(the encoder's limit\)"):
        made = tokens.tokenize(["tea " * 50], encoder, max_length=512)
    assert made.lengths.tolist() == [40]
    with torch.no_grad():
        encoder.model(**made.batch(np.array([0])))
    assert tokens.tokenize(["tea " * 50], encoder, max_length=10, warn=False).truncated == 1


def test_exactly_full_is_not_cut(encoder):
    assert tokens.tokenize(["tea tea"], encoder, max_length=4).truncated == 0


def test_limit_of_the_roberta_family():
    transformers = pytest.importorskip("transformers")
    config = transformers.RobertaConfig(
        vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, max_position_embeddings=34
    )

    class Tokenizer:
        model_max_length = 10**30

    assert tokens.Encoder(transformers.RobertaModel(config), Tokenizer()).max_length == 32


def test_cache_is_mapped_and_keyed(encoder, tmp_path):
    first = tokens.tokenize(TEXTS, encoder, max_length=6, cache=tmp_path / "c", warn=False)
    (file,) = (tmp_path / "c").iterdir()

    class Deaf:
        """Has the limits and special tokens of the tokenizer, but must not be asked to tokenise."""

        def __init__(self, tokenizer):
            self.tokenizer = tokenizer

        def __getattr__(self, name):
            return getattr(self.tokenizer, name)

        def __call__(self, text, **_):
            assert text == "", "the cache should have been used"
            return self.tokenizer(text)

    Deaf.__name__ = type(encoder.tokenizer).__name__
    with pytest.warns(UserWarning, match="1 of 5 texts"):
        again = tokens.tokenize(
            TEXTS, tokens.Encoder(encoder.model, Deaf(encoder.tokenizer)), max_length=6, cache=tmp_path / "c"
        )
    assert as_lists(again) == as_lists(first)
    assert not again.ids.flags.writeable
    for texts, length in ((TEXTS[:4], 6), (TEXTS, 5), (["green teablack"], 6), (["green tea", "black"], 6)):
        tokens.tokenize(texts, encoder, max_length=length, cache=tmp_path / "c", warn=False)
    assert len(list((tmp_path / "c").iterdir())) == 5
    data = file.read_bytes()
    file.write_bytes(data[:-3])
    with pytest.raises(ValueError, match="truncated"):
        tokens.tokenize(TEXTS, encoder, max_length=6, cache=tmp_path / "c")


@pytest.mark.parametrize("n", [0, 1, 127, 128, 129, 1000])
def test_batches_by_length(n):
    lengths = np.random.default_rng(1).integers(1, 100, n)
    batches = tokens.by_length(lengths, 2, np.random.default_rng(0))
    assert len(batches) == -(-n // 2)
    assert sorted(np.concatenate([*batches, np.empty(0, int)]).tolist()) == list(range(n))
    if n == 1000:
        spread = np.mean([np.ptp(lengths[b]) for b in batches])
        assert spread < 3  # 33 for random pairs
        again = tokens.by_length(lengths, 2, np.random.default_rng(0))
        assert all((a == b).all() for a, b in zip(batches, again, strict=True))
        other = tokens.by_length(lengths, 2, np.random.default_rng(1))
        assert any((a != b).any() for a, b in zip(batches, other, strict=True))


def test_a_padding_token_is_needed(encoder):
    class Unpadded:
        pad_token_id = None
        model_max_length = 10**30

    with pytest.raises(ValueError, match="encoder must have a tokenizer with a padding token, got none"):
        tokens.tokenize(TEXTS, tokens.Encoder(encoder.model, Unpadded()))


def test_errors(tmp_path, encoder):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        tokens.load_encoder(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        tokens.load_encoder("./nothing")
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        tokens.load_encoder(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(OSError, match="could not be read"):
            tokens.load_encoder(tmp_path)
    with pytest.raises(ValueError, match="single string"):
        tokens.tokenize("tea", encoder)
    with pytest.raises(ValueError, match="got int at position 1"):
        tokens.tokenize(["tea", 3], encoder)
    with pytest.raises(ValueError, match="max_length must be at least 3"):
        tokens.tokenize(["tea"], encoder, max_length=2)


def test_name_offline(monkeypatch):
    """A name that is not here says so in one line, whatever the hub's client raises."""
    import transformers

    def unreachable(*args, **kwargs):
        raise OSError("We couldn't connect to the hub\nmore lines")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", unreachable)
    with pytest.raises(OSError, match=r"'some/model' is neither a folder .*offline.*connect to the hub$"):
        tokens.load_encoder("some/model")
