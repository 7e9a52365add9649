"""Pictures of speed: against peers, as data grow, against the machine's limits."""

from __future__ import annotations

import re
from typing import Any

from bench.report import speed
from bench.report.drawing import OTHER, OURS, PEER, bars, colour, grid, plain
from bench.report.tables import Results, Rows


def methods(ax: Any, rows: Rows, key: str, label: str, title: str) -> None:
    here = [r for r in rows if r.get(key)]
    bars(
        ax,
        [r["method"].replace("xmc_fast Mach", "xmc_fast MACH") for r in here],
        [r[key] for r in here],
        label,
    )
    ax.set_title(title)


def peers(results: Results) -> Any:
    """Per set: training and prediction time, size of the model, P@1."""
    rows = speed.peers(results)
    sets = list(dict.fromkeys(r["set"] for r in rows))
    figure, axes = grid(2 * len(sets), 2, 4.6 * len(sets))
    keys = {
        "train_seconds": "training, CPU s",
        "predict_us": "prediction, µs per row",
        "model_mb": "model, MB",
    }
    for i, name in enumerate(sets):
        here = [r for r in rows if r["set"] == name]
        for ax, (key, label) in zip(axes[2 * i : 2 * i + 2].flat, keys.items(), strict=False):
            methods(ax, here, key, label, speed.NAMES[name])
        ax, full = axes[2 * i + 1, 1], [r for r in here if "P1" in r]
        places = range(len(full))[::-1]
        drawn = ax.barh(
            places, [r["P1"] for r in full], color=[colour(r["method"]) for r in full], height=0.7
        )
        ax.bar_label(drawn, fmt="%.2f", padding=2)
        low = min(r["P1"] for r in full)
        ax.set(
            yticks=places,
            yticklabels=[r["method"].replace("Mach", "MACH") for r in full],
            title=speed.NAMES[name],
        )
        ax.set(xlabel="P@1, % (axis cut)", xlim=(low - 2, max(r["P1"] for r in full) + 1.2))
    return figure


def peers_growth(results: Results) -> Any:
    """Training (above) and prediction (below) against rows, labels and threads, relative to ours at full size."""
    rows = speed.growth(results)
    figure, axes = grid(2, 3, 4.8)
    colours = dict(
        zip(dict.fromkeys(r["method"] for r in rows), (OURS, PEER, "tab:green", "tab:purple"), strict=True)
    )
    for column, axis in enumerate(("rows", "labels", "threads")):
        for ax, key in zip(axes[:, column], ("train_seconds", "predict_us"), strict=True):
            for method, c in colours.items():
                line = [r for r in rows if r["axis"] == axis and r["method"] == method]
                x = [r["value"] if axis == "threads" else r[axis] for r in line]
                ax.loglog(x, [r[key] for r in line], "o-", color=c, label=method)
            ax.set(xlabel=axis)
            plain(ax.xaxis, sorted({float(v) for v in x}))
            plain(ax.yaxis, [0.25, 0.5, 1, 2, 4, 8, 16])
    axes[0, 0].set_ylabel("training, ours = 1")
    axes[1, 0].set_ylabel("prediction, ours = 1")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure


def linear_peers(results: Results) -> Any:
    rows = results.rows("linear_peers")
    figure, axes = grid(1, 1, 0.42 * len(rows) + 1)
    ax, places = axes[0, 0], range(len(rows))[::-1]
    both = ((0.19, "s2_ratio", "LIBLINEAR -s 2", PEER), (-0.19, "s1_ratio", "LIBLINEAR -s 1", "tab:green"))
    for shift, key, label, c in both:
        drawn = ax.barh([i + shift for i in places], [r[key] for r in rows], 0.36, label=label, color=c)
        ax.bar_label(drawn, fmt="%.0f", padding=2)
    names = [f"{speed.set_name(r)}, {'bias' if r['bias'] != 'None' else 'no bias'}" for r in rows]
    ax.set(
        yticks=places, yticklabels=names, xlabel="time of LIBLINEAR / time of xmc_fast, at equal objective"
    )
    figure.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    ax.margins(x=0.08, y=0.02)
    return figure


def linear_scaling(results: Results) -> Any:
    figure, axes = grid(1, 2, 3)
    for varied, label, c in (("rows", "fewer rows", OURS), ("entries", "fewer entries per row", PEER)):
        here = results.rows("linear_scaling", varied=varied)
        axes[0, 0].loglog(
            [r["nnz"] / 1e6 for r in here], [r["ms_per_label"] for r in here], "o-", color=c, label=label
        )
    axes[0, 0].set(xlabel="entries of X, millions", ylabel="CPU ms per label")
    plain(axes[0, 0].xaxis, [0.5, 1, 2, 4])
    plain(axes[0, 0].yaxis, [0.5, 1, 2, 3])
    axes[0, 0].legend()
    here = results.rows("linear_scaling", varied="positives")
    axes[0, 1].bar(
        [re.sub(r"^(256) to .*", r"\1+", r["positives"]).replace(" to ", "–") for r in here],
        [r["ms_per_label"] for r in here],
        color=OURS,
    )
    axes[0, 1].set(xlabel="positives of the label", ylabel="CPU ms per label (median)")
    return figure


def predict(results: Results) -> Any:
    """µs per row of every method."""
    rows = [r for r in results.rows("predict") if " at " not in r["set"] and "threads" not in r["what"]]
    sets = list(dict.fromkeys(r["set"] for r in rows))
    figure, axes = grid(len(sets), 1, 1.75 * len(sets))
    for ax, name in zip(axes[:, 0], sets, strict=True):
        here = [r for r in rows if r["set"] == name]
        bars(ax, [r["what"] for r in here], [r["us_per_row"] for r in here], "")
        ax.set_title(speed.set_name(here[0]))
    axes[-1, 0].set_xlabel("CPU µs per row (logarithmic)")
    return figure


def decisions(name: str, time: str) -> Any:
    """Utility over the peer's against how many times faster, a point per data set, metric and k."""

    def picture(results: Results) -> Any:
        rows = [r for r in results.rows(name) if r["xcolumns"]]
        figure, axes = grid(1, 1, 3.4)
        ax = axes[0, 0]
        for metric, marker in zip(dict.fromkeys(r["metric"] for r in rows), "osD^v", strict=False):
            here = [r for r in rows if r["metric"] == metric]
            ax.plot(
                [r["ratio"] for r in here], [r["ours"] / r["xcolumns"] for r in here], marker, label=metric
            )
        ax.axhline(1, color=OTHER, lw=0.8)
        ax.set(
            xscale="log", xlabel=f"times faster than xcolumns ({time})", ylabel="utility / xcolumns' utility"
        )
        plain(ax.xaxis, [20, 30, 50, 70, 100, 150, 200, 300])
        low, high = min(r["ratio"] for r in rows), max(r["ratio"] for r in rows)
        ax.set_xlim(0.9 * low, 1.1 * high)
        figure.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=3)
        return figure

    return picture


def decide_scaling(results: Results) -> Any:
    """Time against instances (left) and against candidates (right), with a line through the largest."""
    figure, axes = grid(1, 2, 3)
    labels = ("thousand instances, 100 candidates each", "candidates, 20,000 instances")
    for ax, key, label in zip(axes[0], ("n", "candidates"), labels, strict=True):
        here = results.rows("decide_scaling", grows=key)
        sizes = [r[key] / (1000 if key == "n" else 1) for r in here]
        both = (("bca_ms", "ascent, 5 passes", OURS), ("frank_wolfe_ms", "Frank–Wolfe, 5 iterations", PEER))
        for column, name, c in both:
            ax.plot(sizes, [r[column] for r in here], "o", label=name, color=c)
            ax.plot([0, sizes[-1]], [0, here[-1][column]], "-", lw=0.8, color=c)
        ax.set(xlabel=label, xlim=(0, None), ylim=(0, None))
    axes[0, 0].set_ylabel("CPU ms")
    axes[0, 0].legend()
    return figure


def limits(results: Results) -> Any:
    """Kernels against the machine's peak rate of multiply-adds, peers beside them, same runs."""
    shown = ("ours", speed.GROUP, "scipy CSR", "torch embedding_bag", "dense nn.Linear")
    passes = {speed.FORWARD: "forward", speed.TO_FEATURES: "∂ features", speed.TO_WEIGHTS: "∂ weights"}
    groups: dict[str, list[tuple[str, float]]] = {}
    for r in results.rows("fanin"):
        if r["pass"] in passes and r["method"] in shown:
            shape = "a" if r["shape"].startswith("128") else "b"
            name = f"{r['method']}, {passes[r['pass']]}"
            groups.setdefault(f"sparse layer ({shape})", []).append((name, float(r["of FMA limit"])))
    for r in results.rows("knn", task="search"):
        groups.setdefault("exact neighbours", []).append(
            (r["method"], float(r["of peak FMA"].rstrip("%")) / 100)
        )
    for r in results.rows("predict"):
        if r.get("of_fma_limit"):
            groups.setdefault("prediction", []).append(
                (f"xmc_fast, {speed.set_name(r)}", float(r["of_fma_limit"]))
            )
    figure, axes = grid(1, 1, 0.21 * sum(len(g) + 1 for g in groups.values()) + 0.6)
    ax, place, names = axes[0, 0], 0.0, {}
    for title, group in groups.items():
        ax.text(0, place, title, weight="bold", va="center")
        for name, share in group:
            place -= 1
            names[place] = name
            ax.bar_label(
                ax.barh(place, 100 * share, color=colour(name), height=0.75), fmt="%.0f %%", padding=2
            )
        place -= 1.3
    ax.set(
        yticks=list(names),
        yticklabels=list(names.values()),
        xlabel="share of the FMA peak, %",
        ylim=(place + 0.6, 0.8),
    )
    ax.margins(x=0.1)
    return figure
