"""``xmc-fast info``: what is in a data file or a model."""

from __future__ import annotations

import argparse
from pathlib import Path

from xmc_fast.cli import _lightxml, _mach
from xmc_fast.cli._common import Output, add_threads, thousands
from xmc_fast.cli._load import add_format, load

HELP = "statistics of a data set, or sizes of a model"
EXAMPLES = (
    "xmc-fast info train.txt.gz",
    "xmc-fast info --format pair trn_X_Xf.txt trn_X_Y.txt",
    "xmc-fast info model/",
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", metavar="FILE", help="a data file (or two), or a model folder")
    add_format(parser)
    add_threads(parser)


def run(args: argparse.Namespace) -> Output:
    from xmc_fast import data
    from xmc_fast.model import is_model_folder

    if _mach.is_folder(args.paths[0]):
        return _mach.info(args.paths[0])
    if _lightxml.is_folder(args.paths[0]):
        return _lightxml.info(args.paths[0])
    if is_model_folder(args.paths[0]):
        return model_info(args.paths[0])

    if Path(args.paths[0]).is_dir():
        raise ValueError(f"{args.paths[0]} is a folder, but not a model (it has no manifest.json)")
    loaded = load(args.paths, args.format, args.threads)
    if loaded.texts is not None:
        counts = {
            "points": len(loaded.texts),
            "labels": int(loaded.Y.shape[1]),
            "assignments": int(loaded.Y.nnz),
        }
        return Output("\n".join(f"{k:<12}{thousands(v)}" for k, v in counts.items()), dict(counts))
    statistics = data.describe(loaded.X, loaded.Y)
    return Output(str(statistics), statistics.to_dict())


def model_info(folder: str) -> Output:
    """Sizes, density, weight histogram and training parameters of a saved model."""
    from xmc_fast.model import SparseModel, describe_model

    model = SparseModel.load(folder)
    description = describe_model(model)
    return Output(str(description), {**description.to_dict(), "params": model.params})
