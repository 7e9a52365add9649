"""Dynamic sparse training: at intervals, the weak connections of a sparse layer are replaced by new ones.

Each index list loses connections by one rule and gets as many new ones by another:

- prune ``"magnitude"``: the fraction with the smallest |w| (SET, Mocanu et al. 2018); ``"threshold"``: all with
  |w| <= threshold; ``"sign"``: those whose weight changed its sign since the last time (DeepR, Bellec et al.
  2018). Lists that several labels share go by the sum of |w|, or by the majority of the signs.
- grow ``"random"``: uniformly; ``"gradient"``: where the loss of the current batch has the largest gradient
  (RigL, Evci et al. 2020). The gradients of the missing connections exist for a chunk of labels at a time.

New weights start at zero, and so does the optimizer's state for them. ``Rewire`` is a callback for
`xmc_fast.nn.train.Trainer`; `Rewire.before_step` and `Rewire.after_step` serve a loop of
your own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from xmc_fast.nn._recording import Seen
from xmc_fast.nn.train import Callback, Run

_PRUNE = ("magnitude", "threshold", "sign")
_GROW = ("random", "gradient")
_DECAY = ("cosine", "constant")


class SparseLayer(Protocol):
    """What a layer needs to be rewired; see `xmc_fast.nn.FixedFanInLinear`."""

    weight: nn.Parameter
    record: list[Seen] | None  # while a list, each batch leaves its input and gradient there

    def missing(self, seen: Sequence[Seen], chunk: int) -> Tensor:
        """The missing connections of largest gradient."""

    def mean_magnitude(self, values: Tensor) -> Tensor:
        """|values|, shaped like the weights, as a mean over the labels that share a connection."""

    def rewire(self, **rule: Any) -> Tensor:
        """Replace connections; returns the mask of new ones."""


class Rewire(Callback):
    """Rewire all sparse layers of a module during training.

    Parameters
    ----------
    prune : {"magnitude", "threshold", "sign"}
    grow : {"random", "gradient"}
    fraction : float
        Of the connections of a list, for "magnitude".
    threshold : float
        For "threshold".
    interval : int
        Steps between two changes.
    stop : float
        Share of the training after which the connections stay.
    decay : {"cosine", "constant"}
        "cosine" lowers ``fraction`` (or ``threshold``) along half a cosine to zero at ``stop``.
    random_state : int
    chunk : int
        Elements of the largest buffer for the gradients of missing connections.

    Attributes
    ----------
    replaced : int
        Connections replaced so far.

    Examples
    --------
    >>> from xmc_fast.nn import FixedFanInLinear, Trainer, sparse_squared_hinge
    >>> import scipy.sparse as sp
    >>> layer, x = FixedFanInLinear(16, 50, fan_in=4), torch.randn(32, 16)
    >>> y = sp.random(32, 50, 0.1, format="csr", dtype=bool)
    >>> rewire = Rewire(grow="gradient", interval=2)
    >>> trainer = Trainer(lambda m: torch.optim.Adam(m.parameters()), batch_size=8, callbacks=[rewire])
    >>> history = trainer.fit(layer, lambda m, rows: sparse_squared_hinge(x[rows], m, y[rows]), 32,
    ...                       lambda rows: rows)
    >>> rewire.replaced > 0
    True
    """

    def __init__(
        self,
        *,
        prune: str = "magnitude",
        grow: str = "random",
        fraction: float = 0.3,
        threshold: float = 1e-3,
        interval: int = 100,
        stop: float = 0.75,
        decay: str = "cosine",
        random_state: int = 0,
        chunk: int = 1 << 22,
    ) -> None:
        for name, value, known in (
            ("prune", prune, _PRUNE),
            ("grow", grow, _GROW),
            ("decay", decay, _DECAY),
        ):
            if value not in known:
                raise ValueError(f"{name} must be one of {known}, got {value!r}")
        for name, number in (("fraction", fraction), ("stop", stop)):
            if not 0 <= number <= 1:
                raise ValueError(f"{name} must be in [0, 1], got {number}")
        if threshold < 0:
            raise ValueError(f"threshold must not be negative, got {threshold}")
        if interval < 1:
            raise ValueError(f"interval must be at least 1 step, got {interval}")
        self.prune, self.grow, self.decay = prune, grow, decay
        self.fraction, self.threshold = fraction, threshold
        self.interval, self.stop = interval, stop
        self.random_state, self.chunk = random_state, chunk
        self.replaced = 0
        self._signs: dict[str, Tensor] = {}
        self._candidates: dict[str, Tensor] = {}

    def __repr__(self) -> str:
        return f"Rewire({', '.join(f'{name}={value!r}' for name, value in self.options().items())})"

    def options(self) -> dict[str, Any]:
        """The parameters, as a dict that makes another one."""
        names = (
            "prune",
            "grow",
            "fraction",
            "threshold",
            "interval",
            "stop",
            "decay",
            "random_state",
            "chunk",
        )
        return {name: getattr(self, name) for name in names}

    # ---- what to do when

    def due(self, step: int, total_steps: int) -> bool:
        """Whether connections change right after that many steps."""
        return step > 0 and step % self.interval == 0 and step <= self.stop * total_steps

    def factor(self, step: int, total_steps: int) -> float:
        """What is left of ``fraction`` after that many steps.

        >>> rewire = Rewire(stop=0.5)
        >>> [round(rewire.factor(step, 100), 3) for step in (0, 25, 50)]
        [1.0, 0.5, 0.0]
        """
        if self.decay == "constant":
            return 1.0
        last = self.stop * total_steps
        return 0.5 * (1 + math.cos(math.pi * min(step / last, 1.0))) if last else 0.0

    # ---- for a training loop of your own

    def before_step(self, model: nn.Module, step: int, total_steps: int) -> None:
        """To call before the forward pass of step number ``step`` (from 0)."""
        layers = sparse_layers(model)
        if not layers:
            raise ValueError("the model has no layer to rewire, such as FixedFanInLinear")
        record = self.grow == "gradient" and self.due(step + 1, total_steps)
        for name, layer in layers.items():
            layer.record = [] if record else None
            if self.prune == "sign" and name not in self._signs:
                self._signs[name] = _signs(layer.weight)

    def after_step(
        self, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], step: int, total_steps: int
    ) -> int:
        """To call after the optimizer's step, ``step`` steps being done; returns the number of new ones."""
        if not self.due(step, total_steps):
            return 0
        factor = self.factor(step, total_steps)
        replaced = 0
        for position, (name, layer) in enumerate(sparse_layers(model).items()):
            draw = int(
                np.random.SeedSequence([self.random_state, step, position]).generate_state(1, np.uint64)[0]
                >> 1
            )
            changed = layer.rewire(
                candidates=self._candidates.get(name),
                random_state=draw,
                optimizer=_owner(optimizers, layer.weight),
                **self._rule(name, layer, factor),
            )
            if self.prune == "sign":
                self._signs[name] = _signs(layer.weight)
            replaced += int(changed.sum())
        self._candidates.clear()
        self.replaced += replaced
        return replaced

    def find_candidates(self, model: nn.Module) -> None:
        """To call between the backward pass and the optimizer's step: the connections of largest gradient."""
        for name, layer in sparse_layers(model).items():
            if layer.record:
                self._candidates[name] = layer.missing(layer.record, self.chunk)
            layer.record = None

    # ---- the Trainer's

    def on_start(self, run: Run) -> None:
        self.before_step(run.model, run.step, run.total_steps)

    def on_gradients(self, run: Run) -> None:
        self.find_candidates(run.model)

    def on_step(self, run: Run) -> None:
        if self.after_step(run.model, run.optimizers, run.step, run.total_steps):
            run.restart_average = True  # weights of different connections have no mean
        self.before_step(run.model, run.step, run.total_steps)

    def state_dict(self) -> dict[str, Any]:
        return {"replaced": self.replaced, "signs": dict(self._signs)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.replaced = state["replaced"]
        self._signs = {name: signs.cpu() for name, signs in state["signs"].items()}

    # ---- rules

    def _rule(self, name: str, layer: SparseLayer, factor: float) -> dict[str, Any]:
        if self.prune == "magnitude":
            return {"fraction": self.fraction * factor}
        if self.prune == "threshold":
            return {"threshold": self.threshold * factor, "strength": layer.mean_magnitude(layer.weight)}
        flipped = (_signs(layer.weight) * self._signs[name] < 0).to(torch.float32)
        return {"threshold": 0.5, "strength": 1 - layer.mean_magnitude(flipped)}


def sparse_layers(model: nn.Module) -> dict[str, SparseLayer]:
    """The layers of a module that can be rewired, by name."""
    needed = ("weight", "record", "missing", "mean_magnitude", "rewire")
    return {
        name: module
        for name, module in model.named_modules()
        if all(hasattr(module, attribute) for attribute in needed)
    }


def _owner(optimizers: Sequence[torch.optim.Optimizer], weight: Tensor) -> torch.optim.Optimizer | None:
    return next((o for o in optimizers if weight in o.state), None)


def _signs(weight: Tensor) -> Tensor:
    return weight.detach().sign().to(torch.int8).cpu()
