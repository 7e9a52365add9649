"""The tables of the speed benches: docs/performance.md, the README and the pages on training, prediction and layers."""

from __future__ import annotations

import re
from typing import Any

from bench.common import markdown
from bench.report.ahead import Rivals, ahead
from bench.report.tables import Column, Part, Results, Row, Rows, machine_of, over, spread

LINEAR = "python -m bench.speed.bench_linear"
PREDICT = "python -m bench.speed.bench_predict"
DECIDE = "python -m bench.speed.bench_decide"
MACH = "python -m bench.speed.bench_mach"
FANIN = "python -m bench.speed.bench_fanin"
NAMES = {"eurlex-4k": "EURLex-4K", "eurlex57k": "EURLEX57K", "bibtex": "Bibtex"}
OURS, MACH_250 = "xmc_fast OneVsAll", "xmc_fast Mach 250 x 8"


def same(*keys: str) -> dict[str, Column]:
    return {key: key for key in keys}


def set_name(row: Row) -> str:
    name, at, rest = row["set"].partition(" at ")
    return NAMES.get(name, name) + at + rest


def bias(row: Row) -> str:
    return str(row["bias"]).lower()


# ---- end-to-end comparison


def peers(results: Results) -> Rows:
    """P@k of `OneVsAll` has one source, the quality table; the bench's own run is not printed."""
    quality = {r["set"]: r for r in results.rows("linear_quality", bias="1.0")}
    rows = []
    for row in results.rows("peers"):
        found = quality.get(row["set"], {}) if row["method"] == OURS else {}
        rows.append(row | {key: found[key] for key in ("P1", "P3", "P5") if key in found})
    return rows


def peers_headline(results: Results) -> str:
    parts = []
    for name in dict.fromkeys(r["set"] for r in peers(results)):
        here = {r["method"]: r for r in peers(results) if r["set"] == name}
        mine = here[OURS]
        trees = max(r["P1"] for m, r in here.items() if "P1" in r and not m.startswith("xmc_fast"))
        ratio = best_exact(list(here.values()))["train_seconds"] / mine["train_seconds"]
        parts.append(
            f"{NAMES[name]}: trained in {mine['train_seconds']:.1f} s ({ratio:.0f}x faster than the best exact peer), "
            f"P@1 {mine['P1']:.2f} (trees: at most {trees:.2f})"
        )
    return "; ".join(parts)


def best_exact(rows: Rows) -> Row:
    return min((r for r in rows if r.get("projected") == "yes"), key=lambda r: r["train_seconds"])


def growth(results: Results) -> Rows:
    """Times over ours at full size on one thread: how the methods grow, on the machine of this table."""
    rows = results.rows("peers_growth")
    base = {r["axis"]: r for r in rows if r["method"] == OURS and r["value"] == 1}
    return [r | {key: r[key] / base[r["axis"]][key] for key in ("train_seconds", "predict_us")} for r in rows]


# ---- prediction


def prediction(results: Results) -> Rows:
    """One line per set, the peers as times ours."""
    rows, lines = results.rows("predict"), []
    for name in dict.fromkeys(r["set"] for r in rows):
        here = {r["what"]: r for r in rows if r["set"] == name}
        ours = here.pop("xmc_fast")
        line = {
            "data": set_name(ours),
            "stored weights": f"{ours['density']:.1%}",
            "xmc_fast, µs per row": ours["us_per_row"],
        }
        lines.append(line | {f"{what}, x": r["times_ours"] for what, r in here.items()})
    return lines


def prediction_headline(results: Results) -> str:
    parts = []
    for name in dict.fromkeys(r["set"] for r in results.rows("predict")):
        here = results.rows("predict", set=name)
        flat = [r for r in here if r["what"].startswith(("scipy", "torch"))]
        trees = [r for r in here if r["what"] in ("pecos", "omikuji")]
        parts.append(
            f"{set_name(here[0])}: {here[0]['us_per_row']:.0f} µs per row, exact peers {spread(flat, 'times_ours')}x, "
            f"trees {spread(trees, 'times_ours')}x as long"
        )
    return "; ".join(parts)


def precision(results: Results) -> Rows:
    """P@k of the sets that the end-to-end comparison does not have."""
    known = {r["set"] for r in results.rows("peers")}
    rows = [r for r in results.rows("predict") if "P@1" in r and r["set"] not in known]
    return [
        {"data": set_name(r), "method": r["what"], **{f"P@{k}": r[f"P@{k}"] for k in (1, 3, 5)}} for r in rows
    ]


# ---- fixed fan-in layers

SHAPES = [(128, 768, 131_072, 32), (32, 16_384, 670_091, 32)]  # batch, features, labels, fan-in
GROUP, NEW, FIRST = "ours, groups of 16", "ours, new memory", "ours, labels first"
FORWARD, TO_FEATURES, TO_WEIGHTS = "forward", "gradient for features", "gradient for weights"


def memory_bytes(shape: tuple[int, int, int, int], share: int = 1) -> float:
    """Output or its gradient, weights or theirs, and indices of a pass."""
    batch, _, labels, fan_in = shape
    return labels * (4.0 * batch + 4.0 * fan_in + 2.0 * fan_in / share)


def fanin_limits(results: Results) -> Rows:
    """Least milliseconds of each pass: arithmetic, lines fetched from where they live, memory."""
    info, rows = results["fanin"]["machine"], []
    fma, read = 1e9 * float(info["fma_gflops"]), 1e9 * float(info["read_gbs"])
    for batch, features, labels, fan_in in SHAPES:
        near = 4 * features * 32 <= 1 << 20
        level = fma if near else 1e9 * info["far_gbs"]  # L2: 32 bytes in a cycle, as many as operations
        for layer, share in (("plain", 1), ("groups of 16", 16)):
            seconds = {
                "arithmetic, ms": 2.0 * batch * labels * fan_in / fma,
                "lines, ms": 4.0 * batch * labels * fan_in / share / level,
                "memory, ms": memory_bytes((batch, features, labels, fan_in), share) / read,
            }
            shape = f"{batch} x {features} → {labels}"
            rows.append({"shape": shape, "layer": layer, **{k: f"{1e3 * s:.1f}" for k, s in seconds.items()}})
    return rows


def fanin_goals(results: Results) -> Rows:
    """The goals and what the rows of the table reach; "(missed)" where they do not."""
    rows = results.rows("fanin")
    rate = {(r["shape"], r["pass"], r["method"]): r["GFLOP/s"] for r in rows}
    shapes = list(dict.fromkeys(r["shape"] for r in rows))

    def ratio(name: str, a: str, b: str) -> list[float | None]:
        pairs = [(rate.get((s, name, a)), rate.get((s, name, b))) for s in shapes]
        return [x / y if x and y else None for x, y in pairs]

    def column(name: str, key: str, method: str = "ours") -> list[float | None]:
        return [r[key] for r in rows if (r["pass"], r["method"]) == (name, method)]

    def backward(method: str, shape: str) -> float:
        return sum(1 / rate[shape, name, method] for name in (TO_FEATURES, TO_WEIGHTS))

    in_rows, own = "times best in rows", "times best peer"
    dense = [24 * v if v else None for v in ratio(FORWARD, "ours", "dense nn.Linear")]
    lines: list[tuple[str, float | None, list[Any]]] = [
        ("plain forward over the best peer in rows", 3, column(FORWARD, in_rows)),
        ("over the best peer in any layout", 3, column(FORWARD, own)),
        ("labels first, over the best peer in any layout", 3, column(FORWARD, own, FIRST)),
        ("the same in new memory", None, column(FORWARD, own, NEW)),
        ("plain forward over the L2 bound", 0.75, column(FORWARD, "of L2 bound")),
        ("plain forward, times faster than dense nn.Linear", 12, dense),
        ("plain gradient for features over scipy in rows", 3, column(TO_FEATURES, in_rows)),
        ("over scipy in (labels, batch)", 3, column(TO_FEATURES, own)),
        ("labels first, over scipy in (labels, batch)", 3, column(TO_FEATURES, own, FIRST)),
        ("plain gradient for weights over gather + einsum", 50, column(TO_WEIGHTS, in_rows)),
        ("the same in new memory", None, column(TO_WEIGHTS, in_rows, NEW)),
        ("groups of 16 over plain, forward", 1.5, ratio(FORWARD, GROUP, "ours")),
        (
            "groups of 16 over plain, both gradients",
            3,
            [backward("ours", s) / backward(GROUP, s) for s in shapes],
        ),
    ]

    def shown(number: float | None, goal: float | None) -> str:
        missed = goal is not None and number is not None and number < goal
        return "" if number is None else f"{number:.2f}" + " (missed)" * missed

    return [
        {"figure": name, "goal": "" if goal is None else f">= {goal:g}"}
        | {s: shown(v, goal) for s, v in zip(shapes, values, strict=True)}
        for name, goal, values in lines
        if values
    ]


# ---- the README's table

TASKS = {  # task -> the part, our row, the peer's row, the column, its unit
    "Train one-vs-all exactly: EURLex-4K, 3,993 labels": (
        "peers", {"set": "eurlex-4k", "method": OURS}, {"method": "LIBLINEAR -s 1"}, "train_seconds", "s"),
    "Predict the top 5 of a row: tibkat-gnd, 41,218 labels": (
        "predict", {"set": "tibkat-gnd", "what": "xmc_fast"}, {"what": "pecos"}, "us_per_row", "µs"),
    "Forward of a sparse layer: batch 128, 131,072 labels": (
        "fanin", {"shape": "128 x 768 -> 131072, fan-in 32", "pass": FORWARD, "method": "ours"},
        {"method": "torch embedding_bag"}, "ms", "ms"),
    "Exact neighbours: 128 queries, 200,000 rows": (
        "knn", {"task": "search", "method": "xmc_fast"}, {"method": "torch"}, "ms", "ms"),
    "All metrics of 100,000 predictions, 670,091 labels": (
        "metrics", {"what": "full report (17 metrics, 3 k)"}, {"what": "napkinXC P, nDCG, PSP, macro-F1@5"}, "cpu_ms",
        "ms"),
}  # fmt: skip
NOTES = {
    "LIBLINEAR -s 1": "LIBLINEAR (projected)",
    "pecos": "PECOS (approximate)",
    "napkinXC": "napkinXC (4 metrics)",
}


def readme(results: Results) -> str:
    """Five tasks: ours, the best peer, the ratio, the command; below, where a peer is ahead. One machine."""
    lines, machines = [], set()
    for task, (part, where, other, column, unit) in TASKS.items():
        mine, peer = (results.rows(PARTS[part].result, **w)[0] for w in (where, where | other))
        name = next(iter(other.values()))
        name = next((note for start, note in NOTES.items() if name.startswith(start)), name)
        machines.add(machine_of(results[PARTS[part].result]).split(";")[0])
        lines.append({
            "task": task, "xmc_fast": f"{mine[column]:,.3g} {unit}", "best peer": f"{name}: {peer[column]:,.0f} {unit}",
            "ratio": f"**{peer[column] / mine[column]:.2g}x**", "command": f"`{PARTS[part].command}`",
        })  # fmt: skip
    if len(machines) > 1:
        raise ValueError(f"a table of several machines: {machines}")
    return f"{markdown(lines)}\n\nCPU time of one thread{machines.pop()}. {behind(results)}"


def behind(results: Results) -> str:
    """Where peers are ahead in any of the tables, in one sentence."""
    found = []
    for part in PARTS.values():
        for text in ahead(results.rows(part.result), part.rivals) if part.rivals else []:
            match = re.match(r"`(\w+)`: (.*?) \(([\d.]+) against ([\d.]+)\)", text)
            title = next((t for t, key in (part.columns or {}).items() if match and key == match[1]), "")
            name, _, unit = title.partition(", ")
            a, b = (f"{v} {unit}".strip() for v in (match[3], match[4])) if match else ("", "")
            found += [f"{name} ({match[2]}: {a} against {b})"] if match else [text]
    return f"Peers are ahead in {'; '.join(found)}."


def summary(results: Results) -> Rows:
    """The long table: one line per question."""
    found = []
    for part in PARTS.values():
        if part.headline:
            lost = part.behind(results)
            text = f"{part.headline(results)}. {lost if lost.startswith('A peer') else ''}"
            found.append(
                {"question": part.question, "measured": text.strip(), "command": f"`{part.command}`"}
            )
    return found


def times(result: str, key: str, ending: str, **where: Any) -> Any:
    return lambda results: f"{spread(results.rows(result, **where), key)}x {ending}"


PARTS = {
    "peers": Part(
        "peers", "python -m bench.speed.peers",
        {"data": set_name, "method": "method", "training, CPU s": "train_seconds", "projected": "projected",
         "prediction, µs per row": "predict_us", "P@1": "P1", "P@3": "P3", "P@5": "P5", "model size, MB": "model_mb",
         "training memory, MB": "memory_mb"},
        peers, Rivals("method", ("set",), ("train_seconds", "model_mb", "predict_us", "memory_mb"), ("P1", "P3", "P5")),
        "End-to-end comparison", peers_headline,
    ),
    "peers_growth": Part(
        "peers_growth", "python -m bench.speed.peers_growth",
        {"varied": "axis", "share or threads": "value", "rows": "rows", "labels": "labels", "method": "method",
         "training": "train_seconds", "prediction": "predict_us"},
        growth, Rivals("method", ("set", "axis", "value"), ("train_seconds", "predict_us")),
    ),
    "linear_peers": Part(
        "linear_peers", f"{LINEAR} peers",
        {"data": set_name, "bias": bias, "labels": "labels", "xmc_fast, ms per label": "ms_per_label",
         "LIBLINEAR -s 2, ms": "s2_ms", "-s 1, ms": "s1_ms", "-s 2, x": "s2_ratio", "-s 1, x": "s1_ratio",
         "objective over -s 2's": lambda r: over(r["objective_ratio"]), "rounds": "rounds"},
        rivals=Rivals(ratios=("s2_ratio", "s1_ratio")), question="Training at equal objective",
        headline=lambda results: f"{spread(results.rows('linear_peers'), 's2_ratio')}x LIBLINEAR -s 2, "
                                 f"{spread(results.rows('linear_peers'), 's1_ratio')}x its dual solver",
    ),
    "linear_threads": Part(
        "linear_threads", f"{LINEAR} threads",
        {"data": set_name, "labels": "labels", "one thread, s": "one", "two threads, s": "two", "speed-up": "ratio"},
    ),
    "linear_every": Part(
        "linear_every", f"{LINEAR} every",
        {"case": "case", "LIBLINEAR": "liblinear", "eps": "eps", "labels": "labels",
         "worst f over the minimum": lambda r: "" if r["unproven"] else over(r["worst_over_minimum"]),
         "unproven": "unproven", "worst distance over norm of w": "worst_distance",
         "LIBLINEAR's labels": "peer_labels", "worst f over LIBLINEAR's": lambda r: over(r["worst_over_peer"])},
    ),
    "linear_quality": Part(
        "linear_quality", f"{LINEAR} quality",
        {"data": set_name, "bias": bias, "two threads, s": "seconds", "CPU s": "cpu_seconds", "P@1": "P1",
         "P@3": "P3", "P@5": "P5", "published": "published"},
    ),
    "linear_scaling": Part(
        "linear_scaling", f"{LINEAR} scaling",
        {"varied": "varied", "rows": "rows", "entries of X": "nnz", "positives of the label": "positives",
         "ms per label": "ms_per_label", "ns per entry": "ns_per_nnz"},
    ),
    "linear_dense": Part("linear_dense", f"{LINEAR} dense"),
    "linear_whole": Part("linear_tibkat-gnd", f"{LINEAR} tibkat"),
    "linear_amazon": Part("linear_amazon", f"{LINEAR} amazon"),
    "newton": Part("newton", "python -m bench.speed.bench_newton --cases squared_hinge --peer-labels 12"),
    "newton_preconditioner": Part(
        "newton_preconditioner", "python -m bench.speed.newton_preconditioner --labels 8"
    ),
    "predict": Part(
        "predict", f"{PREDICT} --trees pecos omikuji", make=prediction,
        rivals=Rivals("what", ("set",), ("us_per_row",), ("P@1", "P@3", "P@5")),
        question="Prediction", headline=prediction_headline,
    ),
    "predict_precision": Part("predict", f"{PREDICT} --trees pecos omikuji", make=precision),
    "predict_one": Part(
        "predict_one", f"{PREDICT} --one",
        {"data": set_name, "input": "what", "median, µs": "p50_us", "99th percentile, µs": "p99_us"},
    ),
    "predict_open": Part(
        "predict_open", f"{PREDICT} --open",
        {"process": "process", "model, GB": "GB", "opened in, ms": lambda r: 1e3 * r["open_seconds"],
         "resident, MB": "resident_MB", "not shared, MB": "owned_MB"},
        question="Opening a model of 1 GB",
        headline=lambda results: f"{1e3 * max(r['open_seconds'] for r in results.rows('predict_open')):.1f} ms, "
                                 "pages shared between processes",
    ),
    "predict_checks": Part(
        "predict_checks", f"{PREDICT} --checks",
        {"model": "what", "GB": "GB", "opened without checks, ms": "unchecked_ms", "with them, ms": "open_ms",
         "CPU ms": "open_cpu_ms", "again, ms": "again_ms",
         "prediction without, µs per row": lambda r: r.get("predict_unchecked_us", ""),
         "with, µs per row": lambda r: r.get("predict_us", "")},
    ),
    "predict_pruning": Part(
        "predict_pruning", f"{PREDICT} --pruning",
        {"data": set_name, "labels": "labels", "Δ": "delta", "stored weights": "density", "weights, MB": "MB",
         **same("P@1", "P@3", "P@5")},
    ),
    "decide_bca": Part(
        "decide_bca", f"{DECIDE} --tables bca",
        {**same("data", "metric", "k"), "utility of top-k": "topk", "utility": "ours", "xcolumns' utility": "xcolumns",
         "ms": "ours_ms", "default start, ms": "default_ms", "xcolumns, ms": "xcolumns_ms", "ratio": "ratio",
         "ratio, default start": "default_ratio"},
        rivals=Rivals(ratios=("ratio", "default_ratio"), flags=("higher",)),
        question="Decisions: block coordinate ascent",
        headline=times("decide_bca", "ratio", "xcolumns from the same start, never a lower utility"),
    ),
    "decide_frank_wolfe": Part(
        "decide_frank_wolfe", f"{DECIDE} --tables frank_wolfe",
        {**same("data", "metric", "k"), "utility": "ours", "expected": "expected", "xcolumns' utility": "xcolumns",
         "iterations": "iterations", "ms": "ours_ms", "xcolumns, ms": "xcolumns_ms", "ratio": "ratio",
         "default iterations": "fit_iterations", "default fit, ms": "fit_ms"},
        rivals=Rivals(ratios=("ratio",), flags=("higher",)), question="Decisions: Frank–Wolfe",
        headline=times("decide_frank_wolfe", "ratio", "xcolumns at equal iterations, never a lower held-out utility"),
    ),
    "decide_threads": Part(
        "decide_threads", f"{DECIDE} --tables threads",
        {**same("data", "metric", "k"), "one thread, ms": "one_ms", "two threads, ms": "two_ms",
         "speed-up": "speedup", "of the fastest rounds": "best_speedup"},
    ),
    "decide_scaling": Part(
        "decide_scaling", f"{DECIDE} --tables scaling",
        {"grows": "grows", "instances": "n", "candidates": "candidates", "ascent, ms": "bca_ms",
         "Frank–Wolfe, ms": "frank_wolfe_ms", "ascent, ns": "bca_ns", "Frank–Wolfe, ns": "frank_wolfe_ns"},
    ),
    "decide_gap": Part("decide_gap", f"{DECIDE} --tables gap"),
    "decide_thresholds": Part("decide_thresholds", f"{DECIDE} eurlex-4k eurlex57k tibkat-gnd --tables thresholds"),
    **{
        f"decide_{key}": Part(
            f"decide_{key}",
            f"{DECIDE} bibtex stackex-cs stackex-cooking stackex-chess debtags debdeps --tables {key}",
        )
        for key in ("starts", "rules")
    },
    "fanin": Part("fanin", FANIN, rivals=Rivals(ratios=("times best peer", "times best in rows"))),
    "fanin_limits": Part("fanin", FANIN, make=fanin_limits),
    "fanin_goals": Part("fanin", FANIN, make=fanin_goals),
    "neon": Part("neon", columns=same("kernel", "neon", "plain", "scalar", "plain / neon", "scalar / neon")),
    "knn": Part(
        "knn", "python -m bench.speed.bench_knn",
        {**same("task", "method", "ms"), "times ours": "ours is x faster", **same("GFLOP/s", "of peak FMA")},
        rivals=Rivals("method", ("task",), ("ms",)),
    ),
    "mach_aggregate": Part(
        "mach_aggregate", f"{MACH} aggregate",
        {"outputs": "outputs", "method": "what", "ms per row": "ms_per_instance", "times ours": "ratio",
         **same("of_l2_floats", "of_adds", "of_byte_lines")},
        rivals=Rivals("what", ("outputs",), ("ms_per_instance",)), question="MACH: aggregation and top-5",
        headline=lambda results: f"{spread(results.rows('mach_aggregate', what='torch'), 'ratio')}x torch, "
                                 f"{spread(results.rows('mach_aggregate', what='numpy'), 'ratio')}x numpy",
    ),
    "mach_hash": Part(
        "mach_hash", f"{MACH} hash",
        {"task": "what", "package": "package", "ms": "ms", "times ours": "ratio"},
        rivals=Rivals("package", ("what",), ("ms",)),
    ),
    "mach_memory": Part(
        "mach_memory", f"{MACH} memory", {**same("labels", "R", "B", "rows", "seconds"), "peak, GB": "peak_gb"}
    ),
    "lightxml_step": Part(
        "lightxml_step", "python -m bench.speed.bench_lightxml step",
        {"labels": "labels", "method": "what", "CPU ms": "cpu_ms", "times ours": "ratio"},
        rivals=Rivals("what", ("labels",), ("cpu_ms",), left_out=("generator (both)",)),
        question="LightXML: candidates and ranking of a step",
        headline=times("lightxml_step", "ratio", "a loop-style step", what="loops"),
    ),
    "lightxml_one": Part(
        "lightxml_one", "python -m bench.speed.bench_lightxml one", {"labels": "labels", "wall-clock ms": "wall_ms"}
    ),
    **{
        f"cluster_{key}": Part(
            f"cluster_{key}", f"python -m bench.speed.bench_cluster {key}",
            {**same("data", "labels"), "method": "what", "largest leaf": "max_leaf", "threads": "threads",
             "wall-clock s": "wall_s", "CPU s": "cpu_s", "cohesion of the tree": "cohesion",
             "wall-clock, x": "wall_ratio", "CPU, x": "cpu_ratio"},
            rivals=Rivals("what", (), ("cpu_s",), ("cohesion",)) if key == "tibkat" else None,
            question="Label tree",
            headline=(lambda results: f"{spread(results.rows('cluster_tibkat', what='scikit-learn'), 'cpu_ratio')}x "
                      f"scikit-learn, {spread(results.rows('cluster_tibkat', what='numpy, tuned'), 'cpu_ratio')}x "
                      "tuned numpy") if key == "tibkat" else None,
        )
        for key in ("tibkat", "synthetic")
    },
    "engine": Part(
        "engine", "python -m bench.speed.bench_engine",
        {**same("engine", "workers", "seconds"), "speed-up": "speedup", "by CPU time": "by_cpu",
         "bytes of X": "x_bytes", "sent to a worker": "sent_per_worker", "loopback bytes": "loopback_bytes"},
        question="Two workers on one machine", headline=times("engine", "speedup", "one worker", workers=2),
    ),
    "metrics": Part(
        "metrics", "python -m bench.speed.bench_metrics",
        {"metrics": "what", "CPU ms": "cpu_ms", "peer": "peer", "peer, CPU ms": "peer_cpu_ms", "ratio": "times_faster"},
        rivals=Rivals(ratios=("times_faster",)),
    ),
    "summary": Part(make=summary),
    "performance": Part(make=readme),
}  # fmt: skip
