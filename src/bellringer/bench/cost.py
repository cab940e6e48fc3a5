"""Computes what a tier needs (cores, memory, disk, WAL) and costs a month, from measured costs and list prices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

from bellringer.bench.capacity import CapacityTarget, Costs, need

HOURS_PER_MONTH: Final = 730
RETENTION_DAYS: Final = 30
WAL_ARCHIVE_DAYS: Final = 7  # for restores to a point in time
JOB_BYTES: Final = 646  # with indexes and two short arguments
DISK_FACTOR: Final = 1.5  # free space, dead rows, logs of runs
WAL_DISK_GB: Final = 20  # max_wal_size, and WAL that a standby has not read yet
PROCESS_GB: Final = 2  # the least memory that is sold with a vCPU; a process uses 63 to 73 MB
DATABASE_GB_PER_VCPU: Final = 4
MIN_DATABASE_VCPUS: Final = 2

# Measured by `bellringer bench simulate-day` on 18 November 2026, on two shared cores of a virtual machine. Fires and
# runs have the costs of 2,000 evenly spread runs a second: they are two to three times those at full load, where more
# runs share a statement, so that the tiers are not sized too small.
REFERENCE_COSTS: Final = Costs(
    fire_db=84.3,
    fire_node=12.5,
    work_db=25.8,
    work_worker=41.5,
    send_db=9.3,
    send_node=3.2,
    create_db=153.3,
    create_api=433.3,
    read_db=13.6,
    read_api=97.1,
    kept_bytes=385.5,
    wal_bytes=1_794.1,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """List prices in US dollars; docs/scale.md names their source and date."""

    process_vcpu_hour: float = 0.04048
    process_gb_hour: float = 0.004445
    database_vcpu_hour: float = 0.089  # with DATABASE_GB_PER_VCPU of memory
    disk_gb_month: float = 0.115
    archive_gb_month: float = 0.023


@dataclass(frozen=True, slots=True, kw_only=True)
class CostTier:
    """A load, and how it is run. Handlers are assumed to use `handler_ms` of CPU time."""

    name: str
    jobs: int
    runs_per_day: float
    peak_runs_per_second: float
    requests_per_second: float
    handler_ms: float = 0.0
    processes_per_role: int = 2  # the least number: one may fail
    standby: bool = True  # a second database server


@dataclass(frozen=True, slots=True, kw_only=True)
class TierCost:
    """The machines of a tier and their price in US dollars a month."""

    tier: str
    database_vcpus: int
    schedulers: int
    workers: int
    api_processes: int
    process_memory_gb: int
    database_memory_gb: int
    disk_gb: int
    wal_gb_per_day: float
    processes_usd: float
    database_usd: float
    storage_usd: float
    total_usd: float
    usd_per_million_runs: float


TIERS: Final = (
    CostTier(
        name="10,000 jobs, 500 runs/s",
        jobs=10_000,
        runs_per_day=1e6,
        peak_runs_per_second=500,
        requests_per_second=3_200,
        processes_per_role=1,
        standby=False,
    ),
    CostTier(
        name="1 M jobs, 10,000 runs/s",
        jobs=1_000_000,
        runs_per_day=20e6,
        peak_runs_per_second=10_000,
        requests_per_second=20_000,
    ),
    CostTier(
        name="10 M jobs, 20,000 runs/s",
        jobs=10_000_000,
        runs_per_day=100e6,
        peak_runs_per_second=20_000,
        requests_per_second=20_000,
    ),
)


def cost_of(tier: CostTier, costs: Costs = REFERENCE_COSTS, prices: Prices | None = None) -> TierCost:
    """Sizes processes for the peak, disk and WAL for the day, and multiplies by the prices."""
    prices = prices or Prices()
    peak = tier.peak_runs_per_second
    costs = replace(costs, work_worker=costs.work_worker + tier.handler_ms * 1_000)
    needed = need(CapacityTarget(name=tier.name, fires=peak, works=peak, requests=tier.requests_per_second), costs)
    least = tier.processes_per_role
    schedulers, workers = max(least, needed.nodes), max(least, needed.workers)
    api = max(least, needed.api_processes)
    vcpus = _power_of_two(max(MIN_DATABASE_VCPUS, needed.database_cores))
    wal_per_day = tier.runs_per_day * costs.wal_bytes / 1e9
    stored = tier.runs_per_day * RETENTION_DAYS * costs.kept_bytes + tier.jobs * JOB_BYTES
    disk = math.ceil(stored / 1e9 * DISK_FACTOR) + WAL_DISK_GB
    processes = schedulers + workers + api
    servers = 2 if tier.standby else 1
    hourly = processes * (prices.process_vcpu_hour + PROCESS_GB * prices.process_gb_hour)
    database = vcpus * prices.database_vcpu_hour * HOURS_PER_MONTH * servers
    storage = disk * prices.disk_gb_month * servers + wal_per_day * WAL_ARCHIVE_DAYS * prices.archive_gb_month
    total = hourly * HOURS_PER_MONTH + database + storage
    return TierCost(
        tier=tier.name,
        database_vcpus=vcpus,
        schedulers=schedulers,
        workers=workers,
        api_processes=api,
        process_memory_gb=processes * PROCESS_GB,
        database_memory_gb=vcpus * DATABASE_GB_PER_VCPU,
        disk_gb=disk,
        wal_gb_per_day=round(wal_per_day, 1),
        processes_usd=round(hourly * HOURS_PER_MONTH),
        database_usd=round(database),
        storage_usd=round(storage),
        total_usd=round(total),
        usd_per_million_runs=round(total / (tier.runs_per_day * HOURS_PER_MONTH / 24 / 1e6), 2),
    )


def _power_of_two(cores: float) -> int:
    """Database servers are sold in powers of two."""
    return int(2 ** math.ceil(math.log2(cores)))


def read_prices(given: Sequence[str]) -> Prices:
    """Returns the list prices with replacements such as `disk_gb_month=0.08`."""
    known = {field.name for field in fields(Prices)}
    changed: dict[str, float] = {}
    for text in given:
        name, _, value = text.partition("=")
        if name not in known:
            raise ValueError(f"there is no price {name!r}; the prices are {', '.join(sorted(known))}")
        changed[name] = float(value)
    return replace(Prices(), **changed)
