"""Draws the pictures of docs/guide/plots.md into docs/img/plots: `python docs/_tools/gallery.py`.

The page is the source: its Python blocks run one after the other, and the axes `ax` of the block before a picture are
saved under the picture's name.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt

DOCS = Path(__file__).parents[1]
PAGE = DOCS / "guide" / "plots.md"
PART = re.compile(r"^```python\n(.*?)^```|^!\[[^\]]*\]\((\.\./img/plots/\w+\.png)\)", re.S | re.M)
STYLE = {
    "figure.figsize": (5.6, 3.6),
    "savefig.dpi": 110,
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
}


def draw() -> None:
    (DOCS / "img" / "plots").mkdir(exist_ok=True)
    names: dict[str, object] = {"__name__": "__main__"}
    for code, picture in PART.findall(PAGE.read_text("utf-8")):
        if code:
            exec(compile(code, PAGE.name, "exec"), names)
        else:
            figure = names["ax"].figure  # type: ignore[attr-defined]
            figure.savefig(PAGE.parent / picture, bbox_inches="tight", metadata={"Software": None})
            plt.close(figure)


if __name__ == "__main__":
    plt.rcParams.update(STYLE)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # models that blocks save
        draw()
