"""Recommend what goes with a product: Debian packages and the packages they depend on (set debdeps).

    python bench/examples/recommend_packages.py [--rows 4000] [-k 5]

A package is described by its text, its labels are other packages: the shape of "bought together". Rare labels are
measured apart.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from xmc_fast import OneVsAll, metrics
from xmc_fast.data import read_lines, read_xmc


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=4000, help="training packages used")
    parser.add_argument("-k", type=int, default=5)
    options = parser.parse_args()
    folder = Path(os.environ.get("XMC_DATA", "../shared/data")) / "debdeps"
    if not folder.is_dir():
        raise SystemExit(f"data set not found: {folder} (set XMC_DATA)")

    train, test = (read_xmc(folder / f"{part}.txt.xz") for part in ("train", "test"))
    names = read_lines(folder / "label_names.txt.xz")
    X, Y = train.X[: options.rows], train.Y[: options.rows]

    model = OneVsAll(prune=0.02).fit(X, Y).model_
    best = model.predict(test.X, k=options.k)
    bins = metrics.frequency_bins(Y)
    print(metrics.report(test.Y, best, k=(1, options.k), bins=bins))
    for i in range(3):
        chosen = best.indices[best.indptr[i] : best.indptr[i + 1]]
        print(f"point {i}: {', '.join(names[j] for j in chosen)}")


if __name__ == "__main__":
    main()
