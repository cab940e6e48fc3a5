"""Celery on Redis, with RedBeat for recurring tasks. `celery -A … worker` and `celery -A … beat` load this module."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

from celery import Celery
from celery.schedules import crontab
from redbeat import RedBeatSchedulerEntry

from bench.peers.python.driver import Job, record, serve, settings

app = Celery("bench", broker=settings["redis"])
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=0,  # unlimited: timed tasks wait in the memory of the worker
    worker_disable_rate_limits=True,
    worker_send_task_events=False,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    redbeat_redis_url=settings["redis"],
    beat_max_loop_interval=1,
    timezone="UTC",
)


@app.task(name="noop")
def noop(batch: int, number: int, due_us: int) -> None:
    record(batch, number, due_us)


class CeleryClient:
    """Celery has no call for several tasks; a loop with one producer is its fastest way."""

    def __init__(self) -> None:
        self._producer = app.producer_pool.acquire(block=True)

    async def single(self, job: Job) -> None:
        eta = datetime.fromtimestamp(job.due_us / 1e6, UTC) if job.due_us else None
        noop.apply_async(job, eta=eta, producer=self._producer)

    async def bulk(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            await self.single(job)

    async def register(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            RedBeatSchedulerEntry(f"job-{job.number}", "noop", crontab(), args=list(job), app=app).save()

    async def close(self) -> None:
        self._producer.release()


if __name__ == "__main__":
    asyncio.run(serve(CeleryClient()))
