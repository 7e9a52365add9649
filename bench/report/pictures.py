"""The pictures of the documentation, from docs/results: 7 inches wide, so that 9 points stay readable at 700 pixels."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from bench.experiments.declare_cells import SETS
from bench.experiments.mach import DOCUMENTED
from bench.report import declare, dst, mach, speed, speed_pictures, tree
from bench.report.drawing import OTHER, OURS, PEER, STYLE, grid, plain
from bench.report.tables import Results


def draw(results: Results, folder: Path) -> None:
    """Every picture into the folder."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(STYLE):
        for name, picture in PICTURES.items():
            figure = picture(results)
            figure.savefig(folder / f"{name}.png", dpi=144)
            plt.close(figure)


def pruning(results: Results) -> Any:
    rows = results.rows("predict_pruning")
    figure, axes = grid(1, 2, 3)
    for name in dict.fromkeys(r["set"] for r in rows):
        here = [r for r in rows if r["set"] == name]
        for ax, key in zip(axes[0], ("P@1", "MB"), strict=True):
            first = here[0][key] if key == "P@1" else 0
            ax.plot(
                [r["delta"] for r in here],
                [r[key] - first for r in here],
                "o-",
                label=speed.set_name(here[0]),
            )
    for ax, label in zip(axes[0], ("P@1, points lost or won", "weights, MB"), strict=True):
        ax.set_xscale("symlog", linthresh=0.003)
        ax.axvline(0.01, color=OTHER, lw=0.8, ls=":")
        ax.set(xlabel="Δ (dotted: the default)", ylabel=label, xlim=(-0.0005, 0.4))
        plain(ax.xaxis, [0, 0.003, 0.01, 0.03, 0.1, 0.3])
    axes[0, 1].set_yscale("log")
    plain(axes[0, 1].yaxis, [1, 10, 100, 1000])
    axes[0, 0].legend()
    return figure


def small_form(results: Results) -> Any:
    """P@1 and P@5 against the bytes: the small form's curve, and a point for each other model."""
    rows = results.rows("small_form")
    peers = [
        {**r, "form": r["method"], "MB": r["model_mb"] * 1.048576, "P@1": r["P1"], "P@5": r["P5"]}
        for r in results.rows("peers")
        if r.get("model_mb") and not r["method"].startswith("xmc_fast OneVsAll")
    ]
    names = list(dict.fromkeys(r["set"] for r in rows))
    marks = ("s", "^", "v", "D", "P")
    others = sorted({r["form"] for r in peers + rows} - {"small", "exact"})
    figure, axes = grid(2, len(names), 5)
    for column, name in enumerate(names):
        for ax, key in zip(axes[:, column], ("P@1", "P@5"), strict=True):
            own = sorted(
                (r for r in rows if r["set"] == name and r["form"] == "small"), key=lambda r: r["MB"]
            )
            ax.plot([r["MB"] for r in own], [r[key] for r in own], "o-", color=OURS, label="xmc_fast, small")
            for r in own:
                if r["chosen"]:
                    ax.plot(
                        r["MB"], r[key], "o", ms=9, mfc="none", color="k", label="chosen on training rows"
                    )
            for r in rows:
                if r["set"] == name and r["form"] == "exact":
                    ax.plot(r["MB"], r[key], "*", ms=9, color=OURS, label="xmc_fast, exact")
            for r in [*rows, *peers]:
                if r["set"] == name and r["form"] in others:
                    mine = OURS if r["form"].startswith("xmc_fast") else PEER
                    ax.plot(r["MB"], r[key], marks[others.index(r["form"]) % 5], color=mine, label=r["form"])
            ax.set_xscale("log")
            plain(ax.xaxis, [1, 3, 10, 30, 100, 300])
            ax.set(ylabel=f"{key}, %" if not column else "")
        axes[0, column].set_title(speed.NAMES.get(name, name))
        axes[1, column].set_xlabel("model, MB")
    lines, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower center", ncols=3)
    return figure


def mach_memory(results: Results) -> Any:
    rows = mach.cells(results)
    figure, axes = grid(2, 2, 5.6)
    for ax, (name, (_, _, keep)) in zip(axes.flat, DOCUMENTED.items(), strict=False):
        own = [c for c in rows if c["data"] == name]
        sides = ((0, -12), (8, -3), (0, 6))  # where R stands, by line
        for i, buckets in enumerate(sorted({c["B"] for c in own if c["B"]})):
            here = sorted((c for c in own if c["B"] == buckets and c["keep"] == keep), key=lambda c: c["R"])
            (line,) = ax.plot([c["mb"] for c in here], [c["p1"] for c in here], "o-", label=f"B = {buckets}")
            for c in here:
                at = {
                    "xytext": sides[i],
                    "textcoords": "offset points",
                    "ha": "center",
                    "color": line.get_color(),
                }
                ax.annotate(c["R"], (c["mb"], c["p1"]), **at)
        one = sorted((c["mb"], c["p1"]) for c in own if c["B"] == 0)
        ax.plot(*zip(*one, strict=True), "k*-", label="one-vs-all, pruned")
        ax.set(
            xscale="log",
            title=f"{speed.NAMES.get(name, name)}, {keep:,} weights per bucket",
            xlabel="weights, MB",
            ylabel="P@1, %",
        )
        plain(ax.xaxis, [1, 2, 5, 10, 20, 50, 100])
        low, high = ax.get_ylim()
        ax.set_ylim(low - 0.45 * (high - low), high)
        ax.legend(loc="lower right")
    axes[1, 1].axis("off")
    note = "Numbers beside the points: repetitions of MACH.\nWeights are float16, of the largest\n"
    axes[1, 1].text(0, 0.6, note + "one-vs-all model float32.")
    return figure


def dst_sparsity(results: Results) -> Any:
    from xmc_fast.plots import accuracy_against_sparsity

    fixed = dst.of(results, "fixed")
    curves: dict[str, list[tuple[float, float, float]]] = {}
    for name, runs in fixed.items():
        match = re.fullmatch(r"fan-in (\d+), (static|SET|RigL)", name)
        if match:
            point = (1 - int(match[1]) / 512, dst.mean(runs), dst.deviation(runs))
            curves.setdefault(match[2], []).append(point)
    figure, axes = grid(1, 1, 3.6)
    ax = accuracy_against_sparsity(curves, axes[0, 0], baseline=dst.mean(fixed["dense"]))
    ax.set(title="EURLex-4K, 512 LSA features", ylabel="P@1, %")
    ax.legend(loc="lower left")
    return figure


def dst_run(results: Results) -> Any:
    from xmc_fast.plots import plot_run

    figure, axes = grid(1, 1, 3.4)
    plot_run(dst.of(results, "fixed")["fan-in 32, RigL"][0]["history"], axes[0, 0]).set_title(
        "fan-in 32, RigL"
    )
    return figure


def declare_convergence(results: Results) -> Any:
    found, curves = declare.found(results), {}
    shown = {"declare": OURS, "uncompressed": PEER, "pruned": "tab:green", "neighbour": "tab:purple"}
    for name in SETS:
        for model in shown:
            for cell in found.get((name, model), []):
                if cell["seed"] == 0 and cell["history"] and "p@1" in cell["history"][0]:
                    curves.setdefault(f"{name}\n({cell['watched']})", {})[model] = cell["history"]
    figure, axes = grid(-(-len(curves) // 3), 3, 2.1 * -(-len(curves) // 3) + 0.4)
    for ax, (title, histories) in zip(axes.flat, curves.items(), strict=False):
        for model, history in histories.items():
            ax.plot(
                [h["epoch"] for h in history],
                [100 * h["p@1"] for h in history],
                "o-",
                ms=2.5,
                color=shown[model],
            )
        ax.set(title=title)
        ax.xaxis.get_major_locator().set_params(integer=True)
    for ax in list(axes.flat)[len(curves) :]:
        ax.axis("off")
    figure.supxlabel("epoch", fontsize=9)
    figure.supylabel("P@1, %", fontsize=9)
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color=c, marker="o", label=declare.TITLES[model]) for model, c in shown.items()]
    figure.legend(handles=lines, loc="outside upper center", ncols=4, columnspacing=1)
    return figure


def tradeoff(results: Results) -> Any:
    rows = results.rows("tradeoff")
    figure, axes = grid(1, 3, 3)
    kinds = (("mixture", "o-", OURS), ("power law", "s", PEER), ("log", "D", "tab:green"))
    for ax, k in zip(axes[0], (1, 3, 5), strict=True):
        for kind, style, c in kinds:
            here = [r for r in rows if r["rule"].startswith(kind)]
            ax.plot(
                [r[f"macro-F1@{k}"] for r in here], [r[f"P@{k}"] for r in here], style, color=c, label=kind
            )
        ax.set(xlabel=f"macro-F1@{k}, %", ylabel=f"P@{k}, %")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


def missing_labels(results: Results) -> Any:
    rows = results.rows("missing_recall")
    figure, axes = grid(1, 1, 3.4)
    ax, p = axes[0, 0], [r["propensity"] for r in rows]
    for name, c in (("plain", PEER), ("unbiased", OURS), ("upper bound", "tab:green")):
        mean, deviation = zip(*(map(float, r[name].split(" ± ")) for r in rows), strict=True)
        ax.errorbar(p, mean, deviation, fmt="o-", capsize=2, color=c, label=name)
    ax.axhline(mean[-1], color=OTHER, ls=":", label="complete labels")
    ax.set(xlabel="propensity", ylabel="estimated recall@5, %", ylim=(0, 120))
    ax.legend(ncols=2, loc="lower right")
    return figure


PICTURES = {
    "perf_peers": speed_pictures.peers,
    "perf_peers_growth": speed_pictures.peers_growth,
    "perf_linear_peers": speed_pictures.linear_peers,
    "perf_linear_scaling": speed_pictures.linear_scaling,
    "perf_predict": speed_pictures.predict,
    "perf_decide_bca": speed_pictures.decisions("decide_bca", "same start"),
    "perf_decide_frank_wolfe": speed_pictures.decisions("decide_frank_wolfe", "same iterations"),
    "perf_decide_scaling": speed_pictures.decide_scaling,
    "perf_limits": speed_pictures.limits,
    "pruning": pruning,
    "small_form": small_form,
    "mach_memory": mach_memory,
    "dst_sparsity": dst_sparsity,
    "dst_run": dst_run,
    "declare_convergence": declare_convergence,
    "tradeoff": tradeoff,
    "missing_labels": missing_labels,
    "tree_growth": tree.picture,
}
