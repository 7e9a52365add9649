"""Ray: the data put once into the object store, which each node copies once and its workers map."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError, TaskCancelledError

from xmc_fast._threads import resolve_threads
from xmc_fast.engine._data import Shipment
from xmc_fast.engine._pool import EngineError, WorkerLost
from xmc_fast.engine._work import Call, Outcome, run_task


def start(address: str | None = None) -> Any:
    """`ray.init` without reports to anybody; a local cluster without an address (or RAY_ADDRESS)."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "warning"}
    if address is None and "RAY_ADDRESS" not in os.environ:
        options["include_dashboard"] = False
    return ray.init(address, **options)


class RayPool:
    """Workers of the Ray cluster this process is connected to; if it is not, see `start`."""

    name = "ray"
    ahead = False

    def __init__(self, client: Any, n_jobs: int | None) -> None:
        self._own = not ray.is_initialized()
        if self._own:
            start()
        self._n_jobs = None if n_jobs is None else resolve_threads(n_jobs)
        self._source: Any = None
        self._sent: dict[str, int] = {}
        self._nbytes = 0

    def _cpus(self) -> list[int]:
        nodes = (int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"])
        return [cpus for cpus in nodes if cpus]

    def alive(self) -> set[str]:
        return set()

    def threads(self) -> int:
        return self._n_jobs or min(self._cpus(), default=1)

    def slots(self) -> int:
        return sum(cpus // self.threads() for cpus in self._cpus())

    def ship(self, data: Shipment) -> None:
        # Arrays of an object are not copied on their way out of the store: all workers of a node read one copy.
        self._source = str(data.path) if data.path is not None else ray.put(data.arrays)
        self._nbytes = data.nbytes if data.path is None else 0

    def submit(self, call: Call) -> Any:
        task = ray.remote(run_task).options(num_cpus=call.threads, max_retries=0)
        return task.remote(call, self._source)

    def wait(self, handles: Sequence[Any], seconds: float) -> list[Any]:
        ready, _ = ray.wait(list(handles), num_returns=1, timeout=seconds)
        return list(ready)

    def result(self, handle: Any) -> Outcome:
        try:
            outcome: Outcome = ray.get(handle)
        except (RayTaskError, TaskCancelledError) as error:
            reason = str(error).strip().split("\n")[-1]
            raise EngineError(f"the worker could not run the task: {reason}") from error
        except RayError as error:  # the worker or its node died, or was ended for its memory
            raise WorkerLost(f"{type(error).__name__}: {str(error).strip().splitlines()[0]}") from None
        if self._nbytes:  # a node gets an object once, with the first task that needs it
            self._sent[outcome.worker.rpartition(":")[0]] = self._nbytes
        return outcome

    def sent(self) -> dict[str, int]:
        return dict(self._sent)

    def cancel(self, handles: Sequence[Any]) -> None:
        # By ending the worker: an interrupt in the middle of an import would leave half a module to its next task.
        for handle in handles:
            ray.cancel(handle, force=True)

    def close(self) -> None:
        self._source = None
        if self._own:
            ray.shutdown()
