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


class _Silent:
    """A bar that is not shown. tqdm's own would take locks that are shared with forked processes: a child that is
    killed while it holds one would stop all others."""

    def update(self, n: float = 1) -> None: ...

    def set_postfix(self, *args: Any, **values: Any) -> None: ...

    def close(self) -> None: ...

    def __enter__(self) -> _Silent:
        return self

    def __exit__(self, *error: object) -> None: ...


def progress(total: int | None, *, unit: str, desc: str = "", disable: bool | None = None) -> Any:
    """A tqdm bar (``update(n)``, context manager), shown as `set_progress` says."""
    if disable is None:
        disable = not (sys.stderr.isatty() if _shown is None else _shown)
    if disable:
        return _Silent()
    from tqdm import tqdm

    return tqdm(total=total, unit=unit, desc=desc, dynamic_ncols=True, leave=False)
