"""Dask: a task per worker at a time, the data scattered to one worker of each machine and mapped by all."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dask
import distributed
from distributed.scheduler import KilledWorker

from xmc_fast._threads import resolve_threads
from xmc_fast._work import DATA_NAME, Arrays
from xmc_fast.engine._data import Shipment
from xmc_fast.engine._pool import EngineError, WorkerLost
from xmc_fast.engine._work import Call, Outcome, run_task

RESULT_SECONDS = 300  # to fetch the result of a finished task


class DaskPool:
    """Workers of a `distributed.Client`: the given one, the current one, that of DASK_SCHEDULER_ADDRESS, or of
    a local cluster that lives as long as the pool."""

    name = "dask"
    ahead = False

    def __init__(self, client: Any, n_jobs: int | None) -> None:
        self._stack = contextlib.ExitStack()
        self._n_jobs = None if n_jobs is None else resolve_threads(n_jobs)
        self._client = client if client is not None else self._find()
        self._data: Shipment | None = None
        self._place: dict[str, str] = {}  # machine -> path of the data there
        self._sent: dict[str, int] = {}
        self._where: dict[Any, str] = {}  # task -> its worker

    def _find(self) -> Any:
        with contextlib.suppress(ValueError):
            return distributed.Client.current()
        if dask.config.get("scheduler-address", None):
            return self._stack.enter_context(distributed.Client())
        threads = self._n_jobs or 1
        workers = max(1, resolve_threads(None) // threads)
        cluster = self._stack.enter_context(
            distributed.LocalCluster(
                n_workers=workers,
                threads_per_worker=threads,
                dashboard_address="127.0.0.1:0",
                host="127.0.0.1",
            )
        )
        return self._stack.enter_context(distributed.Client(cluster))

    def slots(self) -> int:
        return sum(self._room(n) for n in self._client.nthreads().values())

    def alive(self) -> set[str]:
        return set(self._client.nthreads())

    def _room(self, nthreads: int) -> int:
        return 1 if self._n_jobs is None else max(1, nthreads // self._n_jobs)

    def threads(self) -> int:
        return self._n_jobs or min(self._client.nthreads().values(), default=1)

    def ship(self, data: Shipment) -> None:
        self._data = data

    def submit(self, call: Call) -> Any:
        workers = self._client.nthreads()
        busy = list(self._where.values())
        free = {w: self._room(n) - busy.count(w) for w, n in workers.items()}
        worker = max(free, key=lambda w: free[w]) if free else None
        future = self._client.submit(
            run_task,
            call,
            self._deliver(worker),
            pure=False,
            workers=None if worker is None else [worker],
            allow_other_workers=worker is not None,
        )
        self._where[future] = worker or ""
        return future

    def _deliver(self, worker: str | None) -> str:
        """The path of the data on the worker's machine; brings it there first if needed."""
        data = self._data
        if data is None:
            raise ValueError("ship the data first")
        if data.path is not None:
            return str(data.path)
        if worker is None:
            return ""
        machine = urlsplit(worker).hostname or worker
        if machine not in self._place:
            try:
                self._place[machine], self._sent[machine] = self._store_on(worker, data)
            except (KilledWorker, distributed.client.FutureCancelledError, TimeoutError):
                return ""  # that worker is gone; a task that lands on its machine will ask again
            except OSError as error:
                raise EngineError(f"could not store the data on {worker}: {error}") from error
        return self._place[machine]

    def _store_on(self, worker: str, data: Shipment) -> tuple[str, int]:
        """Send the data to a worker; a TimeoutError if it goes before it has stored them: nobody else may do it, so
        that the scheduler would wait for it for ever."""
        (arrays,) = self._client.scatter([data.arrays], workers=[worker], hash=False)
        stored = self._client.submit(store_here, arrays, data.key, workers=[worker], pure=False)
        while True:
            try:
                place: tuple[str, int] = stored.result(timeout=1.0)
                return place
            except TimeoutError:
                if worker not in self._client.nthreads():
                    self._client.cancel([stored])
                    raise

    def wait(self, handles: Sequence[Any], seconds: float) -> list[Any]:
        with contextlib.suppress(TimeoutError), self._client.as_current():
            distributed.wait(handles, timeout=seconds, return_when="FIRST_COMPLETED")
        return [h for h in handles if h.status != "pending"]

    def result(self, handle: Any) -> Outcome:
        worker = self._where.pop(handle, "")
        try:
            outcome: Outcome = handle.result(timeout=RESULT_SECONDS)
        except KilledWorker as error:
            raise WorkerLost("KilledWorker", 1 + error.allowed_failures) from None
        except TimeoutError:  # it was finished, but its worker went before the result was fetched
            self._client.cancel([handle])
            raise WorkerLost("the worker went with its result") from None
        except distributed.client.FutureCancelledError as error:
            raise WorkerLost(str(error).split("\n")[0]) from None
        except Exception as error:
            raise EngineError(
                f"the worker could not run the task: {type(error).__name__}: {error}"
            ) from error
        if outcome.no_data:  # its machine lost the file, or never had it
            self._place.pop(urlsplit(worker).hostname or worker, None)
        return outcome

    def sent(self) -> dict[str, int]:
        return dict(self._sent)

    def cancel(self, handles: Sequence[Any]) -> None:
        if handles:
            self._client.cancel(list(handles))

    def close(self) -> None:
        for worker in self._place.values():
            with contextlib.suppress(Exception):
                self._client.run(_remove, worker)
        self._stack.close()


def store_here(arrays: Arrays, key: str) -> tuple[str, int]:
    """On a worker: the arrays as a file in its own folder, which goes when the worker goes."""
    data = Shipment(arrays, None)
    if data.key != key:
        raise OSError("the data changed on its way")
    path = data.write(Path(distributed.get_worker().local_directory) / f"{key}-{DATA_NAME}")
    return str(path), data.nbytes


def _remove(path: str) -> None:
    Path(path).unlink(missing_ok=True)
