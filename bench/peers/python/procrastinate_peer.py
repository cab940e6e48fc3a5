"""procrastinate, with psycopg and uvloop."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby

import uvloop
from procrastinate import App, PsycopgConnector

from bench.peers.python.driver import Job, chunks, record, serve, settings

CONCURRENCY = 30
POLL_SECONDS = 0.05  # for jobs whose time has come; the default is 5 s

app = App(connector=PsycopgConnector(conninfo=settings["dsn"], min_size=4, max_size=CONCURRENCY))


@app.task(name="noop")
async def noop(batch: int, number: int, due_us: int) -> None:
    record(batch, number, due_us)


@app.task(name="recurring")
async def recurring(timestamp: int, batch: int, number: int) -> None:
    record(batch, number, timestamp * 1_000_000)


class ProcrastinateClient:
    async def single(self, job: Job) -> None:
        await noop.defer_async(**job._asdict())

    async def bulk(self, jobs: Sequence[Job]) -> None:
        """One call takes several jobs only if they are due at the same time."""
        for due_us, same in groupby(jobs, key=lambda job: job.due_us):
            at = datetime.fromtimestamp(due_us / 1e6, UTC) if due_us else None
            for part in chunks(list(same), settings["chunk"]):
                await noop.configure(schedule_at=at).batch_defer_async(*(job._asdict() for job in part))

    async def register(self, jobs: Sequence[Job]) -> None:
        """Periodic tasks are declared in the worker."""

    async def close(self) -> None:
        pass


async def prepare() -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def client() -> None:
    async with app.open_async():
        await serve(ProcrastinateClient())


async def worker() -> None:
    for number in range(settings["cron_jobs"]):
        arguments = {"batch": settings["cron_batch"], "number": number}
        app.periodic(cron="* * * * *", periodic_id=str(number), task_kwargs=arguments)(recurring)
    async with app.open_async():
        await app.run_worker_async(
            concurrency=CONCURRENCY, fetch_job_polling_interval=POLL_SECONDS, delete_jobs="successful"
        )


if __name__ == "__main__":
    uvloop.run({"prepare": prepare, "client": client, "worker": worker}[sys.argv[1]]())
