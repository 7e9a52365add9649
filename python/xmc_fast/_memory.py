"""Memory that is kept for the next call, and giving it back."""

from __future__ import annotations

import ctypes
import sys

from xmc_fast import _core


def release_memory() -> int:
    """Give memory that is kept for reuse back to the system.

    Training of networks and prediction keep the blocks of their large results for the next call, at most 256 MiB
    in a process; the C library keeps what was freed in small pieces. Nothing else outlives the objects it belongs
    to. Call it before a process waits for long, or before a measurement.

    Returns
    -------
    int
        Bytes of the blocks that were given back.

    Examples
    --------
    >>> import xmc_fast
    >>> _ = xmc_fast.release_memory()
    >>> xmc_fast.release_memory()
    0
    """
    kept = int(_core.recycled_bytes(False))
    _core.recycled_bytes(True)
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
    return kept
