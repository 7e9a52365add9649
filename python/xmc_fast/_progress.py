"""Progress bars: on a terminal only, so that logs and pipes stay clean."""

from __future__ import annotations

import sys
from typing import Any


def progress(total: int | None, *, unit: str, desc: str = "", disable: bool | None = None) -> Any:
    """A tqdm bar (``update(n)``, context manager) that is quiet when stderr is not a terminal."""
    from tqdm import tqdm

    if disable is None:
        disable = not sys.stderr.isatty()
    return tqdm(total=total, unit=unit, desc=desc, disable=disable, dynamic_ncols=True, leave=False)
