"""How the torch operators ``torch.ops.xmc_fast.*`` are registered, and what their CPU kernels share.

Every operator has a CPU kernel, CUDA kernels where the package was built with them, a version in plain torch for
all other devices (and float64), and a fake version for torch.compile and export.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from xmc_fast._threads import resolve_threads

TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # of the kernels, CPU and CUDA
ops = torch.ops.xmc_fast
_lib: Any = torch.library.Library("xmc_fast", "FRAGMENT")  # type: ignore[no-untyped-call]
_functions: dict[str, Any] = {}  # operators with a gradient as autograd.Function


def register(
    schema: str,
    *,
    cpu: Callable[..., Any],
    plain: Callable[..., Any],
    fake: Callable[..., Any],
    cuda: Callable[..., Any] | None = None,
    backward: tuple[Callable[..., Any], Callable[..., Any]] | None = None,
    autocast: bool = False,
) -> None:
    """Define an operator.

    ``plain`` serves every device without a kernel. ``backward`` is (backward, setup_context). With ``autocast``
    the first argument is cast to the autocast dtype, and nothing else: weights need no copy, since every sum is
    float32 anyway.
    """
    name = schema.split("(")[0]
    _lib.define(schema)
    _lib.impl(name, plain, "CompositeExplicitAutograd")
    _lib.impl(name, cpu, "CPU")
    if cuda is not None:
        _lib.impl(name, cuda, "CUDA")
    torch.library.register_fake(f"xmc_fast::{name}", fake, lib=_lib)
    if backward is not None:
        step, setup = backward
        torch.library.register_autograd(f"xmc_fast::{name}", step, setup_context=setup, lib=_lib)
        methods = {"forward": getattr(ops, name), "setup_context": setup, "backward": step}
        body = {key: staticmethod(method) for key, method in methods.items()}
        _functions[name] = type(name, (torch.autograd.Function,), {**body, "generate_vmap_rule": True})
    for device in ("cpu", "cuda") if autocast else ():
        _lib.impl(name, _autocast(name, device), f"Autocast{device.upper()}")


def call(name: str, *args: Any) -> Any:
    """An operator with its gradient, also inside torch.func.grad and vmap, which refuse the gradients that
    torch.library registers: there it runs as an autograd.Function."""
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        return _functions[name].apply(*args)
    return getattr(ops, name)(*args)


def _autocast(name: str, device: str) -> Callable[..., Any]:
    def cast(x: Tensor, *args: Any) -> Any:
        dtype = torch.get_autocast_dtype(device)
        with torch.autocast(device, enabled=False):
            ready = x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x
            return getattr(ops, name)(ready, *args)

    return cast


def threads_for(work: int, per_thread: int) -> int:
    """Threads for so many steps of work: starting one costs about 20 us, and ``per_thread`` steps should cost
    several times that."""
    allowed = min(resolve_threads(None), torch.get_num_threads())
    return max(1, min(allowed, work // per_thread))


def wide(*tensors: Tensor | None) -> torch.dtype:
    """The dtype of sums: float64 if any tensor has it, else float32."""
    return (
        torch.float64 if any(t is not None and t.dtype == torch.float64 for t in tensors) else torch.float32
    )
