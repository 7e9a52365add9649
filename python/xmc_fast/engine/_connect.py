"""Engines as estimators take them (`xmc_fast._work.Engine`)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import scipy.sparse as sp

from xmc_fast._work import Arrays, Work
from xmc_fast.engine._pool import kind_of
from xmc_fast.engine._predict import predict
from xmc_fast.engine._run import run


class ConnectedEngine:
    """Workers of Dask, Ray or joblib; made by `connect`, closed by `close` or a ``with`` statement.

    Examples
    --------
    >>> from xmc_fast.engine import connect
    >>> connect("threading")
    <xmc_fast engine 'threading'>
    """

    def __init__(self, client: Any, *, own: bool) -> None:
        self.client = client  # a name, or the engine's own client
        self._own = own

    def __repr__(self) -> str:
        return f"<xmc_fast engine {self.client!r}>"

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
        """Solve blocks (see `xmc_fast.engine.run`)."""
        return run(self.client, work, arrays, blocks, cost, n_jobs=n_jobs, on_block=on_block)

    def predict(
        self, model: Any, X: Any, k: int, *, proba: bool = False, n_jobs: int | None = None
    ) -> sp.csr_matrix:
        """`SparseModel.predict` over shards of the labels (see `xmc_fast.engine.predict`)."""
        return predict(self.client, model, X, k, proba=proba, n_jobs=n_jobs)

    def close(self) -> None:
        """Disconnect, if `connect` made the connection (the cluster goes on)."""
        if self._own:
            (self.client.close if kind_of(self.client) == "dask" else self.client.disconnect)()
            self._own = False

    def __enter__(self) -> ConnectedEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(engine: Any, address: str | None = None) -> ConnectedEngine:
    """An engine for ``engine=`` of `fit` and `predict`.

    Parameters
    ----------
    engine : "dask", "ray", a joblib backend's name, or a client
        A client is a `distributed.Client`, the ray module or a `joblib.Parallel`; it stays the caller's.
    address : str, optional
        Of the Dask scheduler ("tcp://host:8786") or the Ray head ("host:6379", "ray://host:10001", "auto");
        without one the engine's own default.

    Examples
    --------
    >>> with connect("loky") as engine:
    ...     engine
    <xmc_fast engine 'loky'>
    """
    if not isinstance(engine, str):
        kind_of(engine)  # or an error
    if address is None:
        return ConnectedEngine(engine, own=False)
    if engine == "dask":
        return ConnectedEngine(
            importlib.import_module("distributed").Client(address, timeout="30s"), own=True
        )
    if engine == "ray":
        return ConnectedEngine(importlib.import_module("xmc_fast.engine._ray").start(address), own=True)
    raise ValueError(f"address is for engine 'dask' or 'ray', got engine {engine!r}")
