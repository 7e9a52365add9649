"""CPU time of training LightXML's encoder: all of it, its upper layers on cached states of the lower ones, low rank.

    python -m bench.speed.bench_frozen --texts 128

One thread, CPU seconds per 1,000 texts and epoch of EURLEX57K texts cut to 128 tokens, MiniLM (6 layers of 384),
batches of 16, 3,786 labels in clusters. The ways take turns; the median of ``--rounds`` counts. What the frozen layers
cost once is a column of its own.
"""

from __future__ import annotations

import lzma
import statistics
import tempfile
import time
import warnings
from typing import Any

import numpy as np
import scipy.sparse as sp

from bench.common import Table, command_line, data_dir, machine
from bench.experiments.lightxml import encoder_folder

WAYS: dict[str, dict[str, Any]] = {
    "whole encoder": {},
    "2 of 6 layers frozen": {"frozen_layers": 2},
    "4 of 6 layers frozen": {"frozen_layers": 4},
    "5 of 6 layers frozen": {"frozen_layers": 5},
    "low rank 8": {"lora": 8},
    "4 layers frozen, low rank 8": {"frozen_layers": 4, "lora": 8},
}
LABELS = 3786


def texts(n: int) -> list[str]:
    """The first texts of the training rows."""
    with lzma.open(
        data_dir("eurlex57k") / "train_texts.txt.xz", "rt", encoding="utf-8", newline="\n"
    ) as file:
        return [next(file).rstrip("\n") for _ in range(n)]


def measure(rows: list[str], Y: Any, options: dict[str, Any]) -> tuple[float, float]:
    """CPU seconds of an epoch, and of the states of frozen layers."""
    from xmc_fast.nn import LightXML, _layers

    filled = 0.0
    original = _layers._fill

    def fill(*arguments: Any) -> None:
        nonlocal filled
        start = time.process_time()
        original(*arguments)
        filled += time.process_time() - start

    epochs: list[float] = []

    class Clock:
        def __getattr__(self, name: str) -> Any:
            return {"state_dict": dict, "on_start": self.start, "on_epoch": self.end}.get(
                name, lambda *_: None
            )

        def start(self, _: Any) -> None:
            self.then = time.process_time()

        def end(self, _: Any) -> None:
            epochs.append(time.process_time() - self.then)

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _layers._fill = fill
        try:
            LightXML(
                encoder_folder(),
                mode="clusters",
                epochs=1,
                warmup_epochs=0,
                max_length=128,
                batch_size=16,
                max_leaf=16,
                beam=16,
                bottleneck=256,
                callbacks=[Clock()],
                layer_cache=folder,
                n_jobs=1,
                device="cpu",
                **options,
            ).fit(rows, Y)
        finally:
            _layers._fill = original
    return epochs[-1], filled


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--texts", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS))
    args = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    rows, rng = texts(args.texts), np.random.default_rng(0)
    Y = sp.csr_matrix(
        (
            np.ones(5 * len(rows), np.float32),
            rng.integers(0, LABELS, 5 * len(rows)),
            5 * np.arange(len(rows) + 1),
        ),
        (len(rows), LABELS),
    )
    Y.sum_duplicates()
    Y.data[:] = 1
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in args.ways}
    for _ in range(args.rounds):
        for way, runs in found.items():
            runs.append(measure(rows, Y, WAYS[way]))
            print(way, [round(1000 * t / len(rows), 1) for t in runs[-1]], flush=True)
    table = Table("lightxml_frozen", ("way", "epoch_s", "once_s", "ratio"), machine())
    for way, runs in found.items():
        epoch, once = (1000 * statistics.median(part) / len(rows) for part in zip(*runs, strict=True))
        base = table.rows[0]["epoch_s"] if table.rows else epoch
        table.add(way=way, epoch_s=epoch, once_s=once, ratio=base / epoch)
    table.save()
    print(table)


if __name__ == "__main__":
    main()
