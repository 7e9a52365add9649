"""Fixed fan-in layers against scipy, torch CSR, embedding_bag, gather + einsum and the dense nn.Linear, one thread.

    python bench/bench_fanin.py [--rounds 5] [--quick] [--write docs [--note TEXT]]

GFLOP/s count 2 * batch * labels * fan_in (dense: 2 * batch * labels * features) per pass. Slow peers run on a
slice of the labels; their rate is what counts. A PyTorch model has rows, (batch, features) and (batch, labels), and
so have our operators. Peers "in rows" take and give the same; the sparse products among them like (labels, batch)
better and are also timed in that layout, with nothing to transpose.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch

from common import Table, interleave, machine
from xmc_fast import _core
from xmc_fast.nn import fanin, ops

SHAPES = [(128, 768, 131_072, 32), (32, 16_384, 670_091, 32)]
TIMES = ["times best in rows", "times best peer"]
COLUMNS = ["shape", "pass", "method", "ms", "GFLOP/s", "of FMA limit", "of L2 bound", *TIMES]
GROUP, NEW = "ours, groups of 16", "ours, new memory"
ROWS = ", in rows"
PAGE = """# Fixed fan-in layers: speed

{machine}

float32, one thread, CPU time, medians of {rounds} rounds in which all methods of a pass take turns. GFLOP/s count
two operations per connection and batch row. A PyTorch model holds rows, (batch, features) and (batch, labels): our
operators take and give those, and so do the peers "in rows". Sparse products prefer (labels, batch); a peer without
"in rows" is given its arguments in that layout and may leave its result there, which ours may not.
Results of ours take memory that an earlier result gave back (at most 256 MiB wait for that), as a training loop
sees it from the second step on; the peers allocate theirs anew and pay the page faults. "new memory" is ours on the
same terms.

## Limits

Milliseconds that a pass (forward, gradient for features, gradient for weights) takes at least on one core:
arithmetic at {fma} GFLOP/s; lines of 64 bytes of the features or their gradient, fetched from where they live (L2: 32
bytes per cycle; the second shape: {far} GB/s, random lines of a table of 2 MiB, measured in the same run); output or
its gradient, weights or theirs and indices through memory at {read} GB/s. A pass comes near the sum of the largest and
the memory, because the streams are hidden only in part; lines that L1 still holds make it a little faster.

{limits}

- A plain connection reads a line of its own from the packed features per 16 batch rows: 4 bytes per multiply-add. L2
  hands out 32 bytes per cycle, half of what the FMA units take: {l2} GFLOP/s, the "L2 bound" of the tables.
- With AVX2 the number of loads counts as well. Weights permuted out of a register and four indices in one load gave, in
  a trial of the plain kernel with all else in cache, 52, 60 and 52 GFLOP/s for tiles of 8, 16 and 32 batch rows, a load
  for each weight and index 34, 48 and 50. So the tile has 16 rows here, 48 KiB for 768 features: L1 helps. (AVX-512
  has 32 rows: 59 against 53 with 16 on another machine.)
- Output rows of the first shape are 512 KiB apart. Streaming them one after the other in pieces of 128 labels took
  3 ms, eight at a time 7 ms.
- The second shape's features (1 MiB per 16 rows) do not stay in L2 (1 MiB) beside the streams. In trials on a busy
  machine the plain forward took 57 ms with weights, indices and output in cache and 69 without, so that lines from L3
  are the limit. What was tried against it: two or four passes over blocks of 4,096 to 32,768 labels, each with a part
  of the ascending lists, so that a pass touches about 0.6 or 0.4 MiB of the features (64 to 82 ms against 58), and
  asking for the lines of the label one, two or four ahead (74 to 83 ms against 76 to 82). Neither is used. The sum of
  the two columns is {far_sum} ms, {far_share} of the L2 bound.
- The plain gradient for the features adds to a line per connection, which is written back as well. With batch > 96
  and often used features the connections of a block of labels are sorted by feature first, which turns the pass into
  the forward's pattern (first shape) and costs a fifth of it. On the second shape a feature occurs too seldom in a
  block: sorting costs more than it saves.
- Groups of 16 read a line for 16 labels: arithmetic is the limit. The kernels alone, operands in cache, reach
  75 to 77 of 90 GFLOP/s for both gradients. What is left is reading the gradient (64 and 82 MiB) and writing
  output or gradient. Far lines are asked for a group ahead, a few at a time; all at once cost 1.4 times as much.
- One pass for both gradients, which reads the output gradient once, was tried for groups: 58 ms against 53 for two
  passes on the first shape, 142 against 104 on the second. Features and their gradient then compete for L2.

## What was asked for and what is measured

{goals}

{note}

## All methods

{table}

**The CUDA kernels are compiled, linked and run on the CPU in tests; their speed on a GPU is unmeasured.**

Made by `python bench/bench_fanin.py --rounds {rounds} --write docs --note ...`.
"""


class Case(NamedTuple):
    run: Callable[[], Any]
    flops: float
    peer: bool


def l2_bound(table: Table) -> float:
    """GFLOP/s of a pass that reads 4 bytes from L2 per multiply-add (see PAGE)."""
    return float(table.info["fma_gflops"]) / 2


def compare(table: Table, shape: str, name: str, cases: dict[str, Case], rounds: int) -> None:
    times = interleave(
        {n: c.run for n, c in cases.items()}, rounds=rounds, clock=time.process_time, budget=90
    )
    rates = {n: 1e-9 * c.flops / times[n] for n, c in cases.items()}
    peers = {n: rates[n] for n, c in cases.items() if c.peer and not n.startswith("dense")}
    best = max(peers.values(), default=0.0)
    best_rows = max((r for n, r in peers.items() if n.endswith(ROWS)), default=0.0)
    for n, c in cases.items():
        table.add(
            **{
                "shape": shape,
                "pass": name,
                "method": n,
                "ms": 1e3 * times[n],
                "GFLOP/s": rates[n],
                "of FMA limit": rates[n] / table.info["fma_gflops"],
                "of L2 bound": rates[n] / l2_bound(table) if n == "ours" else "",
                "times best peer": "" if c.peer or not best else rates[n] / best,
                "times best in rows": "" if c.peer or not best_rows else rates[n] / best_rows,
            }
        )
    print(f"{shape} {name}: " + ", ".join(f"{n} {r:.1f}" for n, r in rates.items()), flush=True)


def fresh(run: Callable[[], Any]) -> Any:
    """Without memory kept from earlier results."""
    _core.recycled_bytes(True)
    return run()


def close(got: torch.Tensor, want: np.ndarray) -> None:
    assert np.abs(got.detach().numpy() - want).max() <= 1e-4 * max(1.0, np.abs(want).max())


def bench_shape(table: Table, batch: int, features: int, labels: int, fan_in: int, rounds: int) -> None:
    shape = f"{batch} x {features} -> {labels}, fan-in {fan_in}"
    flops = 2.0 * batch * labels * fan_in
    torch.manual_seed(0)
    layer = fanin.FixedFanInLinear(features, labels, fan_in).requires_grad_(False)
    shared = fanin.GroupSharedLinear(features, labels, fan_in).requires_grad_(False)
    x, g = torch.randn(batch, features), torch.randn(batch, labels)
    matrix = sp.csr_matrix(
        (
            layer.weight.numpy().ravel(),
            layer.indices.numpy().astype(np.int32).ravel(),
            np.arange(labels + 1, dtype=np.int32) * fan_in,
        ),
        shape=(labels, features),
    )
    rows = np.ascontiguousarray
    xt, gt = x.numpy().T.copy(), g.numpy().T.copy()
    crow, col = torch.from_numpy(matrix.indptr), torch.from_numpy(matrix.indices)
    csr = torch.sparse_csr_tensor(crow, col, layer.weight.reshape(-1), matrix.shape)
    xt_torch, wide = torch.from_numpy(xt), layer.indices.long()
    part = max(1, labels // 32)  # for the slow peers
    some, some_w, some_g = wide[:part], layer.weight[:part], g[:, :part].contiguous()

    # correctness first
    args, shared_args = ((m.weight, m.indices, m.bias, m.group_size) for m in (layer, shared))
    close(layer(x), (matrix @ xt).T + layer.bias.numpy())
    gx = ops.ops.fan_in_grad_features(g, layer.weight, layer.indices, 1, features, x.dtype)
    close(gx, (matrix.T @ gt).T)
    gw, _ = ops.ops.fan_in_grad_weights(x, g, layer.indices, 1, True, x.dtype)
    close(gw[:part], torch.einsum("bls,bl->ls", x[:, some], some_g).numpy())

    def bag(columns: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding_bag(wide, columns, per_sample_weights=layer.weight, mode="sum")

    forward = {
        "ours": Case(lambda: ops.ops.fan_in_linear(x, *args), flops, False),
        GROUP: Case(lambda: ops.ops.fan_in_linear(x, *shared_args), flops, False),
        NEW: Case(lambda: fresh(lambda: ops.ops.fan_in_linear(x, *args)), flops, False),
        "ours, top-5": Case(lambda: ops.ops.fan_in_topk(x, *args, 5), flops, False),
        "scipy CSR": Case(lambda: matrix @ xt, flops, True),
        "scipy CSR" + ROWS: Case(lambda: rows((matrix @ rows(x.numpy().T)).T), flops, True),
        "torch CSR": Case(lambda: csr @ xt_torch, flops, True),
        "torch CSR" + ROWS: Case(lambda: (csr @ x.t().contiguous()).t().contiguous(), flops, True),
        "torch embedding_bag": Case(lambda: bag(xt_torch), flops, True),
        "torch embedding_bag" + ROWS: Case(lambda: bag(x.t().contiguous()).t().contiguous(), flops, True),
        "torch gather + einsum" + ROWS: Case(
            lambda: torch.einsum("bls,ls->bl", x[:, some], some_w), flops * part / labels, True
        ),
    }
    if features * labels < 2e8:
        dense = torch.nn.Linear(features, labels).requires_grad_(False)
        forward["dense nn.Linear"] = Case(lambda: dense(x), flops * features / fan_in, True)
    compare(table, shape, "forward", forward, rounds)

    def grad_features(m: fanin.FixedFanInLinear) -> torch.Tensor:
        return ops.ops.fan_in_grad_features(g, m.weight, m.indices, m.group_size, features, x.dtype)

    cases = {
        "ours": Case(lambda: grad_features(layer), flops, False),
        GROUP: Case(lambda: grad_features(shared), flops, False),
        "scipy CSR": Case(lambda: matrix.T @ gt, flops, True),
        "scipy CSR" + ROWS: Case(lambda: rows((matrix.T @ rows(g.numpy().T)).T), flops, True),
    }
    compare(table, shape, "gradient for features", cases, rounds)

    def grad_weights(m: fanin.FixedFanInLinear) -> torch.Tensor:
        return ops.ops.fan_in_grad_weights(x, g, m.indices, m.group_size, True, x.dtype)

    cases = {
        "ours": Case(lambda: grad_weights(layer), flops, False),
        GROUP: Case(lambda: grad_weights(shared), flops, False),
        NEW: Case(lambda: fresh(lambda: grad_weights(layer)), flops, False),
        "torch gather + einsum" + ROWS: Case(
            lambda: torch.einsum("bls,bl->ls", x[:, some], some_g), flops * part / labels, True
        ),
    }
    compare(table, shape, "gradient for weights", cases, rounds)

    crow, col = torch.arange(batch + 1) * 5, torch.randint(labels, (5 * batch,))
    cases = {}
    for name, kind in ops.LOSSES.items():
        for title, weights in (("ours", args), (GROUP, shared_args)):
            cases[f"{title}, {name}"] = Case(
                lambda w=weights, k=kind: ops.ops.fan_in_loss(x, *w, crow, col, k, 1.0, True, True, True),
                3 * flops,
                False,
            )
    compare(table, shape, "fused loss and gradients", cases, max(2, rounds // 2))

    cases = {}
    for density in (1e-3, 1e-2):
        n = int(density * labels)
        sparse_col = torch.sort(torch.randint(labels, (batch, n)), 1).values.reshape(-1)
        sparse_crow, values = torch.arange(batch + 1) * n, torch.randn(batch * n)
        cases[f"ours, {density:.1%} nonzero"] = Case(
            lambda c=sparse_crow, i=sparse_col, v=values: ops.ops.fan_in_grad_sparse(
                x, layer.weight, layer.indices, 1, c, i, v
            ),
            2 * flops * n / labels,
            False,
        )
    compare(table, shape, "both gradients, sparse", cases, rounds)


def memory_bytes(shape: tuple[int, int, int, int], share: int = 1) -> float:
    """Output or its gradient, weights or theirs, and indices of a pass."""
    batch, _, labels, fan_in = shape
    return labels * (4.0 * batch + 4.0 * fan_in + 2.0 * fan_in / share)


def limits(table: Table) -> str:
    """Least milliseconds of each pass: arithmetic, lines fetched from where they live, memory."""
    fma, read = 1e9 * float(table.info["fma_gflops"]), 1e9 * float(table.info["read_gbs"])
    head = ["shape", "layer", "arithmetic", "lines", "memory"]
    rows = [head, ["---"] * len(head)]
    for batch, features, labels, fan_in in SHAPES:
        near = 4 * features * 32 <= 1 << 20
        level = fma if near else 1e9 * table.info["far_gbs"]  # L2: 32 bytes in a cycle, as many as operations
        connections = labels * fan_in
        for layer, share in (("plain", 1), ("groups of 16", 16)):
            cells = [
                2.0 * batch * connections / fma,
                4.0 * batch * connections / share / level,
                memory_bytes((batch, features, labels, fan_in), share) / read,
            ]
            shape = f"{batch} x {features} -> {labels}"
            rows.append([shape, layer, *(f"{1e3 * c:.1f}" for c in cells)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def goals(table: Table) -> str:
    """The figures that were asked for, from the rows of the table."""
    rate = {(r["shape"], r["pass"], r["method"]): r["GFLOP/s"] for r in table.rows}
    shapes = list(dict.fromkeys(r["shape"] for r in table.rows))

    def ratio(name: str, a: str, b: str) -> list[str]:
        pairs = [(rate.get((s, name, a)), rate.get((s, name, b))) for s in shapes]
        return [f"{x / y:.2f}" if x and y else "" for x, y in pairs]

    def over_peer(name: str, method: str = "ours", column: str = TIMES[0]) -> list[str]:
        rows = [r for r in table.rows if (r["pass"], r["method"]) == (name, method)]
        return [f"{r[column]:.2f}" for r in rows]

    def backward(method: str, shape: str) -> float:
        return sum(1 / rate[shape, f"gradient for {what}", method] for what in ("features", "weights"))

    forward, features, weights = "forward", "gradient for features", "gradient for weights"
    dense = [f"{24 * float(v):.1f}" if v else "" for v in ratio(forward, "ours", "dense nn.Linear")]
    bound = [f"{r['of L2 bound']:.2f}" for r in table.rows if (r["pass"], r["method"]) == (forward, "ours")]
    both = [f"{backward('ours', s) / backward(GROUP, s):.2f}" for s in shapes]
    own = TIMES[1]
    lines = [
        ("plain forward over the best peer in rows", ">= 3", over_peer(forward)),
        ("over the best peer in any layout", ">= 3", over_peer(forward, column=own)),
        ("the same in new memory", "", over_peer(forward, NEW, own)),
        ("plain forward over the L2 bound", ">= 0.75", bound),
        ("plain forward, times faster than dense nn.Linear", ">= 12", dense),
        ("plain gradient for features over scipy in rows", ">= 3", over_peer(features)),
        ("over scipy in (labels, batch)", ">= 3", over_peer(features, column=own)),
        ("plain gradient for weights over gather + einsum", ">= 50", over_peer(weights)),
        ("the same in new memory", "", over_peer(weights, NEW)),
        ("groups of 16 over plain, forward", ">= 1.5", ratio(forward, GROUP, "ours")),
        ("groups of 16 over plain, both gradients", ">= 3", both),
    ]
    head = ["figure", "asked", *shapes]
    rows = [head, ["---"] * len(head), *([name, asked, *values] for name, asked, values in lines)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run?")
    parser.add_argument("--write", type=Path, metavar="DOCS", help="write experiments/fanin.md there")
    parser.add_argument("--note", default="", help="a paragraph for that page, below the figures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    _core.set_default_threads(1)
    far = 64e-9 * _core.measure_random_lines(1 << 15, 0.3)  # the second shape's features: 2 MiB
    table = Table("fanin", COLUMNS, info={**machine(threads=1), "far_gbs": round(far, 1)})
    for shape in [(40, 64, 1000, 8)] if options.quick else SHAPES:
        bench_shape(table, *shape, rounds=options.rounds)
    print(table)
    print(goals(table))
    table.save()
    if options.write:
        line, _, body = str(table).partition("\n\n")
        batch, _, labels, fan_in = SHAPES[1]
        flops = 2.0 * batch * labels * fan_in
        far_ms = 1e-6 * (2 * flops / table.info["far_gbs"] + memory_bytes(SHAPES[1]) / table.info["read_gbs"])
        known = {
            "fma": table.info["fma_gflops"],
            "read": table.info["read_gbs"],
            "far": table.info["far_gbs"],
            "far_sum": f"{far_ms:.0f}",
            "far_share": f"{1e-6 * flops / far_ms / l2_bound(table):.2f}",
            "l2": f"{l2_bound(table):.0f}",
        }
        page = PAGE.format(
            machine=line,
            note=options.note,
            rounds=options.rounds,
            goals=goals(table),
            table=body.strip(),
            limits=limits(table),
            **known,
        )
        (options.write / "experiments" / "fanin.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
