"""``xmc-fast demo``: the main job from data to saved model, on the data set inside the package."""

from __future__ import annotations

import argparse
import csv
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from xmc_fast._files import atomic_path
from xmc_fast.cli._common import Output, add_threads, size, stored, thousands
from xmc_fast.cli._svg import grouped_bars

HELP = "train, predict and evaluate on the embedded data set; save the model and a picture"
EXAMPLES = (
    "xmc-fast demo",
    "xmc-fast demo --out somewhere/ --json",
    "xmc-fast demo --files       # also write the data, to try the other commands on",
)
SHOWN = {"precision": "P", "recall": "R", "ndcg": "nDCG", "macro_f1": "macro-F1"}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", default="xmc-fast-demo", metavar="DIR", help="output folder (default xmc-fast-demo)"
    )
    parser.add_argument(
        "--files",
        action="store_true",
        help="also write the data set: train.txt and test.txt (features), train.csv and test.csv (words, tags)",
    )
    add_threads(parser)


def run(args: argparse.Namespace) -> Output:
    from xmc_fast import metrics
    from xmc_fast.data import load_demo, write_xmc
    from xmc_fast.linear import OneVsAll

    demo = load_demo()
    start = time.perf_counter()
    estimator = OneVsAll(n_jobs=args.threads).fit(demo.X_train, demo.Y_train)
    trained = time.perf_counter()
    model = estimator.model_
    prediction = model.predict(demo.X_test, 5, n_jobs=args.threads)
    done = time.perf_counter()
    report = metrics.report(demo.Y_test, prediction)

    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    model.save(out / "model")
    if args.files:
        for part in ("train", "test"):
            X, Y = getattr(demo, f"X_{part}"), getattr(demo, f"Y_{part}")
            write_xmc(out / f"{part}.txt", X, Y)
            texts = repeated(words(X, demo.feature_names), X.data)
            write_csv(out / f"{part}.csv", texts, words(Y, demo.label_names))
    values = {title: [100 * v for v in report[name]] for name, title in SHOWN.items()}
    grouped_bars(out / "report.svg", values, [f"@{k}" for k in report.ks], "stackex-cooking, test set, %")

    n, d = demo.X_train.shape
    per_row = 1e6 * (done - trained) / demo.X_test.shape[0]
    lines = [
        f"stackex-cooking: {thousands(n)} questions, {d} words, {demo.Y_train.shape[1]} tags",
        f"trained {demo.Y_train.shape[1]} classifiers in {trained - start:.2f} s, predicted {demo.X_test.shape[0]}"
        f" test questions at {per_row:.0f} us each",
        "",
        "%         " + "".join(f"{f'@{k}':>8}" for k in report.ks),
        *(f"{title:<10}" + "".join(f"{v:8.2f}" for v in row) for title, row in values.items()),
        "",
        *examples(demo, prediction),
        "",
        f"model ({size(stored(out / 'model'))}): {out / 'model'}   picture: {out / 'report.svg'}",
    ]
    facts = {
        "train_seconds": trained - start,
        "predict_us_per_row": per_row,
        "metrics": {title: dict(zip(map(str, report.ks), row, strict=True)) for title, row in values.items()},
        "model": str(out / "model"),
        "picture": str(out / "report.svg"),
    }
    return Output("\n".join(lines), facts)


def words(matrix: Any, names: list[str]) -> list[list[str]]:
    """The names of each row's columns."""
    flat = [names[j] for j in matrix.indices]
    return [flat[a:b] for a, b in pairwise(matrix.indptr.tolist())]


def repeated(rows: list[list[str]], counts: Any) -> list[list[str]]:
    """Each word as often as it was counted."""
    each = iter(counts.tolist())
    return [[word for word in row for _ in range(int(next(each)))] for row in rows]


def write_csv(path: Path, texts: list[list[str]], tags: list[list[str]]) -> None:
    """Columns text and tags, the tags separated by |."""
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("text", "tags"))
        writer.writerows((" ".join(text), "|".join(row)) for text, row in zip(texts, tags, strict=True))


def examples(demo: Any, prediction: Any, count: int = 3) -> list[str]:
    """A few test questions in words: what they contain, what was predicted, what is true."""
    texts = words(demo.X_test[:count], demo.feature_names)
    found, truth = (words(matrix[:count], demo.label_names) for matrix in (prediction, demo.Y_test))
    lines = []
    for text, predicted, true in zip(texts, found, truth, strict=True):
        lines.append(f"words: {' '.join(text[:12])}{' ...' if len(text) > 12 else ''}")
        lines.append(f"  predicted: {', '.join(predicted)}")
        lines.append(f"  true:      {', '.join(true)}")
    return lines
