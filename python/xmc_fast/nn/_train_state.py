"""The state of a training run beside the model: what a checkpoint holds, averaged and best weights."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from xmc_fast._files import atomic_path

if TYPE_CHECKING:
    from xmc_fast.nn.train import Run, Trainer


class TrainingState:
    """Everything of a run that a checkpoint holds beside the model: optimizers, averages, best weights."""

    def __init__(self, trainer: Trainer, run: Run, device: torch.device) -> None:
        self.trainer, self.device = trainer, device
        self.run = run
        self.scaler = torch.amp.GradScaler(device.type, enabled=trainer.precision == "fp16")
        self.base_rates = [[float(g["lr"]) for g in o.param_groups] for o in run.optimizers]
        self.loss_sum = 0.0
        self.seconds = 0.0
        self.figures: dict[str, list[float]] = {}  # of the batches of this epoch that had some
        self.swa: dict[str, torch.Tensor] | None = None
        self.swa_count = 0
        self.best: dict[str, torch.Tensor] | None = None
        self.best_value = -math.inf
        self.best_epoch = 0

    def show(self, losses: list[torch.Tensor], figures: list[dict[str, Any]]) -> float:
        """Keep the figures of a step's batches; returns the sum of their losses. Everything in one transfer."""
        shown = [(name, value) for batch in figures for name, value in batch.items()]
        waiting = [value.detach().reshape(()) for _, value in shown if isinstance(value, torch.Tensor)]
        numbers = torch.stack([v.float() for v in (*losses, *waiting)]).tolist()
        known = iter(numbers[len(losses) :])
        for name, value in shown:
            number = next(known) if isinstance(value, torch.Tensor) else float(value)
            self.figures.setdefault(name, []).append(number)
        return math.fsum(numbers[: len(losses)])

    def average(self) -> None:
        """Running mean of the floating-point weights over epochs (stochastic weight averaging)."""
        if self.run.restart_average:
            self.swa, self.swa_count, self.run.restart_average = None, 0, False
        self.swa_count += 1
        weights = self.run.model.state_dict()
        if self.swa is None:
            self.swa = {k: v.detach().clone() for k, v in weights.items()}
            return
        for name, value in weights.items():
            if value.is_floating_point():
                self.swa[name] += (value.detach() - self.swa[name]) / self.swa_count
            else:
                self.swa[name].copy_(value)

    @contextlib.contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Validation sees the averaged weights once there are some."""
        if self.swa is None:
            yield
            return
        live = {k: v.detach().clone() for k, v in self.run.model.state_dict().items()}
        self.run.model.load_state_dict(self.swa)
        try:
            yield
        finally:
            self.run.model.load_state_dict(live)

    def remember_best(self, row: dict[str, float]) -> None:
        monitor = self.trainer.monitor
        if monitor not in row:
            raise ValueError(f"validate returned {sorted(row)}, monitor is {monitor!r}")
        if row[monitor] > self.best_value:
            self.best_value, self.best_epoch = row[monitor], self.run.epoch
            self.best = {k: v.detach().clone() for k, v in self.run.model.state_dict().items()}
        elif self.run.epoch - self.best_epoch >= (self.trainer.patience or 0):
            self.run.stop = True

    def finish(self) -> None:
        final = self.best if self.best is not None else self.swa
        if final is not None:
            self.run.model.load_state_dict(final)
        self.run.model.eval()

    def save(self) -> None:
        run = self.run
        if not self.trainer.checkpoint:
            return
        path = Path(self.trainer.checkpoint)
        cuda = torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None
        state = {
            "settings": self._settings(),
            "model": run.model.state_dict(),
            "optimizers": [o.state_dict() for o in run.optimizers],
            "scaler": self.scaler.state_dict(),
            "callbacks": [c.state_dict() for c in self.trainer.callbacks],
            "rng": torch.get_rng_state(),
            "cuda_rng": cuda,
            "run": {k: getattr(run, k) for k in ("epoch", "step", "history", "stop", "restart_average")},
            "own": {k: getattr(self, k) for k in self._FIELDS},
        }
        with atomic_path(path) as temporary:
            torch.save(state, temporary)

    def load(self) -> None:
        run = self.run
        path = Path(self.trainer.checkpoint or "")
        if not (self.trainer.checkpoint and path.exists()):
            return
        state = torch.load(path, map_location=self.device, weights_only=True)
        if state["settings"] != self._settings():
            raise ValueError(
                f"checkpoint {path} is of another run: it has {state['settings']}, this run {self._settings()}"
            )
        run.model.load_state_dict(state["model"])
        for optimizer, saved in zip(run.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.scaler.load_state_dict(state["scaler"])
        for callback, saved in zip(self.trainer.callbacks, state["callbacks"], strict=True):
            callback.load_state_dict(saved)
        torch.set_rng_state(state["rng"].cpu())
        if state["cuda_rng"] is not None:
            torch.cuda.set_rng_state(state["cuda_rng"].cpu(), self.device)
        for key, value in state["run"].items():
            setattr(run, key, value)
        for key, value in state["own"].items():
            setattr(self, key, value)

    _FIELDS = ("loss_sum", "seconds", "figures", "swa", "swa_count", "best", "best_value", "best_epoch")

    def _settings(self) -> dict[str, Any]:
        t = self.trainer
        return {
            "batch_size": t.batch_size,
            "accumulate": t.accumulate,
            "random_state": t.random_state,
            "steps": self.run.steps_per_epoch,
            "lr": self.base_rates,
        }
