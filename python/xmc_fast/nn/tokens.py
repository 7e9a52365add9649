"""Pretrained encoders and their tokens: loading, parallel tokenisation with a memory-mapped cache, batches.

Any encoder that transformers' ``AutoModel`` can load will do, from a local folder or by its name on the hub.
Token lists are kept one after another without padding (`Tokens`); a batch is padded to its own longest
text, and `by_length` puts texts of similar length into one batch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from xmc_fast._progress import progress
from xmc_fast._threads import resolve_threads
from xmc_fast.model._tensors import read_tensors, write_tensors

_CHUNK = 2048  # texts per call of the tokenizer
_POOL = 64  # batches that by_length sorts together


class Encoder(NamedTuple):
    """A transformer and the tokenizer that goes with it."""

    model: Any  # transformers.PreTrainedModel
    tokenizer: Any  # transformers.PreTrainedTokenizerBase

    @property
    def max_length(self) -> int | None:
        """The most tokens of a text, special ones included; None without a limit (relative positions)."""
        config = self.model.config
        limits = [int(self.tokenizer.model_max_length)]
        positions = getattr(config, "max_position_embeddings", None)
        if positions is not None and positions > 0:
            # the RoBERTa family counts positions from after the padding token's
            embeddings = getattr(self.model, "embeddings", None)
            table = getattr(embeddings, "position_embeddings", None)
            offset = getattr(table, "padding_idx", None)
            limits.append(int(positions) - (0 if offset is None else int(offset) + 1))
        limit = min(limits)
        return limit if limit < 10**9 else None


class Tokens(NamedTuple):
    """Texts as token ids, one after another; text i is ``ids[offsets[i]:offsets[i + 1]]``."""

    ids: npt.NDArray[Any]  # uint16 or int32
    offsets: npt.NDArray[np.int64]  # texts + 1
    pad: int  # the padding token
    cls_last: bool  # the [CLS] token ends a text (XLNet): padding goes in front of it
    truncated: int  # texts that were cut

    @property
    def n_texts(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each text."""
        return np.diff(self.offsets)

    def batch(self, rows: npt.NDArray[np.int64]) -> dict[str, torch.Tensor]:
        """The texts ``rows``, padded to the longest of them: input_ids and attention_mask, (rows, longest)."""
        ids, mask = pad_rows(self.ids, self.offsets, rows, self.pad, front=self.cls_last)
        return {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask.astype(np.int64))}


def load_encoder(name_or_dir: str | os.PathLike[str] | Encoder) -> Encoder:
    """A pretrained transformer (float32, on the CPU) with its tokenizer.

    Parameters
    ----------
    name_or_dir : a folder as ``save_pretrained`` writes it, or a name on the hub (which must be reachable, or in
        the local cache). An `Encoder` is handed back as it is.

    Examples
    --------
    A transformer too small to be of use, with three words:

    >>> from tokenizers import Tokenizer, models, pre_tokenizers
    >>> from transformers import BertConfig, BertModel, PreTrainedTokenizerFast
    >>> words = Tokenizer(models.WordLevel({"[PAD]": 0, "green": 1, "tea": 2}, "[PAD]"))
    >>> words.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> _ = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]").save_pretrained("encoder")
    >>> config = BertConfig(vocab_size=3, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
    >>> BertModel(config).save_pretrained("encoder")
    >>> encoder = load_encoder("encoder")
    >>> tokenize(["green tea", "tea"], encoder).ids
    array([1, 2, 2], dtype=...)
    """
    if isinstance(name_or_dir, Encoder):
        return name_or_dir
    try:
        from transformers import AutoModel, AutoTokenizer
    except ModuleNotFoundError as error:
        raise ImportError("encoders need transformers: pip install 'xmc-fast[nn]'") from error
    name = os.fspath(name_or_dir)
    local = Path(name).is_dir()
    if not local and (
        isinstance(name_or_dir, os.PathLike) or name.startswith((".", "~", os.sep)) or name.count("/") > 1
    ):
        raise FileNotFoundError(f"encoder folder {name} does not exist")
    if local and not (Path(name) / "config.json").is_file():
        raise FileNotFoundError(f"encoder folder {name} has no config.json: it is not a saved transformer")
    try:
        options = {"local_files_only": local, "trust_remote_code": False}
        tokenizer = AutoTokenizer.from_pretrained(name, **options)
        model = AutoModel.from_pretrained(name, **options)
    except (OSError, ValueError) as error:
        where = (
            "could not be read"
            if local
            else "is neither a folder here nor could it be had from the hub (offline?)"
        )
        raise OSError(f"encoder {name!r} {where}: {_first_line(error)}") from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return Encoder(model.float().eval(), tokenizer)


def tokenize(
    texts: Sequence[str],
    encoder: Encoder,
    *,
    max_length: int = 128,
    cache: str | os.PathLike[str] | None = None,
    n_jobs: int | None = None,
    warn: bool = True,
) -> Tokens:
    """Token ids of texts, special tokens included.

    Parameters
    ----------
    texts : list of str
    encoder : as `load_encoder` gives it
    max_length : longer texts are cut to so many tokens, or to what the encoder allows; a warning tells how many
    cache : folder for the result, which is then read from there (memory-mapped) the next time the same texts
        meet the same tokenizer and length
    n_jobs : 1 keeps the tokenizer to one thread; else it uses its own pool (``RAYON_NUM_THREADS``)
    warn : whether to say how many texts were cut

    Returns
    -------
    Tokens
        ``ids`` of all texts one after the other; text i is ``ids[offsets[i]:offsets[i + 1]]``.

    Examples
    --------
    See `load_encoder`.
    """
    _check_texts(texts)
    limit = encoder.max_length
    if max_length < 3:
        raise ValueError(
            f"max_length must be at least 3 (two special tokens and one of the text), got {max_length}"
        )
    length = max_length if limit is None else min(max_length, limit)
    path = None
    if cache is not None:
        Path(cache).mkdir(parents=True, exist_ok=True)
        path = Path(cache) / f"tokens-{_fingerprint(texts, encoder.tokenizer, length)}.safetensors"
    if encoder.tokenizer.pad_token_id is None:
        raise ValueError("encoder must have a tokenizer with a padding token, got none (set its pad_token)")
    pad = int(encoder.tokenizer.pad_token_id)
    last = cls_last(encoder.tokenizer)
    if path is not None and path.exists():
        arrays, metadata = read_tensors(path)
        tokens = Tokens(arrays["ids"], arrays["offsets"], pad, last, int(metadata["truncated"]))
    else:
        with _parallelism(resolve_threads(n_jobs) > 1):
            ids, offsets, cut = _encode(texts, encoder, length)
        tokens = Tokens(ids, offsets, pad, last, cut)
        if path is not None:
            write_tensors(path, {"ids": ids, "offsets": offsets}, {"truncated": str(cut)})
            arrays, _ = read_tensors(path)
            tokens = tokens._replace(ids=arrays["ids"], offsets=arrays["offsets"])
    if warn and tokens.truncated:
        reason = "the encoder's limit" if length < max_length else "max_length"
        warnings.warn(
            f"{tokens.truncated:,} of {len(texts):,} texts have more than {length} tokens ({reason}) and were cut",
            stacklevel=2,
        )
    return tokens


def pad_rows(
    values: npt.NDArray[Any],
    offsets: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    fill: int,
    *,
    front: bool = False,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Lists ``values[offsets[r]:offsets[r + 1]]`` as the rows of a matrix, and which of its entries are theirs.

    Examples
    --------
    >>> pad_rows(np.array([5, 6, 7]), np.array([0, 1, 3]), np.array([0, 1]), -1)[0].tolist()
    [[5, -1], [6, 7]]
    """
    starts, sizes = offsets[rows], offsets[rows + 1] - offsets[rows]
    width = int(sizes.max(initial=0))
    place = np.arange(width) - ((width - sizes)[:, None] if front else np.zeros((len(rows), 1), np.int64))
    mask = (place >= 0) & (place < sizes[:, None])
    out = np.full(mask.shape, fill, np.int64)
    out[mask] = values[(starts[:, None] + place)[mask]]
    return out, mask


def by_length(
    lengths: npt.NDArray[np.int64], batch_size: int, generator: np.random.Generator
) -> list[npt.NDArray[np.int64]]:
    """All rows in random batches of rows of similar length.

    A random order is cut into pools of 64 batches, each pool is sorted by length, and the batches are shuffled.

    Examples
    --------
    >>> batches = by_length(np.array([9, 1, 8, 2]), 2, np.random.default_rng(0))
    >>> sorted(sorted(batch.tolist()) for batch in batches)
    [[0, 2], [1, 3]]
    """
    order = generator.permutation(len(lengths))
    pool = _POOL * batch_size
    for start in range(0, len(order), pool):
        part = order[start : start + pool]
        order[start : start + pool] = part[np.argsort(lengths[part], kind="stable")]
    batches = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
    return [batches[i] for i in generator.permutation(len(batches))]


def _encode(
    texts: Sequence[str], encoder: Encoder, length: int
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64], int]:
    narrow = np.uint16 if len(encoder.tokenizer) <= 1 << 16 else np.int32
    pieces: list[npt.NDArray[Any]] = [np.empty(0, narrow)]
    sizes = np.zeros(len(texts) + 1, np.int64)
    cut = 0
    with progress(len(texts), unit="text", desc="tokens") as bar:
        for start in range(0, len(texts), _CHUNK):
            chunk = list(texts[start : start + _CHUNK])
            made = encoder.tokenizer(
                chunk,
                truncation=True,
                max_length=length,
                padding=False,
                return_attention_mask=False,
                return_token_type_ids=False,
            )
            lists = made["input_ids"]
            sizes[start + 1 : start + 1 + len(chunk)] = [len(ids) for ids in lists]
            full = [i for i, ids in enumerate(lists) if len(ids) >= length]
            fast = made.encodings is not None
            cut += sum(bool(made.encodings[i].overflowing) for i in full) if fast else len(full)
            pieces.append(np.fromiter((t for ids in lists for t in ids), narrow))
            bar.update(len(chunk))
    return np.concatenate(pieces), np.cumsum(sizes), cut


def _check_texts(texts: Any) -> None:
    if isinstance(texts, (str, bytes)):
        raise ValueError("texts must be a list of str, got a single string")
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"texts must hold str, got {type(text).__name__} at position {i}")


def cls_last(tokenizer: Any) -> bool:
    """Whether a text ends with its [CLS] token instead of starting with it."""
    ids = tokenizer("")["input_ids"]
    return bool(len(ids) > 1 and tokenizer.cls_token_id == ids[-1] and tokenizer.cls_token_id != ids[0])


def _fingerprint(texts: Sequence[str], tokenizer: Any, length: int) -> str:
    """Names the texts, everything the tokenizer is made of, and the length."""
    digest = hashlib.blake2b(digest_size=16)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    # truncation and padding are options of a call, which the serialised tokenizer happens to remember
    state = json.loads(backend.to_str()) if backend is not None else sorted(tokenizer.get_vocab().items())
    if isinstance(state, dict):
        state = {k: v for k, v in state.items() if k not in ("truncation", "padding")}
    digest.update(json.dumps([type(tokenizer).__name__, state, length], sort_keys=True).encode())
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


@contextlib.contextmanager
def _parallelism(wanted: bool) -> Iterator[None]:
    """The tokenizers library reads this variable at each call."""
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if wanted else "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TOKENIZERS_PARALLELISM"]
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = before


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]
