"""From a CSV file to tf-idf rows, beside pandas and scikit-learn: ``python bench/speed/bench_read.py``.

100,000 rows of about 1 KB (quoted text with commas, German letters, four tags), from the page cache. Reading:
`xmc_fast.data.read` against ``pandas.read_csv`` (with the tags split into lists). End to end: reading, tags and
tf-idf, with the same options and the same result. Wall-clock seconds, best of several interleaved runs, and the
CPU seconds of all threads, which do not depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def make(path: Path, rows: int) -> None:
    """A table with the columns id, text and tags; the same for the same number of rows."""
    rng = random.Random(0)
    words = [
        "".join(rng.choices("abcdefghijklmnopqrstuvwxyzäöü", k=rng.randint(2, 11))) for _ in range(60_000)
    ]
    weights = list(itertools.accumulate(1 / (rank + 10) for rank in range(len(words))))
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "text", "tags"])
        for i in range(rows):
            chosen = rng.choices(words, cum_weights=weights, k=120)
            chosen[10] += ","
            tags = {f"tag{int(rng.paretovariate(0.5)) % 5000}" for _ in range(4)}
            writer.writerow([i, " ".join(chosen), "|".join(sorted(tags))])


def ours(path: Path, threads: int, vectorise: bool) -> Any:
    from xmc_fast import data
    from xmc_fast.text import TfidfVectorizer

    found = data.read(path, n_jobs=threads)
    if not vectorise:
        return found.labels
    return TfidfVectorizer(sublinear_tf=True, min_df=2, n_jobs=threads).fit_transform(found.texts)


def theirs(path: Path, vectorise: bool) -> Any:
    import numpy as np
    import pandas
    from sklearn.feature_extraction.text import TfidfVectorizer

    frame = pandas.read_csv(path, keep_default_na=False)
    labels = frame["tags"].str.split("|").tolist()
    if not vectorise:
        return labels
    return TfidfVectorizer(sublinear_tf=True, min_df=2, dtype=np.float32).fit_transform(frame["text"])


def measure(runs: dict[str, Callable[[], Any]], repeat: int) -> dict[str, tuple[float, float]]:
    """Best wall-clock and CPU seconds of each, interleaved."""
    best = dict.fromkeys(runs, (float("inf"), float("inf")))
    for _ in range(repeat):
        for name, run in runs.items():
            wall, cpu = time.perf_counter(), time.process_time()
            run()
            took = time.perf_counter() - wall, time.process_time() - cpu
            best[name] = (min(best[name][0], took[0]), min(best[name][1], took[1]))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        make(path, args.rows)
        megabytes = os.path.getsize(path) / 1e6
        assert ours(path, 1, False) == theirs(path, False), "the labels differ"
        X, Y = ours(path, args.threads, True), theirs(path, True)
        assert X.shape == Y.shape, "the columns differ"
        assert abs(X - Y).max() <= 1e-6, "the values differ"
        for stage, vectorise in (("read", False), ("read and tf-idf", True)):
            best = measure(
                {
                    "xmc_fast, 1 thread": lambda v=vectorise: ours(path, 1, v),  # type: ignore[misc]
                    f"xmc_fast, {args.threads} threads": lambda v=vectorise: ours(path, args.threads, v),  # type: ignore[misc]
                    "pandas, scikit-learn": lambda v=vectorise: theirs(path, v),  # type: ignore[misc]
                },
                args.repeat,
            )
            peer = best["pandas, scikit-learn"]
            for name, (wall, cpu) in best.items():
                print(
                    f"{stage:16} {name:22} {wall:7.2f} s {megabytes / wall:7.0f} MB/s, {peer[0] / wall:5.1f} x;"
                    f" CPU {cpu:6.2f} s {megabytes / cpu:6.0f} MB/s, {peer[1] / cpu:5.1f} x"
                )


if __name__ == "__main__":
    main()
