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

from xmc_fast import TextClassifier, data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", default="debtags")
    parser.add_argument("--rows", type=int, default=4000, help="training texts used")
    parser.add_argument("--out", help="where to keep the model")
    options = parser.parse_args()
    folder = Path(os.environ.get("XMC_DATA", "../shared/data")) / options.data
    if not folder.is_dir():
        raise SystemExit(f"data set not found: {folder} (set XMC_DATA)")

    train, test = (
        data.read([folder / f"{name}.txt.xz" for name in (f"{part}_texts", f"{part}_labels", "label_names")])
        for part in ("train", "test")
    )
    train = train[: options.rows]
    tagger = TextClassifier().fit(train.texts, train.labels)
    print(tagger.evaluate(test.texts, test.labels))

    with tempfile.TemporaryDirectory() as scratch:
        out = options.out or Path(scratch) / "tagger"
        tagger.save(out)
        opened = TextClassifier.load(out)
        for text in test.texts[:3]:
            found = opened.predict_one(text, k=5)
            print(f"{text[:70]!r}: {', '.join(f'{label} {p:.2f}' for label, p in found)}")


if __name__ == "__main__":
    main()
