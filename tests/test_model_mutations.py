"""Damaged and crafted model files: an error or a prediction, never a crash."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_no_mutation_crashes(tmp_path):
    script = Path(__file__).with_name("mutate_models.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), str(tmp_path), "700"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    count, refused = (int(word) for word in done.stdout.split() if word.isdigit())
    assert count == 2100
    assert refused > 0.3 * count, done.stdout
