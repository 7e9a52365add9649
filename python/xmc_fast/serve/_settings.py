"""What a server is started with. Workers are processes of their own: they read it from the environment."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

ENVIRONMENT = "XMC_FAST_SERVE"  # the settings of a server's workers, as JSON
LOOPBACK = ("localhost", "127.0.0.1", "[::1]", "::1")


@dataclass(frozen=True)
class Settings:
    """Models and limits of a server.

    Parameters
    ----------
    models : dict of str to str
        Folder of each name. Requests know the names only: no path of a request is ever opened.
    token : str, optional
        What requests must bring as ``Authorization: Bearer TOKEN``; the page asks for it.
    hosts : sequence of str
        Host names that requests may use besides those of this machine itself; ``*`` is any.
    origins : sequence of str
        Web sites whose pages may call the API (CORS); by default none.
    max_body, max_upload : int
        Bytes of a request, and of an uploaded table.
    max_batch, max_k : int
        Texts of a request, and labels of a text.
    max_waiting : int
        Texts that may wait for a model; more are refused with status 503.
    timeout : float
        Seconds a request may take to arrive, and to be answered.
    threads : int, optional
        Threads of a worker's predictions.
    mmap : bool
        Map the weights, so that workers share their pages. A file that is cut short in place then ends the worker
        that reads it; by default each has read its own.
    """

    models: dict[str, str]
    token: str | None = None
    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()
    max_body: int = 10_000_000
    max_upload: int = 100_000_000
    max_batch: int = 1000
    max_k: int = 100
    max_waiting: int = 10_000
    timeout: float = 30.0
    threads: int | None = None
    mmap: bool = False

    def __post_init__(self) -> None:
        if not self.models:
            raise ValueError("models must name at least one model folder, got none")
        for name in ("max_body", "max_upload", "max_batch", "max_k", "max_waiting", "timeout"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be above 0 and finite, got {getattr(self, name)!r}")

    def to_environment(self) -> None:
        """Keep the settings where the workers find them."""
        os.environ[ENVIRONMENT] = json.dumps(asdict(self))

    @classmethod
    def from_environment(cls) -> Settings:
        """The settings that `to_environment` kept."""
        if ENVIRONMENT not in os.environ:
            raise RuntimeError(f"the variable {ENVIRONMENT} is not set: start the server with xmc-fast serve")
        given = json.loads(os.environ[ENVIRONMENT])
        return cls(**{field.name: given[field.name] for field in fields(cls) if field.name in given})


def model_folders(arguments: Sequence[str]) -> dict[str, str]:
    """``FOLDER`` or ``NAME=FOLDER`` of each model; without a name, that of the folder.

    Examples
    --------
    >>> model_folders(["models/cooking/", "gnd=/srv/tibkat"])
    {'cooking': 'models/cooking/', 'gnd': '/srv/tibkat'}
    """
    found: dict[str, str] = {}
    for argument in arguments:
        name, equals, folder = argument.partition("=")
        if not equals:
            name, folder = Path(argument).resolve().name, argument
        if not name or not folder or set(name) & set("/?#%"):
            raise ValueError(f"expected FOLDER or NAME=FOLDER, the name without / ? # %, got {argument!r}")
        if name in found:
            raise ValueError(f"two models are named {name!r}: give one as NAME=FOLDER")
        found[name] = folder
    return found
