"""``xmc-fast tune``: the best setting for data and a metric, and the model trained with it."""

from __future__ import annotations

import argparse

from xmc_fast.cli._common import Output, UsageError, add_threads, positive, say
from xmc_fast.cli._inputs import add_input, labels_of, read

HELP = "find the best setting of a linear model, and train it"
EXAMPLES = (
    "xmc-fast tune posts.csv",
    "xmc-fast tune posts.csv --metric macro_f1@5 --budget 8 --model model/",
    "xmc-fast tune train.txt --checkpoint tuning.json      # goes on where it was stopped",
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", metavar="DATA", help="the data: one file or two")
    parser.add_argument("--metric", default="ndcg@5", metavar="NAME@K", help="what is best (default ndcg@5)")
    parser.add_argument(
        "--budget",
        type=float,
        default=4.0,
        metavar="X",
        help="cost of all trials, in default fits (default 4)",
    )
    parser.add_argument(
        "--folds",
        type=positive,
        metavar="N",
        help="measure on N parts in turn (default: a fifth of the rows)",
    )
    parser.add_argument("--plot", metavar="FILE", help="draw what was tried")
    parser.add_argument("--checkpoint", metavar="FILE", help="keep the trials there and go on from them")
    parser.add_argument(
        "--model", metavar="FOLDER", help="train the best setting on all rows and save it there"
    )
    add_input(parser)
    add_threads(parser)


def run(args: argparse.Namespace) -> Output:
    from xmc_fast.tuning import tune

    data = read(args.paths, args)
    if labels_of(data) is None:
        raise UsageError("the data has no labels: give a labels file, or --label")
    say(args, data.describe())
    X, y = (data.X, data.Y) if data.texts is None else (data.texts, labels_of(data))
    found = tune(
        X,
        y,
        metric=args.metric,
        budget=args.budget,
        folds=args.folds,
        checkpoint=args.checkpoint,
        n_jobs=args.threads,
    )
    lines = [str(found), f"best: {found.best or 'the default'}"]
    if args.plot:
        from xmc_fast.plots import plot_tuning

        plot_tuning(found).figure.savefig(args.plot, dpi=150, bbox_inches="tight")
        lines.append(f"drawn -> {args.plot}")
    if args.model:
        found.make(n_jobs=args.threads).fit(X, y).save(args.model)
        lines.append(f"trained on all rows -> {args.model}")
    return Output("\n".join(lines), found.to_dict() | {"model": args.model})
