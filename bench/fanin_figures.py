"""Figures of docs/experiments/fanin.md that follow from the rows of bench_fanin.py: least times, and what was asked."""

from __future__ import annotations

from typing import Any

SHAPES = [(128, 768, 131_072, 32), (32, 16_384, 670_091, 32)]  # batch, features, labels, fan-in
TIMES = ["times best in rows", "times best peer"]
GROUP, NEW, FIRST = "ours, groups of 16", "ours, new memory", "ours, labels first"


def memory_bytes(shape: tuple[int, int, int, int], share: int = 1) -> float:
    """Output or its gradient, weights or theirs, and indices of a pass."""
    batch, _, labels, fan_in = shape
    return labels * (4.0 * batch + 4.0 * fan_in + 2.0 * fan_in / share)


def limits(result: dict[str, Any]) -> str:
    """Least milliseconds of each pass: arithmetic, lines fetched from where they live, memory."""
    info = result["machine"]
    fma, read = 1e9 * float(info["fma_gflops"]), 1e9 * float(info["read_gbs"])
    head = ["shape", "layer", "arithmetic", "lines", "memory"]
    rows = [head, ["---"] * len(head)]
    for batch, features, labels, fan_in in SHAPES:
        near = 4 * features * 32 <= 1 << 20
        level = fma if near else 1e9 * info["far_gbs"]  # L2: 32 bytes in a cycle, as many as operations
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


def goals(result: dict[str, Any]) -> str:
    """The figures that were asked for, from the rows of the table; "short" where they are not reached."""
    rows = result["rows"]
    rate = {(r["shape"], r["pass"], r["method"]): r["GFLOP/s"] for r in rows}
    shapes = list(dict.fromkeys(r["shape"] for r in rows))

    def ratio(name: str, a: str, b: str) -> list[float | None]:
        pairs = [(rate.get((s, name, a)), rate.get((s, name, b))) for s in shapes]
        return [x / y if x and y else None for x, y in pairs]

    def column(name: str, key: str, method: str = "ours") -> list[float | None]:
        return [r[key] for r in rows if (r["pass"], r["method"]) == (name, method)]

    def backward(method: str, shape: str) -> float:
        return sum(1 / rate[shape, f"gradient for {what}", method] for what in ("features", "weights"))

    forward, features, weights = "forward", "gradient for features", "gradient for weights"
    in_rows, own = TIMES
    dense = [24 * v if v else None for v in ratio(forward, "ours", "dense nn.Linear")]
    both = [backward("ours", s) / backward(GROUP, s) for s in shapes]
    lines: list[tuple[str, float | None, list[float | None]]] = [
        ("plain forward over the best peer in rows", 3, column(forward, in_rows)),
        ("over the best peer in any layout", 3, column(forward, own)),
        ("labels first, over the best peer in any layout", 3, column(forward, own, FIRST)),
        ("the same in new memory", None, column(forward, own, NEW)),
        ("plain forward over the L2 bound", 0.75, column(forward, "of L2 bound")),
        ("plain forward, times faster than dense nn.Linear", 12, dense),
        ("plain gradient for features over scipy in rows", 3, column(features, in_rows)),
        ("over scipy in (labels, batch)", 3, column(features, own)),
        ("labels first, over scipy in (labels, batch)", 3, column(features, own, FIRST)),
        ("plain gradient for weights over gather + einsum", 50, column(weights, in_rows)),
        ("the same in new memory", None, column(weights, in_rows, NEW)),
        ("groups of 16 over plain, forward", 1.5, ratio(forward, GROUP, "ours")),
        ("groups of 16 over plain, both gradients", 3, list(both)),
    ]
    head = ["figure", "asked", *shapes]
    table = [head, ["---"] * len(head)]
    for name, asked, values in lines:
        if not values:  # a method that this result does not have
            continue
        cells = [
            "" if v is None else f"{v:.2f}" + (" (short)" if asked is not None and v < asked else "")
            for v in values
        ]
        table.append([name, "" if asked is None else f">= {asked:g}", *cells])
    return "\n".join("| " + " | ".join(row) + " |" for row in table)
