"""Redis, etcd and Kafka, when connections to them go silent without being closed: each is found within 10 s."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from secrets import token_bytes
from uuid import uuid4

import pytest
from tests.support.real_servers import running
from tests.support.silent_proxy import SilentProxy
from tools.servers import Etcd, Kafka, Redis
from tools.servers import kafka as kafka_service

from bellringer.backends.etcd import EtcdLeases
from bellringer.backends.etcd_address import EtcdAddress
from bellringer.backends.kafka.backend import KafkaBackend
from bellringer.backends.redis import pipeline
from bellringer.backends.redis.cache import RedisCache
from bellringer.clock import SystemClock
from bellringer.core.broker import BrokerUnavailable
from bellringer.errors import Unavailable
from bellringer.store.connection_pool import Store
from bellringer.store.leases import PostgresLeases

LIMIT = 10.0
CLOCK = SystemClock()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer than 50 ms for an answer."""
    monkeypatch.setattr(pipeline, "REDIS_TIMEOUT_SECONDS", 1.0)


async def until(holds: Callable[[], Awaitable[bool]], what: str, seconds: float = LIMIT) -> None:
    try:
        async with asyncio.timeout(seconds):
            while not await holds():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"{what}: not within {seconds} s") from None


async def test_hints_and_answers_of_redis_come_again(redis_server: Redis) -> None:
    async with SilentProxy(redis_server.address) as proxy:
        secret, heard = token_bytes(16), list[str]()
        near, far = RedisCache(proxy.address, secret, CLOCK), RedisCache(redis_server.address, secret, CLOCK)
        await near.open()
        await far.open()
        listening = asyncio.create_task(near.subscribe(heard.append))
        try:

            async def hears(text: str) -> bool:
                await far.publish(text)
                await asyncio.sleep(0.05)
                return text in heard

            async def is_reached() -> bool:
                return await near.invalidate(1)

            await until(lambda: hears("before"), "the first hint")
            assert proxy.silence() == 2
            await until(lambda: hears("after"), "a hint after the silence")
            await until(is_reached, "an answer after the silence", 5)
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
            await near.close()
            await far.close()


async def test_a_quiet_redis_is_not_taken_for_a_dead_one(redis_server: Redis) -> None:
    async with SilentProxy(redis_server.address) as proxy:
        cache = RedisCache(proxy.address, token_bytes(16), CLOCK)
        listening = asyncio.create_task(cache.subscribe(lambda _: None))
        await asyncio.sleep(LIMIT)
        assert proxy.accepted == 1
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


async def test_leases_of_etcd_are_renewed_and_freed_ones_noticed_again(etcd_server: Etcd, store: Store) -> None:
    prefix = f"test-{uuid4().hex}"
    async with SilentProxy(etcd_server.address) as proxy:
        near = EtcdLeases(PostgresLeases(store), EtcdAddress.read(f"{proxy.address}/{prefix}", "x"))
        far = EtcdLeases(PostgresLeases(store), EtcdAddress.read(f"{etcd_server.address}/{prefix}", "x"))
        freed = asyncio.Event()
        watching = asyncio.create_task(near.watch(freed.set))
        one, two = uuid4(), uuid4()
        try:
            tokens = await near.acquire(one, 1, [1])
            async with asyncio.timeout(LIMIT):
                await freed.wait()
            assert proxy.silence() == 2

            async def renews() -> bool:
                with suppress(Unavailable):
                    return await near.renew(one, tokens) == tokens.keys()
                return False

            await until(renews, "the lease is renewed", 4)  # before it ends
            await asyncio.sleep(LIMIT - 2)  # by now the watch has been begun anew
            others = await far.acquire(two, 1, [2])
            freed.clear()
            await far.release(two, others)
            async with asyncio.timeout(2):
                await freed.wait()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await near.close()
            await far.close()


@pytest.fixture
async def kafka_proxy(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[SilentProxy]:
    """A broker that tells its clients to come by way of the proxy."""
    async with SilentProxy() as proxy:
        told = "advertised.listeners=CLIENTS://{host}:{clients}"
        assert told in kafka_service.SETTINGS
        by_proxy = f"advertised.listeners=CLIENTS://127.0.0.1:{proxy.port}"
        monkeypatch.setattr(kafka_service, "SETTINGS", kafka_service.SETTINGS.replace(told, by_proxy))
        downloads = pytestconfig.rootpath / ".services" / "kafka"
        for server in running(Kafka(tmp_path_factory.mktemp("kafka"), downloads=downloads)):
            proxy.lead_to(server.address)
            yield proxy


async def test_messages_of_kafka_go_in_and_come_out_again(kafka_proxy: SilentProxy) -> None:
    post = KafkaBackend(f"{kafka_proxy.address}/test?partitions=1", uuid4().hex)
    broker, topic = post.broker(), post.topic("short")
    await broker.prepare([topic])
    inbox = post.inbox("short")
    got: list[bytes] = []
    try:

        async def sent(value: bytes) -> bool:
            with suppress(BrokerUnavailable):
                return await broker.send(topic, [(None, value)]) == []
            return False

        async def receives(value: bytes) -> bool:
            with suppress(BrokerUnavailable):
                got.extend(parcel.data for parcel in await inbox.get(10, 0.2))
                await inbox.commit()
            return value in got

        await until(lambda: sent(b"before"), "the first message is taken", 30)
        await until(lambda: receives(b"before"), "the first message comes", 30)
        assert kafka_proxy.silence() >= 2
        sending = asyncio.create_task(until(lambda: sent(b"after"), "a message is taken after the silence"))
        await until(lambda: receives(b"after"), "a message comes after the silence", LIMIT + 2)
        await sending
    finally:
        await inbox.close()
        await broker.close()
