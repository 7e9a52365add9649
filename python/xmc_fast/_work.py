"""What an engine is to the estimators: one small interface, below both of them.

An estimator describes its fit as a `Work`: arrays that every machine needs, numbered blocks, how to solve some
of them and where a solved one is stored. An `Engine` (see `xmc_fast.engine.connect`) has workers do it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy.typing as npt

Arrays = dict[str, npt.NDArray[Any]]
DATA_NAME = "engine-data.safetensors"  # the arrays of a run, in its folder while it goes on


def dumps(thing: Any) -> bytes:
    """A pickle that workers can open without the driver's own script (`pickle.loads` reads it).

    Examples
    --------
    >>> import pickle
    >>> pickle.loads(dumps(lambda x: x + 1))(1)
    2
    """
    try:
        import cloudpickle
    except ImportError:
        from joblib.externals import cloudpickle  # older joblib has its own
    return bytes(cloudpickle.dumps(thing))


class Work:
    """A job of numbered blocks. Subclasses travel to the workers by pickle: keep them small.

    ``folder`` is shared storage, or None: then results are returned to the driver.
    """

    folder: Path | None = None
    block_size: int = 1  # labels of a block, for the size of a wave
    key: str | None = None  # identifies the arrays, if the estimator has hashed them already

    def name(self, block: int) -> str:
        """The block in words, for messages: "block 3 (labels 3000 to 3999)"."""
        return f"block {block}"

    def solve(
        self, arrays: Arrays, blocks: Sequence[int], threads: int, emit: Callable[[int, Any], None]
    ) -> Any:
        """Solve blocks, calling ``emit(block, result)`` as each is ready, in any order."""
        raise NotImplementedError

    def has(self, block: int) -> bool:
        """Whether the folder already holds the block."""
        raise NotImplementedError

    def store(self, block: int, result: Any) -> Any:
        """Put the block into the folder, atomically and with the same bytes each time; returns what the driver
        gets to know about it."""
        raise NotImplementedError


@runtime_checkable
class Engine(Protocol):
    """Workers that solve blocks and predict."""

    def run(
        self,
        work: Work,
        arrays: Arrays,
        blocks: Sequence[int],
        cost: Iterable[float],
        *,
        n_jobs: int | None = None,
        on_block: Callable[[int, Any], None],
    ) -> dict[str, Any]:
        """Solve blocks; returns a report."""

    def predict(self, model: Any, X: Any, k: int, *, proba: bool = False, n_jobs: int | None = None) -> Any:
        """`SparseModel.predict` over shards of the labels."""


def check_engine(engine: Any) -> Engine | None:
    """The engine, or None; an error for anything else.

    >>> check_engine("dask")
    Traceback (most recent call last):
    ValueError: engine must be None or an object from xmc_fast.engine.connect(...), got 'dask'
    """
    if engine is None or isinstance(engine, Engine):
        return engine
    raise ValueError(f"engine must be None or an object from xmc_fast.engine.connect(...), got {engine!r}")
