"""Learning and measuring when labels are missing, on real data with labels removed on purpose.

    python -m bench.experiments.missing_labels [--data eurlex-4k]

Each training label j is kept with a known probability p_j (0.1 to 0.9, random). One-vs-all models are trained on
the complete labels, on what is left, and on what is left with positives weighted by
``propensity.surrogate_weights(p)``, for p known, p measured on 500 rows with complete labels, and the JPV curve
that knows only the frequencies. All are tested on complete labels. A second table estimates the test figures
from incomplete test labels, a third recall@5 by propensity: plain, unbiased and the upper bound (Schultheis and Babbar
2025, figure 2). The tables are saved for docs/experiments/missing_labels.md.
"""

from __future__ import annotations

import numpy as np

from bench.common import Table, command_line, data_dir, machine
from xmc_fast import linear, metrics, propensity
from xmc_fast.data import read_xmc

KS = (1, 3, 5)


def load(name, min_points):
    """Train and test with the labels of at least min_points training points: their p can be measured."""
    train, test = (read_xmc(data_dir(name) / f"{part}.txt.xz") for part in ("train", "test"))
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


def training_table(table, X, Y, X_test, Y_test, p, rng):
    """Clean-test figures of each way to train; the predictions of the model of complete labels."""
    predictions = train_all(X, Y, X_test, p, rng)
    for name, pred in predictions.items():
        r = metrics.report(Y_test, pred, KS)
        shown = [f"{m}@{k}" for m in ("precision", "recall", "macro_f1") for k in KS]
        table.add(**{"trained on": name, **{key: 100 * float(r[key]) for key in shown}})
    return predictions["complete labels"]


def testing_table(table, Y_test, pred, p, rng):
    """P@k of one model, measured with complete and with incomplete test labels."""
    seen = hide(Y_test, p, rng)
    ways = {
        "complete labels": metrics.precision_at_k(Y_test, pred, KS),
        "incomplete labels, plain P@k": metrics.precision_at_k(seen, pred, KS),
        "incomplete labels, un-normalised PSP@k": metrics.psp_at_k(seen, pred, p, KS, normalize=False),
    }
    for way, values in ways.items():
        table.add(
            **{"measured with": way}, **{f"@{k}": 100 * float(v) for k, v in zip(KS, values, strict=True)}
        )


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--data", default="eurlex-4k", help="a folder of XMC_DATA with XMC text files")
    parser.add_argument(
        "--min-points", type=int, default=20, help="leave out labels with fewer training points"
    )
    parser.add_argument("--repetitions", type=int, default=30, help="masks per propensity")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng, info = np.random.default_rng(args.seed), machine()
    X, Y, X_test, Y_test = load(args.data, args.min_points)
    p = rng.uniform(0.1, 0.9, Y.shape[1])
    shown = [f"{m}@{k}" for m in ("precision", "recall", "macro_f1") for k in KS]
    training = Table("missing_training", ["trained on", *shown], info)
    pred = training_table(training, X, Y, X_test, Y_test, p, rng)
    testing = Table("missing_testing", ["measured with", *(f"@{k}" for k in KS)], info)
    testing_table(testing, Y_test, pred, p, rng)
    grid = np.linspace(0.1, 1, 10)
    estimates = recall_estimates(Y_test, pred, grid, args.repetitions, rng)
    recall = Table("missing_recall", ["propensity", *estimates], info)
    for i, chance in enumerate(grid):
        cells = {name: f"{100 * e[i].mean():.2f} ± {100 * e[i].std():.2f}" for name, e in estimates.items()}
        recall.add(propensity=round(float(chance), 1), **cells)
    for table in (training, testing, recall):
        print(table)
        table.save()


if __name__ == "__main__":
    main()
