"""A rolling restart of every process under load: nothing may be missed or doubled, and the lateness is measured."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import asyncpg

from bellringer.clock import SystemClock
from bench.rolling.fleet import Replacement, RollingFleet, environment_of_this_release
from bench.rolling.judge import RollingVerdict, judge

SERVERS: Final = 2  # one serves while the other restarts
SETTLE_SECONDS: Final = 3.0  # before and after the restarts
DRAIN_SECONDS: Final = 300.0  # for the last runs to end; at a rate that the machine cannot sustain they queue
UNFINISHED: Final = "select exists (select 1 from queue where available_at <= clock_timestamp())"


@dataclass(frozen=True, kw_only=True)
class RollingFigures:
    """The figures of a rolling restart."""

    verdict: RollingVerdict
    restarts: int
    slowest_stop_seconds: float
    slowest_start_seconds: float
    not_ready: list[str]
    failed_requests: list[str]


@asynccontextmanager
async def loaded_fleet(
    dsn: str, folder: Path, environ: dict[str, str], *, jobs: int, sends: int, schedulers: int, workers: int
) -> AsyncIterator[RollingFleet]:
    """A fleet under load: two servers, schedulers, workers and a sender. All are killed at the end."""
    fleet = RollingFleet(dsn, folder)
    probing: asyncio.Task[None] | None = None
    try:
        counts = {"server": SERVERS, "worker": workers, "scheduler": schedulers}
        names = [(kind, f"{kind}-{number + 1}") for kind, count in counts.items() for number in range(count)]
        await asyncio.gather(*(fleet.start(kind, name, environ) for kind, name in names))
        probing = asyncio.create_task(fleet.probe())
        await fleet.create_jobs(jobs)
        await fleet.start("sender", "sender-1", environ, str(sends))
        yield fleet
    finally:
        if probing is not None:
            probing.cancel()
            with suppress(asyncio.CancelledError):
                await probing
        await fleet.close()


async def finish(fleet: RollingFleet, jobs: int, first: int) -> RollingVerdict:
    """Ends the load, lets the last runs end, and judges."""
    clock = SystemClock()
    await fleet.stop_senders()
    last = int(clock.now().timestamp())
    await asyncio.sleep(2)  # occurrences of the last second start
    for name in [member.name for member in fleet.members.values() if member.kind == "scheduler"]:
        await fleet.stop(name)
    connection = await asyncpg.connect(fleet.dsn, server_settings={"search_path": "bellringer"})
    try:
        ends = clock.monotonic() + DRAIN_SECONDS
        while await connection.fetchval(UNFINISHED) and clock.monotonic() < ends:
            await asyncio.sleep(0.2)
    finally:
        await connection.close()
    for name in [member.name for member in fleet.members.values() if member.kind == "worker"]:
        await fleet.stop(name)
    return await judge(fleet.dsn, fleet.record, jobs, first, last - 1)


async def restart_all(
    dsn: str, rate: int, *, schedulers: int = 3, workers: int = 3, rounds: int = 1, by_kind: bool = False
) -> RollingFigures:
    """Restarts every process of a fleet with `rate` runs a second: four fifths recurring jobs, one fifth sends. With
    `by_kind`, processes of different kinds are restarted at the same time.
    """
    environ, jobs = environment_of_this_release(), rate * 4 // 5
    with tempfile.TemporaryDirectory(prefix="bellringer-rolling-") as folder:
        async with loaded_fleet(
            dsn, Path(folder), environ, jobs=jobs, sends=rate - jobs, schedulers=schedulers, workers=workers
        ) as fleet:
            first = int(SystemClock().now().timestamp()) + 2
            await asyncio.sleep(SETTLE_SECONDS)
            replaced: list[Replacement] = []
            for _ in range(rounds):
                replaced += await (fleet.replace_by_kind(environ) if by_kind else fleet.replace_all(environ))
            await asyncio.sleep(SETTLE_SECONDS)
            verdict = await finish(fleet, jobs, first)
        return RollingFigures(
            verdict=verdict,
            restarts=len(replaced),
            slowest_stop_seconds=round(max(each.stop_seconds for each in replaced), 2),
            slowest_start_seconds=round(max(each.start_seconds for each in replaced), 2),
            not_ready=fleet.not_ready,
            failed_requests=fleet.errors,
        )
