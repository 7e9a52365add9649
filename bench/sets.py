"""The data sets of the benches as features and labels, kept in XMC_CACHE.

Text sets are tf-idf (`xmc_fast.text.TfidfVectorizer`, sublinear, min_df 2, fitted on the training texts); the
others come with features.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy.sparse as sp

from bench.common import CACHE, data_dir
from xmc_fast import data
from xmc_fast.text import TfidfVectorizer

TEXT = {"debtags": "test", "eurlex57k": "test", "tibkat-gnd": "dev"}  # name -> the part used for testing


def load(name: str, part: str = "train") -> tuple[sp.csr_matrix, sp.csr_matrix]:
    """Features and labels of a data set's part ("train" or "test")."""
    path = CACHE / f"linear_{name}_{part}.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        if name in TEXT:
            vectorizer = vectorizer_of(name)
            for stem in ("train", "test"):
                texts, Y = read_texts(name, stem)
                _save(CACHE / f"linear_{name}_{stem}.npz", vectorizer.transform(texts), Y)
        else:
            _save(path, *data.read_xmc(data_dir(name) / f"{part}.txt.xz")[:2])
    both = sp.load_npz(path).tocsr()
    n_labels = int(np.load(path.with_suffix(".labels.npy")))
    return both[:, :-n_labels].tocsr(), both[:, -n_labels:].tocsr()


def read_texts(name: str, part: str) -> tuple[list[str], sp.csr_matrix]:
    """Texts and labels of a text set's part."""
    folder = data_dir(name)
    stem = TEXT[name] if part == "test" else part
    n_labels = len(data.read_lines(folder / "label_names.txt.xz"))
    return data.read_text(
        folder / f"{stem}_texts.txt.xz", folder / f"{stem}_labels.txt.xz", n_labels=n_labels
    )


def vectorizer_of(name: str) -> TfidfVectorizer:
    """The vectorizer of a text set, fitted again."""
    return TfidfVectorizer(sublinear_tf=True, min_df=2).fit(read_texts(name, "train")[0])


def _save(path: Path, X: sp.csr_matrix, Y: sp.csr_matrix) -> None:
    np.save(path.with_suffix(".labels.npy"), Y.shape[1])
    sp.save_npz(path, sp.hstack([X, Y.astype(np.float32)]).tocsr(), compressed=False)
