"""Sends jobs to Bellringer with its SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from bellringer import cron
from bench.peers.python.bellringer_app import app, noop
from bench.peers.python.driver import Job, chunks, serve, settings

bulk_sender: Any = noop if hasattr(noop, "asend_many") else None  # older versions send one by one


def _prepared(job: Job) -> Any:
    return noop.options(at=datetime.fromtimestamp(job.due_us / 1e6, UTC)) if job.due_us else noop


class BellringerClient:
    async def single(self, job: Job) -> None:
        await _prepared(job).asend(*job)

    async def bulk(self, jobs: Sequence[Job]) -> None:
        for part in chunks(jobs, settings["chunk"]):
            if bulk_sender is not None:
                await bulk_sender.asend_many(
                    [_prepared(job).message(*job) if job.due_us else tuple(job) for job in part]
                )
            else:
                await asyncio.gather(*(_prepared(job).asend(*job) for job in part))

    async def register(self, jobs: Sequence[Job]) -> None:
        every_minute = cron("* * * * *")
        for part in chunks(jobs, settings["chunk"]):
            await asyncio.gather(*(noop.aschedule(every_minute, *job, id=f"job-{job.number}") for job in part))

    async def close(self) -> None:
        await app.aclose()


if __name__ == "__main__":
    asyncio.run(serve(BellringerClient()))
