"""The capacity planner: sane in every direction, near the measured runs, and its data file is complete."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import xmc_fast
from xmc_fast import planner
from xmc_fast.linear import OneVsAll

BASE = {"n": 490_000, "d": 136_000, "labels": 670_000, "nnz": 37_000_000, "machines": 4}


def test_more_of_anything_costs_more():
    base = xmc_fast.plan(**BASE)
    for name, factor in (("n", 2), ("d", 2), ("labels", 2), ("nnz", 2)):
        more = xmc_fast.plan(**{**BASE, name: BASE[name] * factor})
        assert more.cpu_hours >= base.cpu_hours * 0.99, name
        assert more.memory_per_node > base.memory_per_node or name == "labels", name
    assert xmc_fast.plan(**{**BASE, "labels": 2 * BASE["labels"]}).blocks == 2 * base.blocks
    more = xmc_fast.plan(**{**BASE, "machines": 8})
    assert base.hours / 2.2 < more.hours < base.hours / 1.5
    assert more.cpu_hours == base.cpu_hours
    faster = xmc_fast.plan(**BASE, speed=2.0)
    assert faster.cpu_hours == pytest.approx(base.cpu_hours / 2)


def test_workers_beyond_the_units_of_work_do_not_help():
    few = xmc_fast.plan(10_000, 5_000, 2_000, 500_000, machines=2)
    many = xmc_fast.plan(10_000, 5_000, 2_000, 500_000, machines=1000)
    assert many.hours >= few.hours * 0.99


def test_power_law_keeps_the_number_of_assignments():
    positives, share = planner.power_law(10**6, 10**6, 5e6, 0.9)
    assert float(share.sum()) == pytest.approx(1)
    assert float((positives * share).sum() * 1e6) == pytest.approx(5e6, rel=0.05)
    assert (np.diff(positives) <= 0).all()


def test_table_and_errors():
    text = str(xmc_fast.plan(**BASE))
    for word in ("time", "memory per node", "model", "core hours"):
        assert word in text
    with pytest.raises(ValueError, match="machines must be at least 1, got 0"):
        xmc_fast.plan(**{**BASE, "machines": 0})


def test_calibration_file_is_what_the_command_writes():
    path = Path(planner.__file__).parent / "plan.json"
    data = json.loads(path.read_text("utf-8"))
    assert data["machine"]["cpu"]
    assert len(data["measured"]) >= 6
    assert data["seconds"]["largest_error"] < 2.5
    assert all(value >= 0 for value in data["seconds"].values())


@pytest.mark.memory
def test_estimates_are_near_a_real_fit():
    """Within a factor of six on another machine, or a busy one: the order of magnitude is what a plan is for."""
    import time

    X, Y = xmc_fast.data.make_synthetic(8_000, 8_000, 1_000, random_state=3)
    start = time.process_time()
    model = OneVsAll(n_jobs=1).fit(X, Y).model_
    seconds = time.process_time() - start
    estimate = xmc_fast.plan(8_000, 8_000, 1_000, X.nnz, cores=1, labels_per_row=Y.nnz / 8_000)
    assert seconds / 6 < 3600 * estimate.cpu_hours < seconds * 6
    assert model.nnz / 3 < estimate.weights_per_label * 1_000 < model.nnz * 3


def test_tree_or_exact():
    base = xmc_fast.plan(**BASE)
    assert base.tree.cpu_hours < base.cpu_hours / 20
    assert base.tree.model_bytes < base.model_bytes
    for name in ("n", "d", "labels", "nnz"):
        more = xmc_fast.plan(**{**BASE, name: BASE[name] * 2}).tree
        assert more.memory >= base.tree.memory, name
        assert more.cpu_hours >= base.tree.cpu_hours * 0.99 or name == "n", name
    assert base.choose() == "exact"
    assert base.choose(hours=base.hours * 0.9) == "tree"
    assert base.choose(memory=base.memory_per_node) == "exact"
    assert "label tree" in str(base)
    with pytest.raises(ValueError, match="neither model fits into 1e-06 h and 1 GB"):
        base.choose(hours=1e-6, memory=1e9)


def test_tree_forecasts_are_near_what_was_measured():
    data = json.loads((Path(planner.__file__).parent / "plan_tree.json").read_text("utf-8"))
    assert all(value > 0 for value in data["seconds"].values())
    assert all(value > 0 for part in ("bytes", "memory") for value in data[part].values())
    assert len(data["measured"]) >= 8
    for what in ("", "_size", "_memory"):
        assert data[f"largest_error{what}"] < 2.5
