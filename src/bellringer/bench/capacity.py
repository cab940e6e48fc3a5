"""Computes the machines that a target load needs from measured costs, by plain multiplication."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

FULL: Final = 0.7  # planned utilization of a core; the rest is for bursts and unmodelled work
CORES: Final = 64  # of a large database server
WAL: Final = 1_000.0  # megabytes of WAL per second that its disk can write
A_PARTITION: Final = 5_000.0  # messages per second of one Kafka partition
READS: Final = 0.9  # share of API requests that read a status; the others create a job


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """CPU microseconds per operation, in the database and in our processes; and bytes stored per run."""

    fire_db: float
    fire_node: float
    work_db: float  # claim or take, and settle
    work_worker: float
    send_db: float
    send_node: float
    create_db: float
    create_api: float
    read_db: float
    read_api: float
    kept_bytes: float
    wal_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityTarget:
    """Operations per second."""

    name: str
    fires: float = 0.0
    sends: float = 0.0  # to a broker
    works: float = 0.0
    requests: float = 0.0
    kept: float = 0.0  # runs that wait, or are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """The machines that a target needs, and the resource that runs out first."""

    target: str
    database_cores: float
    nodes: int
    workers: int
    api_processes: int
    partitions: int
    wal_mb_per_second: float
    gigabytes: float
    first_bottleneck: str


TARGETS: Final = (
    CapacityTarget(name="100 M jobs a day, evenly", fires=1_157, sends=1_157, works=1_157),
    CapacityTarget(name="20 M due at midnight, sent within 100 s", fires=200_000, sends=200_000),
    CapacityTarget(name="20 M due at midnight, done within 100 s", fires=200_000, sends=200_000, works=200_000),
    CapacityTarget(name="100 M runs waiting", kept=100e6),
    CapacityTarget(name="10,000 dispatches a second, for good", fires=10_000, sends=10_000, works=10_000),
    CapacityTarget(name="20,000 API requests a second", requests=20_000),
)


def need(target: CapacityTarget, costs: Costs) -> Need:
    """Multiply rates by costs, divide by the planned utilization, and round up."""
    reads, creates = target.requests * READS, target.requests * (1 - READS)
    database = _cores(
        target.fires * costs.fire_db
        + target.sends * costs.send_db
        + target.works * costs.work_db
        + reads * costs.read_db
        + creates * costs.create_db
    )
    wal = max(target.fires, target.works) * costs.wal_bytes / 1e6
    per_node = target.fires * costs.fire_node + target.sends * costs.send_node
    return Need(
        target=target.name,
        database_cores=round(database, 1),
        nodes=math.ceil(_cores(per_node)),
        workers=math.ceil(_cores(target.works * costs.work_worker)),
        api_processes=math.ceil(_cores(reads * costs.read_api + creates * costs.create_api)),
        partitions=math.ceil(target.sends / A_PARTITION),
        wal_mb_per_second=round(wal, 1),
        gigabytes=round(target.kept * costs.kept_bytes / 1e9, 1),
        first_bottleneck=_bottleneck(database, wal, target.kept * costs.kept_bytes),
    )


def _cores(microseconds: float) -> float:
    return microseconds / 1e6 / FULL


def _bottleneck(cores: float, wal: float, kept: float) -> str:
    """Only the database cannot be scaled by adding processes, so one of its limits is reached first."""
    if not cores and not wal:
        return f"the database's disk: {kept / 1e9:,.0f} GB of runs"
    by_cores, by_wal = cores / CORES, wal / WAL
    if by_wal >= by_cores:
        return f"the database's log: {by_wal:.0%} of {WAL:,.0f} MB/s"
    return f"the database's cores: {by_cores:.0%} of {CORES}"
