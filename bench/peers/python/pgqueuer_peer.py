"""PgQueuer, with asyncpg and uvloop."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.models import Job as QueuedJob
from pgqueuer.queries import Queries

from bench.peers.python.driver import Job, chunks, record, serve, settings

BATCH = 1000
POLL = timedelta(milliseconds=50)  # between two looks for jobs whose time has come; the default is 30 s


def _payload(job: Job) -> bytes:
    return b"%d %d %d" % job


def _delay(job: Job, now: float) -> timedelta | None:
    return timedelta(seconds=job.due_us / 1e6 - now) if job.due_us else None


class PgQueuerClient:
    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    async def single(self, job: Job) -> None:
        await self._queries.enqueue("noop", _payload(job))

    async def bulk(self, jobs: Sequence[Job]) -> None:
        for part in chunks(jobs, settings["chunk"]):
            now = datetime.now(UTC).timestamp()  # noqa: TID251 - a delay is all that it accepts
            await self._queries.enqueue(
                ["noop"] * len(part),
                [_payload(job) for job in part],
                [0] * len(part),
                [_delay(job, now) for job in part],
            )

    async def register(self, jobs: Sequence[Job]) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        pass


async def prepare() -> None:
    await Queries(AsyncpgDriver(await asyncpg.connect(settings["dsn"]))).install()


async def client() -> None:
    await serve(PgQueuerClient(Queries(AsyncpgDriver(await asyncpg.connect(settings["dsn"])))))


async def worker() -> None:
    async with asyncpg.create_pool(settings["dsn"], min_size=2, max_size=8) as pool:
        pgq = PgQueuer(AsyncpgPoolDriver(pool))

        @pgq.entrypoint("noop")
        async def noop(job: QueuedJob) -> None:
            record(*map(int, (job.payload or b"").split()))

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, pgq.shutdown.set)
        await pgq.run(batch_size=BATCH, dequeue_timeout=POLL)


if __name__ == "__main__":
    uvloop.run({"prepare": prepare, "client": client, "worker": worker}[sys.argv[1]]())
