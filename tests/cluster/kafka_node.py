"""One scheduler or worker that a Kafka stands between, in a process of its own, for tests of its faults.

`kafka_node.py scheduler|worker DSN NAME ADDRESS FOLDER`: each execution is a line in a file of the folder.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import Collection, Sequence
from datetime import timedelta
from pathlib import Path

from bellringer.backends.kafka.backend import KafkaBackend
from bellringer.clock import SystemClock
from bellringer.core.broker import Broker, BrokerBackend, Inbox, QueueDepths
from bellringer.core.tasks import Registry, make_task
from bellringer.scheduler.service import Scheduler, SchedulerSettings
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.leases import PostgresLeases
from bellringer.worker.service import Worker, WorkerSettings
from bellringer.worker.work_source import BrokerSource

PREFIX = "faults"
SLOTS = 20


class Echo:
    """A post that delivers each message three times: shuffled, to any partition, and some much later."""

    def __init__(self, post: BrokerBackend) -> None:
        self._post = post
        self.name, self.address = post.name, post.address

    def topic(self, pool: str) -> str:
        return self._post.topic(pool)

    def broker(self) -> Broker:
        return _EchoBroker(self._post.broker())

    def inbox(self, pool: str) -> Inbox:
        return self._post.inbox(pool)

    def queue_depths(self) -> QueueDepths:
        return self._post.queue_depths()


class _EchoBroker:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._late: list[tuple[bytes | None, bytes]] = []

    async def prepare(self, topics: Collection[str]) -> None:
        await self._broker.prepare(topics)

    async def send(self, topic: str, parcels: Sequence[tuple[bytes | None, bytes]]) -> list[int]:
        copies: list[tuple[int | None, tuple[bytes | None, bytes]]] = [(None, old) for old in self._late]
        copies += [(place, parcel) for place, parcel in enumerate(parcels)]
        copies += [(None, (None, data)) for _, data in parcels]
        self._late = random.sample([(None, data) for _, data in parcels], len(parcels))
        random.shuffle(copies)
        failed = await self._broker.send(topic, [parcel for _, parcel in copies])
        return [place for place, _ in (copies[at] for at in failed) if place is not None]

    async def close(self) -> None:
        await self._broker.close()


async def main(kind: str, dsn: str, name: str, address: str, folder: str) -> None:
    store = await Store.open(dsn)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    post = KafkaBackend(f"{address}/{PREFIX}?partitions=6", await Catalog(store).installation_name())
    if kind == "scheduler":
        settings = SchedulerSettings(name=name)
        await Scheduler(store, PostgresLeases(store), SystemClock(), settings, Echo(post)).run(stop)
    else:
        lines = os.open(Path(folder) / name, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

        async def mark(n: int) -> None:
            os.write(lines, b"%d\n" % n)
            await asyncio.sleep(0.1)

        registry = Registry()
        registry.add(make_task(mark, name="mark"))
        settings_ = WorkerSettings(pools={"short": SLOTS}, name=name, grace=timedelta(seconds=20))
        await Worker(store, registry, SystemClock(), settings_, BrokerSource(store, post)).run(stop)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:6]))
