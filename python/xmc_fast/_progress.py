"""Progress bars: on a terminal only, so that logs and pipes stay clean, unless `set_progress` says otherwise."""

from __future__ import annotations

import sys
from typing import Any

_shown: bool | None = None


def set_progress(show: bool | None) -> None:
    """Show progress bars always (True), never (False) or only when stderr is a terminal (None, the default).

    >>> set_progress(False)
    >>> set_progress(None)
    """
    global _shown
    if show not in (True, False, None):
        raise ValueError(f"show must be True, False or None, got {show!r}")
    _shown = show


def progress(total: int | None, *, unit: str, desc: str = "", disable: bool | None = None) -> Any:
    """A tqdm bar (``update(n)``, context manager), shown as `set_progress` says."""
    from tqdm import tqdm

    if disable is None:
        disable = not (sys.stderr.isatty() if _shown is None else _shown)
    return tqdm(total=total, unit=unit, desc=desc, disable=disable, dynamic_ncols=True, leave=False)
