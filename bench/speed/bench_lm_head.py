"""The last layer of a language model: fused_cross_entropy against nn.Linear and cross-entropy, memory and time.

    python -m bench.speed.bench_lm_head

Vocabulary 131,072, batch x length 2,048, hidden 768, float32: forward and backward, to hidden states and weights.
Each way runs in processes of its own, in turns; the peak is what resident memory grows by during the steps, the
gradients included, the weights not. CPU seconds of all threads tell more than seconds where the machine has other work.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.common import Table, command_line, machine

WAYS = ("plain", "fused")
COLUMNS = ("way", "seconds", "cpu_seconds", "peak_mb", "cpu_ratio", "memory_ratio")


def resident(field: str) -> int:
    """Bytes by /proc/self/status: VmRSS now, VmHWM the peak."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return 1024 * int(line.split()[1])


def one(way: str, vocabulary: int, rows: int, hidden: int, steps: int, threads: int) -> dict[str, Any]:
    """Steps of one way in this process."""
    import torch
    from torch import nn

    from xmc_fast.nn import fused_cross_entropy

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    layer = nn.Linear(hidden, vocabulary, bias=False)
    x, targets = torch.randn(rows, hidden), torch.randint(vocabulary, (rows,))
    nn.functional.linear(x[:8], layer.weight[:64]).sum().backward()  # buffers of the libraries
    layer.weight.grad = None
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = resident("VmRSS")
    seconds: list[float] = []
    cpu: list[float] = []
    for _ in range(steps):
        h = x.clone().requires_grad_()
        start, start_cpu = time.perf_counter(), time.process_time()
        if way == "fused":
            loss = fused_cross_entropy(h, layer, targets)
        else:
            loss = nn.functional.cross_entropy(layer(h), targets)
        loss.backward()
        seconds.append(time.perf_counter() - start)
        cpu.append(time.process_time() - start_cpu)
        check = [float(loss), float(h.grad.norm()), float(layer.weight.grad.norm())]  # type: ignore[union-attr]
        layer.weight.grad = None
        del h, loss
    return {"seconds": seconds, "cpu": cpu, "peak": resident("VmHWM") - before, "check": check}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--vocabulary", type=int, default=131_072)
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--one", choices=WAYS)
    args = parser.parse_args()
    sizes = (args.vocabulary, args.rows, args.hidden)
    if args.one:
        print(json.dumps(one(args.one, *sizes, args.steps, args.threads)))
        return
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for _ in range(args.rounds):
        for way in WAYS:
            command = [sys.executable, "-m", "bench.speed.bench_lm_head", "--one", way]
            for name in ("vocabulary", "rows", "hidden", "steps", "threads"):
                command += [f"--{name}", str(getattr(args, name))]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            runs[way].append(json.loads(done.stdout.splitlines()[-1]))
            print(way, runs[way][-1], flush=True)
    plain, fused = (runs[way][0]["check"] for way in WAYS)
    if any(abs(a - b) > 1e-4 * abs(b) for a, b in zip(fused, plain, strict=True)):
        raise SystemExit(f"the two ways differ: {fused} and {plain}")
    table = Table("lm_head", COLUMNS, machine(args.threads))
    for way in WAYS:
        found = runs[way]
        table.add(
            way=way,
            seconds=statistics.median(s for run in found for s in run["seconds"]),
            cpu_seconds=statistics.median(s for run in found for s in run["cpu"]),
            peak_mb=statistics.median(run["peak"] for run in found) / 1e6,
        )
    first = table.rows[0]
    for row in table.rows:
        row["cpu_ratio"] = first["cpu_seconds"] / row["cpu_seconds"]
        row["memory_ratio"] = first["peak_mb"] / row["peak_mb"]
    table.save()
    print(table)


if __name__ == "__main__":
    main()
