"""``xmc-fast demo``: what this machine can do."""

from __future__ import annotations

import argparse

from xmc_fast.cli._common import Output

HELP = "show the active instruction set and the machine's measured limits"
EXAMPLES = ("xmc-fast demo", "xmc-fast demo --json")


def configure(parser: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace) -> Output:
    from xmc_fast import _core, cpu_features

    fma, read, triad = _core.measure_roofline(1, 0.2)
    data = {**cpu_features(), "fma_gflops": fma, "read_gbs": read, "triad_gbs": triad}
    return Output("\n".join(f"{k}: {v}" for k, v in data.items()), data)
