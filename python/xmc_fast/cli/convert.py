"""``xmc-fast convert``: from any format of features to repository text or scipy .npz."""

from __future__ import annotations

import argparse

from xmc_fast._files import atomic_path
from xmc_fast.cli._common import Output, add_paths, add_threads, split_paths, thousands
from xmc_fast.cli._inputs import add_input, read

HELP = "convert a data set to repository text (.txt, also .gz, .xz and .zst) or to scipy .npz"
EXAMPLES = (
    "xmc-fast convert --format libsvm1 train.svm train.txt.gz",
    "xmc-fast convert --format pair trn_X_Xf.txt trn_X_Y.txt train.txt",
    "xmc-fast convert train.txt train.npz        # writes train.X.npz and train.Y.npz",
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_paths(parser, "IN", "the input file (or two), then OUT")
    add_input(parser)
    add_threads(parser)


def run(args: argparse.Namespace) -> Output:
    inputs, out = split_paths(args, "the input and the output: xmc-fast convert IN OUT")
    data = read(inputs, args)
    if data.X is None:
        raise ValueError(
            "raw text has no features to convert: train a text model on it, or vectorise it first"
        )
    written = write(out, data.X, data.Y)
    n, d = data.X.shape
    text = f"{thousands(n)} rows, {thousands(d)} features, {thousands(data.Y.shape[1])} labels"
    return Output(f"{text} -> {', '.join(written)}", {"rows": n, "features": d, "files": written})


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
    from xmc_fast.data import write_xmc

    write_xmc(out, X, Y)
    return [out]
