"""Draws docs/img/explanation.png: `python docs/_tools/explanation_picture.py`.

A text of debtags with the words marked that speak for and against a label, word pairs too, as a browser shows
`Explanation.to_html`. Needs the data set (XMC_DATA) and Debian's chromium.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from xmc_fast import TextClassifier, data

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "img" / "explanation.png"
PAGE = """<!doctype html><meta charset="utf-8"><body style="font:16px/1.5 sans-serif;margin:20px;max-width:720px">{}"""
LABELS = ("implemented-in::perl", "interface::text-mode")
TEXT = (
    "Perl module to read mail folders. This library parses mbox files and Maildir folders from the command line or "
    "from Perl scripts. It has no graphical interface & needs no network."
)


def main() -> None:
    folder = Path(os.environ["XMC_DATA"]) / "debtags"
    names = data.read_lines(folder / "label_names.txt.xz")
    texts, Y = data.read_text(
        folder / "train_texts.txt.xz", folder / "train_labels.txt.xz", n_labels=len(names)
    )
    tags = [[names[j] for j in Y.indices[a:b]] for a, b in zip(Y.indptr, Y.indptr[1:], strict=False)]
    model = TextClassifier(ngram_range=(1, 2), calibrate=0.1).fit(texts, tags)
    parts = [model.explain(TEXT, label).to_html() for label in LABELS]
    with tempfile.TemporaryDirectory() as place:
        page = Path(place) / "page.html"
        page.write_text(PAGE.format("".join(parts)), "utf-8")
        options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=780,240"]
        browser = shutil.which("chromium") or "chromium"
        subprocess.run([browser, *options, f"--screenshot={PICTURE}", page.as_uri()], check=True)


if __name__ == "__main__":
    main()
