"""MACH on the command line: its options for ``train``, and opening its folders."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from xmc_fast.cli._common import Output, open_engine, size, thousands
from xmc_fast.cli._load import Loaded


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``--model mach``."""
    group = parser.add_argument_group("MACH (--model mach); a bucket's model takes the linear options")
    group.add_argument("--buckets", type=int, default=1000, metavar="B", help="buckets (default 1000)")
    group.add_argument("--repeats", type=int, default=16, metavar="R", help="repetitions (default 16)")


class MachModel:
    """A `Mach` with the ``predict`` of the other models."""

    def __init__(self, mach: Any) -> None:
        self.mach = mach

    def predict(
        self, X: Any, k: int, *, proba: bool = False, n_jobs: int | None = None, engine: Any = None
    ) -> Any:
        if proba:
            raise ValueError(
                "a MACH model has no calibrated probabilities: --proba and --optimize do not apply"
            )
        self.mach.n_jobs = n_jobs
        return self.mach.predict(X, k, engine=engine)


def train(args: argparse.Namespace, loaded: Loaded, folder: str, base: Any) -> Output:
    """Fit and save, ``base`` being the estimator of a repetition's buckets."""
    from xmc_fast.mach import Mach

    if loaded.texts is not None:
        raise ValueError("--model mach takes features; make them of the texts with xmc_fast.text first")
    for option in ("labels", "calibrate"):
        if getattr(args, option):
            raise ValueError(f"--{option} is for --model linear")
    model = Mach(args.buckets, args.repeats, base=base, n_jobs=args.threads, random_state=args.seed)
    start = time.perf_counter()
    with open_engine(args) as engine:
        model.fit(loaded.X, loaded.Y, checkpoint=args.checkpoint, engine=engine)
    model.save(folder)
    facts = {**sizes(model), "seconds": time.perf_counter() - start, "model": folder}
    text = f"{describe(facts)} in {facts['seconds']:.1f} s -> {folder}"
    return Output(text, facts)


def info(folder: str) -> Output:
    """What a folder holds."""
    facts = sizes(load(folder).mach)
    return Output(describe(facts), facts)


def sizes(mach: Any) -> dict[str, Any]:
    return {
        "labels": mach.n_labels_,
        "features": mach.n_features_in_,
        "buckets": mach.n_buckets,
        "repeats": mach.n_repeats,
        "bytes": mach.nbytes,
    }


def describe(facts: dict[str, Any]) -> str:
    return (
        f"{thousands(facts['labels'])} labels in {thousands(facts['repeats'])} x {thousands(facts['buckets'])} buckets"
        f" of {thousands(facts['features'])} features, {size(facts['bytes'])}"
    )


def is_folder(folder: str) -> bool:
    """Whether a model folder holds a `Mach`."""
    return (Path(folder) / "mach.json").is_file()


def load(folder: str) -> MachModel:
    """Open a folder."""
    from xmc_fast.mach import Mach

    return MachModel(Mach.load(folder))
