"""What is done around a model of very many labels: seconds and memory of each step, so that none takes rows x labels.

    python -m bench.speed.tree_tools [--labels 1000000]

Synthetic short texts (set `titles-L` of bench_tree.py), a `LabelTree` trained into a checkpoint,
then each step in the same process on one thread. Seconds are CPU seconds; peak_mb is the peak of all memory of the
process during the step, the data (``data_mb``) included. Needs Linux: the peak is reset through /proc/self/clear_refs.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

from bench.common import Table, command_line
from bench.speed.bench_tree import load
from xmc_fast import LabelTree, decide, metrics, plots, propensity
from xmc_fast.cli import main as command
from xmc_fast.data import describe, write_xmc

COLUMNS = ["labels", "rows", "step", "seconds", "peak_mb", "data_mb"]


def memory(what: str) -> float:
    """MB of the process: VmHWM (peak) or VmRSS."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(what))) / 1e3


def measure(n_labels: int, folder: Path, table: Table) -> None:
    name = f"titles-{n_labels}"
    X, Y = load(name, "train")
    X_test, Y_test = load(name, "test")
    half = X_test.shape[0] // 2
    data_mb = memory("VmRSS")

    def step(what: str, run: Callable[[], Any]) -> Any:
        Path("/proc/self/clear_refs").write_text("5")
        start = time.process_time()
        result = run()
        seconds = time.process_time() - start
        row = {"labels": n_labels, "rows": X.shape[0], "step": what, "seconds": seconds}
        table.add(**row, peak_mb=memory("VmHWM"), data_mb=data_mb)
        table.keep_others("labels", "step")
        table.save()
        print(table.rows[-1] if "machine" not in table.rows[-1] else row, flush=True)
        return result

    def cli(*arguments: str) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            if command([*arguments]):
                raise RuntimeError(f"xmc-fast {arguments} failed")

    def picture(draw: Callable[[], Any]) -> Callable[[], None]:
        return lambda: draw().figure.savefig(folder / "picture.svg")

    step(
        "LabelTree.fit with a checkpoint", lambda: LabelTree(n_jobs=1).fit(X, Y, checkpoint=folder / "model")
    )
    model = step("load", lambda: LabelTree.load(folder / "model"))
    step("describe", lambda: describe(X, Y))
    top = step("predict, 5 of 20,000 rows", lambda: model.predict(X_test, 5, n_jobs=1))
    p = step("propensity.estimate", lambda: propensity.estimate(Y))
    bins = metrics.frequency_bins(Y)
    report = step(
        "metrics.report, propensities and bins",
        lambda: metrics.report(Y_test, top, propensity=p, bins=bins, n_jobs=1),
    )
    step("calibrate, 10,000 rows", lambda: model.calibrate(X_test[:half], Y_test[:half], n_jobs=1))
    proba = step(
        "predict probabilities, 50 of 10,000 rows",
        lambda: model.predict(X_test[half:], 50, proba=True, n_jobs=1),
    )
    step("decide.bca, macro-F1@5", lambda: decide.bca(proba, "macro-f1", 5, n_jobs=1))
    step("decide.FrankWolfe, macro-F1@5", lambda: decide.FrankWolfe("macro-f1", 5).fit(proba))
    step("decide.Thresholds", lambda: decide.Thresholds().fit(proba, Y_test[half:]))
    step("plots.label_distribution", picture(lambda: plots.label_distribution(Y)))
    step("plots.plot_propensity", picture(lambda: plots.plot_propensity(Y, propensity=p)))
    step("plots.plot_report", picture(lambda: plots.plot_report(report)))
    step(
        "plots.reliability", picture(lambda: plots.reliability(model, X_test[half:], Y_test[half:], n_jobs=1))
    )
    step("plots.plot_tradeoff", picture(lambda: plots.plot_tradeoff(proba, lambdas=(0, 0.5, 1), n_jobs=1)))
    train, test = str(folder / "train.txt"), str(folder / "test.txt")
    step("write_xmc of all rows", lambda: write_xmc(train, X, Y))
    write_xmc(test, X_test[half:], Y_test[half:])
    step("xmc-fast info", lambda: cli("info", str(folder / "model")))
    step("xmc-fast evaluate", lambda: cli("evaluate", str(folder / "model"), test, "--threads", "1"))
    options = ("--train", train, "--propensity", "wikipedia", "--bins", "--threads", "1")
    step("xmc-fast evaluate --train", lambda: cli("evaluate", str(folder / "model"), test, *options))


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--labels", type=int, default=1_000_000)
    args = parser.parse_args()
    matplotlib.use("Agg")
    table = Table("tree_tools", COLUMNS)
    with tempfile.TemporaryDirectory() as folder:
        measure(args.labels, Path(folder), table)
    table.keep_others("labels", "step")
    table.save()
    print(table)


if __name__ == "__main__":
    main()
