"""A Redis that is flushed, killed, stopped, full, read-only or filled with garbage: answers stay right, only slower."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from secrets import token_bytes
from typing import Any
from uuid import UUID

import httpx2
import msgspec
import pytest
from prometheus_client import REGISTRY
from redis.asyncio import Redis as Client
from redis.exceptions import RedisError
from tests.integration.api.conftest import Work, work  # noqa: F401 - a fixture
from tools.servers import Redis

from bellringer.api.app import create_app
from bellringer.api.render import documents
from bellringer.backends.redis.cache import RedisCache
from bellringer.clock import SystemClock
from bellringer.core.runs import Ending, Outcome
from bellringer.store import jobs
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.wakeups import RUNS_CHANNEL, Wakeups, listen

API = "/api/v1"
CLOCK = SystemClock()
BODY: dict[str, Any] = {"task": "demo", "schedule": {"cron": "0 3 * * *"}, "retry": 1}
BAD = Ending(outcome=Outcome.FAILED, error={"type": "E", "message": "no"})
Fault = Callable[[Redis, Client, random.Random], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two API processes on one database and one Redis."""

    one: httpx2.AsyncClient
    two: httpx2.AsyncClient
    caches: tuple[RedisCache, RedisCache]
    store: Store

    async def stored(self, job_id: str) -> bytes:
        job = await jobs.get(self.store, UUID(job_id), 1)
        assert job is not None
        return msgspec.json.encode(documents.render_job(job))


@asynccontextmanager
async def served(
    store: Store, catalog: Catalog, tenants: Store, cache: RedisCache
) -> AsyncIterator[httpx2.AsyncClient]:
    """As a server wires it."""
    app = create_app(store, catalog, tenants, version="1", clock=CLOCK, cache=cache, wakeups=Wakeups(store, CLOCK))
    ear = asyncio.create_task(listen(store, CLOCK, {RUNS_CHANNEL: app.read_cache.handle_notification}))
    transport = httpx2.ASGITransport(app=app)
    await cache.open()
    async with httpx2.AsyncClient(transport=transport, base_url="http://test", timeout=20) as client:
        yield client
    ear.cancel()
    await asyncio.gather(ear, return_exceptions=True)
    await cache.close()


@pytest.fixture
async def pair(store: Store, catalog: Catalog, tenants: Store, redis_server: Redis) -> AsyncIterator[Pair]:
    secret = token_bytes(16)
    caches = RedisCache(redis_server.address, secret, CLOCK), RedisCache(redis_server.address, secret, CLOCK)
    async with AsyncExitStack() as stack:
        one, two = [await stack.enter_async_context(served(store, catalog, tenants, cache)) for cache in caches]
        # Both hear by one connection, as they share a store.
        while not await store.pool.fetchval("select count(*) from pg_stat_activity where query like 'LISTEN%'"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        yield Pair(one, two, caches, store)


@pytest.fixture
async def client(redis_server: Redis) -> AsyncIterator[Client]:
    """Somebody who does to it what nobody should; afterwards it is as before."""
    redis_server.start()
    opened = Client.from_url(redis_server.address)
    yield opened
    redis_server.resume()
    redis_server.start()
    await opened.config_set("maxmemory", 0)
    await opened.replicaof("NO", "ONE")
    await opened.flushall()
    await opened.aclose()


async def flushed(redis: Redis, client: Client, chance: random.Random) -> None:
    await client.flushall()


async def killed(redis: Redis, client: Client, chance: random.Random) -> None:
    """It comes back with what it had written down."""
    redis.kill()
    await asyncio.sleep(chance.uniform(0.0, 0.3))
    redis.start()
    await asyncio.sleep(1.2)  # it is left alone for a second


async def stopped(redis: Redis, client: Client, chance: random.Random) -> None:
    redis.pause()
    await asyncio.sleep(chance.uniform(0.02, 0.4))
    redis.resume()
    await asyncio.sleep(chance.uniform(0.0, 1.3))


async def full(redis: Redis, client: Client, chance: random.Random) -> None:
    await client.config_set("maxmemory", 1)
    await asyncio.sleep(chance.uniform(0.0, 0.3))
    await client.config_set("maxmemory", 0)
    await asyncio.sleep(chance.uniform(0.0, 0.2))


async def read_only(redis: Redis, client: Client, chance: random.Random) -> None:
    """A replica of nobody: it answers, and takes no writes."""
    await client.replicaof("127.0.0.1", "1")
    await asyncio.sleep(chance.uniform(0.0, 0.3))
    await client.replicaof("NO", "ONE")
    await asyncio.sleep(chance.uniform(0.0, 1.3))


async def garbage(redis: Redis, client: Client, chance: random.Random) -> None:
    """Under each of our keys something else: of any length and kind, or what another key had. (Who brings back an old
    generation is no fault, but somebody who knows what he does.)"""
    keys = await client.keys("bellringer:*")
    values = [value for value in await client.mget(keys) if value] if keys else []
    for key in keys:
        kind = chance.randrange(4)
        if kind == 0:
            await client.set(key, chance.randbytes(chance.randrange(0, 300)))
        elif kind == 1 and values and b":generation" not in key:
            await client.set(key, chance.choice(values))
        elif kind == 2:
            await client.delete(key)
            await client.rpush(key, b"x", b"y")
        else:
            await client.delete(key)


FAULTS: list[Fault] = [flushed, killed, stopped, full, read_only, garbage]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
async def test_answers_stay_right(pair: Pair, redis_server: Redis, client: Client, fault: Fault) -> None:
    chance, done, confirmed = random.Random(fault.__name__), asyncio.Event(), [0]
    created = (await pair.one.put(f"{API}/jobs/nightly", json=BODY)).json()
    job_id, reads = created["job_id"], 0

    async def change() -> None:
        """Change it by one process; when that is confirmed, both tell it, byte by byte."""
        n = 0
        while not done.is_set():
            n += 1
            writer = (pair.one, pair.two)[n % 2]
            answer = await writer.put(f"{API}/jobs/nightly", json={**BODY, "kwargs": {"n": n}})
            assert answer.status_code == 200, answer.text
            confirmed[0] = answer.json()["revision"]
            expected = await pair.stored(job_id)
            for reader in (pair.two, pair.one, pair.two, pair.one):
                assert (await reader.get(f"{API}/jobs/{job_id}")).content == expected
            await asyncio.sleep(0.002)

    async def read(reader: httpx2.AsyncClient) -> None:
        """Nobody is told less than what was confirmed before it asked."""
        nonlocal reads
        while not done.is_set():
            before = confirmed[0]
            answer = await reader.get(f"{API}/jobs/{job_id}")
            assert answer.status_code == 200, answer.text
            assert answer.json()["revision"] >= before
            reads += 1
            await asyncio.sleep(0.001)

    async def break_it() -> None:
        async with asyncio.timeout(60):
            faults = 0
            while faults < (4 if fault in (killed, stopped, read_only) else 30) or confirmed[0] < 12:
                with suppress(RedisError, OSError):  # it is in trouble: that is what is wanted
                    await fault(redis_server, client, chance)
                faults += 1
                await asyncio.sleep(0.01)
        done.set()

    async with asyncio.TaskGroup() as group:
        for part in (change(), read(pair.one), read(pair.two), break_it()):
            group.create_task(part)
    assert confirmed[0] >= 12
    assert reads > 12


async def test_a_run_that_is_redriven_is_reported_as_such_whatever_redis_does(
    pair: Pair,
    redis_server: Redis,
    client: Client,
    work: Work,  # noqa: F811
) -> None:
    for away in (False, True):
        run_id = (await pair.one.post(f"{API}/jobs/execute", json={"task": "demo", "retry": 1})).json()["run_id"]
        await work(BAD)
        for reader in (pair.one, pair.two, pair.one):
            assert (await reader.get(f"{API}/runs/{run_id}")).json()["state"] == "dead"
        if away:
            redis_server.pause()
        assert (await pair.one.post(f"{API}/runs/{run_id}/retry")).status_code == 202
        assert (await pair.two.get(f"{API}/runs/{run_id}")).json()["state"] == "retrying"
        redis_server.resume()
        for reader in (pair.two, pair.one) * 5:
            assert (await reader.get(f"{API}/runs/{run_id}")).json()["state"] == "retrying"
        await work(BAD)


async def test_while_redis_is_away_each_process_counts_for_itself(
    pair: Pair, redis_server: Redis, client: Client
) -> None:
    one, two = pair.caches
    await until_back(pair)
    assert [(await one.spend(1, "api", 10)).allowed for _ in range(7)] == [True] * 7
    redis_server.pause()
    let_in = [[(await cache.spend(1, "api", 10)).allowed for _ in range(20)].count(True) for cache in (one, two)]
    redis_server.resume()
    assert 3 <= let_in[0] <= 4  # it has counted what it let in before
    assert 10 <= let_in[1] <= 11


async def test_a_hung_redis_is_asked_once_a_second_and_then_used_again(
    pair: Pair, redis_server: Redis, client: Client
) -> None:
    cache = pair.caches[0]
    await until_back(pair)
    redis_server.pause()
    failures = REGISTRY.get_sample_value("bellringer_cache_failures_total") or 0.0
    start = CLOCK.monotonic()
    for _ in range(500):
        assert await cache.get(1, "a") is None
    took = CLOCK.monotonic() - start
    told = (REGISTRY.get_sample_value("bellringer_cache_failures_total") or 0.0) - failures
    assert 1 <= told <= took + 1
    redis_server.resume()
    await until_back(pair)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "x", "", "9" * 300, "-5", None])
async def test_garbage_in_a_rate_neither_opens_nor_shuts_it(pair: Pair, client: Client, value: str | None) -> None:
    cache = pair.caches[0]
    await until_back(pair)
    await cache.spend(1, "api", 60)
    [key] = await client.keys("bellringer:*:rate:1:api")
    await client.delete(key)
    await (client.rpush(key, "x") if value is None else client.set(key, value))
    verdicts = [await cache.spend(1, "api", 60) for _ in range(70)]
    assert [v.allowed for v in verdicts].count(True) <= 65
    assert verdicts[-1].reset <= 61
    async with asyncio.timeout(20):
        while not (await cache.spend(1, "api", 60)).allowed:  # noqa: ASYNC110
            await asyncio.sleep(0.2)


async def until_back(pair: Pair) -> None:
    """Both processes use Redis (again)."""
    async with asyncio.timeout(30):
        for cache in pair.caches:
            while await cache.get(1, "nothing") is not None or cache.generation(1) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
