"""The data set inside the package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xmc_fast.data._io import read_lines
from xmc_fast.data._sparse import read_xmc

_FOLDER = Path(__file__).parent / "demo"


@dataclass(frozen=True)
class Demo:
    """What `load_demo` returns; matrices are scipy CSR float32."""

    X_train: Any  # 8393 x 577, word counts
    Y_train: Any  # 8393 x 400, ones
    X_test: Any  # 2098 x 577
    Y_test: Any  # 2098 x 400
    feature_names: list[str]  # word stems
    label_names: list[str]  # tags


def load_demo() -> Demo:
    """Load stackex-cooking: the words of cooking questions (features) and their tags (labels), with names.

    Content of Stack Exchange, CC BY-SA 4.0; see ``data/demo/ATTRIBUTION.md`` in the package.

    Examples
    --------
    >>> demo = load_demo()
    >>> demo.X_train.shape, demo.Y_train.shape, demo.X_test.shape
    ((8393, 577), (8393, 400), (2098, 577))
    >>> [demo.label_names[j] for j in demo.Y_train[0].indices]
    ['bacon', 'cooking-time', 'oven']
    """
    X_train, Y_train = read_xmc(_FOLDER / "train.txt.xz")
    X_test, Y_test = read_xmc(_FOLDER / "test.txt.xz")
    names = [read_lines(_FOLDER / f"{kind}_names.txt.xz") for kind in ("feature", "label")]
    return Demo(X_train, Y_train, X_test, Y_test, *names)
