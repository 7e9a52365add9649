"""What a worker does: map the data, solve its blocks, store or return each, report. Never raises for a block."""

from __future__ import annotations

import os
import pickle
import socket
import threading
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xmc_fast import _core
from xmc_fast._work import Arrays, Work
from xmc_fast.model._tensors import read_tensors


@dataclass(frozen=True)
class Call:
    """One task as it travels. ``work`` is a pickle, opened only after the versions were compared."""

    version: str
    simd: str
    work: bytes
    key: str  # of the data
    blocks: tuple[int, ...]
    threads: int
    wave: int  # blocks to solve between two looks at what others have stored


@dataclass
class Outcome:
    """What a worker reports of one task."""

    worker: str
    done: dict[int, Any] = field(default_factory=dict)  # block -> result, or what `Work.store` returned
    skipped: list[int] = field(default_factory=list)  # were there already
    data_bytes: int = 0  # of the shipped arrays, when this worker process opened them in this task
    seconds: float = 0.0
    cpu_seconds: float = 0.0  # of the whole process
    no_data: bool = False  # this machine does not have the arrays (any more)
    failed: int | None = None  # the block
    reason: str = ""
    details: str = ""


def worker_name() -> str:
    """Host and process."""
    return f"{socket.gethostname()}:{os.getpid()}"


def run_task(call: Call, source: Any) -> Outcome:
    """Solve the blocks of a call on this worker. ``source`` is the path of the data, or its arrays."""
    outcome = Outcome(worker_name())
    start, cpu = time.perf_counter(), time.process_time()
    current = [call.blocks[0]]
    try:
        reason = _mismatch(call)
        if reason:
            outcome.failed, outcome.reason = call.blocks[0], reason
            return outcome
        work: Work = pickle.loads(call.work)
        arrays, outcome.data_bytes = _open(call.key, source)
        _solve(work, arrays, call, outcome, current)
    except NoData:
        outcome.no_data = True
    except BaseException as error:
        if not isinstance(error, Exception):
            raise
        outcome.failed = current[0]
        outcome.reason = explain(error, work.folder if "work" in locals() else None)
        outcome.details = traceback.format_exc()
    finally:
        outcome.seconds, outcome.cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    return outcome


def _solve(work: Work, arrays: Arrays, call: Call, outcome: Outcome, current: list[int]) -> None:
    def emit(block: int, result: Any) -> None:
        current[0] = block
        outcome.done[block] = result if work.folder is None else work.store(block, result)
        if len(call.blocks) > len(outcome.done):
            current[0] = next(b for b in call.blocks if b not in outcome.done)

    rest = list(call.blocks)
    while rest:
        blocks, rest = rest[: call.wave], rest[call.wave :]
        if work.folder is not None:
            there = [b for b in blocks if work.has(b)]
            outcome.skipped += there
            blocks = [b for b in blocks if b not in there]
        if blocks:
            current[0] = blocks[0]
            work.solve(arrays, blocks, call.threads, emit)


def explain(error: BaseException, folder: Path | None) -> str:
    """An error in words that say what to do."""
    if isinstance(error, MemoryError):
        return f"out of memory ({error or 'allocation failed'}): use fewer threads, smaller blocks or larger workers"
    if isinstance(error, OSError) and folder is not None:
        return f"could not write to {folder}: {error.strerror or error}"
    return f"{type(error).__name__}: {error}"


def _mismatch(call: Call) -> str:
    from xmc_fast import __version__

    if call.version != __version__:
        return f"version mismatch, the worker has xmc_fast {__version__}, the driver {call.version}"
    if _core.simd_level() != call.simd:
        try:
            _core.force_simd_level(call.simd)
        except ValueError:
            return (
                f"the driver computes with {call.simd}, this CPU has {_core.simd_supported()} only: set"
                f" XMC_SIMD={_core.simd_supported()} for the driver"
            )
    return ""


class NoData(Exception):
    """The arrays are not on this machine."""


_seen = ""  # the data this process opened last
_SEEN_LOCK = threading.Lock()


def _open(key: str, source: Any) -> tuple[Arrays, int]:
    """The arrays, and their bytes if this process has not had them before. They are let go with the task: a file
    that stays mapped would outlive its name on some file systems, an object would stay in its store."""
    global _seen
    if isinstance(source, dict):
        arrays: Arrays = source
    else:
        if not Path(source).is_file():
            raise NoData
        arrays, metadata = read_tensors(source)
        if metadata.get("key") != key:
            raise NoData
    with _SEEN_LOCK:
        first, _seen = _seen != key, key
    return arrays, sum(array.nbytes for array in arrays.values()) if first else 0
