"""DBOS: each job is a workflow in a queue."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from dbos import DBOS, DBOSClient, DBOSConfig

from bench.peers.python.driver import Job, record, serve, settings

QUEUE = "noop"
POLL_SECONDS = 0.01  # the default is 1 s
CONFIG: DBOSConfig = {
    "name": "bench",
    "system_database_url": settings["dsn"],
    "log_level": "ERROR",
    "application_version": "1",
}


@DBOS.workflow(name="noop")
def noop(batch: int, number: int, due_us: int) -> None:
    record(batch, number, due_us)


class DBOSSender:
    """DBOS has no call for several workflows. Delays are relative."""

    def __init__(self) -> None:
        self._client = DBOSClient(system_database_url=settings["dsn"])

    async def single(self, job: Job) -> None:
        options: Any = {"workflow_name": "noop", "queue_name": QUEUE, "app_version": "1"}
        if job.due_us:
            options["delay_seconds"] = max(job.due_us / 1e6 - time.time_ns() / 1e9, 0)
        self._client.enqueue(options, *job)

    async def bulk(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            await self.single(job)

    async def register(self, jobs: Sequence[Job]) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        self._client.destroy()


def prepare() -> None:
    DBOS(config=CONFIG)
    DBOS.launch()
    DBOS.register_queue(QUEUE, polling_interval_sec=POLL_SECONDS)
    DBOS.destroy()


def client() -> None:
    asyncio.run(serve(DBOSSender()))


def worker() -> None:
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    DBOS(config=CONFIG)
    DBOS.launch()
    DBOS.register_queue(QUEUE, polling_interval_sec=POLL_SECONDS)
    stopped.wait()
    DBOS.destroy(workflow_completion_timeout_sec=2)


if __name__ == "__main__":
    {"prepare": prepare, "client": client, "worker": worker}[sys.argv[1]]()
