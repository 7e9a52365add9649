"""``xmc-fast info``: what is in a data file or a model."""

from __future__ import annotations

import argparse
from typing import Any

from xmc_fast.cli import _models
from xmc_fast.cli._common import Output, add_paths, add_threads, size, stored, thousands
from xmc_fast.cli._inputs import add_input, joined, labels_of, read

HELP = "statistics of a data set, or sizes of a model"
EXAMPLES = (
    "xmc-fast info train.txt.gz",
    "xmc-fast info --format pair trn_X_Xf.txt trn_X_Y.txt",
    "xmc-fast info model/",
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_paths(parser, "FILE", "data, or a model folder")
    add_input(parser)
    add_threads(parser)


def run(args: argparse.Namespace) -> Output:
    from xmc_fast.model import is_model_folder

    return model_info(args.paths[0]) if is_model_folder(args.paths[0]) else data_info(args)


def data_info(args: argparse.Namespace) -> Output:
    """Counts of a data set."""
    from xmc_fast.data import describe
    from xmc_fast.texts._labels import encode

    data = read(args.paths, args)
    if data.texts is None:
        statistics = describe(data.X, data.Y)
        return Output(str(statistics), statistics.to_dict())
    counts: dict[str, Any] = {"rows": data.n_rows, "format": data.format}
    if labels_of(data) is not None:
        encoded = encode(labels_of(data))
        counts |= {
            "labels": len(encoded.names),
            "assignments": int(encoded.Y.nnz),
            "unlabelled": int((~encoded.labelled).sum()),
            "repeated": encoded.repeated,
        }
    counts["empty texts"] = sum(not text.strip() for text in joined(data))
    shown = {name: thousands(value) if isinstance(value, int) else value for name, value in counts.items()}
    return Output("\n".join(f"{name:<12}{value}" for name, value in shown.items()), counts)


def model_info(folder: str) -> Output:
    """Sizes and training parameters of a saved model."""
    from xmc_fast._folder import kind_of, read_any_manifest
    from xmc_fast.model import SparseModel, describe_model
    from xmc_fast.tree import LabelTree

    manifest = read_any_manifest(folder)[1]
    facts: dict[str, Any] = {"kind": kind_of(manifest), "disk_bytes": stored(folder)}
    head = [f"kind        {facts['kind'].replace('_', ' ')}", f"on disk     {size(facts['disk_bytes'])}"]
    own = (
        "sparse_model",
        "text_classifier",
        "text_model",
        "label_tree",
        "mach",
        "neighbours",
        "ensemble",
        "lexical",
    )
    if facts["kind"] not in own:  # needs torch to open
        rest = {key: value for key, value in manifest.items() if key not in ("kind", "history", "params")}
        params = manifest.get("params", {})
        lines = [f"{key:<20} {value}" for key, value in rest.items()]
        lines += ["trained with", *(f"{key:<20} {value}" for key, value in params.items())] if params else []
        return Output("\n".join([*head, *lines]), {**rest, **facts, "params": params})
    model = _models.open_model(folder)
    facts |= _models.sizes(model)
    linear = _models.linear_part(model)
    if linear is not model:
        names, report = model.label_names_, model.fit_report_
        facts |= {"text_columns": model.text_columns_, "fit_report": report}
        head += [
            f"texts       {', '.join(filter(None, model.text_columns_)) or 'one column'}",
            f"names       {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}",
            *(f"  {name.replace('_', ' '):<20} {value}" for name, value in report.items()),
        ]
    if isinstance(linear, SparseModel):
        description = describe_model(linear)
        facts |= {**description.to_dict(), "params": linear.params}
        return Output("\n".join([*head, str(description)]), facts)
    if isinstance(linear, LabelTree):
        facts["params"] = linear.get_params()
        facts["levels"] = [int(level["child_start"][-1]) for level in linear.trees_[0][0]]
        head.append(f"nodes       {' - '.join(map(thousands, facts['levels']))}")
    shown = ("labels", "features", "weights", "trees", "buckets", "repeats")
    head += [f"{name:<11} {thousands(facts[name])}" for name in shown if name in facts]
    return Output("\n".join([*head, f"size        {size(facts['bytes'])}"]), facts)
