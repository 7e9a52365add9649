"""Does a metric notice when rare labels are never learned? Train on all labels, then on the most frequent only.

    python -m bench.experiments.head_labels [--data eurlex-4k] [--labels 1000 300]

trains one-vs-all models, all tested on all labels, and puts every metric of each reduced one beside the full one's
(docs/experiments/head_labels.md).
"""

from __future__ import annotations

import warnings

import numpy as np
import scipy.sparse as sp

from bench.common import Table, command_line, data_dir
from xmc_fast import linear, metrics, propensity
from xmc_fast.data import read_xmc

SHOWN = ["precision", "ndcg", "psp", "macro_precision", "macro_recall", "macro_f1", "coverage"]
KS = (1, 3, 5)


def head_only(Y, n_head):
    """Y with the columns of all but the n_head most frequent labels emptied."""
    counts = np.asarray(Y.sum(axis=0)).ravel()
    keep = np.zeros(Y.shape[1], np.float32)
    keep[np.argsort(-counts, kind="stable")[:n_head]] = 1
    reduced = (Y @ sp.diags(keep)).tocsr()
    reduced.eliminate_zeros()
    return reduced


def evaluate(train, Y, test, p):
    """The report of a model trained on the labels Y."""
    pred = linear.OneVsAll().fit(train.X, Y).predict(test.X, k=KS[-1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", propensity.PropensityWarning)
        return metrics.report(test.Y, pred, KS, propensity=p)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--data", default="eurlex-4k", help="a folder of XMC_DATA with XMC text files")
    parser.add_argument("--labels", type=int, nargs="+", default=[1000, 300], help="how many labels are kept")
    args = parser.parse_args()
    train, test = (read_xmc(data_dir(args.data) / f"{part}.txt.xz") for part in ("train", "test"))
    p = propensity.estimate(train.Y)
    full = evaluate(train, train.Y, test, p)
    columns = [f"{kind} @{k}" for kind in ("all", "frequent", "change") for k in KS]
    table = Table("head_labels", ["kept labels", "metric", *columns])
    for n_head in args.labels:
        reduced = head_only(train.Y, n_head)
        print(f"{n_head} labels have {reduced.nnz / train.Y.nnz:.1%} of the training positives")
        head = evaluate(train, reduced, test, p)
        for name in SHOWN:
            row = {"kept labels": n_head, "metric": full.titles[name]}
            for k, a, b in zip(KS, full[name], head[name], strict=True):
                row |= {f"all @{k}": 100 * a, f"frequent @{k}": 100 * b, f"change @{k}": 100 * (b / a - 1)}
            table.add(**row)
    print(table)
    table.save()


if __name__ == "__main__":
    main()
