"""Choose labels for macro-F1 instead of P@k, and see what rare labels gain: on the embedded data.

python bench/examples/tail_labels.py [-k 3]
"""

from __future__ import annotations

import argparse

from xmc_fast import OneVsAll, decide, metrics
from xmc_fast.data import load_demo


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("-k", type=int, default=3)
    k = parser.parse_args().k

    demo = load_demo()
    half = demo.X_train.shape[0] // 2  # one half trains, the other calibrates
    model = OneVsAll().fit(demo.X_train[:half], demo.Y_train[:half]).model_
    model.calibrate(demo.X_train[half:], demo.Y_train[half:])
    proba = model.predict(demo.X_test, k=100, proba=True)

    rule = decide.FrankWolfe("macro-f1", k).fit(proba)
    choices = {
        "top-k": proba,
        "macro-F1, whole test set at once": decide.bca(proba, "macro-f1", k)[0],
        "half P@k, half macro-F1": decide.bca(proba, decide.mix(0.5, "macro-f1"), k)[0],
        "macro-F1, a rule for single points": rule.predict(proba),
    }
    print(f"{'':38}{f'P@{k}':>8}{f'macro-F1@{k}':>12}{f'coverage@{k}':>12}")
    for name, chosen in choices.items():
        values = [
            100 * f(demo.Y_test, chosen, k=k)
            for f in (metrics.precision_at_k, metrics.macro_f1_at_k, metrics.coverage_at_k)
        ]
        print(f"{name:38}{values[0]:8.2f}{values[1]:12.2f}{values[2]:12.2f}")


if __name__ == "__main__":
    main()
