"""The pictures of the documentation, from docs/results: 7 inches wide, so that 9 points stay readable at 700 pixels."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from bench.experiments.declare_cells import SETS
from bench.experiments.mach import DOCUMENTED
from bench.report import declare, dst, mach, speed
from bench.report.tables import Results, Rows

OURS, PEER, OTHER = "tab:orange", "tab:blue", "tab:gray"
STYLE = {
    "font.size": 9, "axes.titlesize": 9, "axes.labelsize": 9, "xtick.labelsize": 9, "ytick.labelsize": 9,
    "legend.fontsize": 9, "axes.spines.top": False, "axes.spines.right": False, "lines.markersize": 4,
}  # fmt: skip


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


def grid(rows: int, columns: int, height: float) -> tuple[Any, Any]:
    """A figure 7 inches wide and its axes, always two-dimensional."""
    from matplotlib import pyplot as plt

    return plt.subplots(rows, columns, figsize=(7, height), layout="constrained", squeeze=False)


def colour(name: str) -> str:
    return OURS if name.startswith(("xmc_fast", "ours")) else PEER


def plain(axis: Any, ticks: list[float]) -> None:
    """A logarithmic axis with these ticks only, written as plain numbers."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}" if v >= 1 else f"{v:g}"))


def bars(ax: Any, names: list[str], values: list[float], label: str) -> None:
    """Horizontal bars on a logarithmic axis without ticks, the first on top, the value beside each."""
    places = range(len(names))[::-1]
    drawn = ax.barh(places, values, color=[colour(n) for n in names], height=0.7)
    ax.bar_label(drawn, labels=[f"{v:,.0f}" if v >= 100 else f"{v:.3g}" for v in values], padding=2)
    ax.set(yticks=places, yticklabels=names, xlabel=label, xscale="log")
    ax.set_xlim(min(values) / 2, max(values) * 4)
    ax.set_xticks([], minor=False)
    ax.set_xticks([], minor=True)


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
    "perf_peers": peers,
    "perf_peers_growth": peers_growth,
    "perf_linear_peers": linear_peers,
    "perf_linear_scaling": linear_scaling,
    "perf_predict": predict,
    "perf_decide_bca": decisions("decide_bca", "same start"),
    "perf_decide_frank_wolfe": decisions("decide_frank_wolfe", "same iterations"),
    "perf_decide_scaling": decide_scaling,
    "perf_limits": limits,
    "pruning": pruning,
    "small_form": small_form,
    "mach_memory": mach_memory,
    "dst_sparsity": dst_sparsity,
    "dst_run": dst_run,
    "declare_convergence": declare_convergence,
    "tradeoff": tradeoff,
    "missing_labels": missing_labels,
}
