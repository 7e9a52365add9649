"""The small form of one-vs-all models: bytes, P@k and speed against the threshold.

    python -m bench.experiments.small_form [--sets eurlex-4k eurlex57k] [--deltas 0.03 0.05 ..]

The models are those of `bench.models`. Writes the table of docs/experiments/pruning.md.
"""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path

from bench.common import Table, command_line, interleave, machine
from bench.models import DELTA, matrices, model_of
from xmc_fast.metrics import precision_at_k

K = 5


def stored(model) -> float:
    """MB of the model's folder."""
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "m")
        return sum(file.stat().st_size for file in (Path(folder) / "m").iterdir()) / 1e6


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--sets", nargs="*", default=["eurlex-4k", "eurlex57k"])
    parser.add_argument(
        "--deltas", nargs="*", type=float, default=[0.01, 0.03, 0.05, 0.06, 0.07, 0.08, 0.09, 0.1]
    )
    args = parser.parse_args()
    columns = ["set", "form", "delta", "weights", "MB", "P@1", "P@3", "P@5", "us_per_row"]
    table = Table("small_form", columns, machine())
    for name in args.sets:
        _, _, X, Y = matrices(name)
        exact = model_of(name)
        forms = {("exact", DELTA): exact.prepare()}
        forms |= {("small", delta): exact.compress(delta=delta) for delta in args.deltas}
        cases = {form: partial(model.predict, X, K, n_jobs=1) for form, model in forms.items()}
        times = interleave(cases, rounds=3, clock=time.process_time, budget=60)
        for (form, delta), model in forms.items():
            top = model.predict(X, K)
            table.add(
                set=name,
                form=form,
                delta=delta,
                weights=model.nnz,
                MB=stored(model),
                **{f"P@{k}": 100 * float(precision_at_k(Y, top, k)) for k in (1, 3, 5)},
                us_per_row=1e6 * times[form, delta] / X.shape[0],
            )
    table.save()


if __name__ == "__main__":
    main()
