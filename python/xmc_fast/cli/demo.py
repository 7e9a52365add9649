"""``xmc-fast demo``: the main job from data to saved model, on the data set inside the package."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from xmc_fast.cli._common import Output, add_threads, size, stored, thousands
from xmc_fast.cli._svg import grouped_bars

HELP = "train, predict and evaluate on the embedded data set; save the model and a picture"
EXAMPLES = (
    "xmc-fast demo",
    "xmc-fast demo --out somewhere/ --json",
    "xmc-fast demo --files       # also write the data as train.txt and test.txt, to try the other commands on",
)
SHOWN = {"precision": "P", "ndcg": "nDCG", "psp": "PSP", "macro_f1": "macro-F1"}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", default="xmc-fast-demo", metavar="DIR", help="output folder (default xmc-fast-demo)"
    )
    parser.add_argument(
        "--files", action="store_true", help="also write the data set: train.txt and test.txt in the folder"
    )
    add_threads(parser)


def run(args: argparse.Namespace) -> Output:
    from xmc_fast import metrics, propensity
    from xmc_fast.data import load_demo, write_xmc
    from xmc_fast.linear import OneVsAll

    demo = load_demo()
    start = time.perf_counter()
    estimator = OneVsAll(n_jobs=args.threads).fit(demo.X_train, demo.Y_train)
    trained = time.perf_counter()
    model = estimator.model_
    prediction = model.predict(demo.X_test, 5, n_jobs=args.threads)
    done = time.perf_counter()
    report = metrics.report(demo.Y_test, prediction, propensity=propensity.estimate(demo.Y_train))

    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    model.save(out / "model")
    if args.files:
        write_xmc(out / "train.txt", demo.X_train, demo.Y_train)
        write_xmc(out / "test.txt", demo.X_test, demo.Y_test)
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


def examples(demo: Any, prediction: Any, count: int = 3) -> list[str]:
    """A few test questions in words: what they contain, what was predicted, what is true."""
    lines = []
    for i in range(count):
        words = [demo.feature_names[j] for j in demo.X_test[i].indices]
        found = [
            demo.label_names[j] for j in prediction.indices[prediction.indptr[i] : prediction.indptr[i + 1]]
        ]
        truth = [demo.label_names[j] for j in demo.Y_test[i].indices]
        lines.append(f"words: {' '.join(words[:12])}{' ...' if len(words) > 12 else ''}")
        lines.append(f"  predicted: {', '.join(found)}")
        lines.append(f"  true:      {', '.join(truth)}")
    return lines
