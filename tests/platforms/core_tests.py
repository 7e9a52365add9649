"""The part of the tests that a platform must pass: everything that runs C++ in this process, without networks.

``python tests/platforms/core_tests.py [pytest arguments]`` runs it with the interpreter and the package at hand;
``--short`` takes a smaller part, files among the arguments are run instead, ``--print`` shows the files.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
SHORT = ["core", "knn"]
LONG = [
    *["cluster", "packed", "tail", "weighted_topk"],
    *["decide", "files", "gather_dot", "model_files", "tree"],
    *["data", "data_files", "data_more", "data_read", "data_tables", "ensemble", "explain", "l1"],
    *["linear", "linear_checkpoint", "linear_sklearn", "losses", "mach"],
    *["metrics", "metrics_peers", "metrics_sets", "model", "newton", "predict"],
    *["propensity", "sparse_input", "text", "texts", "texts_decide", "texts_parts"],
    *["threads", "tuning", "update", "windows"],
]


def files(short: bool) -> list[str]:
    return [str(TESTS / f"test_{name}.py") for name in (SHORT if short else sorted({*SHORT, *LONG}))]


if __name__ == "__main__":
    arguments = [a for a in sys.argv[1:] if a not in ("--short", "--print")]
    named = any(".py" in a for a in arguments)
    chosen = [] if named else files("--short" in sys.argv)
    if "--print" in sys.argv:
        print(*chosen)
    else:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-m",
            "not memory and not slow",
        ]
        sys.exit(subprocess.call([*command, *arguments, *chosen], cwd=TESTS.parent))
