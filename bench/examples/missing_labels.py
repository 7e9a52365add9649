"""Learning and measuring when labels are missing, on real data with labels removed on purpose.

    python bench/examples/missing_labels.py [--data eurlex-4k] [--write docs/experiments]

Each training label j is kept with a known probability p_j (0.1 to 0.9, random). One-vs-all models are trained on
the complete labels, on what is left, and on what is left with positives weighted by
``propensity.surrogate_weights(p)``, for p known, p measured on 500 rows with complete labels, and the JPV curve
that knows only the frequencies. All are tested on complete labels. A second table estimates the test figures
from incomplete test labels. The picture shows estimates of recall@5 from incomplete labels against the
propensity: plain, unbiased and the upper bound (Schultheis and Babbar 2025, figure 2).
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np

from xmc_fast import linear, metrics, propensity
from xmc_fast._files import write_text
from xmc_fast.data import read_xmc

DATA = Path(os.environ.get("XMC_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
KS = (1, 3, 5)


def load(name, min_points):
    """Train and test with the labels of at least min_points training points: their p can be measured."""
    train, test = (read_xmc(DATA / name / f"{part}.txt.xz") for part in ("train", "test"))
    keep = np.flatnonzero(np.asarray(train.Y.sum(axis=0)).ravel() >= min_points)
    return train.X, train.Y[:, keep].tocsr(), test.X, test.Y[:, keep].tocsr()


def hide(Y, p, rng):
    """What is observed of the complete labels Y: each entry is kept with its label's probability."""
    kept = Y.copy()
    kept.data = (rng.random(kept.nnz) < np.asarray(p)[kept.indices]).astype(np.float32)
    kept.eliminate_zeros()
    return kept


def train_all(X, Y, X_test, p, rng, controlled=500):
    """Name -> top-5 predictions of a model, from complete and from incomplete labels."""
    observed = hide(Y, p, rng)
    measured = propensity.direct(observed[controlled:], Y[:controlled])(np.zeros(Y.shape[1]), 0)
    ways = {
        "complete labels": (Y, None),
        "incomplete labels": (observed, None),
        "incomplete, p known": (observed, propensity.surrogate_weights(p)),
        "incomplete, p measured": (observed, propensity.surrogate_weights(measured)),
        "incomplete, p by JPV": (observed, propensity.surrogate_weights(propensity.estimate(observed))),
    }
    return {
        name: linear.OneVsAll(positive_weight=weight).fit(X, labels).predict(X_test, k=KS[-1])
        for name, (labels, weight) in ways.items()
    }


def recall_estimates(Y, pred, grid, repetitions, rng):
    """Estimates of recall@5 from masked labels: name -> (propensities, repetitions)."""
    import torch

    from xmc_fast.nn.losses import unbiased_targets, upper_bound_targets

    n = Y.shape[0]
    size = np.diff(Y.indptr)
    width = int(size.max())
    place = np.arange(Y.nnz) - np.repeat(Y.indptr[:-1], size)  # true labels as short lists, padded
    rows = np.repeat(np.arange(n), size)
    true, hit = np.zeros((n, width)), np.zeros((n, width))
    top = pred.copy()
    top.data = np.ones_like(top.data)
    true[rows, place] = 1
    hit[rows, place] = np.asarray(top[rows, Y.indices]).ravel()
    found = {name: np.zeros((len(grid), repetitions)) for name in ("plain", "unbiased", "upper bound")}
    for i, p in enumerate(grid):
        chance = torch.full((width,), float(p), dtype=torch.float64)
        for r in range(repetitions):
            seen = torch.as_tensor(true * (rng.random(true.shape) < p))
            targets = {
                "plain": unbiased_targets(seen, torch.ones(width), normalized=True),
                "unbiased": unbiased_targets(seen, chance, normalized=True),
                "upper bound": upper_bound_targets(seen, chance),
            }
            for name, t in targets.items():
                found[name][i, r] = (t.numpy() * hit).sum() / n
    return found


def markdown(head, rows):
    return "\n".join(["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1), *rows])


def training_table(X, Y, X_test, Y_test, p, rng):
    """Clean-test figures of each way to train, and the predictions of the model of complete labels."""
    predictions = train_all(X, Y, X_test, p, rng)
    shown = ("precision", "recall", "macro_f1")
    rows = []
    for name, pred in predictions.items():
        r = metrics.report(Y_test, pred, KS)
        cells = [f"{100 * r[f'{m}@{k}']:.2f}" for m in shown for k in KS]
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    text = markdown(["trained on", *(f"{m}@{k}" for m in shown for k in KS)], rows)
    return text, predictions["complete labels"]


def testing_table(Y_test, pred, p, rng):
    """P@k of one model, measured with complete and with incomplete test labels."""
    seen = hide(Y_test, p, rng)
    ways = {
        "complete labels": metrics.precision_at_k(Y_test, pred, KS),
        "incomplete labels, plain P@k": metrics.precision_at_k(seen, pred, KS),
        "incomplete labels, un-normalised PSP@k": metrics.psp_at_k(seen, pred, p, KS, normalize=False),
    }
    rows = [
        f"| {way} | " + " | ".join(f"{100 * v:.2f}" for v in values) + " |" for way, values in ways.items()
    ]
    return markdown(["measured with", *(f"@{k}" for k in KS)], rows)


def recall_table(grid, estimates):
    def cell(draws):
        return f"{100 * draws.mean():.2f} ± {100 * draws.std():.2f}"

    rows = [
        f"| {p:.1f} | " + " | ".join(cell(e[i]) for e in estimates.values()) + " |"
        for i, p in enumerate(grid)
    ]
    return markdown(["propensity", *estimates], rows)


def save_picture(path, grid, estimates, truth):
    import matplotlib

    matplotlib.use("agg")
    from xmc_fast.plots import plot_estimates

    ax = plot_estimates(grid, estimates, truth, what="recall@5")
    ax.set_ylim(0, 1.2)
    ax.figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="eurlex-4k", help="a folder of XMC_DATA with XMC text files")
    parser.add_argument(
        "--min-points", type=int, default=20, help="leave out labels with fewer training points"
    )
    parser.add_argument("--repetitions", type=int, default=30, help="masks per propensity in the picture")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, help="folder for missing_labels.md and missing_labels.png")
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    X, Y, X_test, Y_test = load(args.data, args.min_points)
    p = rng.uniform(0.1, 0.9, Y.shape[1])
    training, pred = training_table(X, Y, X_test, Y_test, p, rng)
    testing = testing_table(Y_test, pred, p, rng)
    grid = np.linspace(0.1, 1, 10)
    truth = metrics.recall_at_k(Y_test, pred, 5)
    estimates = recall_estimates(Y_test, pred, grid, args.repetitions, rng)
    text = f"""# Missing labels, made on purpose

{args.data}, {Y.shape[0]:,} rows and the {Y.shape[1]:,} labels with at least {args.min_points} training points. Label
j is kept with probability p_j, drawn from [0.1, 0.9]. Figures in %. Made by
`python bench/examples/missing_labels.py --data {args.data} --write docs/experiments`.

## Training

One-vs-all, tested on complete labels. "p ...": positives weighted by `propensity.surrogate_weights(p)`, with p
known, measured on 500 rows with complete labels (`propensity.direct`), or guessed from frequencies (JPV).

{training}

## Testing

P@k of the model trained on complete labels. With the right p, un-normalised PSP@k estimates the P@k that complete
labels would give.

{testing}

## Estimating recall

Recall@5 of the same model is {100 * truth:.2f} on complete labels. From incomplete ones (the same p for each label,
{args.repetitions} masks each), the plain value is too low, the unbiased estimate is useless for small p, and the
upper bound is steady but far off: mean ± standard deviation.

{recall_table(grid, estimates)}

![estimates of recall against propensity](missing_labels.png)
"""
    print(text)
    if args.write:
        args.write.mkdir(parents=True, exist_ok=True)
        write_text(args.write / "missing_labels.md", text)
        save_picture(args.write / "missing_labels.png", grid, estimates, truth)


if __name__ == "__main__":
    main()
