"""Tag texts, end to end: read, tf-idf, train, evaluate, save one folder, tag new texts from it.

    python bench/examples/text_tagging.py [--data debtags] [--rows 4000] [--out tagger/]

A data set is a folder in XMC_DATA with train_texts, train_labels, test_texts, test_labels (one line per text) and
label_names. debtags: descriptions of Debian packages and their tags.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from xmc_fast import OneVsAll, TextModel, metrics
from xmc_fast.data import read_lines, read_text
from xmc_fast.text import TfidfVectorizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", default="debtags")
    parser.add_argument("--rows", type=int, default=4000, help="training texts used")
    parser.add_argument("--out", help="where to keep the model")
    options = parser.parse_args()
    folder = Path(os.environ.get("XMC_DATA", "../shared/data")) / options.data
    if not folder.is_dir():
        raise SystemExit(f"data set not found: {folder} (set XMC_DATA)")

    names = read_lines(folder / "label_names.txt.xz")
    train, test = (
        read_text(folder / f"{part}_texts.txt.xz", folder / f"{part}_labels.txt.xz", n_labels=len(names))
        for part in ("train", "test")
    )
    texts, Y = train.texts[: options.rows], train.Y[: options.rows]

    vectorizer = TfidfVectorizer(sublinear_tf=True, min_df=2)
    model = OneVsAll().fit(vectorizer.fit_transform(texts), Y).model_
    tagger = TextModel(vectorizer, model)
    print(metrics.report(test.Y, tagger.predict(test.texts, k=5), k=(1, 3, 5)))

    with tempfile.TemporaryDirectory() as scratch:
        out = options.out or Path(scratch) / "tagger"
        tagger.save(out)
        opened = TextModel.load(out)
        for text in test.texts[:3]:
            found, _ = opened.predict_one(text, k=5)
            print(f"{text[:70]!r}: {', '.join(names[j] for j in found)}")


if __name__ == "__main__":
    main()
