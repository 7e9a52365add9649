"""``xmc-fast convert``: from any format we read to repository text or scipy .npz."""

from __future__ import annotations

import argparse

from xmc_fast._files import atomic_path
from xmc_fast.cli._common import Output, UsageError, add_threads, check_output, thousands
from xmc_fast.cli._load import add_format, load

HELP = "convert a data set to repository text (.txt, also .gz and .xz) or to scipy .npz"
EXAMPLES = (
    "xmc-fast convert --format libsvm1 train.svm train.txt.gz",
    "xmc-fast convert --format pair trn_X_Xf.txt trn_X_Y.txt train.txt",
    "xmc-fast convert train.txt train.npz        # writes train.X.npz and train.Y.npz",
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", metavar="IN", help="the input file (or two), then OUT")
    add_format(parser)
    add_threads(parser)


def run(args: argparse.Namespace) -> Output:
    if len(args.paths) < 2:
        raise UsageError("give the input and the output: xmc-fast convert IN OUT")
    *inputs, out = args.paths
    check_output(out, inputs)
    loaded = load(inputs, args.format, args.threads)
    if loaded.X is None:
        raise ValueError(
            "raw text has no features to convert: train a text model on it, or vectorise it first"
        )
    written = write(out, loaded.X, loaded.Y)
    n, d = loaded.X.shape
    text = f"{thousands(n)} points, {thousands(d)} features, {thousands(loaded.Y.shape[1])} labels"
    return Output(f"{text} -> {', '.join(written)}", {"points": n, "features": d, "files": written})


def write(out: str, X: object, Y: object) -> list[str]:
    """Write by the name's ending; returns the files written."""
    if out.endswith(".npz"):
        import scipy.sparse as sp

        stem = out.removesuffix(".npz")
        files = [f"{stem}.X.npz", f"{stem}.Y.npz"]
        for file, matrix in zip(files, (X, Y), strict=True):
            with atomic_path(file) as temporary, open(temporary, "wb") as handle:
                sp.save_npz(handle, matrix)
        return files
    from xmc_fast import data

    data.write_xmc(out, X, Y)
    return [out]
