"""The parts of docs/experiments/declare.md, from docs/results/declare.json (a cell per set, model and seed)."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

import numpy as np

from bench.experiments.declare_cells import BASELINES, MAIN, PAPER, SETS, order
from bench.experiments.declare_trials import SCALINGS, TRIALS, WAYS, trial_name
from bench.report.tables import Part, Results, Row, Rows

TITLES = {
    "declare": "DECLARE, cosine",
    "declare-inner": "DECLARE, inner product",
    "declare-length": "DECLARE, Y of length one, cosine",
    "declare-length-inner": "DECLARE, Y of length one, inner product",
    "uncompressed": "uncompressed",
    "pruned": "pruned",
    "neighbour": "DECLARE, neighbour compression",
    "linear": "linear DECLARE (ridge)",
}
# which of the figures in PAPER a model is compared with
AGAINST = {"declare": 0, "declare-length": 0, "declare-length-inner": 0, "declare-inner": 0}
AGAINST |= {"pruned": 1, "uncompressed": 2}
Found = dict[tuple[str, str], Rows]


def found(results: Results) -> Found:
    """Cells by (set, model); the inner-product recovery of DECLARE's network as a model of its own."""
    kept, by_model = results["declare"], {}
    for cell in ({"machine": kept["machine"]} | c for c in kept["cells"].values()):
        by_model.setdefault((cell["set"], cell["model"]), []).append(cell)
        if "p_inner" in cell:
            inner = {**cell, "p": cell["p_inner"]}
            by_model.setdefault((cell["set"], f"{cell['model']}-inner"), []).append(inner)
    return by_model


def p1(cells: Rows) -> float:
    return statistics.fmean(cell["p"][0] for cell in cells)


def processor(cell: Row) -> str:
    """A cell's machine without the commit."""
    return str(cell["machine"]).partition(" (")[0]


def machines(results: Results) -> dict[str, dict[str, None]]:
    """The machines of the cells, each with the versions and commits that ran on it ("+": with changes)."""
    by_machine: dict[str, dict[str, None]] = {}
    for cells in found(results).values():
        for cell in cells:
            at = str(cell["machine"]).partition(" (")[2].rstrip(")").removeprefix("xmc_fast 0.1.0 ")
            by_machine.setdefault(processor(cell), {})[at] = None
    return dict(sorted(by_machine.items()))


def machine_list(results: Results) -> str:
    lines = [f"{name} (commits {', '.join(sorted(at))})" for name, at in machines(results).items()]
    return "\n".join(f"{i}. {line}" for i, line in enumerate(lines, 1))


def table(names: Iterable[str]) -> Part:
    names = list(names)

    def make(results: Results) -> Rows:
        known, here = list(machines(results)), found(results)
        return [line(n, m, here[n, m], known) for n in names for m in TITLES if (n, m) in here]

    return Part(make=make)


def line(name: str, model: str, cells: Rows, known: list[str]) -> Row:
    p, first = np.array([cell["p"] for cell in cells]), cells[0]
    epoch, weights = [h["cpu"] for c in cells for h in c["history"]], first["output_weights"]
    return {
        "data": name,
        "model": TITLES[model],
        "P@1": f"{p[:, 0].mean():.2f}" + (f" ± {p[:, 0].std():.2f}" if len(cells) > 1 else ""),
        "P@3": f"{p[:, 1].mean():.2f}",
        "P@5": f"{p[:, 2].mean():.2f}",
        "seeds": len(cells),
        "features": f"{first['features']:,}",
        "outputs": f"{first['outputs']:,}" + (f" ({weights:,} weights)" if weights else ""),
        "epochs": first["epochs"] if epoch else "",
        "s per epoch": f"{np.median(epoch):.2g}" if epoch else "",
        "training, s": f"{np.mean([cell['seconds'] for cell in cells]):.3g}",
        "network, MB": f"{first['bytes'] / 1e6:.1f}",
        "recovery, MB": f"{first['recovery_bytes'] / 1e6:.1f}",
        "machine": ", ".join(sorted({str(1 + known.index(processor(cell))) for cell in cells})),
    }


def behind(results: Results) -> str:
    """On which sets DECLARE is less accurate than a network with an output per label, in words."""
    here, lines = found(results), []
    for model in BASELINES:
        both = [n for n in SETS if (n, "declare") in here and (n, model) in here]
        gaps = {n: p1(here[n, model]) - p1(here[n, "declare"]) for n in both}
        lines.append(f"- the {model} network: " + ", ".join(f"{n} {g:.2f}" for n, g in gaps.items() if g > 0))
    return "\n".join(lines)


def held_out(results: Results) -> Rows:
    """What the choice of the similarity rests on."""
    here, lines = found(results), []
    for name in MAIN:
        epochs, part = SETS[name][1], "a fifth of the training rows"
        own = here.get((name, "held-out declare"), [])
        pairs = [[100 * cell["history"][epochs - 1][key] for key in ("p@1", "inner p@1")] for cell in own]
        if not own:
            cells = [cell["held_out"] for cell in here.get((name, "declare"), []) if "held_out" in cell]
            pairs, part = [[c[key][0] for key in ("cosine", "inner")] for c in cells], "development part"
        if pairs:
            cosine, inner = (f"{v:.2f}" for v in np.mean(pairs, axis=0))
            lines.append({"data": name, "held out": part, "epochs": epochs})
            lines[-1] |= {"cosine": cosine, "inner product": inner, "seeds": len(pairs)}
    return lines


def curves(results: Results) -> Rows:
    """P@1 on held-out data at the quarters of the training: is a network done learning?"""
    here, lines = found(results), []
    for name in MAIN:
        for model in ("declare", *BASELINES):
            cells = here.get((name, f"held-out {model}")) or here.get((name, model), [])
            histories = [c["history"] for c in cells if c["history"] and "p@1" in c["history"][0]]
            if not histories or cells[0]["watched"] == "test part":
                continue
            n = len(histories[0])
            mean = 100 * np.mean([[h["p@1"] for h in history] for history in histories], axis=0)
            marks = sorted({-(-n * i // 4) for i in (1, 2, 3, 4)} | {int(mean.argmax()) + 1})
            shown = ", ".join(f"{mean[i - 1]:.2f} ({i})" for i in marks)
            lines.append(
                {"data": name, "model": TITLES[model], "P@1 (epoch)": shown, "seeds": len(histories)}
            )
    return lines


def trials(results: Results) -> Rows:
    """Mean over the seeds, P@1 at the best epoch of each way to recover labels."""
    here, lines = found(results), []
    for name, scaling, length, _, _ in TRIALS:
        cells = here.get((name, trial_name(scaling, length)))
        if not cells:
            continue
        p = np.mean([[[epoch[way] for way in WAYS] for epoch in cell["curve"]] for cell in cells], axis=0)
        best = p[:, :, 0].argmax(0)  # epochs x ways x (P@1, P@5)
        row = {"data": name, "rows of Y": SCALINGS[scaling], "length of X": f"{length:g}"}
        row |= {way: f"{p[e, i, 0]:.2f} ({e + 1})" for i, (way, e) in enumerate(zip(WAYS, best, strict=True))}
        row |= {f"P@5: {WAYS[i]}": f"{p[best[i], i, 1]:.2f}" for i in (0, 2)}
        known = {way: np.mean([cell["known"][way][0] for cell in cells]) for way in ("inner", "cosine")}
        lines.append(
            row | {f"true labels: {w}": f"{v:.2f}" for w, v in known.items()} | {"seeds": len(cells)}
        )
    return lines


def against_the_paper(results: Results) -> Rows:
    """P@1 minus the published one."""
    here = found(results)
    return [
        {"data": name}
        | {
            TITLES[model]: f"{p1(here[name, model]) - published[which]:+.2f}"
            if (name, model) in here
            else "not run"
            for model, which in AGAINST.items()
        }
        for name, published in PAPER.items()
    ]


def published(results: Results) -> Rows:
    columns = ("published P@1: DECLARE", "pruned", "uncompressed")
    return [
        {"data": name, **{c: f"{v:.2f}" for c, v in zip(columns, p, strict=True)}}
        for name, p in PAPER.items()
    ]


def not_run(results: Results) -> str:
    here, missing = found(results), {}
    for name, model, seed in order():
        if seed == 0 and (name, model) not in here:
            missing.setdefault(name, []).append(model)
    lines = [f"- {name}: {', '.join(models)}" for name, models in missing.items()]
    return "\n".join(
        ["Cells that the command has but that were not run:", "", *lines]
        if lines
        else ["All cells were run."]
    )


PARTS = {
    "declare_machines": Part(make=machine_list),
    "declare_published": Part(make=published),
    "declare_main": table(MAIN),
    "declare_behind": Part(make=behind),
    "declare_held_out": Part(make=held_out),
    "declare_curves": Part(make=curves),
    "declare_trials": Part(make=trials),
    "declare_against_the_paper": Part(make=against_the_paper),
    "declare_others": table(n for n in SETS if n not in MAIN),
    "declare_not_run": Part(make=not_run),
}
