"""Any joblib backend: "loky", "threading", "multiprocessing", or one that a package has registered.

joblib runs a list of tasks to its end, so a round is such a list; what a broken round left open makes the next
one. A task of a broken round may still be started and report in the next one: handles are known by numbers that are
never given twice. Workers are processes of this machine, or see the run's folder.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import joblib

from xmc_fast._threads import resolve_threads
from xmc_fast.engine._data import Shipment, on_this_machine
from xmc_fast.engine._pool import EngineError, WorkerLost
from xmc_fast.engine._work import Call, Outcome, run_task


class JoblibPool:
    """The workers of a backend, or of a `joblib.Parallel` object."""

    ahead = True  # all tasks at once: joblib hands them out

    def __init__(self, engine: Any, n_jobs: int | None) -> None:
        self._stack = contextlib.ExitStack()
        self._threads = 1 if n_jobs is None else resolve_threads(n_jobs)
        if isinstance(engine, str):
            try:
                with joblib.parallel_config(backend=engine):
                    cpus = joblib.effective_n_jobs(-1)
            except (ValueError, KeyError):
                known = ", ".join(sorted({"dask", "ray", *joblib.parallel.BACKENDS}))
                raise ValueError(f"engine must be a client or one of {known}, got {engine!r}") from None
            workers = max(1, cpus // self._threads)
            engine = joblib.Parallel(
                n_jobs=workers, backend=engine, batch_size=1, return_as="generator_unordered"
            )
        self._parallel = engine
        self.name = "joblib"
        self._path = ""
        self._waiting: list[_Handle] = []
        self._round: dict[int, _Handle] = {}
        self._numbers = itertools.count()
        self._results: Iterator[tuple[int, Outcome]] = iter(())

    def slots(self) -> int:
        return max(1, int(joblib.effective_n_jobs(self._parallel.n_jobs)))

    def alive(self) -> set[str]:
        return set()

    def threads(self) -> int:
        return self._threads

    def ship(self, data: Shipment) -> None:
        self._path = str(self._stack.enter_context(on_this_machine(data)))

    def submit(self, call: Call) -> Any:
        handle = _Handle(call)
        self._waiting.append(handle)
        return handle

    def wait(self, handles: Sequence[Any], seconds: float) -> list[Any]:
        del seconds  # joblib comes back when a task is finished
        try:
            if all(h.outcome is not None for h in self._round.values()):
                self._round, self._waiting = dict(zip(self._numbers, self._waiting, strict=False)), []
                calls = [joblib.delayed(_run)(i, h.call, self._path) for i, h in self._round.items()]
                self._results = iter(self._parallel(calls))
            number, outcome = next(self._results)
            if number in self._round:
                self._round[number].outcome = outcome
        except Exception as error:  # the backend broke: of its tasks only the finished ones are known
            for handle in self._round.values():
                handle.outcome = error if handle.outcome is None else handle.outcome
        return [h for h in handles if h.outcome is not None]

    def result(self, handle: Any) -> Outcome:
        if isinstance(handle.outcome, Outcome):
            return handle.outcome
        reason = f"{type(handle.outcome).__name__}: {handle.outcome}".split("\n")[0]
        # StopIteration: another round's task took its place among the results.
        if isinstance(handle.outcome, StopIteration) or "Terminated" in reason or "Broken" in reason:
            raise WorkerLost(reason)
        raise EngineError(f"the worker could not run the task: {reason}") from handle.outcome

    def sent(self) -> dict[str, int]:
        return {}  # workers map the driver's file

    def cancel(self, handles: Sequence[Any]) -> None:
        close = getattr(self._results, "close", None)
        if handles and close is not None:
            close()

    def close(self) -> None:
        self._stack.close()


class _Handle:
    def __init__(self, call: Call) -> None:
        self.call = call
        self.outcome: Outcome | Exception | None = None


def _run(number: int, call: Call, path: str) -> tuple[int, Outcome]:
    return number, run_task(call, path)
