"""Topology from sysfs fixtures, pinning, replicas and where their pages are."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from guest import numa_guest
from xmc_fast import _core

linux = pytest.mark.skipif(sys.platform != "linux", reason="pinning and placement are Linux calls")


def make_sysfs(root, nodes, online=None):
    """A folder like /sys/devices/system/node; nodes maps id -> cpulist."""
    ids = ",".join(map(str, nodes)) if online is None else online
    (root / "online").write_text(ids + "\n")
    (root / "possible").write_text("0-63\n")
    for node, cpus in nodes.items():
        folder = root / f"node{node}"
        folder.mkdir()
        (folder / "cpulist").write_text(cpus + "\n")
        (folder / "distance").write_text("10 21\n")
    return str(root)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("\n", []),
        ("0", [0]),
        ("0-3", [0, 1, 2, 3]),
        ("0-3,8,10-11\n", [0, 1, 2, 3, 8, 10, 11]),
        ("8,0-1", [0, 1, 8]),
        ("1-2,2-3", [1, 2, 3]),
        ("255-256", [255, 256]),
    ],
)
def test_cpulist(text, expected):
    assert _core.parse_cpulist(text) == expected


@pytest.mark.parametrize("text", ["a", "1-", "-1", "3-1", "1,,2", "1,", "1 2", "0x1", "99999999999"])
def test_cpulist_refuses_the_rest(text):
    with pytest.raises(ValueError, match="cpulist: expected"):
        _core.parse_cpulist(text)


def test_one_node(tmp_path):
    root = make_sysfs(tmp_path, {0: "0-7"})
    assert _core.numa_topology(root, []) == [(0, list(range(8)))]


def test_two_nodes_with_hyperthreads(tmp_path):
    root = make_sysfs(tmp_path, {0: "0-1,4-5", 1: "2-3,6-7"}, online="0-1")
    assert _core.numa_topology(root, []) == [(0, [0, 1, 4, 5]), (1, [2, 3, 6, 7])]


def test_eight_nodes(tmp_path):
    root = make_sysfs(tmp_path, {k: f"{16 * k}-{16 * k + 15}" for k in range(8)}, online="0-7")
    topology = _core.numa_topology(root, [])
    assert [node for node, _ in topology] == list(range(8))
    assert [cpu for _, cpus in topology for cpu in cpus] == list(range(128))


def test_offline_nodes_and_nodes_without_cpus_do_not_count(tmp_path):
    root = make_sysfs(tmp_path, {0: "0-1", 1: "2-3", 2: "", 5: "4"}, online="0,2,5")
    assert _core.numa_topology(root, []) == [(0, [0, 1]), (5, [4])]


def test_only_allowed_cpus_count(tmp_path):
    root = make_sysfs(tmp_path, {0: "0-3", 1: "4-7", 2: "8-11"})
    assert _core.numa_topology(root, [1, 2, 9]) == [(0, [1, 2]), (2, [9])]


def test_no_sysfs_is_one_node(tmp_path):
    assert _core.numa_topology(str(tmp_path / "absent"), []) == [(0, [])]
    assert _core.numa_topology(str(tmp_path / "absent"), [3, 4]) == [(0, [3, 4])]


def test_a_node_listed_but_missing_is_skipped(tmp_path):
    assert _core.numa_topology(make_sysfs(tmp_path, {0: "0"}, online="0-1"), []) == [(0, [0])]


@linux
def test_machine():
    topology = _core.numa_machine()
    assert sorted(cpu for _, cpus in topology for cpu in cpus) == sorted(os.sched_getaffinity(0))


@linux
def test_threads_are_pinned_round_robin_and_set_free_again():
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    nodes = [(0, cpus[:1]), (1, cpus[1:2])]
    for thread in range(4):
        seen = _core.numa_pinned_test(nodes, thread, lambda: os.sched_getaffinity(0))
        assert seen == {cpus[thread % 2]}
        assert os.sched_getaffinity(0) == set(cpus)


@linux
def test_one_node_pins_nothing():
    cpus = os.sched_getaffinity(0)
    assert _core.numa_pinned_test([(0, [min(cpus)])], 0, lambda: os.sched_getaffinity(0)) == cpus


def test_a_failing_unit_is_set_free_too():
    def fail():
        raise KeyError("unit")

    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    with pytest.raises(KeyError):
        _core.numa_pinned_test([(0, [0]), (1, [0])], 0, fail)
    if before is not None:
        assert os.sched_getaffinity(0) == before


def test_one_replica_on_one_node():
    values = np.arange(100_000, dtype=np.float32)
    placement, seen = _core.numa_replicas_test(_core.numa_machine()[:1], 4, values)
    assert len({address for address, _ in seen}) == 1
    assert all(total == values.sum(dtype=float) for _, total in seen)
    assert placement[0]["replica_bytes"] == values.nbytes
    if sys.platform == "linux" and placement[0]["pages_seen"]:
        assert 0 < placement[0]["pages_local"] <= placement[0]["pages_seen"]


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_one_replica_per_node_in_use(threads):
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    nodes = [(0, cpus[:1]), (1, cpus[-1:])]
    values = np.arange(50_000, dtype=np.float32)
    placement, seen = _core.numa_replicas_test(nodes, threads, values)
    used = min(threads, 2)
    assert len({address for address, _ in seen}) == used
    assert [p["node"] for p in placement] == list(range(used))
    assert all(total == values.sum(dtype=float) for _, total in seen)
    assert all(address == seen[thread % used][0] for thread, (address, _) in enumerate(seen))


@linux
@pytest.mark.skipif(len(_core.numa_machine()) < 2, reason="this machine has one node")
def test_replicas_are_on_their_nodes():
    placement, _ = _core.numa_replicas_test(_core.numa_machine(), 8, np.ones(1 << 20, np.float32))
    for p in placement:
        assert p["pages_local"] >= 0.95 * p["pages_seen"] > 0


@linux
@pytest.mark.skipif(not os.environ.get("XMC_GUEST_KERNEL"), reason="set XMC_GUEST_KERNEL to a kernel image")
def test_two_node_guest(tmp_path):
    lines = "\n".join(numa_guest.run(Path(os.environ["XMC_GUEST_KERNEL"]), tmp_path))
    assert "node 0 cpus 0 1\n" in lines
    assert "node 1 cpus 2 3\n" in lines
    for thread in range(4):
        assert f"thread {thread} on node {thread % 2}\n" in lines
    for node in (0, 1):
        assert f"replica {node} pages 256 of 256\n" in lines
    assert "done\n" in lines
