"""The pictures of docs/performance.md, one per question, from the same tables (bench/report.py draws them)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]


def draw(tables: dict[str, dict[str, Any]], folder: Path) -> None:
    """Draws perf_<table>.png of every table that is there, and perf_limits.png."""
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in PICTURES.items():
        if name in tables:
            save(picture(tables[name]["rows"]), folder / f"perf_{name}.png")
    save(limits(tables), folder / "perf_limits.png")


def save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot as plt

    figure.savefig(path, dpi=90)
    plt.close(figure)


def grid(rows: int, columns: int, width: float, height: float) -> tuple[Any, Any]:
    """A figure and its axes, always two-dimensional."""
    from matplotlib import pyplot as plt

    return plt.subplots(rows, columns, figsize=(width, height), layout="constrained", squeeze=False)


def colour(name: str) -> str:
    return "tab:orange" if name.startswith(("xmc_fast", "ours")) else "tab:blue"


def bars(ax: Any, names: list[str], values: list[float], label: str) -> None:
    """Horizontal bars, the first on top, ours in a colour of their own."""
    places = range(len(names))[::-1]
    drawn = ax.barh(places, values, color=[colour(n) for n in names])
    ax.bar_label(
        drawn, labels=[f"{v:,.0f}" if v >= 100 else f"{v:.3g}" for v in values], fontsize=7, padding=2
    )
    ax.set(yticks=places, yticklabels=names, xlabel=label)
    ax.tick_params(axis="y", labelsize=7)
    ax.margins(x=0.18)


def peers(rows: Rows) -> Any:
    """Per set: P@1 against training and prediction time; size of the model; memory of training."""
    sets = sorted({r["set"] for r in rows})
    figure, axes = grid(2 * len(sets), 2, 11, 6.5 * len(sets))
    for i, name in enumerate(sets):
        here = [r for r in rows if r["set"] == name]
        full = [r for r in here if "P1" in r]
        for ax, key, label in zip(
            axes[2 * i], ("train_seconds", "predict_us"), ("training, CPU s", "µs per row"), strict=True
        ):
            for r in full:
                ax.scatter(r[key], r["P1"], s=50, marker="*" if colour(r["method"]) != "tab:blue" else "o")
                ax.annotate(r["method"], (r[key], r["P1"]), (4, 4), textcoords="offset points", fontsize=7)
            ax.set(xscale="log", xlabel=label, ylabel="P@1, %", title=name)
            ax.margins(x=0.4, y=0.12)
        bars(axes[2 * i + 1, 0], [r["method"] for r in full], [r["model_mb"] for r in full], "model, MB")
        bars(axes[2 * i + 1, 1], [r["method"] for r in here], [r["memory_mb"] for r in here], "memory, MB")
    return figure


def peers_growth(rows: Rows) -> Any:
    """Training (above) and prediction (below) against rows, labels and threads."""
    figure, axes = grid(2, 3, 11, 6)
    for column, axis in enumerate(("rows", "labels", "threads")):
        for ax, key in zip(axes[:, column], ("train_seconds", "predict_us"), strict=True):
            for method in dict.fromkeys(r["method"] for r in rows):
                line = [r for r in rows if r["axis"] == axis and r["method"] == method]
                x = [r["value"] if axis == "threads" else r[axis] for r in line]
                ax.loglog(x, [r[key] for r in line], "o-", label=method)
            ax.set(xlabel=axis, ylabel="training, s" if key == "train_seconds" else "µs per row")
    axes[0, 0].legend(fontsize=7)
    return figure


def linear_peers(rows: Rows) -> Any:
    figure, axes = grid(1, 1, 7, 0.5 * len(rows) + 1)
    ax, names = axes[0, 0], [f"{r['set']}, bias {r['bias']}" for r in rows]
    for shift, key, label in ((0.2, "s2_ratio", "LIBLINEAR -s 2"), (-0.2, "s1_ratio", "LIBLINEAR -s 1")):
        ax.barh([i + shift for i in range(len(rows))], [r[key] for r in rows], 0.38, label=label)
    ax.set(yticks=range(len(rows)), yticklabels=names, xlabel="times faster at equal objective")
    ax.legend()
    return figure


def linear_scaling(rows: Rows) -> Any:
    figure, axes = grid(1, 1, 5, 3.5)
    for varied, label in (("rows", "fewer rows"), ("entries", "fewer entries per row")):
        here = [r for r in rows if r["varied"] == varied]
        axes[0, 0].loglog([r["nnz"] for r in here], [r["ms_per_label"] for r in here], "o-", label=label)
    axes[0, 0].set(xlabel="entries of X", ylabel="CPU ms per label")
    axes[0, 0].legend()
    return figure


def predict(rows: Rows) -> Any:
    """µs per row of every method, P@1 beside the name where the methods differ in it."""
    sets = list(dict.fromkeys(r["set"] for r in rows))
    figure, axes = grid(1, len(sets), 4.5 * len(sets), 3)
    for ax, name in zip(axes[0], sets, strict=True):
        here = [r for r in rows if r["set"] == name]
        names = [f"{r['what']} ({r['P@1']:.1f} %)" if r.get("P@1") else r["what"] for r in here]
        bars(ax, names, [r["us_per_row"] for r in here], "µs per row (P@1)")
        ax.set_title(name)
    return figure


def decisions(time: str) -> Callable[[Rows], Any]:
    """Utility over the peer's against how many times faster, a point per data set, metric and k."""

    def picture(rows: Rows) -> Any:
        figure, axes = grid(1, 1, 6.5, 4)
        for metric in dict.fromkeys(r["metric"] for r in rows):
            here = [r for r in rows if r["metric"] == metric and r["xcolumns"]]
            axes[0, 0].plot(
                [r["ratio"] for r in here], [r["ours"] / r["xcolumns"] for r in here], "o", label=metric
            )
        axes[0, 0].axhline(1, color="gray", lw=0.8)
        axes[0, 0].set(xscale="log", xlabel=f"times faster ({time})", ylabel="utility over xcolumns'")
        axes[0, 0].legend(fontsize=7)
        return figure

    return picture


def decide_scaling(rows: Rows) -> Any:
    """Time against instances (left) and against candidates (right), with a line through the largest."""
    figure, axes = grid(1, 2, 10, 3.5)
    labels = ("instances, 100 candidates each", "candidates, 20,000 instances")
    for ax, key, label in zip(axes[0], ("n", "candidates"), labels, strict=True):
        here = [r for r in rows if r["grows"] == key]
        sizes = [r[key] for r in here]
        for column, name in (("bca_ms", "ascent, 5 passes"), ("frank_wolfe_ms", "Frank–Wolfe, 5 iterations")):
            points = ax.plot(sizes, [r[column] for r in here], "o", label=name)
            ax.plot([0, sizes[-1]], [0, here[-1][column]], "-", lw=0.8, color=points[0].get_color())
        ax.set(xlabel=label, xlim=(0, None), ylim=(0, None))
    axes[0, 0].set_ylabel("CPU ms")
    axes[0, 0].legend()
    return figure


def limits(tables: dict[str, dict[str, Any]]) -> Any:
    """Kernels against the machine's peak rate of multiply-adds, peers beside them, same runs."""
    found: list[tuple[str, float]] = []
    shown = ("ours", "ours, groups of 16", "scipy CSR", "torch embedding_bag", "dense nn.Linear")
    passes = ("forward", "gradient for features", "gradient for weights")
    for r in tables.get("fanin", {"rows": []})["rows"]:
        if r["pass"] in passes and r["method"] in shown:
            shape = "a" if r["shape"].startswith("128") else "b"
            found.append((f"{r['method']}: {r['pass']} ({shape})", float(r["of FMA limit"])))
    for r in tables.get("knn", {"rows": []})["rows"]:
        if r["task"] == "search":
            found.append((f"{r['method']}: neighbours", float(r["of peak FMA"].rstrip("%")) / 100))
    for r in tables.get("predict", {"rows": []})["rows"]:
        if r.get("of_fma_limit"):
            found.append((f"{r['what']}: prediction, {r['set']}", float(r["of_fma_limit"])))
    figure, axes = grid(1, 1, 8, 0.2 * len(found) + 1)
    bars(axes[0, 0], [n for n, _ in found], [v for _, v in found], "share of the FMA peak")
    axes[0, 0].set_title(
        "(a) 128 x 768 -> 131,072 and (b) 32 x 16,384 -> 670,091: fixed fan-in layers", fontsize=8
    )
    return figure


PICTURES: dict[str, Callable[[Rows], Any]] = {
    "peers": peers,
    "peers_growth": peers_growth,
    "linear_peers": linear_peers,
    "linear_scaling": linear_scaling,
    "predict": predict,
    "decide_bca": decisions("same start"),
    "decide_frank_wolfe": decisions("same iterations"),
    "decide_scaling": decide_scaling,
}
