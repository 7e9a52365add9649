"""Fixed fan-in layers against scipy, torch CSR, embedding_bag, gather + einsum and the dense nn.Linear, one thread.

    python -m bench.speed.bench_fanin [--rounds 5] [--quick]

GFLOP/s count 2 * batch * labels * fan_in (dense: 2 * batch * labels * features) per pass. Slow peers run on a
slice of the labels; their rate is what counts. A PyTorch model has rows, (batch, features) and (batch, labels), and
so have our operators. Peers "in rows" take and give the same; the sparse products among them like (labels, batch)
better and are also timed in that layout, with nothing to transpose, and so are ours, "labels first". `python
bench/report/pages.py` writes the tables of docs/experiments/fanin.md from the result.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch

from bench.common import Table, command_line, interleave, machine
from bench.report.speed import FIRST, GROUP, NEW, SHAPES
from bench.speed import roofline
from xmc_fast import _core
from xmc_fast.nn import fanin, ops

COLUMNS = ["shape", "pass", "method", "ms", "GFLOP/s", "of FMA limit", "of L2 bound"]
COLUMNS += ["times best peer", "times best in rows"]
ROWS = ", in rows"


class Case(NamedTuple):
    run: Callable[[], Any]
    flops: float
    peer: bool


def l2_bound(table: Table) -> float:
    """GFLOP/s of a pass that reads 4 bytes from L2 per multiply-add (see the page)."""
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
    x_first, g_first = xt_torch.t(), torch.from_numpy(gt).t()  # as (features, batch) and (labels, batch)
    part = max(1, labels // 32)  # for the slow peers
    some, some_w, some_g = wide[:part], layer.weight[:part], g[:, :part].contiguous()

    # correctness first
    args, shared_args = ((m.weight, m.indices, m.bias, m.group_size) for m in (layer, shared))
    close(layer(x), (matrix @ xt).T + layer.bias.numpy())
    gx = ops.ops.fan_in_grad_features(g, layer.weight, layer.indices, 1, features, x.dtype)
    close(gx, (matrix.T @ gt).T)
    close(ops.ops.fan_in_linear_t(x_first, *args), matrix @ xt + layer.bias.numpy()[:, None])
    close(
        ops.ops.fan_in_grad_features(g_first, layer.weight, layer.indices, 1, features, x.dtype), gx.numpy()
    )
    gw, _ = ops.ops.fan_in_grad_weights(x, g, layer.indices, 1, True, x.dtype)
    close(gw[:part], torch.einsum("bls,bl->ls", x[:, some], some_g).numpy())

    def bag(columns: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding_bag(wide, columns, per_sample_weights=layer.weight, mode="sum")

    forward = {
        "ours": Case(lambda: ops.ops.fan_in_linear(x, *args), flops, False),
        GROUP: Case(lambda: ops.ops.fan_in_linear(x, *shared_args), flops, False),
        FIRST: Case(lambda: ops.ops.fan_in_linear_t(x_first, *args), flops, False),
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

    def grad_features(m: fanin.FixedFanInLinear, g: torch.Tensor) -> torch.Tensor:
        return ops.ops.fan_in_grad_features(g, m.weight, m.indices, m.group_size, features, x.dtype)

    cases = {
        "ours": Case(lambda: grad_features(layer, g), flops, False),
        FIRST: Case(lambda: grad_features(layer, g_first), flops, False),
        GROUP: Case(lambda: grad_features(shared, g), flops, False),
        "scipy CSR": Case(lambda: matrix.T @ gt, flops, True),
        "scipy CSR" + ROWS: Case(lambda: rows((matrix.T @ rows(g.numpy().T)).T), flops, True),
    }
    compare(table, shape, "gradient for features", cases, rounds)

    def grad_weights(m: fanin.FixedFanInLinear, x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return ops.ops.fan_in_grad_weights(x, g, m.indices, m.group_size, True, x.dtype)

    cases = {
        "ours": Case(lambda: grad_weights(layer, x, g), flops, False),
        FIRST: Case(lambda: grad_weights(layer, x_first, g_first), flops, False),
        GROUP: Case(lambda: grad_weights(shared, x, g), flops, False),
        NEW: Case(lambda: fresh(lambda: grad_weights(layer, x, g)), flops, False),
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


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run?")
    options = parser.parse_args()
    torch.set_num_threads(1)
    _core.set_default_threads(1)
    info = machine(threads=1)
    far = 64e-9 * roofline.random_lines(1 << 15, 0.3, info["simd"])  # the second shape's features: 2 MiB
    table = Table("fanin", COLUMNS, info={**info, "far_gbs": round(far, 1)})
    for shape in [(40, 64, 1000, 8)] if options.quick else SHAPES:
        bench_shape(table, *shape, rounds=options.rounds)
    print(table)
    table.save()


if __name__ == "__main__":
    main()
