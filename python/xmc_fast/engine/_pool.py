"""The engines behind one small interface, and finding the one that is meant."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Protocol

from xmc_fast.engine._work import Call, Outcome


class EngineError(RuntimeError):
    """A distributed run failed; the message names the block, what is finished stays."""

    def __init__(self, message: str, block: int | None = None) -> None:
        super().__init__(message)
        self.block = block


class WorkerLost(Exception):
    """A task's worker died, ``times`` times if the engine itself tried again."""

    def __init__(self, reason: str, times: int = 1) -> None:
        super().__init__(reason)
        self.times = times


class Pool(Protocol):
    """What `run` needs of an engine. Handles are the engine's futures."""

    name: str
    ahead: bool  # whether tasks may be submitted before a worker is free

    def slots(self) -> int:
        """Tasks that can run at once, now."""

    def alive(self) -> set[str]:
        """Names of the workers, now; none where the engine does not tell."""

    def threads(self) -> int:
        """Threads for a task."""

    def ship(self, data: Any) -> None:
        """Take the `Shipment` that tasks will need."""

    def submit(self, call: Call) -> Any:
        """Start a task; returns a handle."""

    def wait(self, handles: Sequence[Any], seconds: float) -> list[Any]:
        """The handles that are finished, at the latest after so many seconds."""

    def result(self, handle: Any) -> Outcome:
        """Of a finished task; raises WorkerLost, or EngineError with the reason."""

    def sent(self) -> dict[str, int]:
        """Bytes of the data sent, per machine."""

    def cancel(self, handles: Sequence[Any]) -> None:
        """Give up tasks."""

    def close(self) -> None:
        """Give back what the pool itself started."""


def open_pool(engine: Any, n_jobs: int | None) -> Pool:
    """The pool of an engine: "dask", "ray", a joblib backend's name, or a client."""
    kind = engine if isinstance(engine, str) else kind_of(engine)
    client = None if isinstance(engine, str) else engine
    module = {"dask": "_dask", "ray": "_ray"}.get(kind, "_joblib")
    try:
        backend = importlib.import_module(f"xmc_fast.engine.{module}")
    except ImportError as error:
        raise ImportError(f"engine {kind!r} needs: pip install 'xmc-fast[{kind}]' ({error})") from None
    if module == "_joblib":
        return backend.JoblibPool(kind if client is None else client, n_jobs)  # type: ignore[no-any-return]
    return (backend.DaskPool if module == "_dask" else backend.RayPool)(client, n_jobs)  # type: ignore[no-any-return]


def kind_of(client: Any) -> str:
    package = type(client).__module__.split(".")[0]
    name = getattr(client, "__name__", "")
    if package == "distributed":
        return "dask"
    if package == "ray" or name == "ray":
        return "ray"
    if package == "joblib":
        return "joblib"
    raise ValueError(
        "engine must be 'dask', 'ray', a joblib backend's name, a distributed.Client, the ray module or a"
        f" joblib.Parallel, got {client!r}"
    )
