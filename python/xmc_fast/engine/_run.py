"""The driver: ranges of blocks to workers, lost ones again, slow ones shared, errors with the block's name."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from xmc_fast import _core
from xmc_fast._work import Arrays, Work, dumps
from xmc_fast.engine._data import Shipment, on_shared_storage
from xmc_fast.engine._pool import EngineError, Pool, WorkerLost, open_pool
from xmc_fast.engine._work import Call, Outcome

RETRIES = 3  # times that a block's worker may die
PATIENCE = 60.0  # seconds without any worker
DEATHS = 20  # workers that may come and go without a task being finished
WAVE_LABELS = 512  # labels per thread that a worker solves between two looks at what others have stored
POLL = 0.5  # seconds between two looks at the folder
SLOW = 2.0  # a task that takes so many times what its cost suggests is started a second time


def run(
    engine: Any,
    work: Work,
    arrays: Arrays,
    blocks: Sequence[int],
    cost: Iterable[float],
    *,
    n_jobs: int | None = None,
    on_block: Callable[[int, Any], None],
) -> dict[str, Any]:
    """Have an engine solve blocks.

    Parameters
    ----------
    engine : name or client, as `connect` takes it
    work : Work
    arrays : dict of arrays
        What each machine needs; shipped once per machine and mapped there.
    blocks : numbers of the blocks to solve
    cost : expected cost of each of them, in any unit
    n_jobs : int, optional
        Threads of a task; None: all of a Dask worker's or a Ray node's, one on joblib backends.
    on_block : function of a block and its result (for a `Work` with a folder what `Work.store` returned, None
        if the block was found there), called once per block.

    Returns
    -------
    dict
        ``engine``; ``data_bytes``, the size of the arrays; ``sent_bytes`` per machine; ``workers``: for each
        worker its ``tasks``, ``blocks``, ``seconds``, ``cpu_seconds`` and the ``data_bytes`` it opened;
        ``lost``, ``repeated`` and ``split``: tasks whose worker died, blocks solved more than once, tasks
        shared with idle workers.

    Examples
    --------
    >>> import numpy as np
    >>> from xmc_fast._work import Work
    >>> class Sums(Work):
    ...     def solve(self, arrays, blocks, threads, emit):
    ...         for block in blocks:
    ...             emit(block, int(arrays["x"][block].sum()))
    >>> found = {}
    >>> arrays = {"x": np.arange(6).reshape(3, 2)}
    >>> report = run("threading", Sums(), arrays, range(3), [1, 1, 1], on_block=found.__setitem__)
    >>> sorted(found.items())
    [(0, 1), (1, 5), (2, 9)]
    """
    if not len(blocks):
        return {}
    pool = open_pool(engine, n_jobs)
    try:
        data = Shipment(arrays, work.folder, work.key)
        with on_shared_storage(data):
            pool.ship(data)
            return _Driver(pool, work, data, blocks, cost, on_block).run()
    finally:
        pool.close()


@dataclass
class _Task:
    blocks: list[int]
    cost: float
    started: float = field(default_factory=time.monotonic)
    shared: bool = False  # an idle worker has got its rest


class _Driver:
    """The state of one run."""

    def __init__(
        self,
        pool: Pool,
        work: Work,
        data: Shipment,
        blocks: Sequence[int],
        cost: Iterable[float],
        on_block: Callable[[int, Any], None],
    ) -> None:
        from xmc_fast import __version__

        self.pool, self.work, self.data, self.on_block = pool, work, data, on_block
        self.pickled = dumps(work)
        self.version, self.simd = __version__, _core.simd_level()
        self.cost = dict(zip(blocks, (float(c) for c in cost), strict=True))
        self.missing = dict.fromkeys(blocks)  # in order
        self.queue = list(blocks)
        self.alone: list[int] = []  # blocks of lost workers: one task each, so that a bad one is known
        self.running: dict[Any, _Task] = {}
        self.deaths: Counter[int] = Counter()
        self.seen: set[str] = set()  # workers at the last look
        self.gone = 0  # workers that went since a task was finished
        self.pace: list[float] = []  # seconds per cost of finished tasks
        self.report: dict[str, Any] = {
            "engine": pool.name, "data_bytes": data.nbytes, "sent_bytes": {}, "workers": {},
            "lost": 0, "repeated": 0, "split": 0,
        }  # fmt: skip

    def run(self) -> dict[str, Any]:
        last_worker = time.monotonic()
        try:
            while self.missing:
                slots = self.pool.slots()
                while (task := self._next(slots)) is not None:
                    self.running[self.pool.submit(self._call(task.blocks))] = task
                self._count_gone()
                if slots:
                    last_worker = time.monotonic()
                elif time.monotonic() - last_worker > PATIENCE:
                    block = next(iter(self.missing))
                    raise EngineError(
                        f"{self.work.name(block)}: no worker for {PATIENCE:.0f} s, {len(self.missing)} blocks are"
                        " missing; run again to go on from the finished ones",
                        block,
                    )
                if not self.running:
                    time.sleep(POLL)
                    continue
                for handle in self.pool.wait(list(self.running), POLL):
                    self._finish(handle, self.running.pop(handle))
        finally:
            self.pool.cancel(list(self.running))
        self.report["sent_bytes"] = self.pool.sent()
        return self.report

    def _count_gone(self) -> None:
        """Workers that die before a task of theirs has begun: the engine starts them again and again."""
        alive = self.pool.alive()
        self.gone, self.seen = self.gone + len(self.seen - alive), alive
        if self.gone > DEATHS:
            block = next(iter(self.missing))
            raise EngineError(
                f"{self.work.name(block)}: {self.gone} workers died one after another and no task was finished;"
                f" {len(self.missing)} blocks are missing. See the workers' logs; run again to go on from the"
                " finished ones",
                block,
            )

    def _call(self, blocks: list[int]) -> Call:
        threads = self.pool.threads()
        return Call(
            self.version, self.simd, self.pickled, self.data.key, tuple(blocks), threads, self._wave(threads)
        )

    def _next(self, slots: int) -> _Task | None:
        """The next range: half of what is left divided by the workers, so that the last ones are short."""
        idle = len(self.running) < slots
        self.queue = [b for b in self.queue if b in self.missing]
        if not (idle or (slots and self.pool.ahead)):
            return None
        if self.alone:
            return self._task([self.alone.pop(0)])
        if not self.queue:
            return self._share() if idle and not self.pool.ahead else None
        share = self._sum(self.queue) / (2 * slots)
        wave = min(self._wave(self.pool.threads()), max(1, len(self.queue) // slots))
        count = take(self.queue, self.cost, share, wave, bounded=self.work.folder is None)
        blocks, self.queue = self.queue[:count], self.queue[count:]
        return self._task(blocks)

    def _wave(self, threads: int) -> int:
        return max(1, WAVE_LABELS * threads // max(self.work.block_size, 1))

    def _task(self, blocks: list[int]) -> _Task:
        return _Task(blocks, self._sum(blocks))

    def _sum(self, blocks: Iterable[int]) -> float:
        return sum((self.cost[b] for b in blocks), 0.0)

    def _share(self) -> _Task | None:
        """Work for an idle worker when the queue is empty: of the task with most to do, the later half of the
        blocks it has not begun, last one first. The owner skips those it finds stored, so the two meet. Blocks
        that are under way are started again only when they take far longer than their cost suggests."""
        best: _Task | None = None
        rest: list[int] = []
        for task in self.running.values():
            left = [b for b in task.blocks if b in self.missing and not self._stored(b)]
            if not task.shared and self._sum(left) > self._sum(rest):
                best, rest = task, left
        if best is None:
            return None
        begun = len(rest) if self.work.folder is None else self._wave(self.pool.threads())
        later = rest[begun:][len(rest[begun:]) // 2 :]
        if later:
            best.blocks = [b for b in best.blocks if b not in later]
        else:
            pace = sorted(self.pace)[len(self.pace) // 2] if self.pace else float("inf")
            if time.monotonic() - best.started < max(SLOW * pace * best.cost, 4 * POLL):
                return None
            best.shared, later = True, rest
        self.report["split"] += 1
        return self._task(later[::-1])

    def _stored(self, block: int) -> bool:
        return self.work.folder is not None and self.work.has(block)

    def _finish(self, handle: Any, task: _Task) -> None:
        try:
            outcome = self.pool.result(handle)
        except WorkerLost as error:
            self._lost(task, error)
            return
        except EngineError as error:
            raise EngineError(f"{self.work.name(task.blocks[0])}: {error}", task.blocks[0]) from None
        if outcome.no_data:
            self.queue = [b for b in task.blocks if b in self.missing] + self.queue
            self._count(task, outcome, "had no data")
            return
        self.gone = 0
        self._record(outcome)
        for block, result in outcome.done.items():
            if block in self.missing:
                del self.missing[block]
                self.on_block(block, result)
            else:
                self.report["repeated"] += 1
        self._found(outcome.skipped)
        if outcome.failed is not None:
            raise EngineError(
                f"{self.work.name(outcome.failed)}: worker {outcome.worker}: {outcome.reason}", outcome.failed
            )
        cost = self._sum(outcome.done)
        if cost > 0:
            self.pace.append(outcome.seconds / cost)

    def _found(self, blocks: Iterable[int]) -> None:
        """Blocks that are in the folder, by a worker that will not report them any more."""
        for block in blocks:
            if block in self.missing and not any(block in task.blocks for task in self.running.values()):
                del self.missing[block]
                self.on_block(block, None)

    def _count(self, task: _Task, outcome: Outcome, what: str) -> None:
        block = task.blocks[0]
        self.deaths[block] += 1
        if self.deaths[block] > RETRIES:
            raise EngineError(
                f"{self.work.name(block)}: worker {outcome.worker} {what} {RETRIES + 1} times; is the folder on"
                " storage that all workers see?",
                block,
            )

    def _lost(self, task: _Task, error: WorkerLost) -> None:
        """A worker died: its blocks again, each by itself, so that one that ends its workers is known."""
        self.report["lost"] += 1
        left = [b for b in task.blocks if b in self.missing and not self._stored(b)]
        self._found(b for b in task.blocks if b not in left)
        if len(left) == 1:
            self.deaths[left[0]] += error.times
            if self.deaths[left[0]] > RETRIES:
                raise EngineError(
                    f"{self.work.name(left[0])}: its worker died {self.deaths[left[0]]} times ({error}); out of"
                    " memory? Use fewer threads, smaller blocks or larger workers",
                    left[0],
                )
        self.alone += left

    def _record(self, outcome: Outcome) -> None:
        empty = {"tasks": 0, "blocks": 0, "seconds": 0.0, "cpu_seconds": 0.0, "data_bytes": 0}
        row = self.report["workers"].setdefault(outcome.worker, empty)
        row["tasks"] += 1
        row["blocks"] += len(outcome.done)
        row["seconds"] += outcome.seconds
        row["cpu_seconds"] += outcome.cpu_seconds
        row["data_bytes"] += outcome.data_bytes


def take(
    blocks: Sequence[int], cost: dict[int, float], share: float, wave: int, *, bounded: bool = False
) -> int:
    """How many of the blocks, from the first, make a task of cost ``share``: at least a wave, and no more than
    that if ``bounded`` (a task that returns its results must not grow)."""
    count, total = 0, 0.0
    while count < len(blocks) and (count < wave or (total < share and not bounded)):
        total += cost[blocks[count]]
        count += 1
    return count
