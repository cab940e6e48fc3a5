"""APScheduler 3: scheduler and executor are one process, with its jobs in PostgreSQL."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.cron import CronTrigger

from bench.peers.python.driver import Job, record, serve, settings


def noop(batch: int, number: int, due_us: int) -> None:
    """Runs in a thread, which starts before the scheduler has deleted the job; a coroutine would start after it."""
    record(batch, number, due_us)


def make_scheduler() -> AsyncIOScheduler:
    url = settings["dsn"].replace("postgresql:", "postgresql+psycopg:")
    scheduler = AsyncIOScheduler(
        jobstores={"default": SQLAlchemyJobStore(url=url)},
        job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1},
        timezone=UTC,
    )
    # Started but paused, it stores jobs at once; before the start it keeps them in memory.
    scheduler.start(paused=True)
    return scheduler


class APSchedulerClient:
    """Adding a job is a blocking call, even with AsyncIOScheduler. There is no call for several jobs."""

    def __init__(self, scheduler: AsyncIOScheduler) -> None:
        self._scheduler = scheduler

    async def single(self, job: Job) -> None:
        run_date = datetime.fromtimestamp(job.due_us / 1e6, UTC) if job.due_us else None
        self._scheduler.add_job(noop, "date", run_date=run_date, args=job)

    async def bulk(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            await self.single(job)
            await asyncio.sleep(0)  # the scheduler runs on this event loop

    async def register(self, jobs: Sequence[Job]) -> None:
        trigger = CronTrigger.from_crontab("* * * * *", timezone=UTC)
        for job in jobs:
            self._scheduler.add_job(noop, trigger, args=job, id=f"job-{job.number}")

    async def close(self) -> None:
        self._scheduler.shutdown(wait=False)


async def prepare() -> None:
    make_scheduler().shutdown()  # creates its table


async def client() -> None:
    await serve(APSchedulerClient(make_scheduler()))


async def worker() -> None:
    scheduler = make_scheduler()
    scheduler.resume()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    commands = asyncio.create_task(serve(APSchedulerClient(scheduler)))
    await stopped.wait()
    commands.cancel()


if __name__ == "__main__":
    asyncio.run({"prepare": prepare, "client": client, "worker": worker}[sys.argv[1]]())
