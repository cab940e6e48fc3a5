"""Dramatiq on Redis. `dramatiq …` loads this module."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.peers.python.driver import Job, record, serve, settings

dramatiq.set_broker(RedisBroker(url=settings["redis"]))


@dramatiq.actor
def noop(batch: int, number: int, due_us: int) -> None:
    record(batch, number, due_us)


class DramatiqClient:
    """Dramatiq has no call for several messages."""

    async def single(self, job: Job) -> None:
        delay_ms = max(job.due_us // 1000 - time.time_ns() // 1_000_000, 0) if job.due_us else None
        noop.send_with_options(args=job, delay=delay_ms)

    async def bulk(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            await self.single(job)

    async def register(self, jobs: Sequence[Job]) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        pass


if __name__ == "__main__":
    asyncio.run(serve(DramatiqClient()))
