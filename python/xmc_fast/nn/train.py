"""The one training loop of the neural models: plain PyTorch, exact resume, callbacks.

A model is any ``nn.Module``, a loss any function ``loss(model, batch) -> tensor`` (or ``(tensor, {name:
value})`` with figures to show; as tensors they cost no wait for the device). The order of the rows in an epoch
depends on the seed and the epoch only, so a run that was killed goes on from its checkpoint, also in the middle of an
epoch, to the same weights bit for bit (CPU, fixed threads). Nothing here is needed to use the modules and losses
under Lightning or accelerate.
"""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from xmc_fast._files import atomic_path, write_text
from xmc_fast._progress import progress
from xmc_fast.nn._train_state import TrainingState
from xmc_fast.nn.tokens import by_length

LossFn = Callable[[nn.Module, Any], "torch.Tensor | tuple[torch.Tensor, dict[str, Any]]"]
Fetch = Callable[[npt.NDArray[np.int64]], Any]  # row numbers -> batch
Validate = Callable[[nn.Module], dict[str, float]]
Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer]


class Callback:
    """Base of all callbacks. State that must survive a restart goes through state_dict/load_state_dict."""

    def on_start(self, run: Run) -> None:
        """Before the first step, after a checkpoint was loaded."""

    def on_gradients(self, run: Run) -> None:
        """After the gradients of a step are complete, before the optimizer uses them."""

    def on_step(self, run: Run) -> None:
        """After each optimizer step."""

    def on_epoch(self, run: Run) -> None:
        """After each epoch; ``run.history[-1]`` is its row and may be extended."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@dataclass
class Run:
    """What callbacks see of a run in progress."""

    model: nn.Module
    optimizers: list[torch.optim.Optimizer]
    steps_per_epoch: int
    total_steps: int
    batch: Any = None
    epoch: int = 0  # epochs finished
    step: int = 0  # optimizer steps done
    history: list[dict[str, float]] = field(default_factory=list)
    stop: bool = False
    restart_average: bool = False  # set by a callback: earlier weights have no mean with later ones


@dataclass(eq=False)
class Trainer:
    """Trains a module on indexed data.

    Parameters
    ----------
    optimizer : model -> optimizer, or a list of them (e.g. SparseAdam for embeddings beside AdamW).
    epochs, batch_size : length of the run; the last batch of an epoch may be smaller.
    schedule : step fraction in [0, 1] -> factor on each learning rate (None: constant); see `xmc_fast.nn.schedule`.
    precision : "fp32", or "bf16" / "fp16" for autocast (fp16 with loss scaling).
    accumulate : batches per optimizer step; the gradient is their mean.
    clip_norm : largest gradient norm, or None.
    swa_start : epoch from which the weights are averaged over epochs (None: never); the average is the result.
    patience : stop after this many epochs without a better validation figure (None: never). The best weights
        are put back at the end.
    monitor : name of the validation figure to maximise.
    checkpoint, checkpoint_every : file to save to (atomically), every that many steps and after each epoch.
        When the file exists at the start, the run goes on from it.
    log : CSV file with one row per epoch; a .json beside it holds the same.
    device : "auto" takes CUDA when there is one.
    random_state : seeds the order of rows and torch's generators (dropout) inside the run only.
    workers : threads that prepare the next batches (in pinned memory for CUDA); 0 prepares each when it is due.
        ``fetch`` then runs in several threads at once.

    Examples
    --------
    >>> x, y = torch.randn(64, 5), torch.randn(64, 1)
    >>> trainer = Trainer(lambda m: torch.optim.SGD(m.parameters(), 0.1), epochs=3, batch_size=16)
    >>> mse = lambda model, rows: ((model(x[rows]) - y[rows]) ** 2).mean()
    >>> history = trainer.fit(nn.Linear(5, 1), mse, 64, torch.from_numpy)
    >>> len(history)
    3
    """

    optimizer: Callable[[nn.Module], Optimizers]
    _: KW_ONLY
    epochs: int = 10
    batch_size: int = 128
    schedule: Callable[[float], float] | None = None
    precision: str = "fp32"
    accumulate: int = 1
    clip_norm: float | None = None
    swa_start: int | None = None
    patience: int | None = None
    monitor: str = "p@1"
    checkpoint: str | os.PathLike[str] | None = None
    checkpoint_every: int | None = None
    log: str | os.PathLike[str] | None = None
    callbacks: Sequence[Callback] = ()
    device: str | torch.device = "auto"
    random_state: int = 0
    workers: int = 0

    def __post_init__(self) -> None:
        if self.precision not in ("fp32", "bf16", "fp16"):
            raise ValueError(f'precision must be "fp32", "bf16" or "fp16", got {self.precision!r}')
        for name in ("epochs", "batch_size", "accumulate"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.workers < 0:
            raise ValueError(f"workers must not be negative, got {self.workers}")
        self._device = resolve_device(self.device)

    def fit(
        self,
        model: nn.Module,
        loss: LossFn,
        n: int,
        fetch: Fetch,
        validate: Validate | None = None,
        lengths: npt.NDArray[np.int64] | None = None,
    ) -> list[dict[str, float]]:
        """Train ``model`` in place.

        Parameters
        ----------
        loss : (model, batch) -> loss, or (loss, figures for the progress bar).
        n, fetch : the number of rows, and row numbers (int64 array) -> batch (anything; tensors in it are moved
            to the device).
        validate : called after each epoch in eval mode without gradients; its figures enter the history.
        lengths : of the rows, e.g. in tokens: rows of similar length then share a batch (less padding).

        Returns
        -------
        The history: a dict per epoch with epoch, step, loss, seconds, the means of the loss function's figures
        (as ``train_<name>``) and the validation figures.
        """
        if n < 1:
            raise ValueError(f"n must be at least 1 row, got {n}")
        if self.patience is not None and validate is None:
            raise ValueError("patience needs a validate function")
        with (
            gradients_as_before(),
            torch.random.fork_rng([self._device] if self._device.type == "cuda" else []),
        ):
            torch.manual_seed(self.random_state)
            return self._fit(model.to(self._device), loss, n, fetch, validate, lengths)

    def _fit(
        self,
        model: nn.Module,
        loss: LossFn,
        n: int,
        fetch: Fetch,
        validate: Validate | None,
        lengths: npt.NDArray[np.int64] | None,
    ) -> list[dict[str, float]]:
        made = self.optimizer(model)
        optimizers = [made] if isinstance(made, torch.optim.Optimizer) else list(made)
        steps = math.ceil(math.ceil(n / self.batch_size) / self.accumulate)
        run = Run(model, optimizers, steps, steps * self.epochs)
        state = TrainingState(self, run, self._device)
        state.load()
        for callback in self.callbacks:
            callback.on_start(run)
        with progress(run.total_steps, unit="step") as bar:
            bar.update(run.step)
            while run.epoch < self.epochs and not run.stop:
                self._epoch(run, state, loss, self._batches(run.epoch, n, lengths), fetch, bar)
                self._end_of_epoch(run, state, validate)
        state.finish()
        if self.log:
            write_text(Path(self.log).with_suffix(".json"), json.dumps(run.history, indent=1) + "\n")
        return run.history

    def _epoch(
        self,
        run: Run,
        state: TrainingState,
        loss: LossFn,
        batches: list[npt.NDArray[np.int64]],
        fetch: Fetch,
        bar: Any,
    ) -> None:
        start = time.perf_counter()
        run.model.train()
        groups = [batches[i : i + self.accumulate] for i in range(0, len(batches), self.accumulate)]
        groups = groups[run.step - run.epoch * run.steps_per_epoch :]
        ready = prepared(fetch, [b for group in groups for b in group], self.workers, self._device)
        for group in groups:
            self._set_rates(run, state)
            values: list[torch.Tensor] = []
            figures: list[dict[str, Any]] = []
            rows = sum(len(b) for b in group)
            for optimizer in run.optimizers:
                optimizer.zero_grad(set_to_none=True)
            for batch_rows in group:
                run.batch = to_device(next(ready), self._device)
                with autocast(self.precision, self._device):
                    result = loss(run.model, run.batch)
                value, new = result if isinstance(result, tuple) else (result, {})
                share = len(batch_rows) / rows
                state.scaler.scale(value * share).backward()  # type: ignore[no-untyped-call]
                values.append(value.detach() * share)
                figures.append(new)
            total = state.show(values, figures)  # the one wait for the device
            if not math.isfinite(total):
                raise RuntimeError(f"the loss became {total} at step {run.step} (epoch {run.epoch})")
            self._step(run, state)
            run.step += 1
            state.loss_sum += total
            for callback in self.callbacks:
                callback.on_step(run)
            if self.checkpoint_every and run.step % self.checkpoint_every == 0:
                state.seconds += time.perf_counter() - start
                start = time.perf_counter()
                state.save()
            bar.update(1)
            shown = {k: f"{values[-1]:.3g}" for k, values in state.figures.items()}
            bar.set_postfix({"loss": f"{total:.4g}", **shown}, refresh=False)
        state.seconds += time.perf_counter() - start

    def _batches(
        self, epoch: int, n: int, lengths: npt.NDArray[np.int64] | None
    ) -> list[npt.NDArray[np.int64]]:
        """The rows of an epoch's batches: of the seed and the epoch only."""
        generator = np.random.default_rng([self.random_state, epoch])
        if lengths is not None:
            return by_length(lengths, self.batch_size, generator)
        order = generator.permutation(n)
        return [order[i : i + self.batch_size] for i in range(0, n, self.batch_size)]

    def _step(self, run: Run, state: TrainingState) -> None:
        # one without gradients has nothing to do, and the scaler of fp16 refuses it
        active = [
            o for o in run.optimizers if any(p.grad is not None for g in o.param_groups for p in g["params"])
        ]
        for optimizer in active:
            state.scaler.unscale_(optimizer)
        for callback in self.callbacks:
            callback.on_gradients(run)
        if self.clip_norm is not None:
            clip_gradients(run.model, self.clip_norm)
        for optimizer in active:
            state.scaler.step(optimizer)
        state.scaler.update()

    def _set_rates(self, run: Run, state: TrainingState) -> None:
        if self.schedule is None:
            return
        factor = self.schedule(run.step / max(run.total_steps - 1, 1))
        for optimizer, rates in zip(run.optimizers, state.base_rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor

    def _end_of_epoch(self, run: Run, state: TrainingState, validate: Validate | None) -> None:
        run.epoch += 1
        row = {"epoch": run.epoch, "step": run.step, "loss": state.loss_sum / run.steps_per_epoch}
        row["seconds"] = state.seconds
        row |= {f"train_{name}": math.fsum(v) / len(v) for name, v in state.figures.items()}
        if self.swa_start is not None and run.epoch > self.swa_start:
            state.average()
        if validate is not None:
            run.model.eval()
            with torch.no_grad(), state.averaged_weights():
                row |= validate(run.model)
                if self.patience is not None:
                    state.remember_best(row)
        run.history.append(row)
        for callback in self.callbacks:
            callback.on_epoch(run)
        state.loss_sum = state.seconds = 0.0
        state.figures = {}
        state.save()
        if self.log:
            _write_history(Path(self.log), run.history)


def prepared(
    fetch: Fetch, batches: list[npt.NDArray[np.int64]], workers: int, device: torch.device
) -> Iterator[Any]:
    """The batches in their order, made by ``workers`` threads ahead of their use."""

    def make(rows: npt.NDArray[np.int64]) -> Any:
        batch = fetch(rows)
        return _map_tensors(batch, torch.Tensor.pin_memory) if device.type == "cuda" and workers else batch

    if not workers:
        yield from map(make, batches)
        return
    with ThreadPoolExecutor(workers) as pool:
        waiting = deque(pool.submit(make, rows) for rows in batches[: 2 * workers])
        try:
            for i in range(len(batches)):
                if i + 2 * workers < len(batches):
                    waiting.append(pool.submit(make, batches[i + 2 * workers]))
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def gradients_as_before() -> Iterator[None]:
    """Ctrl-C in the middle of ``torch.no_grad``'s own end would leave gradients off for good."""
    before = torch.is_grad_enabled()
    try:
        yield
    finally:
        torch.set_grad_enabled(before)


def autocast(precision: str, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """The autocast context of a precision: "fp32" (nothing), "bf16" or "fp16"."""
    if precision == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, torch.bfloat16 if precision == "bf16" else torch.float16)


def clip_gradients(model: nn.Module, largest: float) -> None:
    """Scale all gradients together to at most that norm; sparse ones count, too (torch's own refuses them).

    >>> layer = nn.Embedding(3, 2, sparse=True)
    >>> layer(torch.tensor([1, 1])).sum().backward()
    >>> clip_gradients(layer, 1.0)
    >>> round(layer.weight.grad.to_dense().norm().item(), 4)
    1.0
    """
    values = []
    for parameter in model.parameters():
        gradient = parameter.grad
        if gradient is not None and gradient.is_sparse:
            gradient = parameter.grad = gradient.coalesce()
        if gradient is not None:
            values.append(gradient.values() if gradient.is_sparse else gradient)
    factor = (largest / (nn.utils.get_total_norm(values) + 1e-6)).clamp(max=1.0)
    for value in values:
        value.mul_(factor.to(value.device))


def resolve_device(device: str | torch.device) -> torch.device:
    """ "auto" is CUDA where there is one, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(device)


def to_device(batch: Any, device: torch.device) -> Any:
    """All tensors of a batch (in dicts, tuples, lists) on the device."""
    return _map_tensors(batch, lambda t: t.to(device, non_blocking=True))


def _map_tensors(batch: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, dict):
        return {k: _map_tensors(v, change) for k, v in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_map_tensors(v, change) for v in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(_map_tensors(v, change) for v in batch)
    return batch


def _write_history(path: Path, history: list[dict[str, float]]) -> None:
    """Rewrite the CSV (it is small), so that a resumed run leaves no doubled or missing rows."""
    names = list(dict.fromkeys(name for row in history for name in row))
    with atomic_path(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, restval="")
        writer.writeheader()
        writer.writerows(history)
