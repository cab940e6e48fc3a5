"""Kafka at its worst, while runs execute: each of them executes once, and none is missing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from tools.servers import Kafka

from bellringer.backends.kafka.address import KafkaAddress
from bellringer.backends.kafka.backend import KafkaBackend
from bellringer.engine.send import SendSpec, send
from bellringer.errors import BellringerError
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog

from .conftest import until
from .kafka_node import PREFIX

RUNS = int(os.environ.get("BELLRINGER_HERD", "3000"))
RATE = 150  # runs that are sent in a second, about as many as two workers execute
CHANGE = 5.0  # seconds between two changes of the workers
OUTAGE = 4.0
GARBAGE = b"\xc1 what is this?"
NODE = Path(__file__).with_name("kafka_node.py")


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Kafka]:
    server = Kafka(tmp_path_factory.mktemp("kafka"), downloads=pytestconfig.rootpath / ".services" / "kafka")
    try:
        server.start()
    except BellringerError as error:
        give_up = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        give_up(f"THERE IS NO REAL KAFKA FOR THIS TEST: {error}")
    yield server
    server.kill()


class Fleet:
    """The processes, and what their handlers wrote down."""

    def __init__(self, dsn: str, kafka: Kafka, folder: Path) -> None:
        self._dsn, self._kafka, self._folder = dsn, kafka, folder
        self._started: list[subprocess.Popen[bytes]] = []
        self.executed = folder / "executed"
        self.executed.mkdir()

    def start(self, kind: str, name: str) -> subprocess.Popen[bytes]:
        arguments = [str(NODE), kind, self._dsn, name, self._kafka.address, str(self.executed)]
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen([sys.executable, *arguments], stdout=log, stderr=log)
        self._started.append(process)
        return process

    def executions(self) -> Counter[int]:
        return Counter(int(line) for file in self.executed.iterdir() for line in file.read_bytes().split())

    def end(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()

    async def change(self, store: Store) -> None:
        """For ever, a worker comes, and the oldest goes once it is there."""
        working = [self.start("worker", "first"), self.start("worker", "second")]
        for number in count():
            name = f"worker {number}"
            working.append(self.start("worker", name))

            async def joined(name: str = name) -> bool:
                return bool(await store.pool.fetchval("select exists (select 1 from workers where name = $1)", name))

            await asyncio.gather(asyncio.sleep(CHANGE), until(joined, 120, f"{name} joins"))
            working.pop(0).send_signal(signal.SIGTERM)


@pytest.fixture
def fleet(dsn: str, kafka: Kafka, tmp_path: Path) -> Iterator[Fleet]:
    running = Fleet(dsn, kafka, tmp_path)
    yield running
    running.end()


async def feed(store: Store, catalog: Catalog) -> None:
    """Send runs, somewhat faster than they are executed."""
    for start in range(0, RUNS, RATE // 5):
        batch = range(start, min(RUNS, start + RATE // 5))
        await asyncio.gather(*(send(store, catalog, SendSpec(task="mark", args=(n,)), tenant_id=1) for n in batch))
        await asyncio.sleep(0.2)


@pytest.mark.cluster
@pytest.mark.timeout(600)
async def test_each_run_executes_once_though_kafka_fails_in_every_way(
    store: Store, catalog: Catalog, kafka: Kafka, fleet: Fleet
) -> None:
    post = KafkaBackend(f"{kafka.address}/{PREFIX}?partitions=6", await catalog.installation_name())
    topic, broker = post.topic("short"), post.broker()
    admin = AdminClient({"bootstrap.servers": KafkaAddress.read(post.address).servers})
    fleet.start("scheduler", "node")
    changing, feeding = asyncio.create_task(fleet.change(store)), asyncio.create_task(feed(store, catalog))

    async def executed(part: float) -> None:
        async def enough() -> bool:
            return len(fleet.executions()) >= RUNS * part

        await until(enough, 120 + RUNS / 50, f"{part:.0%} of the runs are executed")

    try:
        await executed(0.15)
        assert await broker.send(topic, [(None, GARBAGE)] * 6) == []

        async def put_aside() -> bool:
            return bool(await store.pool.fetchval("select count(*) = 6 from quarantine"))

        await until(put_aside, 60, "what nobody can read is put aside")
        await executed(0.3)
        await asyncio.to_thread(admin.delete_topics([topic])[topic].result, 10)
        await executed(0.6)
        kafka.kill()
        await asyncio.sleep(OUTAGE)
        kafka.start()
        await executed(1)
        await feeding

        async def settled() -> bool:
            return not await store.pool.fetchval("select exists (select 1 from queue)")

        await until(settled, 60, "all of them are settled")
    finally:
        changing.cancel()
        feeding.cancel()
        await broker.close()
    assert fleet.executions() == Counter(range(RUNS))
    outcomes = await store.pool.fetch("select outcome::text, count(*) from attempts group by 1")
    assert [tuple(row) for row in outcomes] == [("ok", RUNS)], "nothing was lost, and nothing tried again"
    kept = await store.pool.fetch("select topic, message, problem from quarantine")
    assert {(row["topic"], row["message"]) for row in kept} == {(topic, GARBAGE)}
    assert all(row["problem"] for row in kept)
