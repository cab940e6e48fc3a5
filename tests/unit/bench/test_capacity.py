"""The capacity model: plain multiplication, checked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bellringer.bench.capacity import TARGETS, CapacityTarget, Costs, need

COSTS = Costs(
    fire_db=20,
    fire_node=5,
    work_db=40,
    work_worker=30,
    send_db=20,
    send_node=10,
    create_db=300,
    create_api=500,
    read_db=50,
    read_api=150,
    kept_bytes=500,
    wal_bytes=2_000,
)


def test_cores_are_microseconds_times_rate_over_what_is_planned_for() -> None:
    needed = need(CapacityTarget(name="t", fires=10_000, sends=10_000, works=10_000), COSTS)
    assert needed.database_cores == pytest.approx(10_000 * (20 + 20 + 40) / 1e6 / 0.7, abs=0.1)
    assert needed.nodes == 1  # 0.15 of a core
    assert needed.workers == 1  # 0.43
    assert needed.partitions == 2
    assert needed.wal_mb_per_second == 20.0


def test_requests_are_reads_and_creates() -> None:
    needed = need(CapacityTarget(name="t", requests=20_000), COSTS)
    assert needed.database_cores == pytest.approx((18_000 * 50 + 2_000 * 300) / 1e6 / 0.7, abs=0.1)
    assert needed.api_processes == 6  # 5.3


def test_the_bottleneck_is_what_is_used_up_first() -> None:
    log = need(CapacityTarget(name="t", fires=200_000), COSTS)
    assert log.first_bottleneck == "the database's log: 40% of 1,000 MB/s"
    cores = need(CapacityTarget(name="t", fires=200_000), replace(COSTS, wal_bytes=100))
    assert cores.first_bottleneck == "the database's cores: 9% of 64"
    disk = need(CapacityTarget(name="t", kept=100e6), COSTS)
    assert disk.first_bottleneck == "the database's disk: 50 GB of runs"


def test_every_target_needs_something() -> None:
    for target in TARGETS:
        needed = need(target, COSTS)
        assert needed.database_cores + needed.gigabytes > 0, target
