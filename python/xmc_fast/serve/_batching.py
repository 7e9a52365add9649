"""Concurrent requests become one prediction: while a batch is computed, the next one gathers.

Nobody waits for a batch to fill up, so one request alone is as fast as without batching.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple


class Overloaded(RuntimeError):
    """More texts wait than the server takes."""


class Job(NamedTuple):
    """Texts of one request, and who waits for their suggestions."""

    texts: Sequence[Any]
    k: int
    answer: asyncio.Future[list[Any]]


class Batcher:
    """Gathers jobs and has them predicted together in a thread.

    Parameters
    ----------
    predict : function of (texts, k)
        One result per text, in order.
    executor : Executor
        Where it runs.
    max_rows : int
        Texts of one prediction (a job with more is predicted alone). Few, so that with many clients some are read and
        answered while the texts of others are predicted.
    max_waiting : int
        Texts that may wait.
    observe : function of int, optional
        Is told the number of texts of each prediction.
    """

    def __init__(
        self,
        predict: Callable[[list[Any], int], list[Any]],
        executor: Executor,
        *,
        max_rows: int = 32,
        max_waiting: int = 10_000,
        observe: Callable[[int], Any] | None = None,
    ) -> None:
        self._predict, self._executor = predict, executor
        self._max_rows, self._max_waiting = max_rows, max_waiting
        self._observe = observe or (lambda rows: None)
        self._jobs: list[Job] = []
        self._rows = 0
        self._running: asyncio.Task[None] | None = None

    async def __call__(self, texts: Sequence[Any], k: int, timeout: float = 30.0) -> list[Any]:
        """The result of each text; `Overloaded` where too many wait already, TimeoutError after so many seconds."""
        if self._rows and self._rows + len(texts) > self._max_waiting:
            raise Overloaded(f"{self._rows} texts are waiting already")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[Any]] = loop.create_future()
        self._jobs.append(Job(texts, k, answer))
        self._rows += len(texts)
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._work())
        timer = loop.call_later(timeout, _expire, answer)  # without the task that asyncio.wait_for makes
        try:
            return await answer
        finally:
            timer.cancel()

    async def _work(self) -> None:
        while self._jobs:
            batch = self._take()
            if batch:
                await self._answer(batch)

    def _take(self) -> list[Job]:
        """The first jobs of one k, as many as fit; those whose client has left are dropped."""
        left = [job for job in self._jobs if not job.answer.done()]
        batch: list[Job] = []
        rows = 0
        for job in left:
            if job.k == left[0].k and (not batch or rows + len(job.texts) <= self._max_rows):
                batch.append(job)
                rows += len(job.texts)
        taken = {id(job) for job in batch}
        self._jobs = [job for job in left if id(job) not in taken]
        self._rows = sum(len(job.texts) for job in self._jobs)
        return batch

    async def _answer(self, batch: list[Job]) -> None:
        texts = [text for job in batch for text in job.texts]
        self._observe(len(texts))
        try:
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(self._executor, self._predict, texts, batch[0].k)
        except Exception as error:
            if len(batch) > 1:  # one request's text must not fail the others'
                for job in batch:
                    await self._answer([job])
            elif not batch[0].answer.done():
                batch[0].answer.set_exception(error)
            return
        start = 0
        for job in batch:
            if not job.answer.done():
                job.answer.set_result(found[start : start + len(job.texts)])
            start += len(job.texts)


def _expire(answer: asyncio.Future[list[Any]]) -> None:
    if not answer.done():
        answer.set_exception(asyncio.TimeoutError())
